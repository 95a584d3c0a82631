"""Pictures of topologies: switches in tiers over their devices, or devices on the grid of a torus."""

from __future__ import annotations

import re
from collections import Counter
from os import PathLike
from typing import TYPE_CHECKING

from pycoll.errors import Unsupported
from pycoll.topology.canvas import Canvas, Point, Sort
from pycoll.topology.model import Topology
from pycoll.topology.places import (
    circle_places,
    grid_of,
    grid_places,
    label_of,
    links_of,
    switch_width,
    tier_places,
)
from pycoll.topology.summary import summarize

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
    grid = grid_of(topology)
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


# ---- tiers


def _tiers(topology: Topology, figure: type[Figure]) -> Figure:
    """Devices in a row, the tree of their switches above; switches of devices alone, as NVSwitches, below."""
    layout = tier_places(topology)
    tiers, rows, where = layout.tiers, layout.rows, layout.where
    live = {index: rank for rank, index in enumerate(topology.ranks)}
    canvas = Canvas(topology, figure, layout.width, layout.height)
    for (a, b, sort), count in links_of(topology).items():
        _tier_link(canvas, where, tiers, (a, b), sort, count)
    crowded = max(len(members) for members in rows.values()) > 24
    for index, node in enumerate(topology.nodes):
        label = label_of(node.name)
        if node.kind == "device":
            label = label if crowded else f"{label}\nrank {live[index]}" if index in live else label
            size = (0.36, 0.28) if crowded else (0.66, 0.44)
            canvas.node(where[index], str(live.get(index, "")) if crowded else label, "device", size, 7.5)
        else:
            size = (switch_width(label), 0.3)
            tight = crowded and index in rows.get(1, ()) and len(rows[1]) > 24
            label = _short(node.name) if tight else label
            canvas.node(where[index], label, "switch", (0.38, 0.24) if tight else size, 5.5 if tight else 7.5)
    return canvas.figure


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
    layout = circle_places(topology)
    where = layout.where
    canvas = Canvas(topology, figure, layout.width, layout.height)
    for (a, b, sort), links in links_of(topology).items():
        for number in range(min(links, 4)):
            canvas.link(where[a], where[b], sort, offset=0.05 * (number - (min(links, 4) - 1) / 2))
    _devices(canvas, topology, where, (0.66, 0.44))
    return canvas.figure


def _devices(canvas: Canvas, topology: Topology, where: dict[int, Point], size: Point) -> None:
    live = {index: rank for rank, index in enumerate(topology.ranks)}
    for index, node in enumerate(topology.nodes):
        numbers = ".".join(re.findall(r"\d+", node.name))
        name = node.name if len(node.name) <= 7 else numbers
        label = f"{name}\nrank {live[index]}" if index in live else name
        canvas.node(where[index], label, "device", size, 7.0 if len(name) < 7 else 6.0)


def _torus(topology: Topology, grid: dict[int, tuple[int, ...]], figure: type[Figure]) -> Figure:
    """Two dimensions as a grid, three as one grid a plane; the way around is an arc."""
    depth = max(len(place) for place in grid.values())
    layout = grid_places(grid)
    where = layout.where
    canvas = Canvas(topology, figure, layout.width, layout.height)
    for (a, b, sort), _ in links_of(topology).items():
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
