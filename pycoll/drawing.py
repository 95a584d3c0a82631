"""Pictures of schedules: who sends what to whom in which round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pycoll import _core
from pycoll._core import InvalidArgument, Unsupported

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Colour = tuple[float, float, float]
Positions = npt.NDArray[np.float64]

# Okabe and Ito's palette, told apart with any colour vision, with a grey for its yellow, which is too faint
# on white. More pieces than that get a sequential scale.
_PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#222222", "#999999")

# Detailed pictures name every piece in a label; beyond these limits labels would be too small to read.
_DETAILED_RANKS = 16
_DETAILED_MESSAGES = 700
_DETAILED_WIDTH = 120.0
_ARROWS_ROUNDS = 48  # more rounds than that leave arrows no room

# In units of the height of a row.
_LEAST_WIDTH = 12.0  # of all rounds together, so that the title has room
_LEAST_RUN = 1.7  # from the sender's dot to the label at the receiver
_GAP = 0.12
_LABEL_HEIGHT = 0.52


@dataclass(frozen=True)
class _Message:
    """The pieces that one rank sends another in one round with one action: one arrow."""

    column: int  # index of the round among those that have transfers
    src: int
    dst: int
    reduce: bool
    pieces: tuple[int, ...]

    @property
    def label(self) -> str:
        return ("+" if self.reduce else "") + _ranges(self.pieces)

    @property
    def width(self) -> float:
        return max(_LABEL_HEIGHT, 0.2 + 0.165 * len(self.label))


def draw_schedule(
    schedule: _core.Schedule, path: str | PathLike[str] | None = None, *, dpi: int = 150
) -> Figure:
    """See :meth:`pycoll.Schedule.draw`."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise Unsupported(
            "drawing a schedule needs matplotlib, which is not installed: pip install matplotlib"
        ) from None

    _require_indices_in_range(schedule)
    rounds, messages = _messages(schedule)
    layout = _Layout(len(rounds), messages)
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    colour = _colour_of_piece(schedule.pieces)
    detailed = (
        schedule.ranks <= _DETAILED_RANKS
        and len(messages) <= _DETAILED_MESSAGES
        and layout.width <= _DETAILED_WIDTH
    )
    bars = not detailed and len(rounds) > _ARROWS_ROUNDS
    if detailed:
        figure.set_size_inches(1.0 + 0.36 * layout.width, 1.7 + 0.36 * schedule.ranks)
        _draw_grid(axes, schedule.ranks, rounds, layout.begin, every_rank=True)
        _draw_detailed(axes, messages, layout, colour)
    else:
        width, height = (0.11, 0.1) if bars else (0.3, 0.16)
        figure.set_size_inches(
            min(40.0, max(7.0, 1.5 + width * len(rounds))), min(12.0, max(4.0, 1.7 + height * schedule.ranks))
        )
        _draw_grid(axes, schedule.ranks, rounds, np.arange(max(len(rounds), 1) + 1.0), every_rank=False)
        draw = _draw_bars if bars else _draw_arrows
        draw(axes, messages, colour)
    _draw_title(axes, schedule)
    _draw_legend(figure, schedule, bars)
    if schedule.pieces > len(_PALETTE):
        _draw_colour_bar(figure, axes, schedule.pieces)
    if path is not None:
        try:
            figure.savefig(path, dpi=dpi)
        except ValueError as error:
            raise InvalidArgument(f"cannot draw to {str(path)!r}: {error}") from error
    return figure


def _ranges(pieces: tuple[int, ...]) -> str:
    """0,1,2,5 as 0-2,5; many ranges as the first, dots, and the last."""
    runs: list[list[int]] = []
    for piece in pieces:
        if runs and piece == runs[-1][1] + 1:
            runs[-1][1] = piece
        else:
            runs.append([piece, piece])
    texts = [str(first) if first == last else f"{first}–{last}" for first, last in runs]
    return ",".join(texts) if len(texts) <= 3 else f"{texts[0]}…{texts[-1]}"


def _require_indices_in_range(schedule: _core.Schedule) -> None:
    """A wrong schedule may be drawn, to see why it is wrong, but not one that names what does not exist."""
    transfers = schedule.transfers
    within = (transfers["src"] >= 0) & (transfers["src"] < schedule.ranks)
    within &= (transfers["dst"] >= 0) & (transfers["dst"] < schedule.ranks)
    within &= (transfers["piece"] >= 0) & (transfers["piece"] < schedule.pieces)
    if not within.all():
        _core.verify(schedule)  # raises, naming the transfer


def _messages(schedule: _core.Schedule) -> tuple[list[int], list[_Message]]:
    """The rounds that have transfers, and the messages, each with the index of its round among those."""
    numbers, columns = np.unique(schedule.transfers["round"], return_inverse=True)
    grouped: dict[tuple[int, int, int, bool], list[int]] = {}
    for column, (_, src, dst, piece, reduce) in zip(
        columns.tolist(), schedule.transfers.tolist(), strict=True
    ):
        grouped.setdefault((column, src, dst, reduce), []).append(piece)
    messages = [_Message(*key, tuple(sorted(pieces))) for key, pieces in sorted(grouped.items())]
    return numbers.tolist(), messages


class _Layout:
    """Where each round lies: room for arrows to run, then for the labels of its busiest receiver."""

    def __init__(self, rounds: int, messages: list[_Message]) -> None:
        labels: dict[tuple[int, int], float] = {}
        arrows = np.zeros(max(rounds, 1))
        for message in messages:
            cell = (message.column, message.dst)
            labels[cell] = labels.get(cell, _GAP) + message.width + _GAP
            arrows[message.column] += 1
        room = np.zeros(len(arrows))
        for (column, _), width in labels.items():
            room[column] = max(room[column], width)
        run = np.where(arrows > 0, np.maximum(_LEAST_RUN, 0.6 * np.sqrt(arrows)), 0.6)
        run += max(0.0, _LEAST_WIDTH - float(np.sum(run + room))) / len(run)
        self.begin: Positions = np.concatenate([[0.0], np.cumsum(run + room)])
        self.labels: Positions = self.begin[:-1] + run
        self.width = float(self.begin[-1])


def _colour_of_piece(pieces: int) -> Callable[[int], Colour]:
    from matplotlib import colormaps
    from matplotlib.colors import to_rgb

    if pieces <= len(_PALETTE):
        return lambda piece: to_rgb(_PALETTE[piece])
    scale = colormaps["viridis"]
    return lambda piece: to_rgb(scale(0.95 * piece / (pieces - 1)))


def _draw_grid(axes: Axes, ranks: int, rounds: list[int], columns: Positions, every_rank: bool) -> None:
    for column in range(0, len(columns) - 1, 2):
        axes.axvspan(columns[column], columns[column + 1], color="#F4F4F4", linewidth=0, zorder=0)
    axes.hlines(
        range(ranks),
        columns[0],
        columns[-1],
        color="#BBBBBB",
        linewidth=0.7 if every_rank else 0.3,
        zorder=1,
    )
    axes.set_xlim(columns[0], columns[-1])
    axes.set_ylim(ranks - 0.4, -0.6)
    fontsize = 9 if every_rank else 7
    shown = range(0, ranks, 1 if every_rank else 1 + (ranks - 1) // 32)
    axes.set_yticks(shown, [f"rank {rank}" for rank in shown], fontsize=fontsize)
    shown = range(0, len(rounds), 1 if every_rank else 1 + len(rounds) // 40)
    centres = [(columns[column] + columns[column + 1]) / 2 for column in shown]
    axes.set_xticks(centres, [str(rounds[column]) for column in shown], fontsize=fontsize)
    axes.set_xlabel("round")
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if not rounds:
        axes.text(0.5, 0.7, "no transfers", transform=axes.transAxes, ha="center", color="#666666")


def _draw_detailed(
    axes: Axes, messages: list[_Message], layout: _Layout, colour: Callable[[int], Colour]
) -> None:
    """An arrow a message, from a dot at the sender to a label at the receiver that names the pieces."""
    from matplotlib.patches import FancyBboxPatch

    used: dict[tuple[int, int], float] = {}
    for message in messages:
        fill = colour(message.pieces[0])
        cell = (message.column, message.dst)
        left = layout.labels[message.column] + used.get(cell, _GAP)
        start = (layout.begin[message.column] + 0.15, message.src)
        if cell not in used:  # into the first label from the left, which crosses no other rank's labels
            end = (left, float(message.dst))
        else:
            side = -1 if message.src < message.dst else 1
            end = (left + message.width / 2, message.dst + side * _LABEL_HEIGHT / 2)
        used[cell] = used.get(cell, _GAP) + message.width + _GAP
        axes.annotate(
            "",
            xy=end,
            xytext=start,
            arrowprops={
                "arrowstyle": "-|>" if message.reduce else "->",
                "linestyle": "-" if message.reduce else (0, (4, 1.5)),
                "color": fill,
                "linewidth": 1.1,
                "shrinkA": 0,
                "shrinkB": 0,
                "mutation_scale": 8,
            },
            zorder=3,
        )
        axes.plot(*start, "o", color="#333333", markersize=2.5, zorder=4)
        rounding = _LABEL_HEIGHT / 2 - 0.01 if message.reduce else 0.03
        axes.add_patch(
            FancyBboxPatch(
                (left, message.dst - _LABEL_HEIGHT / 2),
                message.width,
                _LABEL_HEIGHT,
                boxstyle=f"round,pad=0,rounding_size={rounding}",
                facecolor=fill,
                edgecolor="white",
                linewidth=0.6,
                zorder=5,
            )
        )
        axes.text(
            left + message.width / 2,
            message.dst + 0.02,
            message.label,
            ha="center",
            va="center",
            fontsize=7,
            color=_text_colour(fill),
            zorder=6,
        )


def _draw_arrows(axes: Axes, messages: list[_Message], colour: Callable[[int], Colour]) -> None:
    """A thin line a message, and a mark at the receiver."""
    from matplotlib.collections import LineCollection

    columns = max((message.column for message in messages), default=0) + 1
    density = max(1.0, len(messages) / columns / 64)
    for reduce in (True, False):
        chosen = [message for message in messages if message.reduce == reduce]
        if not chosen:
            continue
        colours = [colour(message.pieces[0]) for message in chosen]
        starts = [(message.column + 0.1, message.src) for message in chosen]
        ends = [(message.column + 0.85, message.dst) for message in chosen]
        axes.add_collection(
            LineCollection(
                list(zip(starts, ends, strict=True)),
                colors=colours,
                linewidths=0.7 / density**0.5,
                linestyles="-" if reduce else (0, (4, 1.5)),
                alpha=0.8 / density**0.3,
                zorder=3,
            )
        )
        x, y = zip(*ends, strict=True)
        axes.scatter(x, y, s=7, marker="o" if reduce else "s", c=colours, linewidths=0, zorder=4)


def _draw_bars(axes: Axes, messages: list[_Message], colour: Callable[[int], Colour]) -> None:
    """What each rank receives in each round: bars that share the cell, low ones for copies."""
    from matplotlib.collections import PolyCollection

    cells: dict[tuple[int, int], list[_Message]] = {}
    for message in messages:
        cells.setdefault((message.column, message.dst), []).append(message)
    bars, colours = [], []
    for (column, dst), received in cells.items():
        width = 0.9 / len(received)
        for index, message in enumerate(received):
            left, right = column + 0.05 + index * width, column + 0.05 + (index + 1) * width
            half = 0.42 if message.reduce else 0.2
            bars.append([(left, dst - half), (right, dst - half), (right, dst + half), (left, dst + half)])
            colours.append(colour(message.pieces[0]))
    axes.add_collection(PolyCollection(bars, facecolors=colours, linewidths=0, zorder=3))


def _text_colour(fill: Colour) -> str:
    red, green, blue = fill
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "white"


def _draw_title(axes: Axes, schedule: _core.Schedule) -> None:
    def count(number: int, noun: str) -> str:
        return f"{number} {noun}" + ("" if number == 1 else "s")

    root = (
        f", root {schedule.root}"
        if schedule.collective in ("broadcast", "reduce", "gather", "scatter")
        else ""
    )
    axes.set_title(
        f"{schedule.algorithm.replace('_', ' ')}: {schedule.collective}{root}\n"
        f"n = {count(schedule.ranks, 'rank')}, K = {count(schedule.pieces, 'piece')}, "
        f"{count(schedule.rounds, 'round')}",
        fontsize=11,
        loc="left",
    )


def _draw_legend(figure: Figure, schedule: _core.Schedule, bars: bool) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for reduce, label in ((True, "reduce (adds)"), (False, "copy (overwrites)")):
        if not (schedule.transfers["reduce"] == reduce).any():
            continue
        line = Line2D([], [], color="#444444", linewidth=1.1, markersize=6, label=label)
        if bars:
            line.set(linewidth=7.0 if reduce else 3.5, solid_capstyle="butt")
        else:
            line.set(linestyle="-" if reduce else (0, (4, 1.5)), marker="o" if reduce else "s")
        handles.append(line)
    if handles:
        figure.legend(
            handles=handles, loc="outside lower right", ncols=2, frameon=False, fontsize=8, handlelength=3.2
        )


def _draw_colour_bar(figure: Figure, axes: Axes, pieces: int) -> None:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    shown = ListedColormap(colormaps["viridis"](np.linspace(0, 0.95, 256)))
    bar = figure.colorbar(
        ScalarMappable(Normalize(0, pieces - 1), shown), ax=axes, fraction=0.03, pad=0.02, aspect=30
    )
    bar.set_label("piece", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)
