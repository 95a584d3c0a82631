"""Why an algorithm was chosen: the candidates side by side, what limits each, and what would change the
choice."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pycoll.selection.decisions import FAST_PATH, split_way

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from pycoll.schedule import Schedule
    from pycoll.selection.late_choice import LateCase

__all__ = ["Candidate", "Choice", "Explanation", "Flip"]


@dataclass(frozen=True)
class Choice:
    """What to run. Times are seconds; None where nothing is known. `schedule` is None for the fast path."""

    way: str
    schedule: Schedule | None = field(repr=False, compare=False)
    predicted: float | None
    measured: float | None
    basis: str  #: "pin", "rule", "measured" or "modelled"
    reason: str

    @property
    def algorithm(self) -> str:
        return split_way(self.way)[0]

    @property
    def pieces(self) -> int:
        """0: the fast path's business."""
        return self.schedule.pieces if self.schedule is not None else 0


@dataclass(frozen=True)
class Candidate:
    """A row of the explanation. Times are seconds; None where nothing is known."""

    way: str
    predicted: float | None = None
    measured: float | None = None
    bound_share: float | None = None  #: bound / time: 1 is as fast as any algorithm can be
    binding: str | None = None  #: the link that limits it most
    busy: float | None = None  #: the share of the time in which that link is busy
    ratio: float | None = None  #: its time / the choice's; where measured, the median of ratios within rounds
    estimated: bool = False  #: `predicted` is only a rough figure: too slow to be worth a simulation

    @property
    def time(self) -> float | None:
        return self.measured if self.measured is not None else self.predicted

    @property
    def error(self) -> float | None:
        """How far the prediction is from the measurement: predicted / measured - 1."""
        if self.measured is None or self.predicted is None:
            return None
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Flip:
    """What would change the choice, in words, and to what."""

    what: str
    to: str

    def __str__(self) -> str:
        return f"{self.what}: {self.to}"


@dataclass(frozen=True)
class Explanation:
    """The candidates for one collective and size, the quickest first, and why the first of them is chosen.

    `print(explanation)` shows it; `to_dict()` is for programs.
    """

    collective: str
    size: int
    ranks: int
    machine: str
    choice: Choice
    candidates: tuple[Candidate, ...]
    bound: float | None = None  #: the least seconds that any algorithm could take
    binding: str = ""  #: what the bound is set by
    flips: tuple[Flip, ...] = ()
    notes: tuple[str, ...] = ()
    late: LateCase | None = None  #: what a late rank changes; None where nothing could

    @property
    def best_of_each(self) -> tuple[Candidate, ...]:
        """The candidates without those that another number of pieces of the same algorithm beats."""
        best: dict[tuple[str, bool], Candidate] = {}
        for each in self.candidates:
            best.setdefault((split_way(each.way)[0], each.way == FAST_PATH), each)
        return tuple(best.values())

    @property
    def why(self) -> str:
        """The reason in plain words."""
        return _why(self)

    def to_dict(self) -> dict[str, Any]:
        choice = {name: getattr(self.choice, name) for name in ("way", "algorithm", "pieces", "predicted")}
        choice |= {name: getattr(self.choice, name) for name in ("measured", "basis", "reason")}
        return {
            "collective": self.collective,
            "size": self.size,
            "ranks": self.ranks,
            "machine": self.machine,
            "bound": self.bound,
            "bound_set_by": self.binding,
            "choice": choice,
            "candidates": [{**asdict(each), "error": each.error} for each in self.candidates],
            "flips": [asdict(flip) for flip in self.flips],
            "why": self.why,
            "notes": list(self.notes),
            "late": None if self.late is None else self.late.to_dict(),
        }

    def __str__(self) -> str:
        from io import StringIO

        from rich.console import Console

        text = StringIO()
        Console(file=text, width=150).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        yield _table(self)
        yield Text(self.why)
        if self.flips:
            yield Text("")
            yield Text("What would change the choice:", style="bold")
            yield from (Text(f"  - {flip}") for flip in self.flips)
        if self.late is not None:
            yield Text("")
            yield Text(str(self.late))
        if self.notes:
            yield Text("")
            yield from (Text(note, style="dim") for note in self.notes)


def _why(explanation: Explanation) -> str:
    from pycoll.bench.units import format_seconds

    choice = explanation.choice
    first = next(each for each in explanation.candidates if each.way == choice.way)
    others = [
        each
        for each in explanation.candidates
        if split_way(each.way)[0] != choice.algorithm or (each.way == FAST_PATH) != (choice.way == FAST_PATH)
    ]
    others = [each for each in others if each.time is not None and not each.estimated]
    parts = [f"{in_words(choice.way)} runs: {choice.reason}."]
    if first.time is not None and others and choice.basis in ("measured", "modelled"):
        second = min(others, key=lambda each: each.ratio or float("inf"))
        verb = "takes" if first.measured is not None else "is predicted to take"
        if second.ratio is not None and second.ratio >= 1:
            parts.append(f"The next, {second.way}, {verb} {second.ratio:.2f} times as long.")
    if first.binding is not None:
        busy = "" if first.busy is None else f", which is busy {first.busy:.0%} of the time"
        parts.append(f"What limits it is {first.binding}{busy}.")
    if first.bound_share is not None and explanation.bound is not None:
        parts.append(
            f"No algorithm can take less than {format_seconds(explanation.bound)}"
            + (f" ({explanation.binding})" if explanation.binding else "")
            + f"; this one reaches {first.bound_share:.0%} of that speed."
        )
    return " ".join(parts)


def in_words(way: str) -> str:
    if way == FAST_PATH:
        return "The engine's fast path (direct)"
    algorithm, pieces = split_way(way)
    return f"{algorithm} with {pieces} pieces" if pieces else algorithm


def _table(explanation: Explanation) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from pycoll.bench.units import format_seconds, format_size

    rows = explanation.best_of_each
    shown = {
        "predicted": any(each.predicted is not None for each in rows),
        "measured": any(each.measured is not None for each in rows),
        "error": any(each.error is not None for each in rows),
        "of bound": any(each.bound_share is not None for each in rows),
        "limited by": any(each.binding is not None for each in rows),
    }
    title = f"{explanation.collective} of {format_size(explanation.size)}, {explanation.ranks} ranks"
    table = Table(
        title=f"{title}, {explanation.machine}",
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("")
    table.add_column("algorithm", no_wrap=True)
    for name, wanted in shown.items():
        if wanted:
            table.add_column(name, justify="left" if name == "limited by" else "right", no_wrap=True)
    table.add_column("times the choice's", justify="right", no_wrap=True)
    for each in rows:
        mine = each.way == explanation.choice.way
        busy = "" if each.busy is None else f" ({each.busy:.0%} busy)"
        predicted = "-" if each.predicted is None else format_seconds(each.predicted)
        cells = {
            "predicted": f"about {predicted}" if each.estimated else predicted,
            "measured": "-" if each.measured is None else format_seconds(each.measured),
            "error": "-" if each.error is None else f"{each.error:+.0%}",
            "of bound": "-" if each.bound_share is None else f"{each.bound_share:.0%}",
            "limited by": "-" if each.binding is None else f"{each.binding}{busy}",
        }
        early = "left early" if each.measured is not None else ""
        ratio = "" if mine else early if each.ratio is None else f"{each.ratio:.2f}"
        label = "direct (the fast path)" if each.way == FAST_PATH else each.way
        way = Text(label, style="bold green" if mine else "")
        wanted_cells = [text for name, text in cells.items() if shown[name]]
        table.add_row("->" if mine else "", way, *wanted_cells, ratio)
    return table
