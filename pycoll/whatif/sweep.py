"""A figure of the machine over a range: what wins where, and where one algorithm overtakes another.

print(sweep("hgx-h100-4-fat", "oversubscribe=1..8", "allreduce", "64MiB"))
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from typing import TYPE_CHECKING, Any

from pycoll.bench.units import format_seconds
from pycoll.errors import Error, InvalidArgument, TopologyError
from pycoll.topology import Topology
from pycoll.topology.units import parse_time
from pycoll.whatif.changes import Busy, Change, Flows, Late, Latency, Oversubscribe, Slow, apply
from pycoll.whatif.compare import check_collective, sizes_of, topology_of
from pycoll.whatif.evaluate import Evaluator, Outcome, outcome_from
from pycoll.whatif.parsing import factor
from pycoll.whatif.result import Result
from pycoll.whatif.scenario import Scenario
from pycoll.whatif.studies import Study, fingerprint

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["Axis", "Point", "Sweep", "parse_axis", "sweep"]

_POINTS = 9
_MOST_POINTS = 10_000
#: Crossings are looked for by simulation where both schedules have at most so many transfers.
_MOST_TRANSFERS = 70_000
_HALVINGS = 10
#: So many times as long as the best at either of two points an algorithm takes that may win between them.
_NEAR = 1.25
#: What takes so many times as long is as good.
_TIE = 1.01


@dataclass(frozen=True)
class Axis:
    """What is swept: a value turned into a change."""

    what: str
    values: tuple[float, ...]
    change: Callable[[float], Change]
    label: Callable[[float], str]
    whole: bool = False  # there is nothing between 2 and 3


@dataclass(frozen=True)
class Point:
    """One value: the best outcome, the best of each algorithm (quickest first), or why there is none."""

    value: float
    label: str
    best: Outcome | None
    algorithms: tuple[Outcome, ...]
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "value": self.value,
            "label": self.label,
            "best": self.best and self.best.to_dict(),
            "algorithms": [row.to_dict() for row in self.algorithms],
            "error": self.error or None,
        }


@dataclass(frozen=True)
class Sweep(Result):
    """A collective over a range of one figure, and where the choice changes. Prints as a table."""

    what: str
    machine: str
    collective: str
    size: int
    changes: tuple[str, ...]
    points: tuple[Point, ...]
    crossings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON; seconds, bytes and bytes/s."""
        return {
            "sweep": self.what,
            "topology": self.machine,
            "collective": self.collective,
            "size_bytes": self.size,
            "changes": list(self.changes),
            "points": [point.to_dict() for point in self.points],
            "crossings": list(self.crossings),
        }

    def flat(self) -> list[dict[str, Any]]:
        """A dict of plain values a value and algorithm, for CSV and data frames."""
        return [
            {
                "sweep": self.what,
                "value": point.value,
                "size_bytes": self.size,
                "way": row.way,
                "best": point.best is not None and row.way == point.best.way,
                "estimated": row.estimated,
                "time_s": row.time,
                "busbw_bytes_per_s": row.busbw,
                "bound_s": row.bound,
                "binding_link": row.binding,
            }
            for point in self.points
            for row in point.algorithms
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from pycoll.whatif.tables import sweep_table

        yield from sweep_table(self)


# ---- the range


def parse_axis(text: str) -> Axis:
    """``spine=1..8`` (factors of bandwidth), ``latency:wan=0ms..40ms``, ``late:3=0ms..20ms``,
    ``busy:LINKS=0..0.9``, ``oversubscribe=1..8``, ``flows=1..8``. Values are a range, with ``/N`` for N
    points, or a list.

    Raises InvalidArgument for what is none of these.
    """
    name, equals, values = text.rpartition("=")
    name = name.strip()
    if not equals or not name or not values.strip():
        raise InvalidArgument(
            f"--sweep {text}: write WHAT=FIRST..LAST, such as spine=0.25..2, latency:wan=0ms..40ms, "
            "late:3=0ms..20ms or oversubscribe=1..8"
        )
    sort, colon, target = name.partition(":")
    where = f"--sweep {text}"
    if colon and sort == "latency":
        return Axis(name, _times(values, where), lambda v: Latency(target, v, more=False), format_seconds)
    if colon and sort == "late":
        return Axis(name, _times(values, where), lambda v: Late(target, v), format_seconds)
    if colon and sort == "busy":
        return Axis(name, _numbers(values, where), lambda v: Busy(target, v), lambda v: f"{v:.3g}")
    if sort == "oversubscribe":
        return Axis(name, _numbers(values, where), lambda v: Oversubscribe(v, target), lambda v: f"{v:.3g}:1")
    if name == "flows":
        found = _numbers(values, where)
        if any(not value.is_integer() for value in found):
            raise InvalidArgument(f"{where}: flows are whole numbers")
        return Axis(name, found, lambda v: Flows(round(v)), lambda v: f"{v:.0f}", whole=True)
    links = target if colon and sort in ("slow", "link") else name
    return Axis(name, _numbers(values, where), lambda v: Slow(links, v), lambda v: f"x{v:.3g}")


def _numbers(text: str, where: str) -> tuple[float, ...]:
    return _values(text, where, lambda part: factor(part, where))


def _times(text: str, where: str) -> tuple[float, ...]:
    def read(part: str) -> float:
        try:
            return parse_time(part)
        except InvalidArgument as error:
            raise InvalidArgument(f"{where}: {error}") from None

    return _values(text, where, read)


def _values(text: str, where: str, read: Callable[[str], float]) -> tuple[float, ...]:
    span = re.fullmatch(r"\s*(.+?)\s*\.\.\s*(.+?)\s*(?:/\s*(\d+)\s*)?", text)
    if span is None:
        found = tuple(sorted({read(part) for part in text.split(",") if part.strip()}))
        if not found:
            raise InvalidArgument(f"{where}: no values")
        return found
    first, last = read(span[1]), read(span[2])
    if first >= last:
        raise InvalidArgument(f"{where}: the range ends before it begins")
    if span[3] is None and first.is_integer() and last.is_integer() and last - first < 16:
        return tuple(float(value) for value in range(int(first), int(last) + 1))
    count = int(span[3] or _POINTS)
    if not 2 <= count <= _MOST_POINTS:
        raise InvalidArgument(f"{where}: 2 to {_MOST_POINTS:,} points, not {count}")
    shares = [index / (count - 1) for index in range(count)]
    if first > 0:  # a factor is a factor: equal steps in it
        return tuple(float(f"{first * (last / first) ** share:.12g}") for share in shares)
    return tuple(float(f"{first + (last - first) * share:.12g}") for share in shares)


# ---- the sweep


def sweep(
    machine: Topology | str | PathLike[str],
    axis: str | Axis,
    collective: str = "allreduce",
    size: int | str = "64MiB",
    *,
    algorithm: str = "auto",
    changes: Iterable[Change] = (),
    study: Study | None = None,
) -> Sweep:
    """A collective of one size at every value of ``axis`` (see :func:`parse_axis`), after ``changes``.

    Between two values with different winners, where one overtakes the other is found by simulation.
    """
    check_collective(collective)
    (bytes_,) = sizes_of(size, collective)
    swept = parse_axis(axis) if isinstance(axis, str) else axis
    made = tuple(changes)
    scenario = Scenario(topology_of(machine))
    if isinstance(swept.change(swept.values[-1]), Flows) and apply(scenario, made).routing != "hash":
        raise InvalidArgument(
            f"--sweep {swept.what}: a connection's flows take paths of their own where routers hash: give "
            "--ecmp seed=0 too"
        )
    if all(isinstance(_tried(scenario, made, swept, value), TopologyError) for value in swept.values):
        apply(scenario, [*made, swept.change(swept.values[0])])  # says what is wrong
    tasks = [
        (scenario, (*made, swept.change(value)), collective, bytes_, algorithm) for value in swept.values
    ]
    keys = [fingerprint(scenario, "sweep", *task[1:]) for task in tasks]
    results = (study or Study()).map(point, tasks, keys, [f"{swept.what}={v:g}" for v in swept.values])
    points = tuple(
        _point(value, swept.label(value), result, collective, bytes_)
        for value, result in zip(swept.values, results, strict=True)
    )
    texts = tuple(str(change) for change in made)
    found = tuple(_crossings(scenario, made, swept, points, collective, bytes_))
    return Sweep(swept.what, scenario.topology.name, collective, bytes_, texts, points, found)


def _tried(scenario: Scenario, made: tuple[Change, ...], axis: Axis, value: float) -> TopologyError | None:
    try:
        apply(scenario, [*made, axis.change(value)])
    except TopologyError as error:
        return error
    return None


def point(
    scenario: Scenario, changes: tuple[Change, ...], collective: str, size: int, algorithm: str
) -> dict[str, Any]:
    """One value, as plain values; runs in other processes too."""
    try:
        after = apply(scenario, changes)
    except TopologyError as error:
        return {"error": str(error)}
    evaluator = Evaluator(after)
    ways = evaluator.ways(collective, algorithm)
    best = evaluator.best_of(ways, collective, size)
    others = evaluator.each_algorithm(ways, collective, size)
    rows = [best, *(row for row in others if row.algorithm != best.algorithm)]
    return {"rows": [row.to_dict() for row in rows]}


def _point(value: float, label: str, result: dict[str, Any], collective: str, size: int) -> Point:
    if "error" in result:
        return Point(value, label, None, (), result["error"])
    rows = tuple(outcome_from(row, collective, size) for row in result["rows"])
    return Point(value, label, rows[0], rows)


def _crossings(
    scenario: Scenario,
    made: tuple[Change, ...],
    axis: Axis,
    points: tuple[Point, ...],
    collective: str,
    size: int,
) -> Iterable[str]:
    runs = [point for point in points if point.best is not None]
    found = False
    for low, high in pairwise(runs):
        assert low.best is not None
        assert high.best is not None
        if low.best.algorithm == high.best.algorithm:
            continue
        found = True
        if axis.whole:
            yield f"From {axis.what} {high.label} on {high.best.way} wins, up to {low.label} {low.best.way}."
            continue
        yield from _between(scenario, made, axis, low, high, collective, size)
    if not found and runs:
        assert runs[0].best is not None
        yield f"{runs[0].best.algorithm} wins at every value."


def _between(
    scenario: Scenario,
    made: tuple[Change, ...],
    axis: Axis,
    low: Point,
    high: Point,
    collective: str,
    size: int,
) -> Iterable[str]:
    """A sentence for each time that the winner is overtaken between two points, by more than a percent; a
    third algorithm may win only there."""
    assert low.best is not None
    assert high.best is not None
    names, ends = _contenders(low, high), {low.best.way, high.best.way}
    at_high = {row.algorithm: row.time for row in high.algorithms}

    def middle(a: float, b: float) -> float:
        return float((a * b) ** 0.5 if a > 0 else (a + b) / 2)

    def ranked(value: float) -> list[Outcome]:
        evaluator = Evaluator(apply(scenario, [*made, axis.change(value)]))
        ways = [way for name in names for way in evaluator.ways(collective, name)]
        small = [way for way in ways if len(evaluator.schedule(way, collective).transfers) <= _MOST_TRANSFERS]
        if not ends <= set(small):
            raise InvalidArgument("too large")
        return [row for row in evaluator.each_algorithm(small, collective, size) if not row.estimated]

    here, below, last = low.value, low.best, high.best
    try:
        for _ in names:
            if below.algorithm == last.algorithm:
                return
            if at_high.get(below.algorithm, math.inf) <= _TIE * last.time:
                yield f"At {high.label} {below.algorithm} and {last.algorithm} take as long, or nearly so."
                return
            end, above = high.value, last
            for _ in range(_HALVINGS):
                value = middle(here, end)
                rows = ranked(value)
                own = next((row for row in rows if row.algorithm == below.algorithm), None)
                if own is not None and own.time <= _TIE * rows[0].time:
                    here, below = value, own
                else:
                    end, above = value, rows[0]
            at = axis.label(middle(here, end))
            yield (
                f"Above {at} {above.way} wins, below it {below.way} (both take about "
                f"{format_seconds(above.time)} there)."
            )
            here, below = end, above
    except Error:
        pass  # too large to be looked for
    if below.algorithm != last.algorithm:
        at = axis.label(middle(here, high.value))
        yield f"Above about {at} {last.way} wins, below it {below.way}."


def _contenders(low: Point, high: Point) -> list[str]:
    """The algorithms that may win between two points: those that are near at either end."""
    found: dict[str, None] = {}
    for point in (low, high):
        assert point.best is not None
        for row in point.algorithms:
            if not row.estimated and row.time <= _NEAR * point.best.time:
                found[row.algorithm] = None
    return list(found)
