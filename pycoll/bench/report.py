"""The table that a person reads."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from pycoll.bench.results import Report, Row
from pycoll.bench.units import format_seconds, format_size

_STATE_STYLES = {"near": "green", "far": "yellow", "mixed": "yellow", "unknown": "dim"}


def print_report(report: Report, console: Console) -> None:
    """One table a collective, and under it what its columns mean."""
    for collective in dict.fromkeys(row.collective for row in report.rows):
        table = _table([row for row in report.rows if row.collective == collective], report)
        # Rather lines that a narrow terminal wraps than figures cut short.
        natural = Measurement.get(console, console.options.update(max_width=1000), table).maximum
        Console(file=console.file, width=max(natural, console.width)).print(table)
    for note in _notes(report):
        console.print(Text(note, style="dim"))
    for note in report.notes:
        console.print(Text(f"Note: {note}."))
    if report.wrong:
        console.print(
            Text(f"WRONG RESULTS: {report.wrong} elements differ from what they must be.", style="bold red")
        )
    if report.error:
        console.print(Text(f"Failed: {report.error}", style="bold red"))


def _table(rows: Sequence[Row], report: Report) -> Table:
    first = rows[0]
    compared = len({row.label for row in rows}) > 1
    with_ratio = any(row.pycoll_speedup is not None for row in rows)
    with_algorithm = any(row.algorithm and row.algorithm_chosen for row in rows)
    with_bandwidth = first.collective != "barrier"
    with_lateness = any(row.late for row in rows)
    title = [f"{first.collective}, {report.environment['ranks']} ranks"]
    if with_bandwidth:
        title += [f"{first.dtype} {first.op}".rstrip(), "in place" if first.in_place else "out of place"]
    table = Table(
        title=", ".join(title),
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )

    table.add_column("size", justify="right", no_wrap=True)
    if compared:
        table.add_column("what", no_wrap=True)
    if with_algorithm:
        table.add_column("algorithm", no_wrap=True)
    if with_lateness:
        table.add_column("late", no_wrap=True)
        table.add_column("total\nmedian", justify="right", no_wrap=True)
    for name in ("min", "median", "p99"):
        table.add_column(name, justify="right", no_wrap=True)
    if with_bandwidth:
        table.add_column("algbw\nGB/s", justify="right", no_wrap=True)
        table.add_column("busbw\nGB/s", justify="right", no_wrap=True)
    if with_ratio:
        table.add_column("times\npycoll's", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("#wrong", justify="right", no_wrap=True)

    previous = None
    for row in rows:
        if previous is not None and compared and row.bytes != previous:
            table.add_section()
        cells: list[str | Text] = [format_size(row.bytes) if row.bytes != previous else ""]
        if compared:
            cells.append(row.label)
        if with_algorithm:
            cells.append(row.algorithm if row.algorithm_chosen else "")
        if with_lateness:
            total = row.total_median_s
            cells += [row.late, "" if total is None else format_seconds(total)]
        cells += [format_seconds(seconds) for seconds in (row.min_s, row.median_s, row.p99_s)]
        if with_bandwidth:
            cells += [_bandwidth(row.algbw_gb_s), _bandwidth(row.busbw_gb_s)]
        if with_ratio:
            cells.append("" if row.pycoll_speedup is None else f"{row.pycoll_speedup:.3g}x")
        cells.append(Text(row.state, style=_STATE_STYLES[row.state]))
        cells.append(_wrong(row))
        table.add_row(*cells)
        previous = row.bytes
    return table


def _notes(report: Report) -> list[str]:
    if not report.rows:
        return []
    stamp, rows = report.environment, report.rows
    notes = [
        "min, median, p99: time of one call, over iterations, each as its slowest rank saw it. "
        "algbw = size / median; busbw = algbw x nccl-tests' factor; GB = 1e9 bytes."
    ]
    if any(row.late for row in rows):
        notes.append(
            "late: who came late, and by how much. total: from when the first could come; min, median and "
            "p99 are times after the last arrival."
        )
    batched = [row for row in rows if row.batch > 1]
    if batched:
        notes.append(
            f"Up to {format_size(max(row.bytes for row in batched))}, batches of up to "
            f"{max(row.batch for row in batched)} calls are timed, each call on a buffer of its own."
        )
    if any(row.pycoll_speedup is not None for row in rows):
        notes.append(
            "times pycoll's: the row's median / pycoll's, through the same interface (pycoll (torch) and "
            "gloo through "
            "torch.distributed; pycoll and mpi on NumPy arrays), measured in turns, in the same state."
        )
    probes = [p for row in rows for p in (row.probe_before_ns, row.probe_after_ns) if not math.isnan(p)]
    if not probes:
        notes.append("state: unknown, since this process may use one processor only.")
    else:
        notes.append(
            f"state: a cache line took {min(probes):.0f} to {max(probes):.0f} ns from core to core; near "
            f"is less than "
            "70 ns (a shared cache), far is more; mixed: it changed meanwhile. Compare rows of one state "
            "only."
        )
    if any(row.wrong is None for row in rows):
        notes.append("#wrong: not checked.")
    notes.append(
        f"{stamp['cpu']}, {stamp['cpus']} cpus, Linux {stamp['kernel']}, Python {stamp['python']}, "
        f"pycoll {stamp['pycoll']}, {stamp['date']}"
    )
    return notes


def _wrong(row: Row) -> str | Text:
    if row.wrong is None:
        return "-"
    return Text(str(row.wrong), style="bold red") if row.wrong else "0"


def _bandwidth(value: float) -> str:
    digits = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f}"
