"""What pictures of topologies are drawn on: nodes, links, and a legend of the sorts of links."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from pycoll.topology.model import Topology
from pycoll.topology.units import format_bandwidth, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Canvas", "Point", "Sort"]

Point = tuple[float, float]
Sort = tuple[str, float, float]  # kind, bandwidth, latency

# Okabe and Ito's palette, told apart with any colour vision.
_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222", "#999999")
_DEVICE, _SWITCH, _EDGE = "#FFFFFF", "#E4E8EC", "#30363C"


class Canvas:
    """Axes without axes, in inches, with a title, nodes, links and a legend of the sorts of links."""

    def __init__(self, topology: Topology, figure: type[Figure], width: float, height: float) -> None:
        sorts = Counter((link.kind, link.bandwidth, link.latency) for link in topology.links)
        ordered = sorted(sorts, key=lambda sort: -sort[1])
        self.colours = {sort: _PALETTE[index % len(_PALETTE)] for index, sort in enumerate(ordered)}
        legend = 0.26 * len(ordered) + 0.15
        self.width, self.height = max(width, 5.5), height + legend + 0.75
        self.left = (self.width - width) / 2
        self.bottom = legend
        self.figure = figure(figsize=(self.width, self.height), facecolor="white")
        self.axes: Axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_xlim(0, self.width)
        self.axes.set_ylim(0, self.height)
        self.axes.axis("off")
        self.axes.text(
            0.25, self.height - 0.3, topology.name, fontsize=13, fontweight="bold", va="center", color=_EDGE
        )
        for row, (kind, bandwidth, latency) in enumerate(ordered):
            y = legend - 0.1 - 0.26 * row
            colour = self.colours[kind, bandwidth, latency]
            self.axes.plot([0.25, 0.75], [y, y], color=colour, linewidth=self.thickness(bandwidth))
            text = f"{format_bandwidth(bandwidth)} each way, {format_time(latency)}"
            self.axes.text(0.9, y, f"{kind}: {text}" if kind else text, fontsize=9, va="center", color=_EDGE)

    def at(self, point: Point) -> Point:
        return self.left + point[0], self.bottom + point[1]

    def thickness(self, bandwidth: float) -> float:
        """In the logarithm of the bandwidth, over the range that the picture has."""
        rates = [sort[1] for sort in self.colours]
        low, high = math.log(min(rates)), math.log(max(rates))
        return 1.4 if high == low else 0.9 + 1.6 * (math.log(bandwidth) - low) / (high - low)

    def link(self, a: Point, b: Point, sort: Sort, bend: float = 0.0, *, offset: float = 0.0) -> None:
        """A line, or an arc that leaves the straight way by ``bend`` of its length."""
        from matplotlib.patches import FancyArrowPatch

        (ax, ay), (bx, by) = self.at(a), self.at(b)
        length = math.hypot(bx - ax, by - ay) or 1.0
        shift = (-(by - ay) / length * offset, (bx - ax) / length * offset)
        self.axes.add_patch(
            FancyArrowPatch(
                (ax + shift[0], ay + shift[1]),
                (bx + shift[0], by + shift[1]),
                arrowstyle="-",
                connectionstyle=f"arc3,rad={bend}",
                color=self.colours[sort],
                linewidth=self.thickness(sort[1]),
                alpha=0.8,
                shrinkA=0,
                shrinkB=0,
                zorder=1,
            )
        )

    def note(self, a: Point, b: Point, text: str) -> None:
        """A word on the middle of a line."""
        (ax, ay), (bx, by) = self.at(a), self.at(b)
        box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.9}
        self.axes.text(
            (ax + bx) / 2, (ay + by) / 2, text, fontsize=8, ha="center", va="center", color=_EDGE, bbox=box
        )

    def node(self, point: Point, label: str, kind: str, size: Point, font: float) -> None:
        from matplotlib.patches import FancyBboxPatch

        x, y = self.at(point)
        rounding = min(size) * (0.45 if kind == "device" else 0.12)
        self.axes.add_patch(
            FancyBboxPatch(
                (x - size[0] / 2 + rounding, y - size[1] / 2 + rounding),
                size[0] - 2 * rounding,
                size[1] - 2 * rounding,
                boxstyle=f"round,pad={rounding},rounding_size={rounding}",
                facecolor=_DEVICE if kind == "device" else _SWITCH,
                edgecolor=_EDGE,
                linewidth=1.1,
                zorder=2,
            )
        )
        self.axes.text(x, y, label, fontsize=font, ha="center", va="center", color=_EDGE, zorder=3)
