"""Links and nodes that are alike: what happens when one fails happens when any of its class does.

Colour refinement: nodes begin with the colour of their own figures, and are told apart by the colours of
what they are linked to, until nothing more is told apart (Weisfeiler and Leman 1968; Berkholz, Bonsma and
Grohe 2013). Links that carry different shares of a collective's bytes have different colours from the
beginning, as ranks in different places of a ring or tree are not alike although the machine is.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from pycoll.topology import Topology
from pycoll.whatif.names import cables

__all__ = ["cable_classes", "colours", "node_classes"]


def colours(topology: Topology, loads: Mapping[str, float]) -> tuple[list[int], list[Hashable]]:
    """A colour a node, and one a directed link. ``loads`` is how busy each link is, by name."""
    ranked = set(topology.ranks)
    first: list[Hashable] = [
        (n.kind, n.ports, n.overhead, n.copy_rate, n.reduce_rate, n.forwards, index in ranked)
        for index, n in enumerate(topology.nodes)
    ]
    labels = [
        (link.kind, link.bandwidth, link.latency, float(f"{loads.get(link.name, 0.0):.6g}"))
        for link in topology.links
    ]
    number = {label: index for index, label in enumerate(dict.fromkeys(labels))}
    sorts = [number[label] for label in labels]
    colour = _numbered(first)
    while True:
        around: list[list[tuple[int, int, int]]] = [[] for _ in topology.nodes]
        for link, sort in zip(topology.links, sorts, strict=True):
            around[link.source].append((0, sort, colour[link.target]))
            around[link.target].append((1, sort, colour[link.source]))
        finer = _numbered([(colour[index], tuple(sorted(near))) for index, near in enumerate(around)])
        if len(set(finer)) == len(set(colour)):
            break
        colour = finer
    ends: list[Hashable] = [
        (sort, colour[link.source], colour[link.target])
        for link, sort in zip(topology.links, sorts, strict=True)
    ]
    return colour, ends


def _numbered(keys: list[Hashable]) -> list[int]:
    number = {key: index for index, key in enumerate(dict.fromkeys(keys))}
    return [number[key] for key in keys]


def cable_classes(topology: Topology, loads: Mapping[str, float]) -> list[list[str]]:
    """Names of links without direction, alike ones together, in the topology's order."""
    _, ends = colours(topology, loads)
    found: dict[frozenset[Hashable], list[str]] = {}
    for name, links in cables(topology).items():
        found.setdefault(frozenset(ends[index] for index in links), []).append(name)
    return list(found.values())


def node_classes(topology: Topology, loads: Mapping[str, float], kind: str) -> list[list[str]]:
    """Names of the nodes of a kind (device, switch), alike ones together."""
    colour, _ = colours(topology, loads)
    found: dict[int, list[str]] = {}
    for index, node in enumerate(topology.nodes):
        if node.kind == kind:
            found.setdefault(colour[index], []).append(node.name)
    return list(found.values())
