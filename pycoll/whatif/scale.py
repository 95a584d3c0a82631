"""The same on more and more of a machine: how a collective or a training step scales.

print(scale("hgx-h100-128-fat", "8..1024", workload=Workload.load("7b")))
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from pycoll.errors import Error, InvalidArgument
from pycoll.topology import Topology
from pycoll.whatif.changes import Change, apply
from pycoll.whatif.compare import check_collective, sizes_of, topology_of
from pycoll.whatif.evaluate import Evaluator
from pycoll.whatif.iteration import iterate_in
from pycoll.whatif.result import Result
from pycoll.whatif.scenario import Scenario
from pycoll.whatif.studies import Study, fingerprint
from pycoll.whatif.workload import Workload

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["Scale", "ScalePoint", "parse_ranks", "scale"]

_MOST = 1 << 16


@dataclass(frozen=True)
class ScalePoint:
    """So many ranks: seconds of the collective or the step, and of a step what it is made of.

    ``error`` says why there is none, where there is none.
    """

    ranks: int
    time: float | None
    busbw: float | None = None  # bytes/s
    bound: float | None = None
    way: str = ""
    binding: str | None = None
    exposed: float | None = None
    efficiency: float | None = None
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """For JSON and CSV; seconds and bytes/s."""
        return {
            "ranks": self.ranks,
            "time_s": self.time,
            "busbw_bytes_per_s": self.busbw,
            "bound_s": self.bound,
            "way": self.way,
            "binding_link": self.binding,
            "exposed_s": self.exposed,
            "efficiency": self.efficiency,
            "error": self.error or None,
        }


@dataclass(frozen=True)
class Scale(Result):
    """Points by the number of ranks; every rank has the same work (weak scaling). Prints as a table."""

    machine: str
    what: str  # "allreduce", "7b, ddp"
    size: int | None
    changes: tuple[str, ...]
    points: tuple[ScalePoint, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON; seconds, bytes and bytes/s."""
        return {
            "scale": self.what,
            "topology": self.machine,
            "size_bytes": self.size,
            "changes": list(self.changes),
            "points": [point.to_dict() for point in self.points],
        }

    def flat(self) -> list[dict[str, Any]]:
        """A dict of plain values a number of ranks, for CSV and data frames."""
        return [{"topology": self.machine, "what": self.what} | point.to_dict() for point in self.points]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from pycoll.whatif.tables import scale_table

        yield from scale_table(self)


def parse_ranks(text: str) -> tuple[int, ...]:
    """``8..1024`` (doubling), ``8..1024/5`` (in five steps, each times the same) or ``8,64,512``.

    Raises InvalidArgument for anything else.
    """
    span = re.fullmatch(r"\s*(\d+)\s*\.\.\s*(\d+)\s*(?:/\s*(\d+)\s*)?", text)
    if span is None:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if not parts or not all(part.isdecimal() for part in parts):
            raise InvalidArgument(f"--scale {text}: write FIRST..LAST, such as 8..1024, or 8,64,512")
        found = {int(part) for part in parts}
    else:
        first, last = int(span[1]), int(span[2])
        if not 1 <= first < last:
            raise InvalidArgument(f"--scale {text}: the range begins at 1 or above and ends after that")
        if span[3] is None:
            found = {last}
            while first < last:
                found.add(first)
                first *= 2
        else:
            count = int(span[3])
            if not 2 <= count <= 100:
                raise InvalidArgument(f"--scale {text}: 2 to 100 points, not {count}")
            found = {round(first * (last / first) ** (step / (count - 1))) for step in range(count)}
    if min(found) < 1 or max(found) > _MOST:
        raise InvalidArgument(f"--scale {text}: 1 to {_MOST:,} ranks")
    return tuple(sorted(found))


def scale(
    machine: Topology | str | PathLike[str],
    ranks: str | Iterable[int],
    collective: str = "allreduce",
    size: int | str = "256MiB",
    *,
    workload: Workload | None = None,
    algorithm: str = "auto",
    changes: Iterable[Change] = (),
    study: Study | None = None,
) -> Scale:
    """A collective, or a workload's step, on the first so many ranks of the machine after the changes.

    Raises InvalidArgument for more ranks than the machine has (``Add`` makes it larger).
    """
    check_collective(collective)
    (bytes_,) = sizes_of(size, collective)
    made = tuple(changes)
    scenario = apply(Scenario(topology_of(machine)), made)
    wanted = parse_ranks(ranks) if isinstance(ranks, str) else tuple(sorted(set(ranks)))
    there = len(scenario.topology.ranks)
    if not wanted or wanted[-1] > there or wanted[0] < 1:
        raise InvalidArgument(
            f"--scale: {scenario.topology.name!r} has {there:,} ranks: name 1 to {there:,} of them, or make "
            "it larger (--add COUNT*PART)"
        )
    tasks = [(scenario, count, collective, bytes_, workload, algorithm) for count in wanted]
    keys = [fingerprint(scenario, "scale", *task[1:]) for task in tasks]
    names = [f"{count} ranks" for count in wanted]
    results = (study or Study()).map(scaled, tasks, keys, names)
    return Scale(
        scenario.topology.name,
        collective if workload is None else f"{workload.name}, {workload.pattern}",
        bytes_ if workload is None else None,
        tuple(str(change) for change in made),
        tuple(ScalePoint(**result) for result in results),
    )


def scaled(
    scenario: Scenario, ranks: int, collective: str, size: int, workload: Workload | None, algorithm: str
) -> dict[str, Any]:
    """One number of ranks, as plain values; runs in other processes too."""
    try:
        part = scenario.on(scenario.topology.first(ranks))
        here = {part.topology.nodes[node].name for node in part.topology.ranks}
        part = replace(part, late=tuple(each for each in part.late if each[0] in here))
        if workload is not None:
            step = iterate_in(part, workload, algorithm)
            last = step.choices[-1] if step.choices else None
            return {
                "ranks": ranks,
                "time": step.time,
                "bound": None,
                "way": last.way if last is not None else "",
                "binding": last.binding if last is not None else None,
                "exposed": step.exposed,
                "efficiency": step.efficiency,
            }
        evaluator = Evaluator(part)
        outcome = evaluator.best_of(evaluator.ways(collective, algorithm), collective, size)
    except Error as error:
        return {"ranks": ranks, "time": None, "error": str(error)}
    return {
        "ranks": ranks,
        "time": outcome.time,
        "busbw": outcome.busbw,
        "bound": outcome.bound,
        "way": outcome.way,
        "binding": outcome.binding,
    }
