"""The picture of a report: time and bus bandwidth against size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from pycoll import Unsupported
from pycoll.bench.results import Row
from pycoll.bench.units import format_seconds, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours and a grey, told apart in every kind of colour blindness; the lines differ in marker
# too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#888888")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def draw(rows: Sequence[Row], path: str | PathLike[str], title: str = "", dpi: int = 150) -> None:
    """Writes a picture, of the format that the path's ending names: a row of two axes for each collective.

    Of rows in several states of the machine, each line takes those of the state that has most.

    Raises:
        Unsupported: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise Unsupported("a picture needs matplotlib: pip install 'pycoll[plot]'") from None
    rows = [row for row in rows if row.bytes > 0]
    if not rows:
        raise Unsupported("there is nothing to draw: no row has a size")
    collectives = list(dict.fromkeys(row.collective for row in rows))
    labels = list(dict.fromkeys(row.label for row in rows))
    styles = {label: (COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]) for i, label in enumerate(labels)}

    figure = Figure(figsize=(11, 4.6 * len(collectives)), dpi=dpi, layout="constrained")
    grid = figure.subplots(len(collectives), 2, squeeze=False)
    for (left, right), collective in zip(grid, collectives, strict=True):
        chosen = _of_one_state([row for row in rows if row.collective == collective])
        series = {
            label: sorted((r for r in chosen if r.label == label), key=lambda r: r.bytes) for label in labels
        }
        series = {label: line for label, line in series.items() if line}
        _draw_axes(left, series, styles, "median_s")
        _draw_axes(right, series, styles, "busbw_gb_s")
        state = chosen[0].state
        left.set_title(f"{collective}: time of a call (median; state: {state})", loc="left", fontsize=10)
        right.set_title(f"{collective}: bus bandwidth", loc="left", fontsize=10)
    if title:
        figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    figure.savefig(path)


def _of_one_state(rows: Sequence[Row]) -> list[Row]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.state] = counts.get(row.state, 0) + 1
    state = max(counts, key=lambda name: counts[name])
    return [row for row in rows if row.state == state]


def _draw_axes(
    axes: Axes, series: dict[str, list[Row]], styles: dict[str, tuple[str, str]], value: str
) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for label, line in series.items():
        colour, marker = styles[label]
        sizes, values = [row.bytes for row in line], [getattr(row, value) for row in line]
        axes.plot(sizes, values, color=colour, marker=marker, markersize=4.5, linewidth=1.6)
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(lambda size, _: format_size(round(size)))
    axes.set_xticks(_ticks({row.bytes for line in series.values() for row in line}))
    axes.minorticks_off()
    axes.tick_params(labelsize=8, length=3)
    axes.set_xlabel("size", fontsize=9)
    if value == "median_s":
        axes.yaxis.set_major_formatter(lambda seconds, _: format_seconds(seconds))
    else:
        axes.yaxis.set_major_formatter(lambda bandwidth, _: _bandwidth(bandwidth))
    _label_lines(axes, series, styles, value)


def _ticks(sizes: set[int]) -> list[int]:
    """Those sizes whose labels do not run into each other on a logarithmic axis; the largest among them."""
    least = math.log2(max(sizes) / min(sizes)) / 8
    ticks: list[int] = []
    for size in sorted(sizes, reverse=True):
        if not ticks or math.log2(ticks[-1] / size) >= least:
            ticks.append(size)
    return ticks


def _bandwidth(gigabytes: float) -> str:
    for unit, scale in (("GB/s", 1.0), ("MB/s", 1e-3)):
        if gigabytes >= scale * 0.9999:
            return f"{gigabytes / scale:.4g} {unit}"
    return f"{gigabytes / 1e-6:.4g} kB/s"


def _label_lines(
    axes: Any, series: dict[str, list[Row]], styles: dict[str, tuple[str, str]], value: str
) -> None:
    """A name at the right end of each line, in its colour, pushed apart where ends lie close together."""
    low, high = axes.transData.inverted().transform(axes.transAxes.transform([(0, 0), (1, 1)]))[:, 1]
    span = axes.transData.transform((1, high))[1] - axes.transData.transform((1, low))[1]
    least = 0.055 * span
    ends = sorted(
        (
            (axes.transData.transform((line[-1].bytes, getattr(line[-1], value)))[1], label)
            for label, line in series.items()
        )
    )
    places = _pushed_apart([pixel for pixel, _ in ends], least, axes.transData.transform((1, high))[1])
    for (pixel, label), place in zip(ends, places, strict=True):
        last = series[label][-1]
        offset = (place - pixel) * 72 / axes.figure.dpi
        axes.annotate(
            label,
            (last.bytes, getattr(last, value)),
            xytext=(7, offset),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=styles[label][0],
            annotation_clip=False,
        )


def _pushed_apart(pixels: Sequence[float], least: float, top: float) -> list[float]:
    """Rising places at least `least` apart, near the given ones and, where there is room, not above `top`."""
    places: list[float] = []
    for pixel in pixels:
        places.append(max(pixel, places[-1] + least) if places else pixel)
    limit = max(top, pixels[-1])
    for index in range(len(places) - 1, -1, -1):
        places[index] = min(places[index], limit)
        limit = places[index] - least
    return places


def _main() -> None:
    """`python -m pycoll.bench.plot RESULTS.json PICTURE.png`: draws what `pycoll bench --json` has saved."""
    import json
    import sys
    from pathlib import Path

    from pycoll.bench.results import rows_from_json, title_of

    if len(sys.argv) != 3:
        sys.exit("usage: python -m pycoll.bench.plot RESULTS.json PICTURE.png")
    text = Path(sys.argv[1]).read_text()
    draw(rows_from_json(text), sys.argv[2], title_of(json.loads(text)["environment"]))


if __name__ == "__main__":
    _main()
