"""A picture of what lateness costs: the time after the last arrival against how late it is."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

from pycoll.errors import InvalidArgument, Unsupported

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pycoll.late_rank.tables import PartialLateness

#: Label, colour, width and dashes of each curve.
_CURVES = (
    ("ring", "ring", "#888888", 1.6, "-"),
    ("stragglar", "StragglAR", "#C46A00", 1.6, "-"),
    ("late_rank", "late_rank, the best cut of each", "#1F5FA8", 2.2, "-"),
    ("bound", "no algorithm is quicker", "#222222", 1.0, "--"),
)


def draw_partial_lateness(
    rows: Sequence[PartialLateness], path: str | PathLike[str] | None = None, *, dpi: int = 150
) -> Figure:
    """Draws a panel a number of ranks. Writes the picture to ``path`` (png, pdf, svg: by its ending).

    Raises Unsupported where matplotlib is not installed, InvalidArgument where the ending is none of these.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise Unsupported("drawing needs matplotlib: pip install matplotlib") from None

    counts = list(dict.fromkeys(row.ranks for row in rows))
    figure = Figure(figsize=(5.2 * max(1, len(counts)), 3.6), layout="constrained")
    for index, ranks in enumerate(counts):
        own = [row for row in rows if row.ranks == ranks]
        axes = figure.add_subplot(1, len(counts), index + 1)
        for field, label, colour, width, style in _CURVES:
            points = [(row.lateness * 1e3, getattr(row, field)) for row in own]
            points = [(lateness, seconds * 1e3) for lateness, seconds in points if seconds is not None]
            if points:
                axes.plot(*zip(*points, strict=True), color=colour, linewidth=width, ls=style, label=label)
        hidden = next((row.lateness / row.share for row in own if row.share), None)
        if hidden is not None:
            axes.axvline(hidden * 1e3, color="#BBBBBB", linewidth=0.8, zorder=0)
            axes.annotate(
                "pre-phase hidden",
                (hidden * 1e3, 0),
                xytext=(-4, 6),
                textcoords="offset points",
                fontsize=7,
                color="#888888",
                ha="right",
            )
        axes.set_title(f"{ranks} ranks", fontsize=10, loc="left")
        axes.set_xlabel("lateness (ms)")
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        for spine in ("top", "right"):
            axes.spines[spine].set_visible(False)
        if index == 0:
            axes.set_ylabel("time after the arrival (ms)")
            axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0.0, 0.08))
    if path is not None:
        try:
            figure.savefig(path, dpi=dpi)
        except ValueError as error:
            raise InvalidArgument(f"cannot draw to {str(path)!r}: {error}") from error
    return figure
