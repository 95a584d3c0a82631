"""Whether to work while a rank is late, on a machine given as a topology: by simulation of both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pycoll.bench.units import format_seconds
from pycoll.errors import InvalidArgument

if TYPE_CHECKING:
    from pycoll.schedule import Schedule
    from pycoll.topology import Topology

__all__ = ["LateCase", "late_case", "the_late_rank"]

#: (groups, cut) that are tried: fractions of the buffer in eighths, and the whole of it in finer pieces.
_CUTS = (*((8, cut) for cut in range(1, 9)), (1, 1), (2, 2), (4, 4), (16, 16), (32, 32))
#: Schedules with more transfers take too long to simulate for a choice.
_MOST_TRANSFERS = 1 << 16


@dataclass(frozen=True)
class LateCase:
    """An AllReduce with one rank late. Seconds count from its arrival."""

    late: int
    lateness: float
    on_time: str  #: what runs where all are on time
    waiting: float  #: seconds of that
    groups: int  #: of `late_rank`, that many parts of the buffer,
    cut: int  #: and how many of them go its way; 0: it does not pay
    seconds: float  #: of the better one
    critical: float  #: the lateness from which `late_rank` is quicker; infinity: it never is
    at_best: float  #: seconds of `late_rank` for lateness without end
    schedule: Schedule | None = field(repr=False, compare=False)  #: of `late_rank`, where it pays
    used: bool = True  #: False: the order of additions must not depend on who is late

    @property
    def pays(self) -> bool:
        return self.cut > 0

    @property
    def gain(self) -> float:
        """How many times as quick it is as waiting."""
        return self.waiting / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """For JSON: None for what is infinite."""
        names = ("late", "lateness", "on_time", "waiting", "groups", "cut", "seconds", "critical", "at_best")
        values = {name: getattr(self, name) for name in names}
        return {name: None if value == math.inf else value for name, value in values.items()}

    def __str__(self) -> str:
        general = (
            f"late_rank is quicker from {format_seconds(self.critical)} of lateness on, and at most "
            f"{self.waiting / self.at_best:.2f} times as quick"
            if self.critical < math.inf
            else "late_rank is not quicker, however late it is"
        )
        if self.lateness == 0:
            return f"If one rank came late: {general}."
        how_late = (
            f"Rank {self.late} {format_seconds(self.lateness)} late: after its arrival {self.on_time} takes"
        )
        if not self.pays:
            return f"{how_late} {format_seconds(self.waiting)}, and runs; {general}."
        parts = f"{self.cut} of {self.groups} parts" if self.cut < self.groups else f"{self.groups} parts"
        verb = "runs" if self.used else "would, were it not for deterministic=True, which costs that"
        return (
            f"{how_late} {format_seconds(self.waiting)}, late_rank (with {parts} reduced before) "
            f"{format_seconds(self.seconds)}: it {verb}. In general {general}."
        )


def the_late_rank(late: Mapping[int, float], ranks: int) -> tuple[int, float]:
    """Rank and seconds of the one late rank; InvalidArgument for none, several, or what is none."""
    found = [(rank, seconds) for rank, seconds in late.items() if seconds != 0]
    if len(found) != 1:
        raise InvalidArgument(f"late: {len(found)} ranks are late; give one, as {{rank: seconds}}")
    rank, seconds = found[0]
    if not 0 <= rank < ranks:
        raise InvalidArgument(f"late: there is no rank {rank}; there are 0 to {ranks - 1}")
    if not 0 < seconds < math.inf:
        raise InvalidArgument(f"late: rank {rank} cannot be {seconds} s late")
    return rank, float(seconds)


def late_case(
    topology: Topology,
    size: int,
    on_time: tuple[str, Schedule],
    late: int | None = None,
    lateness: float = 0.0,
    *,
    used: bool = True,
) -> LateCase:
    """`on_time`: name and schedule of what runs where nobody is late. Without `late` it is the last rank,
    and what is of interest is the critical lateness."""
    ranks = len(topology.ranks)
    who = ranks - 1 if late is None else late
    start = [lateness if rank == who else 0.0 for rank in range(ranks)]
    waiting = on_time[1].simulate(topology, size, start=start, verify=False).time - lateness
    critical = at_best = math.inf
    best: tuple[float, int, int, str] = (waiting, 1, 0, "doubling")
    for groups, cut, spread, before, after in _options(topology, size, who):
        at_best = min(at_best, after)
        if after < waiting:
            critical = min(critical, max(0.0, before + after - waiting))
        best = min(best, (max(0.0, before - lateness) + after, groups, cut, spread))
    seconds, groups, cut, spread = best
    schedule = None
    if cut:
        schedule = _build(topology, who, groups, cut, spread)
        whole = schedule.simulate(topology, size, start=start, verify=False).time - lateness
        seconds = min(seconds, whole)  # its phases overlap
    return LateCase(
        who, lateness, on_time[0], waiting, groups, cut, seconds, critical, at_best, schedule, used
    )


def _options(topology: Topology, size: int, late: int) -> Iterator[tuple[int, int, str, float, float]]:
    """(groups, cut, spread, seconds before, seconds after) of all that are quick enough to simulate."""
    ranks = len(topology.ranks)
    for groups, cut in _CUTS:
        if groups * (ranks - 1) * ranks * 2 > _MOST_TRANSFERS:
            continue
        seen: set[int] = set()
        for spread in ("doubling", "near"):
            parts = [_build(topology, late, groups, cut, spread, phase) for phase in ("before", "after")]
            if parts[1].hash in seen:
                continue  # no rank is nearer than another
            seen.add(parts[1].hash)
            before, after = (part.simulate(topology, size, verify=False).time for part in parts)
            yield groups, cut, spread, before, after


def _build(
    topology: Topology, late: int, groups: int, cut: int, spread: str, phase: str = "both"
) -> Schedule:
    from pycoll.schedule import build

    pieces = groups * (len(topology.ranks) - 1)  # the ring's shards may differ by a piece
    return build(
        "late_rank",
        ranks=len(topology.ranks),
        pieces=pieces,
        topology=topology,
        late=late,
        groups=groups,
        cut=cut,
        spread=spread,
        phase=phase,
    )
