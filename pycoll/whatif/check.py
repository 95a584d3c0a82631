"""How far predictions are from the machine: the same schedules simulated on a topology and run by a job.

    pycoll topo probe --ranks 4 -o machine.yaml
    pycoll whatif machine.yaml --check

What was found is kept beside the profiles of `pycoll tune`, and later answers about that topology quote it.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from pycoll.bench.units import format_size
from pycoll.errors import Error, InvalidArgument
from pycoll.selection.decisions import split_way
from pycoll.topology import Topology
from pycoll.whatif.evaluate import Evaluator
from pycoll.whatif.result import Result
from pycoll.whatif.scenario import Scenario

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from pycoll.communicator import Communicator

__all__ = ["Check", "Checked", "check", "known_check"]

_SECONDS = 0.4  # for each size and algorithm
_LEAST, _MOST = 5, 200  # rounds of it
_MOST_TRANSFERS = 1 << 17


@dataclass(frozen=True)
class Checked:
    """A size run in one way: seconds (of the slowest rank; median over rounds) predicted and measured."""

    size: int
    way: str
    predicted: float
    measured: float
    rounds: int

    @property
    def error(self) -> float:
        """predicted / measured - 1"""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Check(Result):
    """All that was compared on one topology. Prints as a table with the error of each."""

    topology: str
    ranks: int
    collective: str
    machine: str
    made: str
    rows: tuple[Checked, ...]

    @property
    def median(self) -> float:
        """Of the errors' magnitudes."""
        return median(abs(row.error) for row in self.rows)

    @property
    def worst(self) -> float:
        """The largest of the errors' magnitudes."""
        return max(abs(row.error) for row in self.rows)

    @property
    def sentence(self) -> str:
        """What later answers quote."""
        sizes = sorted({row.size for row in self.rows})
        ways = {split_way(row.way)[0] for row in self.rows}
        span = " to ".join(dict.fromkeys(format_size(size) for size in (sizes[0], sizes[-1])))
        return (
            f"Checked on {self.made[:10]} on {self.machine}: predictions for this topology were off by "
            f"{self.median:.0%} in the median, {self.worst:.0%} at worst ({self.collective} of {span}, "
            f"{len(ways)} algorithm{'s' if len(ways) > 1 else ''})."
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON; seconds and bytes."""
        return {
            "topology": self.topology,
            "ranks": self.ranks,
            "collective": self.collective,
            "machine": self.machine,
            "made": self.made,
            "median_error": self.median,
            "worst_error": self.worst,
            "rows": self.flat(),
        }

    def flat(self) -> list[dict[str, Any]]:
        """A dict of plain values a size and way, for CSV and data frames."""
        return [
            {
                "size_bytes": row.size,
                "way": row.way,
                "predicted_s": row.predicted,
                "measured_s": row.measured,
                "error": row.error,
                "rounds": row.rounds,
            }
            for row in self.rows
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from pycoll.whatif.tables import check_table

        yield from check_table(self)


def check(
    comm: Communicator, topology: Topology, collective: str = "allreduce", sizes: Sequence[int] = ()
) -> Check | None:
    """Runs every algorithm at every size on the group, and predicts each on the topology; every rank calls
    it.

    The result is rank 0's; the others get None. Of an algorithm its best way on the topology is run. Raises
    InvalidArgument where the topology has not as many ranks as the group, or for other collectives than
    allreduce.
    """
    if collective != "allreduce":
        raise InvalidArgument(f"predictions are checked by allreduce, not {collective}")
    if len(topology.ranks) != comm.ranks:
        raise InvalidArgument(
            f"topology {topology.name!r} has {len(topology.ranks)} ranks and this group {comm.ranks}: check "
            "the topology of this machine (pycoll topo probe -o machine.yaml), or start as many ranks"
        )
    evaluator = Evaluator(Scenario(topology))
    ways = evaluator.ways(collective)
    rows = []
    for size in sizes or (64 << 10, 1 << 20, 16 << 20):
        for way in _best_of_each(evaluator, ways, collective, size):
            predicted = evaluator.outcome(way, collective, size).time
            measured, rounds = _measured(comm, evaluator, way, collective, size)
            rows.append(Checked(size, way, predicted, measured, rounds))
    if comm.rank:
        return None
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Check(topology.name, comm.ranks, collective, _machine(), now, tuple(rows))


def _best_of_each(evaluator: Evaluator, ways: list[str], collective: str, size: int) -> list[str]:
    found = [row.way for row in evaluator.each_algorithm(ways, collective, size) if not row.estimated]
    return [way for way in found if len(evaluator.schedule(way, collective).transfers) <= _MOST_TRANSFERS]


def _machine() -> str:
    from pycoll.selection.profile import Machine

    return str(Machine.here())


def _measured(
    comm: Communicator, evaluator: Evaluator, way: str, collective: str, size: int
) -> tuple[float, int]:
    """Median over rounds of the slowest rank's seconds; every round begins at a barrier."""
    schedule = evaluator.schedule(way, collective)
    values = comm.empty(max(size // 4, 1), "float32")
    values[:] = 0.0
    seconds: list[float] = []
    until = 2 + _LEAST
    while len(seconds) < until:
        comm.barrier()
        begin = time.perf_counter()
        comm.allreduce(values, algorithm=schedule)
        own = np.array([time.perf_counter() - begin])
        comm.allreduce(own, op="max")
        seconds.append(float(own[0]))
        if len(seconds) == 2:  # all ranks have the same figure, so they agree on the number of rounds
            until = 2 + int(min(max(_SECONDS / max(seconds[1], 1e-6), _LEAST), _MOST))
    return median(seconds[2:]), len(seconds) - 2


# ---- where it is kept


def _path(topology: Topology) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    about = repr((topology.nodes, topology.links, topology.ranks)).encode()
    return Path(cache, "pycoll", "checks", f"{hashlib.sha256(about).hexdigest()[:16]}.json")


def keep(found: Check, topology: Topology) -> Path:
    """Writes the check where :func:`known_check` finds it. Raises Error where it cannot be written."""
    path = _path(topology)
    document = {name: value for name, value in asdict(found).items() if name != "rows"}
    document["rows"] = [asdict(row) for row in found.rows]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        part.write_text(json.dumps(document, indent=1), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise Error(f"{path} cannot be written: {error.strerror}") from error
    return path


def known_check(topology: Topology) -> Check | None:
    """The last check of that topology by this user; None where there is none."""
    try:
        document = json.loads(_path(topology).read_text(encoding="utf-8"))
        rows = tuple(Checked(**row) for row in document.pop("rows"))
        return Check(rows=rows, **document) if rows else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
