"""Before and after: a collective on a machine, and on the machine after changes.

from pycoll.whatif import Slow, compare
print(compare("two_racks", [Slow("tor0-tor1", 0.5)], "allreduce", ["1MiB", "256MiB"]))
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from pycoll.bench.units import parse_sizes
from pycoll.bench.workload import COLLECTIVES
from pycoll.errors import InvalidArgument
from pycoll.topology import Topology
from pycoll.whatif.changes import Change, Ecmp, Flows, Spread, apply
from pycoll.whatif.evaluate import Evaluator, Outcome
from pycoll.whatif.result import Result
from pycoll.whatif.scenario import Scenario
from pycoll.whatif.story import what_happened

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["Comparison", "Row", "compare", "sizes_of", "time", "topology_of"]

#: Above so many transfers what was chosen before is not simulated once more after a flip.
_MOST_KEPT = 300_000


@dataclass(frozen=True)
class Row:
    """One size (and, of all algorithms, one algorithm) before and after; None where it does not run there.

    ``kept`` is the way of before, after the change: there where the choice flips and the ranks stay.
    """

    size: int
    before: Outcome | None
    after: Outcome | None
    kept: Outcome | None = None
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        ratio = None
        if self.before is not None and self.after is not None and self.before.time:
            ratio = self.after.time / self.before.time
        return {
            "size_bytes": self.size,
            "before": self.before and self.before.to_dict(),
            "after": self.after and self.after.to_dict(),
            "kept": self.kept and self.kept.to_dict(),
            "time_ratio": ratio,
            "why": self.why,
        }


@dataclass(frozen=True)
class Comparison(Result):
    """What changes do to a collective: a row a size. Prints as a table with a sentence on every size."""

    collective: str
    algorithm: str  # as asked: auto, all, a name
    changes: tuple[str, ...]
    before: Scenario = field(repr=False)
    after: Scenario = field(repr=False)
    rows: tuple[Row, ...]

    @property
    def why(self) -> str:
        """The sentences, a line each."""
        return "\n".join(row.why for row in self.rows if row.why)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, texts, lists and dicts, for JSON; seconds, bytes and bytes/s."""
        return {
            "topology": self.before.topology.name,
            "collective": self.collective,
            "algorithm": self.algorithm,
            "changes": list(self.changes),
            "ranks_before": len(self.before.topology.ranks),
            "ranks_after": len(self.after.topology.ranks),
            "rows": [row.to_dict() for row in self.rows],
        }

    def again(self, sizes: Iterable[int]) -> Comparison:
        """The same of other sizes."""
        other = Evaluator(self.after) if self.changes else None
        rows = _rows(Evaluator(self.before), other, self.collective, sizes, self.algorithm)
        return replace(self, rows=rows)

    def flat(self) -> list[dict[str, Any]]:
        """A dict of plain values a size and side (before, after): for CSV and data frames."""
        found = []
        for row in self.rows:
            for side in ("before", "after"):
                outcome: Outcome | None = getattr(row, side)
                if outcome is None:
                    continue
                values = outcome.to_dict()
                made = values.pop("composition_s")
                head = {
                    "topology": self.before.topology.name,
                    "changes": " ".join(self.changes),
                    "collective": self.collective,
                    "size_bytes": row.size,
                    "side": side,
                }
                found.append(head | values | {f"{name}_s": made.get(name) for name in _MADE})
        return found

    def draw(self, path: str | PathLike[str] | None = None, *, dpi: int = 150) -> Figure:
        """Draws time against size and the busiest links with matplotlib; see
        :func:`pycoll.whatif.drawing.draw_comparison`."""
        from pycoll.whatif.drawing import draw_comparison

        return draw_comparison(self, path, dpi=dpi)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from pycoll.whatif.tables import comparison_table

        yield from comparison_table(self)


_MADE = ("arrival", "overhead", "bandwidth", "latency", "addition")


def topology_of(machine: Topology | str | PathLike[str]) -> Topology:
    """A topology, or the one of that file or bundled name."""
    return machine if isinstance(machine, Topology) else Topology.load(machine)


def start_of(machine: Topology | str | PathLike[str], changes: Iterable[Change]) -> Scenario:
    """The machine as it is before the changes: where these spread traffic, one whose routers hash."""
    made = list(changes)
    start = Scenario(topology_of(machine))
    if not any(isinstance(change, Spread) for change in made):
        return start
    use = [change for change in made if isinstance(change, (Ecmp, Flows))]
    return replace(apply(start, [Ecmp(0), *use]), topology=start.topology)


def sizes_of(sizes: int | str | Iterable[int | str], collective: str = "") -> list[int]:
    """Bytes: ``2**20``, ``"1MiB"``, ``"4KiB:1GiB:x4"``, or several of these; InvalidArgument for none. A
    barrier moves no bytes, whatever is given."""
    if collective == "barrier":
        return [0]
    given = [sizes] if isinstance(sizes, (int, str)) else list(sizes)
    found: set[int] = set()
    for each in given:
        found.update(parse_sizes(each) if isinstance(each, str) else [int(each)])
    if not found or min(found) < 1:
        raise InvalidArgument("give one size or more, 1 byte or above: 25MiB, 4KiB:1GiB:x4")
    return sorted(found)


def check_collective(collective: str) -> None:
    """Raises InvalidArgument for a collective that there is not."""
    if collective not in COLLECTIVES:
        raise InvalidArgument(f"there is no collective {collective!r}; there are: {', '.join(COLLECTIVES)}")


def compare(
    machine: Topology | str | PathLike[str],
    changes: Iterable[Change],
    collective: str = "allreduce",
    sizes: int | str | Iterable[int | str] = "1KiB,1MiB,64MiB,1GiB",
    algorithm: str = "auto",
    *,
    before: Evaluator | None = None,
) -> Comparison:
    """A collective before and after changes, at each size.

    ``sizes`` are bytes of the larger of a rank's two buffers. ``algorithm``: ``auto`` chooses on both sides
    the one predicted to be quickest, ``all`` gives a row for each, a name (``ring``) or way (``ring/32``)
    holds it fixed. Where a change is ``Spread()``, before is a machine whose routers hash, by the seed of an
    ``Ecmp`` among the changes or 0, and with the ``Flows`` among them.
    ``before`` is an evaluator of the machine as it is, which keeps its results from one call to the next.

    A barrier is one of 0 bytes, whatever ``sizes`` says.

    Raises TopologyError for names that mean nothing or ranks that are cut off, InvalidArgument for the rest.
    """
    check_collective(collective)
    made = tuple(changes)
    wanted = sizes_of(sizes, collective)
    start = start_of(machine, made)
    after = apply(start, made)
    texts = tuple(str(change) for change in made)
    one = before if before is not None and before.scenario == start else Evaluator(start)
    rows = _rows(one, Evaluator(after) if made else None, collective, wanted, algorithm)
    return Comparison(collective, algorithm, texts, start, after, rows)


def _rows(
    one: Evaluator, other: Evaluator | None, collective: str, sizes: Iterable[int], algorithm: str
) -> tuple[Row, ...]:
    touched = changed_links(one.topology, other.topology) if other is not None else set()
    ways_one = one.ways(collective, algorithm)
    ways_other = other.ways(collective, algorithm) if other is not None else []
    rows = []
    for size in sizes:
        if algorithm == "all":
            rows += _all(one, other, ways_one, ways_other, collective, size)
            continue
        first = one.best_of(ways_one, collective, size)
        if other is None:
            rows.append(Row(size, first, None))
            continue
        second = other.best_of(ways_other, collective, size)
        kept = None
        if second.algorithm != first.algorithm and second.ranks == first.ranks:
            schedule = one.schedule(first.way, collective)
            if len(schedule.transfers) <= _MOST_KEPT:
                kept = other.outcome_of(schedule, first.way, collective, size)
        rows.append(Row(size, first, second, kept, what_happened(first, second, kept, touched)))
    return tuple(rows)


def _all(
    one: Evaluator,
    other: Evaluator | None,
    ways_one: list[str],
    ways_other: list[str],
    collective: str,
    size: int,
) -> list[Row]:
    before = {row.algorithm: row for row in one.each_algorithm(ways_one, collective, size)}
    if other is None:
        return [Row(size, row, None) for row in before.values()]
    after = {row.algorithm: row for row in other.each_algorithm(ways_other, collective, size)}
    names = dict.fromkeys([*after, *before])
    return [Row(size, before.get(name), after.get(name)) for name in names]


def changed_links(before: Topology, after: Topology) -> set[str]:
    """Names of the links that are gone, or have other figures."""
    left = {link.name: (link.bandwidth, link.latency) for link in after.links}
    return {link.name for link in before.links if left.get(link.name) != (link.bandwidth, link.latency)}


def time(
    machine: Topology | str | PathLike[str],
    op: str,
    bytes: int | str,
    group: Sequence[int] | int | None = None,
    placement: str | Sequence[int] | None = None,
    *,
    algorithm: str = "auto",
    changes: Iterable[Change] = (),
) -> float:
    """Seconds of a collective: a function for planners.

    ``op`` is the collective, ``bytes`` those of the larger of a rank's two buffers. ``placement`` (packed,
    interleaved, or an order of ranks) deals the ranks over the machine, then ``group`` picks its members: a
    number of ranks from the first on, or a list. Nothing else is on the machine's links.
    """
    from pycoll.whatif.changes import Place

    scenario = Scenario(topology_of(machine))
    made = list(changes)
    if placement is not None:
        made.append(Place(placement) if isinstance(placement, str) else Place(order=tuple(placement)))
    scenario = apply(scenario, made)
    if group is not None:
        members = list(range(group)) if isinstance(group, int) else list(group)
        scenario = scenario.on(scenario.topology.place(members))
    check_collective(op)
    (size,) = sizes_of(bytes, op)
    evaluator = Evaluator(scenario)
    return evaluator.best_of(evaluator.ways(op, algorithm), op, size).time
