"""What a topology is made of, in few words: groups of equal nodes, in tiers, and the links between groups."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from pycoll.topology.model import Link, Topology
from pycoll.topology.reach import distances

__all__ = ["Findings", "Group", "GroupLinks", "Summary", "examine", "summarize"]


@dataclass(frozen=True)
class Group:
    """Nodes whose names differ in their numbers only. ``tier`` 0 holds devices, 1 their switches, ..."""

    name: str  # "s[0-3].gpu[0-7]"
    kind: str
    tier: int
    members: tuple[int, ...]


@dataclass(frozen=True)
class GroupLinks:
    """All links of one sort between two groups; ``upper`` is in the higher tier, or the same."""

    lower: int
    upper: int
    kind: str
    bandwidth: float
    latency: float
    links: int  # a link and its way back count once
    duplex: bool
    per_lower: tuple[int, int]  # fewest and most links of a node
    per_upper: tuple[int, int]


@dataclass(frozen=True)
class Summary:
    """Groups from the highest tier down, and what joins them."""

    groups: tuple[Group, ...]
    links: tuple[GroupLinks, ...]
    group_of: tuple[int, ...] = field(repr=False)  # node -> group

    def below(self, group: int) -> list[GroupLinks]:
        """Links to groups in lower tiers."""
        return [each for each in self.links if each.upper == group and each.lower != group]

    def inside(self, group: int) -> list[GroupLinks]:
        """Links among the nodes of one group."""
        return [each for each in self.links if each.upper == each.lower == group]

    def roots(self) -> list[int]:
        """Groups with nothing above them."""
        under = {each.lower for each in self.links if each.lower != each.upper}
        return [index for index in range(len(self.groups)) if index not in under]


def summarize(topology: Topology) -> Summary:
    """Groups the nodes of a topology and counts the links between groups."""
    tiers = tiers_of(topology)
    numbered: dict[tuple[str, str, int], list[int]] = {}
    for index, node in enumerate(topology.nodes):
        numbered.setdefault((re.sub(r"\d+", "#", node.name), node.kind, tiers[index]), []).append(index)
    order = sorted(numbered, key=lambda key: (-key[2], numbered[key][0]))
    groups = tuple(
        Group(names_of(topology, numbered[key]), key[1], key[2], tuple(numbered[key])) for key in order
    )
    group_of = [0] * len(topology.nodes)
    for number, group in enumerate(groups):
        for member in group.members:
            group_of[member] = number
    return Summary(groups, tuple(_group_links(topology, groups, group_of)), tuple(group_of))


def tiers_of(topology: Topology) -> list[int]:
    """Links from each node to the nearest device; devices are in tier 0, nodes that reach none in tier 1."""
    devices = [index for index, node in enumerate(topology.nodes) if node.kind == "device"]
    found = distances(len(topology.nodes), topology.links, devices)
    return [1 if math.isinf(distance) else int(distance) for distance in found]


_Key = tuple[int, int, str, float, float, bool]


def _group_links(topology: Topology, groups: tuple[Group, ...], group_of: list[int]) -> list[GroupLinks]:
    found: dict[_Key, list[tuple[int, int]]] = {}  # -> (lower node, upper node) of each link
    for link, duplex in paired(topology.links):
        ends = [link.source, link.target]
        # Groups are numbered from the highest tier down.
        if duplex:
            ends.sort(key=lambda node: -group_of[node])
        lower, upper = ends
        key = (group_of[lower], group_of[upper], link.kind, link.bandwidth, link.latency, duplex)
        found.setdefault(key, []).append((lower, upper))
    rows = []
    for (lower, upper, kind, bandwidth, latency, duplex), ends_of in found.items():
        if lower == upper:
            touching = Counter(end for ends in ends_of for end in ends)
            per_lower = per_upper = _span(touching, groups[lower].members)
        else:
            per_lower = _span(Counter(ends[0] for ends in ends_of), groups[lower].members)
            per_upper = _span(Counter(ends[1] for ends in ends_of), groups[upper].members)
        if groups[lower].tier > groups[upper].tier:
            lower, upper, per_lower, per_upper = upper, lower, per_upper, per_lower
        rows.append(
            GroupLinks(lower, upper, kind, bandwidth, latency, len(ends_of), duplex, per_lower, per_upper)
        )
    return sorted(rows, key=lambda row: (row.upper, row.lower, -row.bandwidth))


def _span(counts: Counter[int], members: Iterable[int]) -> tuple[int, int]:
    values = [counts[member] for member in members]
    return min(values), max(values)


def paired(links: Iterable[Link]) -> list[tuple[Link, bool]]:
    """Each link once: with its way back, where there is one with the same figures, or alone."""
    waiting: dict[tuple[int, int, float, float, str], list[int]] = {}
    rows: list[tuple[Link, bool]] = []
    for link in links:
        figures = (link.bandwidth, link.latency, link.kind)
        back = waiting.get((link.target, link.source, *figures))
        if back:
            index = back.pop(0)
            rows[index] = (rows[index][0], True)
        else:
            waiting.setdefault((link.source, link.target, *figures), []).append(len(rows))
            rows.append((link, False))
    return rows


@dataclass(frozen=True)
class Findings:
    """What `topo check` says: what is there, what is wrong, what is odd."""

    ranks: int
    devices: int
    switches: int
    links: int
    slowest: str
    slowest_bandwidth: float
    longest: str
    longest_latency: float
    parts: tuple[tuple[int, ...], ...]
    warnings: tuple[str, ...]


def examine(topology: Topology) -> Findings:
    """Looks a topology over."""
    rows = paired(topology.links)
    switches = sum(node.kind == "switch" for node in topology.nodes)
    slowest = min(topology.links, key=lambda link: link.bandwidth, default=None)
    longest = max(topology.links, key=lambda link: link.latency, default=None)
    return Findings(
        ranks=len(topology.ranks),
        devices=len(topology.nodes) - switches,
        switches=switches,
        links=len(rows),
        slowest=slowest.name if slowest else "",
        slowest_bandwidth=slowest.bandwidth if slowest else 0.0,
        longest=longest.name if longest else "",
        longest_latency=longest.latency if longest else 0.0,
        parts=tuple(tuple(part) for part in topology.parts()),
        warnings=tuple(_oddities(topology, rows)),
    )


def _oddities(topology: Topology, rows: list[tuple[Link, bool]]) -> list[str]:
    nodes = topology.nodes
    neighbours: list[set[int]] = [set() for _ in nodes]
    for link in topology.links:
        neighbours[link.source].add(link.target)
        neighbours[link.target].add(link.source)
    ends = [i for i, node in enumerate(nodes) if node.kind == "switch" and len(neighbours[i]) == 1]
    alone = [i for i in range(len(nodes)) if not neighbours[i] and len(nodes) > 1]
    idle = [i for i, node in enumerate(nodes) if node.kind == "device" and i not in set(topology.ranks)]
    single = [link.name for link, duplex in rows if not duplex]
    warnings = []
    for found, one, many in (
        (alone, "has no link", "have no link"),
        (ends, "leads nowhere: one neighbour only", "lead nowhere: one neighbour only"),
        (idle, "is a device without a rank", "are devices without a rank"),
    ):
        if found:
            warnings.append(f"{names_of(topology, found)} {one if len(found) == 1 else many}")
    if single:
        shown = ", ".join(single[:4]) + (", ..." if len(single) > 4 else "")
        verb = "has" if len(single) == 1 else "have"
        warnings.append(f"{shown} {verb} no way back of the same bandwidth and latency")
    return warnings


def names_of(topology: Topology, indices: Iterable[int]) -> str:
    """Names of nodes in short: ``h[0-3], tor0``."""
    from pycoll.bounds import compact

    return compact(topology.nodes[index].name for index in indices)
