"""Pictures of topologies: switches in tiers over their devices, or devices on the grid of a torus."""

from __future__ import annotations

import math
import re
from collections import Counter
from os import PathLike
from typing import TYPE_CHECKING

from pycoll.errors import Unsupported
from pycoll.topology.canvas import Canvas, Point, Sort
from pycoll.topology.model import Topology
from pycoll.topology.summary import paired, summarize, tiers_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_topology"]

_MOST_NODES = 110  # of more, groups are drawn in place of nodes


def draw_topology(topology: Topology, path: str | PathLike[str] | None = None, *, dpi: int = 150) -> Figure:
    """Draws a topology, and writes the picture to ``path`` where given. See :meth:`Topology.draw`."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Unsupported("drawing needs matplotlib: pip install 'pycoll[plot]'") from error
    grid = _grid(topology)
    if grid is not None:
        picture = _torus(topology, grid, Figure)
    elif len(topology.nodes) > _MOST_NODES:
        picture = _groups(topology, Figure)
    elif all(node.kind == "device" for node in topology.nodes):
        picture = _circle(topology, Figure)
    else:
        picture = _tiers(topology, Figure)
    if path is not None:
        picture.savefig(path, dpi=dpi)
    return picture


def _short(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _label(name: str) -> str:
    """The whole name where it is short, or its last part."""
    return name if len(name) <= 12 else _short(name)


def _links_of(topology: Topology) -> dict[tuple[int, int, Sort], int]:
    """Links, both directions once and parallel ones counted."""
    found: Counter[tuple[int, int, Sort]] = Counter()
    for link, _ in paired(topology.links):
        low, high = sorted((link.source, link.target))
        found[low, high, (link.kind, link.bandwidth, link.latency)] += 1
    return dict(found)


# ---- tiers


def _tiers(topology: Topology, figure: type[Figure]) -> Figure:
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
        widest = max(_switch_width(_label(topology.nodes[index].name)) for index in rows[tier])
        _place(rows[tier], tier, tiers, neighbours, x, extent, pitch, widest)
    left = min(x.values())
    margin = 0.7
    direct = [key for key in _links_of(topology) if tiers[key[0]] == tiers[key[1]] == 0]
    step = 1.5 if len(devices) <= 24 else 1.9
    # Arcs between devices hang below them, by at most this.
    depth = 0.3 + max((0.25 * abs(x[a] - x[b]) for a, b, _ in direct), default=0.0)
    base = 0.5 + (depth if direct else 0.0) + (step if -1 in rows else 0.0)
    top = max(rows)
    y = {index: base + step * (row if row >= 0 else -1) for row, members in rows.items() for index in members}
    where = {index: (x[index] - left + margin, y[index]) for index in x}
    width = max(x.values()) - left + 2 * margin
    canvas = Canvas(topology, figure, width, base + step * top + 0.2)
    for (a, b, sort), count in _links_of(topology).items():
        _tier_link(canvas, where, tiers, (a, b), sort, count)
    crowded = max(len(members) for members in rows.values()) > 24
    for index, node in enumerate(topology.nodes):
        label = _label(node.name)
        if node.kind == "device":
            label = label if crowded else f"{label}\nrank {live[index]}" if index in live else label
            size = (0.36, 0.28) if crowded else (0.66, 0.44)
            canvas.node(where[index], str(live.get(index, "")) if crowded else label, "device", size, 7.5)
        else:
            size = (_switch_width(label), 0.3)
            tight = crowded and tiers[index] == 1 and index not in below and len(rows[1]) > 24
            label = _short(node.name) if tight else label
            canvas.node(where[index], label, "switch", (0.38, 0.24) if tight else size, 5.5 if tight else 7.5)
    return canvas.figure


def _switch_width(label: str) -> float:
    return max(0.5, 0.085 * len(label) + 0.15)


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


def _tier_link(
    canvas: Canvas,
    where: dict[int, Point],
    tiers: list[int],
    ends: tuple[int, int],
    sort: Sort,
    count: int,
) -> None:
    a, b = sorted(ends, key=lambda index: where[index][0])
    if where[a][1] != where[b][1]:
        for number in range(min(count, 4)):
            canvas.link(where[a], where[b], sort, offset=0.045 * (number - (min(count, 4) - 1) / 2))
        return
    flat = where[b][0] - where[a][0]
    down = tiers[a] == 0
    for number in range(min(count, 4)):
        if down:  # from the lower edges, so that short ways show too
            ends_at = [(x, y - 0.16) for x, y in (where[a], where[b])]
            canvas.link(ends_at[0], ends_at[1], sort, 0.5 + 0.06 * number)
            continue
        height = 0.4 + 0.15 * number  # over the row, whatever the distance
        bend = 0.0 if flat < 1.6 and count == 1 else -min(0.2 + 0.06 * number, 2 * height / flat)
        canvas.link(where[a], where[b], sort, bend)


# ---- a circle, a torus


def _circle(topology: Topology, figure: type[Figure]) -> Figure:
    """Devices that are linked to each other only."""
    count = len(topology.nodes)
    radius = max(1.6, 0.8 * count / math.pi)
    order = {index: place for place, index in enumerate([*topology.ranks, *_without_rank(topology)])}
    where = {
        index: (
            radius + 0.6 + radius * math.sin(2 * math.pi * place / count),
            radius + 0.5 + radius * math.cos(2 * math.pi * place / count),
        )
        for index, place in order.items()
    }
    canvas = Canvas(topology, figure, 2 * radius + 1.2, 2 * radius + 1.0)
    for (a, b, sort), links in _links_of(topology).items():
        for number in range(min(links, 4)):
            canvas.link(where[a], where[b], sort, offset=0.05 * (number - (min(links, 4) - 1) / 2))
    _devices(canvas, topology, where, (0.66, 0.44))
    return canvas.figure


def _without_rank(topology: Topology) -> list[int]:
    return [index for index in range(len(topology.nodes)) if index not in set(topology.ranks)]


def _devices(canvas: Canvas, topology: Topology, where: dict[int, Point], size: Point) -> None:
    live = {index: rank for rank, index in enumerate(topology.ranks)}
    for index, node in enumerate(topology.nodes):
        numbers = ".".join(re.findall(r"\d+", node.name))
        name = node.name if len(node.name) <= 7 else numbers
        label = f"{name}\nrank {live[index]}" if index in live else name
        canvas.node(where[index], label, "device", size, 7.0 if len(name) < 7 else 6.0)


def _grid(topology: Topology) -> dict[int, tuple[int, ...]] | None:
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


def _torus(topology: Topology, grid: dict[int, tuple[int, ...]], figure: type[Figure]) -> Figure:
    """Two dimensions as a grid, three as one grid a plane; the way around is an arc."""
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
    height = max(point[1] for point in where.values()) + 0.7
    canvas = Canvas(topology, figure, width, height)
    for (a, b, sort), _ in _links_of(topology).items():
        axis = next(axis for axis in range(depth) if grid[a][axis] != grid[b][axis])
        around = abs(grid[a][axis] - grid[b][axis]) > 1
        canvas.link(where[a], where[b], sort, _bend(axis - depth, where[a], where[b]) if around else 0.0)
    size = (0.62, 0.42) if depth == 2 else (0.44, 0.3)
    live = {index: rank for rank, index in enumerate(topology.ranks)}
    order = sorted(grid, key=lambda index: -(grid[index][0] if depth == 3 else 0))
    for index in order:
        rank = str(live.get(index, "no"))
        label = rank if depth == 3 else f"{_coordinates(grid[index])}\nrank {rank}"
        canvas.node(where[index], label, "device", size, 6.5 if depth == 2 else 7.5)
    return canvas.figure


def _coordinates(place: tuple[int, ...]) -> str:
    return ",".join(map(str, place))


def _bend(axis: int, a: Point, b: Point) -> float:
    """Around the outside: rows bow upwards, columns to the left."""
    if axis == -1:
        return -0.13 if a[0] < b[0] else 0.13
    return 0.13 if a[1] < b[1] else -0.13


# ---- groups


def _groups(topology: Topology, figure: type[Figure]) -> Figure:
    """A box a group of equal nodes, with how many there are, and how many links each has."""
    summary = summarize(topology)
    rows: dict[int, list[int]] = {}
    for index, group in enumerate(summary.groups):
        rows.setdefault(group.tier, []).append(index)
    labels = {}
    live = Counter(summary.group_of[index] for index in topology.ranks)
    for index, group in enumerate(summary.groups):
        count = len(group.members)
        what = f"{count:,} {group.kind}{'s' if group.kind == 'device' else 'es'}"
        if group.kind == "device":
            what += f", {live[index]:,} ranks"
        labels[index] = f"{group.name}\n{what if count > 1 else group.kind}"

    def size(index: int) -> float:
        return 0.3 + 0.088 * max(map(len, labels[index].split("\n")))

    gap = 0.9
    widths = {tier: sum(size(i) for i in row) + gap * (len(row) - 1) for tier, row in rows.items()}
    width = max(widths.values()) + 1.6
    where: dict[int, Point] = {}
    for tier, row in rows.items():
        cursor = (width - widths[tier]) / 2
        for index in row:
            where[index] = (cursor + size(index) / 2, 0.5 + 1.35 * tier)
            cursor += size(index) + gap
    canvas = Canvas(topology, figure, width, 1.35 * max(rows) + 1.0)
    for links in summary.links:
        sort = (links.kind, links.bandwidth, links.latency)
        a, b = where[links.lower], where[links.upper]
        if links.lower == links.upper:
            edge = a[0] + size(links.lower) / 2
            canvas.link((edge - 0.2, a[1]), (edge - 0.2, a[1] + 0.5), sort, 1.2)
            canvas.note((edge + 0.4, a[1] + 0.4), (edge + 0.4, a[1] + 0.4), f"{links.links:,} links")
            continue
        canvas.link(a, b, sort)
        low, high = (_range(span) for span in (links.per_lower, links.per_upper))
        canvas.note(a, b, f"{links.links:,} links: {low} up, {high} down")
    for index, group in enumerate(summary.groups):
        canvas.node(where[index], labels[index], group.kind, (size(index), 0.56), 8.5)
    return canvas.figure


def _range(span: tuple[int, int]) -> str:
    return f"{span[0]:,}" if span[0] == span[1] else f"{span[0]:,}-{span[1]:,}"
