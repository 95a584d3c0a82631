"""Nodes and links of a topology: what each is, and what it may not be."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pycoll.errors import TopologyError

__all__ = ["Link", "Node", "check_link", "check_node", "named"]


@dataclass(frozen=True)
class Node:
    """A device, which ranks may live on, or a switch, which only forwards.

    Of devices only: ``ports`` is the number of transfers that it sends (and receives) at once, 0 for as many
    as it has peers; ``overhead`` the seconds that a transfer holds a port beyond the time of its bytes;
    ``copy_rate`` and ``reduce_rate`` the bytes/s that it copies or adds into a buffer; ``forwards`` whether
    the transfers of others may pass through it, as through the router of a torus.
    """

    name: str
    kind: Literal["device", "switch"] = "device"
    ports: int = 0
    overhead: float = 0.0
    copy_rate: float = math.inf
    reduce_rate: float = math.inf
    forwards: bool = False


@dataclass(frozen=True)
class Link:
    """One direction of a link, from node index ``source`` to node index ``target``.

    ``bandwidth`` is in bytes/s, ``latency`` in seconds. ``kind`` is what sort of link it is ("NVLink4"), for
    people. ``name`` is the topology's to give: ``"tor0->tor1"``, with ``#0``, ``#1``, ... where several run
    in parallel.
    """

    source: int
    target: int
    bandwidth: float
    latency: float = 0.0
    kind: str = ""
    name: str = ""


def check_node(node: Node) -> None:
    """Raises TopologyError for a name or a figure that no node can have."""
    if not node.name or any(character in node.name for character in " \t\n#>[]{}*?,"):
        raise TopologyError(f"{node.name!r} cannot be a node's name: letters, digits, and . _ - : / only")
    if node.kind not in ("device", "switch"):
        raise TopologyError(f"node {node.name}: kind is device or switch, not {node.kind!r}")
    if node.ports < 0:
        raise TopologyError(f"node {node.name}: ports must be 0 (no limit) or more, not {node.ports}")
    if not (node.overhead >= 0 and math.isfinite(node.overhead)):
        raise TopologyError(f"node {node.name}: overhead must be 0 seconds or more, not {node.overhead}")
    for what, rate in (("copy", node.copy_rate), ("reduce", node.reduce_rate)):
        if not rate > 0:
            raise TopologyError(f"node {node.name}: its {what} rate must be positive, not {rate}")


def check_link(link: Link, nodes: Sequence[Node]) -> None:
    """Raises TopologyError for an end that is no node and a figure that no link can have."""
    for end in (link.source, link.target):
        if not 0 <= end < len(nodes):
            raise TopologyError(f"a link ends at node {end}, but there are {len(nodes)} nodes")
    name = f"{nodes[link.source].name}->{nodes[link.target].name}"
    if link.source == link.target:
        raise TopologyError(f"link {name} goes from a node to itself")
    if not (link.bandwidth > 0 and math.isfinite(link.bandwidth)):
        raise TopologyError(f"link {name}: bandwidth must be positive and finite, not {link.bandwidth}")
    if not (link.latency >= 0 and math.isfinite(link.latency)):
        raise TopologyError(f"link {name}: latency must be 0 seconds or more, not {link.latency}")


def named(links: tuple[Link, ...], nodes: Sequence[Node]) -> tuple[Link, ...]:
    """Names are a function of the ends and of the order among parallel links, so that files need none."""
    several = Counter((link.source, link.target) for link in links)
    number: Counter[tuple[int, int]] = Counter()
    named = []
    for link in links:
        ends = (link.source, link.target)
        name = f"{nodes[link.source].name}->{nodes[link.target].name}"
        if several[ends] > 1:
            name += f"#{number[ends]}"
            number[ends] += 1
        named.append(link if link.name == name else replace(link, name=name))
    return tuple(named)
