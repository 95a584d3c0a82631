"""Comparisons, ranked harms and sweeps as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from pycoll.bench.units import format_seconds, format_size
from pycoll.whatif.evaluate import Outcome
from pycoll.whatif.story import change_text

if TYPE_CHECKING:
    from pycoll.whatif.check import Check
    from pycoll.whatif.compare import Comparison, Row
    from pycoll.whatif.each import Harms
    from pycoll.whatif.iteration import Iteration, Steps
    from pycoll.whatif.scale import Scale
    from pycoll.whatif.sweep import Sweep

__all__ = [
    "check_table",
    "comparison_table",
    "harm_table",
    "iteration_table",
    "rate",
    "scale_table",
    "steps_table",
    "sweep_table",
]


def rate(value: float) -> str:
    """Bytes/s in GB/s, to four digits."""
    return f"{value / 1e9:.4g}"


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )


def comparison_table(comparison: Comparison) -> Iterable[RenderableType]:
    """Three lines a size: before, after, and the change in each figure."""
    machine = comparison.before.topology
    yield Text(f"{comparison.collective} on {machine.name}, {len(machine.ranks)} ranks", style="bold")
    if comparison.changes:
        yield Text(f"after {' '.join(comparison.changes)}")
    table = _table("")
    table.title = None
    table.add_column("size", no_wrap=True, justify="right")
    table.add_column("", no_wrap=True)
    for name in ("time", "busbw GB/s", "bound", "of bound"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("algorithm", no_wrap=True)
    table.add_column("binding link", no_wrap=True)
    for size, rows in groupby(comparison.rows, key=lambda row: row.size):
        of_size = list(rows)
        for row in of_size:
            _add(table, size, row, bool(comparison.changes) or row is of_size[-1] is not of_size[0])
    yield table
    for row in comparison.rows:
        if row.why:
            yield Text(row.why)


def _add(table: Table, size: int, row: Row, apart: bool) -> None:
    """``apart``: a line of its own is set off from the next one too."""
    before, after = row.before, row.after
    single = before is None or after is None
    if before is not None:
        table.add_row(
            format_size(size),
            "" if after is None else "before",
            *_cells(before),
            end_section=single and apart,
        )
    if after is not None:
        mark = "" if before is not None else format_size(size)
        table.add_row(mark, "after", *_cells(after), end_section=single and apart)
    if before is None or after is None:
        return
    table.add_row(
        "",
        "change",
        change_text(before.time, after.time),
        change_text(before.busbw, after.busbw),
        change_text(before.bound, after.bound),
        f"{100 * (after.share - before.share):+.0f} points" if round(after.share - before.share, 2) else "=",
        "="
        if before.way == after.way
        else "flips"
        if before.algorithm != after.algorithm
        else "other pieces",
        "=" if before.binding == after.binding else "moves",
        style="bold" if after.time > before.time * 1.005 else "",
        end_section=True,
    )


def _cells(outcome: Outcome) -> list[str]:
    about = "about " if outcome.estimated else ""
    busy = "" if outcome.busy is None else f" ({outcome.busy:.0%} busy)"
    link = "not simulated" if outcome.estimated else outcome.binding or "latency"
    return [
        about + format_seconds(outcome.time),
        rate(outcome.busbw),
        format_seconds(outcome.bound),
        f"{outcome.share:.0%}",
        outcome.way,
        link + busy,
    ]


def harm_table(harms: Harms) -> Iterable[RenderableType]:
    """A line a class of equivalent links or nodes, the most harmful first."""
    title = (
        f"{harms.collective} of {format_size(harms.size)} on {harms.machine}, {harms.ranks} ranks: "
        f"{format_seconds(harms.before.time)} by {harms.before.way}"
    )
    yield Text(title, style="bold")
    yield Text(
        f"each of {harms.members:,} {harms.plural} fails in turn: {len(harms.rows)} "
        f"{'class' if len(harms.rows) == 1 else 'classes'} of equivalent ones"
    )
    table = _table("")
    table.title = None
    rechosen = any(row.rechosen is not None for row in harms.rows)
    table.add_column("harm", justify="right", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("stands for", justify="right", no_wrap=True)
    table.add_column("which", overflow="fold")
    if rechosen:
        table.add_column("best then", no_wrap=True)
    table.add_column("binding link", no_wrap=True)
    for row in harms.rows:
        if row.outcome is None:
            cells = ["cut off", "-", f"{len(row.members):,}", row.which]
            cells += ["-"] if rechosen else []
            table.add_row(*cells, f"cuts off {row.cut_off}", style="bold red")
            continue
        harm = change_text(harms.before.time, row.outcome.time)
        least = change_text(1, row.least)
        other = f" by {row.outcome.way}" if row.outcome.algorithm != harms.before.algorithm else ""
        cells = [
            harm if least == harm or row.ratio - row.least < 0.005 else f"{least} to {harm}",
            format_seconds(row.outcome.time) + other,
            f"{len(row.members):,}",
            row.which,
        ]
        if rechosen:
            best = row.rechosen
            cells.append("-" if best is None else f"{best.way}, {format_seconds(best.time)}")
        table.add_row(*cells, row.outcome.binding or "latency")
    yield table
    for note in harms.notes:
        yield Text(note, style="dim")


def sweep_table(sweep: Sweep) -> Iterable[RenderableType]:
    """A line a value: the best way and the best of every other algorithm; then where which overtakes."""
    yield Text(
        f"{sweep.collective} of {format_size(sweep.size)} on {sweep.machine}: {sweep.what}", style="bold"
    )
    table = _table("")
    table.title = None
    table.add_column(sweep.what, justify="right", no_wrap=True)
    for name in ("time", "busbw GB/s", "bound", "of bound"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("algorithm", no_wrap=True)
    table.add_column("binding link", overflow="fold")
    table.add_column("next", overflow="fold")
    for point in sweep.points:
        if point.best is None:
            table.add_row(point.label, "-", "-", "-", "-", "-", point.error)
            continue
        rivals = [
            row for row in point.algorithms if row.algorithm != point.best.algorithm and not row.estimated
        ]
        following = f"{rivals[0].way}, {format_seconds(rivals[0].time)}" if rivals else ""
        cells = _cells(point.best)
        table.add_row(point.label, *cells, following)
    yield table
    for sentence in sweep.crossings:
        yield Text(sentence)


def scale_table(scale: Scale) -> Iterable[RenderableType]:
    """A line a number of ranks: of a step its time and what is exposed, of a collective time and bound."""
    size = "" if scale.size is None else f" of {format_size(scale.size)}"
    yield Text(f"{scale.what}{size} on {scale.machine}", style="bold")
    if scale.changes:
        yield Text(f"after {' '.join(scale.changes)}")
    step = any(point.efficiency is not None for point in scale.points)
    table = _table("")
    table.title = None
    names = ("exposed", "efficiency") if step else ("busbw GB/s", "bound", "of bound")
    for name in ("ranks", "time", *names):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("algorithm", no_wrap=True)
    table.add_column("binding link", overflow="fold")
    for point in scale.points:
        if point.time is None:
            table.add_row(f"{point.ranks:,}", "-", *("-" for _ in names), "-", point.error)
            continue
        if step:
            cells = [format_seconds(point.exposed or 0.0), f"{point.efficiency or 0.0:.1%}"]
        else:
            bound = point.bound or 0.0
            share = min(1.0, bound / point.time) if point.time else 1.0
            cells = [rate(point.busbw or 0.0), format_seconds(bound), f"{share:.0%}"]
        table.add_row(
            f"{point.ranks:,}", format_seconds(point.time), *cells, point.way, point.binding or "latency"
        )
    yield table


def check_table(check: Check) -> Iterable[RenderableType]:
    """A line a size and algorithm: predicted, measured, the error."""
    yield Text(f"{check.collective} on {check.topology}, {check.ranks} ranks", style="bold")
    table = _table("")
    table.title = None
    for name in ("size", "algorithm", "predicted", "measured", "error", "rounds"):
        table.add_column(name, justify="left" if name == "algorithm" else "right", no_wrap=True)
    for size, rows in groupby(check.rows, key=lambda row: row.size):
        for number, row in enumerate(rows):
            table.add_row(
                "" if number else format_size(size),
                row.way,
                format_seconds(row.predicted),
                format_seconds(row.measured),
                f"{row.error:+.0%}",
                f"{row.rounds:,}",
            )
        table.add_section()
    yield table
    yield Text(check.sentence)


def iteration_table(step: Iteration) -> Table:
    """A step: its time, what of it is sending, how much of that is exposed, and by what it was priced."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    sizes = [each.bytes for each in step.transfers]
    table.add_row("step", f"{step.workload}, {step.pattern}, on {step.machine}, {step.ranks} ranks")
    table.add_row("time", f"{format_seconds(step.time)}, of which computing {format_seconds(step.compute)}")
    table.add_row(
        "communication",
        f"{format_seconds(step.communication)} in {len(sizes):,} collectives of "
        f"{format_size(min(sizes, default=0))} to {format_size(max(sizes, default=0))}",
    )
    if step.bubble:
        part = step.bubble / (step.compute + step.bubble)
        table.add_row("bubble", f"{format_seconds(step.bubble)}, {part:.0%} of a step that sends in no time")
    if step.waiting:
        table.add_row("waiting", f"{format_seconds(step.waiting)} for the rank that comes last")
    table.add_row("exposed", f"{format_seconds(step.exposed)}; {step.overlap:.0%} is hidden by computing")
    table.add_row("efficiency", f"{step.efficiency:.1%} of a step without communication")
    for each in step.choices[-1:]:
        table.add_row(
            "priced by",
            f"{each.collective} by {each.way}: {format_seconds(each.time)} for {format_size(each.size)}, "
            f"{each.share:.0%} of the bound, limited by {each.binding or 'latency'}",
        )
    return table


def steps_table(steps: Steps) -> Iterable[RenderableType]:
    """A step before and after, and a sentence on what changed."""
    before, after = steps.before, steps.after
    yield iteration_table(before)
    if steps.measured is not None:
        yield Text(
            f"\nIn the trace a step takes {format_seconds(steps.measured)} "
            f"({before.time / steps.measured - 1:+.1%})."
        )
    if after is None:
        return
    yield Text(f"\nafter {' '.join(steps.changes)}\n")
    yield iteration_table(after)
    yield Text(
        f"\nA step takes {format_seconds(after.time)} in place of {format_seconds(before.time)} "
        f"({after.time / before.time - 1:+.1%}); exposed are {format_seconds(after.exposed)}, "
        f"{format_seconds(before.exposed)} before."
    )
