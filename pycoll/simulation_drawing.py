"""Pictures of simulations: what each rank sends when, what the time is made of, how busy the links are."""

from __future__ import annotations

import itertools
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pycoll._core import InvalidArgument, Unsupported
from pycoll._simulation_text import seconds_text
from pycoll.bench.units import format_size
from pycoll.drawing import _colour_of_piece, _draw_colour_bar
from pycoll.simulation import Simulation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A timeline of more transfers than this is a picture of how many are on their way.
_BARS_TRANSFERS = 20_000
_COLUMNS = 800  # of that picture
_LABELLED_RANKS = 32
_LINKS = 24
_CRITICAL = "#C00000"
_OVERHEAD = "#BBBBBB"


def draw_simulation(
    simulation: Simulation, path: str | PathLike[str] | None = None, *, dpi: int = 150
) -> Figure:
    """Draws the timeline of a simulation and the busiest links; see :meth:`Simulation.draw`."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise Unsupported("drawing a simulation needs matplotlib: pip install matplotlib") from None

    schedule = simulation.schedule
    figure = Figure(layout="constrained")
    height = min(14.0, max(4.0, 1.8 + 0.32 * schedule.ranks))
    figure.set_size_inches(13.0, height)
    timeline, links = figure.subplots(1, 2, width_ratios=(3, 1))
    unit, scale = _unit(simulation.time)
    if len(schedule.transfers) <= _BARS_TRANSFERS:
        _draw_bars(timeline, simulation, scale)
        if schedule.pieces > 8:
            _draw_colour_bar(figure, timeline, schedule.pieces)
    else:
        _draw_density(figure, timeline, simulation, scale)
    _draw_critical_path(timeline, simulation, scale)
    _dress(figure, timeline, simulation, unit, scale)
    _draw_links(links, simulation)
    if path is not None:
        try:
            figure.savefig(path, dpi=dpi)
        except ValueError as error:
            raise InvalidArgument(f"cannot draw to {str(path)!r}: {error}") from error
    return figure


def _unit(seconds: float) -> tuple[str, float]:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return unit, scale
    return "ns", 1e9


def _lanes(starts: npt.NDArray[np.float64], ends: npt.NDArray[np.float64]) -> tuple[list[int], int]:
    """For bars in order of their starts, the lowest lane that is free; and the number of lanes."""
    free_at: list[float] = []
    lanes = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        lane = next((i for i, free in enumerate(free_at) if free <= start * (1 + 1e-9)), len(free_at))
        if lane == len(free_at):
            free_at.append(end)
        free_at[lane] = end
        lanes.append(lane)
    return lanes, max(1, len(free_at))


def _place_bars(simulation: Simulation) -> list[tuple[int, float, float]]:
    """Of each transfer the index, the lower edge and the height of its bar in its source's row."""
    arrays, source = simulation.arrays, simulation.schedule.transfers["src"]
    places = []
    for rank in range(simulation.schedule.ranks):
        mine = np.flatnonzero(source == rank)
        mine = mine[np.lexsort((arrays["end"][mine], arrays["start"][mine]))]
        lanes, count = _lanes(arrays["start"][mine], arrays["end"][mine])
        places += [
            (int(index), rank - 0.42 + 0.84 * lane / count, 0.84 / count)
            for index, lane in zip(mine, lanes, strict=True)
        ]
    return places


def _draw_bars(axes: Axes, simulation: Simulation, scale: float) -> None:
    """A bar a transfer in the row of the rank that sends it, grey for the overhead, a colour a piece."""
    from matplotlib.collections import PolyCollection

    colour = _colour_of_piece(simulation.schedule.pieces)
    transfers, arrays = simulation.schedule.transfers, simulation.arrays
    begins = simulation.byte_starts
    bars: list[list[tuple[float, float]]] = []
    colours: list[Any] = []

    def add(left: float, right: float, low: float, high: float, fill: Any) -> None:
        if right > left:
            bars.append([(left, low), (right, low), (right, high), (left, high)])
            colours.append(fill)

    for index, low, tall in _place_bars(simulation):
        start, begin, end = (float(a[index]) * scale for a in (arrays["start"], begins, arrays["end"]))
        add(start, begin, low, low + tall, _OVERHEAD)
        add(begin, end, low, low + tall, colour(int(transfers["piece"][index])))
    edge = 0.4 if len(bars) < 2000 else 0.0
    axes.add_collection(
        PolyCollection(bars, facecolors=colours, edgecolors="white", linewidths=edge, zorder=2)
    )


def _draw_density(figure: Figure, axes: Axes, simulation: Simulation, scale: float) -> None:
    """For each rank and moment, how many of its transfers are on their way."""
    arrays, ranks = simulation.arrays, simulation.schedule.ranks
    source = simulation.schedule.transfers["src"]
    width = simulation.time / _COLUMNS
    shown = np.zeros((ranks, _COLUMNS + 1))
    # Each column gets the part of it that the transfer covers: the difference of two ramps.
    for times, sign in ((arrays["start"], 1.0), (arrays["end"], -1.0)):
        place = np.clip(times / width, 0, _COLUMNS - 1e-9)
        column = place.astype(np.int64)
        inside = place - column
        np.add.at(shown, (source, column), sign * (1 - inside))
        np.add.at(shown, (source, column + 1), sign * inside)
    density = np.cumsum(shown, axis=1)[:, :_COLUMNS]
    image = axes.imshow(
        density,
        aspect="auto",
        interpolation="nearest",
        cmap="Blues",
        vmin=0,
        extent=(0, simulation.time * scale, ranks - 0.5, -0.5),
        zorder=1,
    )
    figure.colorbar(image, ax=axes, fraction=0.03, pad=0.02, label="transfers on their way")


def _draw_critical_path(axes: Axes, simulation: Simulation, scale: float) -> None:
    from matplotlib.collections import LineCollection

    path = simulation.critical_path
    line = []
    for row, following in itertools.zip_longest(path, path[1:]):
        left = row.start + row.overhead + row.transmission
        line += [(row.start * scale, row.src), (left * scale, row.src)]
        # To whom waited for it; the last one's destination had to wait for the latency.
        arrived = following is None and row.end > left
        line.append((row.end * scale, following.src if following else row.dst if arrived else row.src))
    lines = [line] if line else []
    axes.add_collection(LineCollection(lines, colors=_CRITICAL, linewidths=1.1, alpha=0.9, zorder=3))


def _dress(figure: Figure, axes: Axes, simulation: Simulation, unit: str, scale: float) -> None:
    from matplotlib.lines import Line2D

    schedule = simulation.schedule
    axes.set_xlim(0, simulation.time * scale * 1.01 or 1)
    axes.set_ylim(schedule.ranks - 0.4, -0.6)
    step = 1 + (schedule.ranks - 1) // _LABELLED_RANKS
    shown = range(0, schedule.ranks, step)
    axes.set_yticks(shown, [f"rank {rank}" for rank in shown], fontsize=8)
    axes.set_xlabel(f"time ({unit})")
    axes.tick_params(axis="y", length=0)
    late = [(rank, seconds) for rank, seconds in enumerate(simulation.start) if seconds > 0]
    for rank, seconds in late:
        axes.plot(seconds * scale, rank, marker=">", color="#333333", markersize=6, zorder=4, clip_on=False)
    for spine in ("top", "right", "left"):
        axes.spines[spine].set_visible(False)
    what = f"{schedule.algorithm.replace('_', ' ')}: {schedule.collective}"
    where = f"{format_size(round(simulation.size))} on {simulation.topology.name}"
    how_long = f"{seconds_text(simulation.time)}: {simulation.made_of}"
    figure.suptitle(f"{what}, {where}\n{how_long}", fontsize=10, x=0.01, horizontalalignment="left")
    handles = [Line2D([], [], color=_CRITICAL, linewidth=1.2, label="critical path")]
    if late:
        handles.append(
            Line2D([], [], color="#333333", marker=">", linestyle="", markersize=6, label="rank comes")
        )
    figure.legend(handles=handles, loc="outside lower left", ncols=2, frameon=False, fontsize=8)


def _draw_links(axes: Axes, simulation: Simulation) -> None:
    """The busiest links, with the share of what they could carry; the name of the binding one in red."""
    from matplotlib import colormaps

    busy = list(simulation.link_busy.items())
    shown = busy[:_LINKS]
    heat = colormaps["YlOrRd"]
    axes.barh(
        range(len(shown)),
        [share * 100 for _, share in shown],
        color=[heat(0.15 + 0.75 * min(1.0, share)) for _, share in shown],
        height=0.8,
    )
    axes.set_yticks(range(len(shown)), [name for name, _ in shown], fontsize=7)
    for label, (name, _) in zip(axes.get_yticklabels(), shown, strict=True):
        if name == simulation.binding_link:
            label.set(color=_CRITICAL, fontweight="bold")
    axes.set_ylim(max(len(shown), 8) - 0.4, -0.6)
    axes.set_xlim(0, 100)
    axes.set_xlabel("% busy")
    axes.tick_params(axis="y", length=0)
    for spine in ("top", "right"):
        axes.spines[spine].set_visible(False)
    axes.set_title(
        f"{len(shown)} of {len(busy)} links" if len(busy) > len(shown) else "links", fontsize=9, loc="left"
    )
