"""Where nodes stand in a picture of a topology: in tiers, on a circle, on the grid of a torus."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field

from pycoll.topology.canvas import Point, Sort
from pycoll.topology.model import Topology
from pycoll.topology.summary import paired, tiers_of

__all__ = [
    "Places",
    "circle_places",
    "grid_of",
    "grid_places",
    "label_of",
    "links_of",
    "places",
    "switch_width",
    "tier_places",
]


@dataclass(frozen=True)
class Places:
    """Where each node's middle stands, from the lower left corner, and the size of it all; in inches.

    ``rows`` are the nodes of each tier, of ``sort`` tiers; -1 are switches of devices alone, below these.
    """

    sort: str  # tiers, circle, grid
    where: dict[int, Point]
    width: float
    height: float
    tiers: list[int] = field(default_factory=list)
    rows: dict[int, list[int]] = field(default_factory=dict)


def places(topology: Topology) -> Places:
    """The places that suit the machine best."""
    grid = grid_of(topology)
    if grid is not None:
        return grid_places(grid)
    if all(node.kind == "device" for node in topology.nodes):
        return circle_places(topology)
    return tier_places(topology)


def label_of(name: str) -> str:
    """The whole name where it is short, or its last part."""
    return name if len(name) <= 12 else name.rsplit(".", 1)[-1]


def switch_width(label: str) -> float:
    """Of a switch's box with that label."""
    return max(0.5, 0.085 * len(label) + 0.15)


def links_of(topology: Topology) -> dict[tuple[int, int, Sort], int]:
    """Links, both directions once and parallel ones counted."""
    found: Counter[tuple[int, int, Sort]] = Counter()
    for link, _ in paired(topology.links):
        low, high = sorted((link.source, link.target))
        found[low, high, (link.kind, link.bandwidth, link.latency)] += 1
    return dict(found)


# ---- tiers


def tier_places(topology: Topology) -> Places:
    """Devices in a row, the tree of their switches above; switches of devices alone, as NVSwitches, below."""
    tiers = tiers_of(topology)
    neighbours: dict[int, set[int]] = {index: set() for index in range(len(topology.nodes))}
    for link in topology.links:
        neighbours[link.source].add(link.target)
        neighbours[link.target].add(link.source)
    below = _below(topology, tiers, neighbours)
    rows: dict[int, list[int]] = {}
    for index in range(len(topology.nodes)):
        rows.setdefault(-1 if index in below else tiers[index], []).append(index)

    live = {index: rank for rank, index in enumerate(topology.ranks)}
    devices = sorted(rows[0], key=lambda index: (live.get(index, len(live)), index))
    pitch = 0.78 if len(devices) <= 24 else 0.42
    x: dict[int, float] = {}
    cursor, group = 0.0, None
    for index in devices:  # a gap between servers, racks, sockets: where the name's first parts differ
        here = topology.nodes[index].name.rpartition(".")[0]
        cursor += 0.35 * pitch if group is not None and here != group else 0.0
        x[index], group = cursor, here
        cursor += pitch
    extent = max(cursor - pitch, 1.0)
    for tier in sorted(row for row in rows if row != 0):
        widest = max(switch_width(label_of(topology.nodes[index].name)) for index in rows[tier])
        _place(rows[tier], tier, tiers, neighbours, x, extent, pitch, widest)
    left = min(x.values())
    margin = 0.7
    direct = [key for key in links_of(topology) if tiers[key[0]] == tiers[key[1]] == 0]
    step = 1.5 if len(devices) <= 24 else 1.9
    # Arcs between devices hang below them, by at most this.
    depth = 0.3 + max((0.25 * abs(x[a] - x[b]) for a, b, _ in direct), default=0.0)
    base = 0.5 + (depth if direct else 0.0) + (step if -1 in rows else 0.0)
    y = {index: base + step * row for row, members in rows.items() for index in members}
    where = {index: (x[index] - left + margin, y[index]) for index in x}
    width = max(x.values()) - left + 2 * margin
    return Places("tiers", where, width, base + step * max(rows) + 0.2, tiers, rows)


def _below(topology: Topology, tiers: list[int], neighbours: dict[int, set[int]]) -> set[int]:
    """Switches that see devices only, where other switches of those devices go on upwards."""
    only = {
        index
        for index, node in enumerate(topology.nodes)
        if node.kind == "switch" and tiers[index] == 1 and all(tiers[near] == 0 for near in neighbours[index])
    }
    others = any(node.kind == "switch" and i not in only for i, node in enumerate(topology.nodes))
    return only if others else set()


def _place(
    row: list[int],
    tier: int,
    tiers: list[int],
    neighbours: dict[int, set[int]],
    x: dict[int, float],
    extent: float,
    pitch: float,
    widest: float,
) -> None:
    """Each over the middle of what hangs on it, in that order, with room for each."""

    def middle(index: int) -> float:
        under = [x[near] for near in neighbours[index] if near in x and (tiers[near] < tier or tier < 0)]
        return sum(under) / len(under) if under else extent / 2

    room = min(pitch, 0.78) if len(row) > 24 else widest + 0.15
    wanted = {index: middle(index) for index in row}
    ordered = sorted(row, key=lambda index: (round(wanted[index], 6), index))
    placed: list[float] = []
    for index in ordered:
        placed.append(max(wanted[index], placed[-1] + room) if placed else wanted[index])
    # Pushed to the right only; centre each run of neighbours over what it wanted.
    start = 0
    for end in range(1, len(ordered) + 1):
        if end == len(ordered) or placed[end] - placed[end - 1] > room + 1e-9:
            run = range(start, end)
            drift = sum(placed[i] - wanted[ordered[i]] for i in run) / len(run)
            for i in run:
                placed[i] -= drift
            start = end
    for i in range(1, len(placed)):
        placed[i] = max(placed[i], placed[i - 1] + room)
    x.update(zip(ordered, placed, strict=True))


# ---- a circle, a torus


def circle_places(topology: Topology) -> Places:
    """Devices that are linked to each other only."""
    count = len(topology.nodes)
    radius = max(1.6, 0.8 * count / math.pi)
    ranked = set(topology.ranks)
    others = [index for index in range(count) if index not in ranked]
    order = {index: place for place, index in enumerate([*topology.ranks, *others])}
    where = {
        index: (
            radius + 0.6 + radius * math.sin(2 * math.pi * place / count),
            radius + 0.5 + radius * math.cos(2 * math.pi * place / count),
        )
        for index, place in order.items()
    }
    return Places("circle", where, 2 * radius + 1.2, 2 * radius + 1.0)


def grid_of(topology: Topology) -> dict[int, tuple[int, ...]] | None:
    """Coordinates of the devices of a torus or mesh: each link changes one of them, by one or around."""
    if len(topology.nodes) < 4 or any(node.kind == "switch" for node in topology.nodes):
        return None
    grid = {i: tuple(map(int, re.findall(r"\d+", node.name))) for i, node in enumerate(topology.nodes)}
    dimensions = {len(place) for place in grid.values()}
    if len(set(grid.values())) < len(grid) or dimensions not in ({2}, {3}):
        return None
    for link in topology.links:
        a, b = grid[link.source], grid[link.target]
        if sum(one != other for one, other in zip(a, b, strict=True)) != 1:
            return None
    return grid


def grid_places(grid: dict[int, tuple[int, ...]]) -> Places:
    """Two dimensions as a grid, three as one grid a plane."""
    depth = max(len(place) for place in grid.values())
    sides = [max(place[axis] for place in grid.values()) + 1 for axis in range(depth)]
    planes = sides[0] if depth == 3 else 1
    # Planes stand behind one another, each a little up and to the right; so nodes of a plane stand apart.
    across, down = (1.0, 1.0) if depth == 2 else (0.65 * planes, 0.5 * planes)

    def position(place: tuple[int, ...]) -> Point:
        plane = place[0] if depth == 3 else 0
        return 0.9 + place[-1] * across + plane * 0.48, 0.9 + (
            sides[-2] - 1 - place[-2]
        ) * down + plane * 0.36

    where = {index: position(place) for index, place in grid.items()}
    width = max(point[0] for point in where.values()) + 0.9
    return Places("grid", where, width, max(point[1] for point in where.values()) + 0.7)
