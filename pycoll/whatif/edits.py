"""Edits of a topology's graph, of which changes are made: links or nodes gone, parts copied."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from pycoll.errors import TopologyError
from pycoll.topology import Link, Topology
from pycoll.topology.summary import tiers_of
from pycoll.whatif.names import nodes_meant
from pycoll.whatif.tiers import hanging_on

__all__ = [
    "leaves",
    "part_of",
    "ups_and_downs",
    "with_copy",
    "with_links",
    "without_links",
    "without_nodes",
]


def with_links(topology: Topology, links: Iterable[Link]) -> Topology:
    """The topology with other links."""
    return replace(topology, links=tuple(links), text=None)


def without_links(topology: Topology, gone: Iterable[int]) -> Topology:
    """The topology without the links of these indices."""
    chosen = set(gone)
    return with_links(topology, (link for index, link in enumerate(topology.links) if index not in chosen))


def without_nodes(topology: Topology, gone: Iterable[int], blame: str) -> Topology:
    """The topology without these nodes and what hangs on them; ranks are numbered anew.

    Raises TopologyError, which names ``blame``, where no rank is left.
    """
    lost = set(gone)
    kept = [index for index in range(len(topology.nodes)) if index not in lost]
    moved = {old: new for new, old in enumerate(kept)}
    ranks = tuple(moved[index] for index in topology.ranks if index in moved)
    if not ranks:
        raise TopologyError(f"{blame} leaves no ranks of topology {topology.name!r}")
    links = (
        replace(link, source=moved[link.source], target=moved[link.target])
        for link in topology.links
        if link.source in moved and link.target in moved
    )
    nodes = tuple(topology.nodes[index] for index in kept)
    return replace(topology, nodes=nodes, links=tuple(links), ranks=ranks, text=None)


def part_of(topology: Topology, what: str) -> list[int]:
    """The nodes meant; a single switch brings what hangs on it alone."""
    sort, _, name = what.partition(":")
    meant = nodes_meant(topology, name if sort == "node" and name else what)
    found = set(meant)
    for index in meant:
        if topology.nodes[index].kind == "switch" and len(meant) < len(topology.nodes):
            found.update(hanging_on(topology, index))
    return sorted(found)


def ups_and_downs(topology: Topology) -> tuple[list[list[int]], list[list[int]]]:
    """By node, the links that leave it upwards (also to its own tier), and those that come in from below."""
    tiers = tiers_of(topology)
    ups: list[list[int]] = [[] for _ in topology.nodes]
    downs: list[list[int]] = [[] for _ in topology.nodes]
    for index, link in enumerate(topology.links):
        if tiers[link.source] and tiers[link.target] >= tiers[link.source]:
            ups[link.source].append(index)
        if tiers[link.source] < tiers[link.target]:
            downs[link.target].append(index)
    return ups, downs


def leaves(topology: Topology, ups: list[list[int]], downs: list[list[int]]) -> list[int]:
    """Switches of the lowest tier that gather several nodes and lead on upwards."""
    tiers = tiers_of(topology)
    gathering = [
        index
        for index, node in enumerate(topology.nodes)
        if node.kind == "switch" and ups[index] and len({topology.links[k].source for k in downs[index]}) > 1
    ]
    if not gathering:
        raise TopologyError(
            f"topology {topology.name!r} has no switch to oversubscribe: none with several nodes below and "
            "links upwards"
        )
    lowest = min(tiers[index] for index in gathering)
    return [index for index in gathering if tiers[index] == lowest]


_NUMBERED = re.compile(r"^(.*?)(\d+)$")


def with_copy(topology: Topology, part: list[int], what: str) -> Topology:
    """The topology with the part once more; ``what`` is what it was called."""
    rename = _renaming(topology, part, what)
    copy_of = {old: len(topology.nodes) + place for place, old in enumerate(part)}
    nodes = tuple(replace(topology.nodes[old], name=rename(topology.nodes[old].name)) for old in part)
    links = [
        replace(
            link, source=copy_of.get(link.source, link.source), target=copy_of.get(link.target, link.target)
        )
        for link in topology.links
        if link.source in copy_of or link.target in copy_of
    ]
    ranks = tuple(copy_of[node] for node in topology.ranks if node in copy_of)
    return replace(
        topology,
        nodes=topology.nodes + nodes,
        links=topology.links + tuple(links),
        ranks=topology.ranks + ranks,
        text=None,
    )


def _renaming(topology: Topology, part: list[int], what: str) -> Callable[[str], str]:
    """The next free number: of the group's name where the part is one of names, or of each node's."""
    taken = {node.name for node in topology.nodes}
    names = [topology.nodes[index].name for index in part]
    if all(name.startswith(f"{what}.") for name in names):
        stem, number = _stem(what)
        fresh = next(
            f"{stem}{count}"
            for count in range(number + 1, len(taken) + number + 2)
            if not any(name.startswith(f"{stem}{count}.") for name in taken)
        )
        return lambda name: fresh + name[len(what) :]
    highest: dict[str, int] = {}
    for name in taken:
        stem, number = _stem(name)
        highest[stem] = max(highest.get(stem, -1), number)
    new: dict[str, str] = {}
    for name in names:
        stem, _ = _stem(name)
        highest[stem] += 1
        new[name] = f"{stem}{highest[stem]}"
    return new.__getitem__


def _stem(name: str) -> tuple[str, int]:
    match = _NUMBERED.match(name)
    return (match[1], int(match[2])) if match else (name, 0)
