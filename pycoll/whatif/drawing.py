"""A comparison as a picture: time against size with the bound, and the links that are busiest."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

from pycoll.bench.units import format_seconds, format_size
from pycoll.errors import InvalidArgument, Unsupported
from pycoll.whatif.compare import Comparison
from pycoll.whatif.evaluate import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_comparison"]

_SIDES = {"before": ("#0072B2", "o", "-"), "after": ("#D55E00", "D", "--")}  # Okabe and Ito's palette
_LINKS = 12


def draw_comparison(
    comparison: Comparison, path: str | PathLike[str] | None = None, *, dpi: int = 150
) -> Figure:
    """Draws it, writes the picture to ``path`` (png, pdf, svg: by its ending) where given, and returns it.

    Raises Unsupported without matplotlib, InvalidArgument where the file cannot be written, or where every
    algorithm has a row.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Unsupported("pictures need matplotlib: pip install 'pycoll[plot]'") from error
    if comparison.algorithm == "all":
        raise InvalidArgument("--png shows one algorithm, or auto, not all")
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _times(left, comparison)
    _links(right, comparison)
    changes = f"\nafter {' '.join(comparison.changes)}" if comparison.changes else ""
    machine = comparison.before.topology
    title = f"{comparison.collective} on {machine.name}, {len(machine.ranks)} ranks{changes}"
    figure.suptitle(title, fontsize=10, x=0.01, horizontalalignment="left")
    if path is not None:
        try:
            figure.savefig(path, dpi=dpi)
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"--png {path}: {error}") from error
    return figure


def _outcomes(comparison: Comparison, side: str) -> list[Outcome]:
    found = [row.before if side == "before" else row.after for row in comparison.rows]
    return [outcome for outcome in found if outcome is not None and outcome.size > 0]


def _times(axes: Axes, comparison: Comparison) -> None:
    for side, (colour, marker, line) in _SIDES.items():
        rows = _outcomes(comparison, side)
        if not rows:
            continue
        sizes = [row.size for row in rows]
        label = side if comparison.changes else "time"
        axes.plot(sizes, [row.time for row in rows], line, color=colour, marker=marker, label=label)
        axes.plot(sizes, [row.bound for row in rows], ":", color=colour, label=f"bound, {label}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: format_size(round(value)))
    axes.yaxis.set_major_formatter(lambda value, _: format_seconds(value))
    axes.grid(alpha=0.3)
    axes.set_title("time against size", fontsize=9, loc="left")
    axes.legend(fontsize=8, frameon=False)


def _links(axes: Axes, comparison: Comparison) -> None:
    """The links that are busiest at the largest size, after the changes where there are any."""
    last = comparison.rows[-1]
    sides = {side: outcome for side, outcome in (("before", last.before), ("after", last.after)) if outcome}
    latest = last.after or last.before
    if latest is None:
        return
    first = last.before.loads if last.before is not None else {}
    order = {
        name: (-latest.loads.get(name, 0.0), -first.get(name, 0.0)) for name in {**first, **latest.loads}
    }
    names = sorted(order, key=lambda name: (*order[name], name))[:_LINKS]
    height = 0.8 / max(len(sides), 1)
    for number, (side, outcome) in enumerate(sides.items()):
        axes.barh(
            [index + (number - (len(sides) - 1) / 2) * height for index in range(len(names))],
            [100 * outcome.loads.get(name, 0.0) for name in names],
            height,
            color=_SIDES[side][0],
            label=side,
        )
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("% busy")
    axes.set_title(f"the busiest links, {format_size(last.size)}", fontsize=9, loc="left")
