"""The picture of `pycoll bench --late`: time after the last arrival against lateness."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

from pycoll import Unsupported
from pycoll.bench.plot import COLOURS, MARKERS
from pycoll.bench.results import Row
from pycoll.bench.units import format_seconds, format_size

__all__ = ["draw_lateness"]


def draw_lateness(rows: Sequence[Row], path: str | PathLike[str], title: str = "", dpi: int = 150) -> None:
    """Writes a picture, of the format that the path's ending names: axes for each collective and size, a line
    for each library and algorithm, the median time after the last arrival over the lateness.

    Raises:
        Unsupported: matplotlib is not installed, or no row is of a late rank.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise Unsupported("a picture needs matplotlib: pip install 'pycoll[plot]'") from None
    rows = [row for row in rows if row.late_s is not None]
    cases = list(dict.fromkeys((row.collective, row.bytes) for row in rows))
    if not cases:
        raise Unsupported("there is nothing to draw: nobody was made late")
    labels = list(dict.fromkeys(row.label for row in rows))
    figure = Figure(figsize=(7.5, 4.4 * len(cases)), dpi=dpi, layout="constrained")
    grid = figure.subplots(len(cases), 1, squeeze=False)
    for (axes,), (collective, size) in zip(grid, cases, strict=True):
        for index, label in enumerate(labels):
            line = sorted(
                (row.late_s or 0.0, row.median_s)
                for row in rows
                if (row.collective, row.bytes, row.label) == (collective, size, label)
            )
            axes.plot(
                [lateness for lateness, _ in line],
                [seconds for _, seconds in line],
                color=COLOURS[index % len(COLOURS)],
                marker=MARKERS[index % len(MARKERS)],
                label=label,
                linewidth=1.6,
            )
        axes.set_ylim(bottom=0)
        axes.grid(True, color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda seconds, _: format_seconds(seconds) if seconds else "0")
        axes.set_xlabel("lateness", fontsize=9)
        name = f"{collective}, {format_size(size)}: time after the last arrival (median)"
        axes.set_title(name, loc="left", fontsize=10)
        axes.legend(fontsize=9, frameon=False)
    if title:
        figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    figure.savefig(path)
