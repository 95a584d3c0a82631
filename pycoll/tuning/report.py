"""The tables of `pycoll tune` that a person reads."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from pycoll.bench.units import format_seconds, format_size
from pycoll.selection.profile import Profile
from pycoll.tuning import check
from pycoll.tuning.check import Summary, Verdict
from pycoll.tuning.results import CLEAN


def print_profile(profile: Profile, collectives: Sequence[str], console: Console) -> None:
    """For every size what is chosen, and what comes after it."""
    for collective in collectives:
        columns = ("size", "state", "choice", "time", "next best", "takes", "rounds")
        shown = _table(f"{collective}, {profile.ranks} ranks", *columns)
        for size in profile.sizes_of(collective):
            measured = profile.at(collective, size)
            states: list[str] = [each for each in CLEAN if any(each in t.by_state for t in measured)] or [""]
            for number, state in enumerate(states):
                best, *others = profile.at(collective, size, state=state)
                ratio = others[0].relative_in(state) / best.relative_in(state) if others else None
                shown.add_row(
                    "" if number else format_size(size),
                    "" if state == "unknown" else state,
                    Text(best.way, style="bold"),
                    format_seconds(best.seconds_in(state)),
                    others[0].way if others else "",
                    "" if ratio is None else f"{ratio:.2f}x",
                    str(best.rounds),
                )
        _print(shown, console)
    console.print(
        Text(
            "time: median over rounds of the slowest rank's time of one call. takes: the median of its "
            "ratios to the choice's time within rounds. "
            + ("" if profile.device == "cuda" else "direct is the engine's fast path; ")
            + "NAME/K cuts the buffer in K pieces.",
            style="dim",
        )
    )


def print_verdicts(rows: Sequence[Verdict], total: Summary, ranks: int, console: Console) -> None:
    """For every size the choice against what is best now, and the prediction against the time."""
    for collective in dict.fromkeys(row.collective for row in rows):
        columns = ("size", "state", "choice", "time", "best now", "its time", "regret", "as called")
        title = f"{collective}, {ranks} ranks: choices made before, measured now"
        shown = _table(title, *columns, "predicted", "error")
        previous = None
        for row in (row for row in rows if row.collective == collective):
            shown.add_row(
                "" if row.bytes == previous else format_size(row.bytes),
                row.state,
                Text(row.chosen, style="bold"),
                format_seconds(row.seconds),
                row.best if row.best != row.chosen else "the choice",
                format_seconds(row.best_seconds),
                Text(f"{row.regret:.1%}", style=_style(row.regret, check.WORST_REGRET)),
                "-" if row.as_called is None else f"{row.as_called:.2f}x",
                "-" if row.predicted is None else format_seconds(row.predicted),
                "-" if row.error is None else f"{row.error:+.0%}" + ("" if row.held_out else " *"),
            )
            previous = row.bytes
        _print(shown, console)
    console.print(_line("regret, median over sizes", total.median_regret, check.MEDIAN_REGRET))
    console.print(_line("regret, worst size", total.worst_regret, check.WORST_REGRET))
    if total.median_error is not None:
        console.print(_line("prediction error, median over sizes", total.median_error, check.MEDIAN_ERROR))
    if total.median_error_held_out is not None:
        held_out = "prediction error, median over sizes the model never saw"
        console.print(_line(held_out, total.median_error_held_out, check.MEDIAN_ERROR))
    if total.wrong:
        console.print(Text(f"WRONG RESULTS: {total.wrong} elements differ.", style="bold red"))
    console.print(
        Text(
            "regret: by how much more time the choice took than the best way, from ratios within rounds. "
            "as called: a call that names no algorithm against the choice. error: predicted / measured - 1; "
            "* sizes that the model was fitted to.",
            style="dim",
        )
    )


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for name in columns:
        left = name in ("state", "choice", "next best", "best now")
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    return table


def _print(table: Table, console: Console) -> None:
    natural = Measurement.get(console, console.options.update(max_width=1000), table).maximum
    Console(file=console.file, width=max(natural, console.width)).print(table)


def _style(share: float, limit: float) -> str:
    return "red" if share > limit else "green" if share <= limit / 3 else "yellow"


def _line(what: str, share: float, limit: float) -> Text:
    verdict = "within" if share <= limit else "BEYOND"
    style = "green" if share <= limit else "bold red"
    return Text(f"{what}: {share:.1%} ({verdict} {limit:.0%})", style=style)
