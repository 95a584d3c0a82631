"""The figures of the late-rank AllReduce, each from schedules that are built, verified and simulated here.

`pycoll schedule late-rank` prints them; docs/late-rank.md says what they mean. Machines are flat: one switch,
one port a rank, ``alpha`` seconds of overhead a transfer, and no latency beyond that. Seconds count from the
arrival of the last rank.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pycoll.late_rank.model import FlatMachine
from pycoll.schedule import Schedule, algorithms, build
from pycoll.topology import Topology

__all__ = [
    "CriticalLateness",
    "PartialLateness",
    "Rounds",
    "SeveralLate",
    "SpeedUp",
    "TimeAfterArrival",
    "critical_lateness",
    "partial_lateness",
    "rounds",
    "several_late",
    "speed_ups",
    "times_after_arrival",
]

#: The machine and size of StragglAR's own simulation.
STRAGGLAR_ALPHA, STRAGGLAR_BANDWIDTH, GIB = 3e-6, 450.0 * 2**30, 2**30
#: An NVSwitch's.
ALPHA, BANDWIDTH = 3e-6, 300e9
_SIZES = tuple(2**20 * 4**power for power in range(7))


@dataclass(frozen=True)
class _Flat:
    """A flat machine, simulated."""

    model: FlatMachine

    @classmethod
    def of(cls, ranks: int, alpha: float, bandwidth: float) -> _Flat:
        return cls(FlatMachine(ranks, alpha, bandwidth))

    @cached_property
    def topology(self) -> Topology:
        return Topology.flat(self.model.ranks, self.model.bandwidth, overhead=self.model.alpha)

    def seconds(self, schedule: Schedule, size: float, late: dict[int, float] | None = None) -> float:
        """Of a schedule; where ranks come late, from the last arrival on."""
        start = [(late or {}).get(rank, 0.0) for rank in range(self.model.ranks)]
        return schedule.simulate(self.topology, size, start=start).time - max(start)

    def built(self, algorithm: str, **options: Any) -> Schedule:
        key = (algorithm, *options.items())
        if key not in self._built:
            self._built[key] = build(algorithm, ranks=self.model.ranks, **options)
        return self._built[key]

    @cached_property
    def _built(self) -> dict[tuple[object, ...], Schedule]:
        return {}

    def ring(self, size: float) -> float:
        return self.seconds(self.built("ring"), size)

    def halving_doubling(self, size: float) -> float:
        return self.seconds(self.built("recursive_halving_doubling"), size)

    def stragglar(self, size: float) -> float | None:
        """After the arrival; None where it does not run on so many ranks."""
        if not algorithms()["stragglar"].accepts(self.model.ranks):
            return None
        return self.seconds(self.built("stragglar", phase="after"), size)

    def late_rank(self, size: float, pieces: int) -> float:
        schedule = build("late_rank", ranks=self.model.ranks, pieces=pieces, phase="after")
        return self.seconds(schedule, size)

    def best_pieces(self, size: float, factor: int = 1) -> int:
        """The best number of pieces of factor, 2 factor, 4 factor, ...; any number for factor 1."""
        if factor == 1:
            return self.model.best_pieces(size)
        powers = [factor << power for power in range(12)]
        return min(powers, key=lambda pieces: self.model.after_pre_phase(size, pieces))


# Rounds


@dataclass(frozen=True)
class Rounds:
    """Rounds after the arrival with K = factor (ranks - 1) pieces, for each of ``factors``."""

    ranks: int
    factors: tuple[int, ...]
    rounds: tuple[int, ...]
    bound: tuple[int, ...]  # K - 1 + ceil(log2 ranks)


def rounds(ranks: Iterable[int] = range(3, 65), factors: Sequence[int] = (1, 2, 4, 8)) -> Iterator[Rounds]:
    """One row a number of ranks."""
    for n in ranks:
        pieces = [factor * (n - 1) for factor in factors]
        made = tuple(build("late_rank", ranks=n, pieces=k, phase="after").rounds for k in pieces)
        yield Rounds(n, tuple(factors), made, tuple(k - 1 + (n - 1).bit_length() for k in pieces))


# Lateness that hides the pre-phase


@dataclass(frozen=True)
class SpeedUp:
    """Speed-ups over the ring of what runs after the arrival, where the pre-phase was over by then."""

    ranks: int
    ring: float  # seconds
    stragglar: float | None  # None where it does not run on so many ranks
    halving_doubling: float
    direct: float
    late_rank: float
    pieces: int
    bound: float  # what no algorithm can exceed


def speed_ups(
    ranks: Iterable[int] = (4, 8, 16, 32, 64, 128, 256),
    size: float = GIB,
    alpha: float = STRAGGLAR_ALPHA,
    bandwidth: float = STRAGGLAR_BANDWIDTH,
) -> Iterator[SpeedUp]:
    """StragglAR's own simulation. Direct: the early ranks' whole sum is swapped with the late rank's buffer,
    then broadcast along a binomial tree, which is ``late_rank`` with one piece."""
    for n in ranks:
        flat = _Flat.of(n, alpha, bandwidth)
        ring = flat.ring(size)
        pieces = flat.best_pieces(size)
        published = flat.stragglar(size)
        yield SpeedUp(
            n,
            ring,
            published and ring / published,
            ring / flat.halving_doubling(size),
            ring / flat.late_rank(size, 1),
            ring / flat.late_rank(size, pieces),
            pieces,
            ring / flat.model.bound(size),
        )


@dataclass(frozen=True)
class TimeAfterArrival:
    """Seconds after the arrival, where the pre-phase was over by then."""

    ranks: int
    size: int
    ring: float
    halving_doubling: float
    stragglar: float | None
    late_rank_multiple: float  # with the best K = k (ranks - 1), k a power of two
    multiple: int  # that k
    late_rank: float  # with the best K
    pieces: int  # that K
    bound: float


def times_after_arrival(
    ranks: Iterable[int] = (4, 8, 16, 32, 64, 256),
    sizes: Iterable[int] = _SIZES,
    alpha: float = ALPHA,
    bandwidth: float = BANDWIDTH,
) -> Iterator[TimeAfterArrival]:
    """The bound is ceil(log2 n) alpha + S beta, which cannot both be reached."""
    sizes = tuple(sizes)
    for n in ranks:
        flat = _Flat.of(n, alpha, bandwidth)
        # One algorithm after the other over all sizes: what the simulator works out for one is kept.
        each = [[run(size) for size in sizes] for run in (flat.ring, flat.halving_doubling)]
        published = [flat.stragglar(size) for size in sizes]
        for size, ring, halving_doubling, stragglar in zip(sizes, *each, published, strict=True):
            multiple, free = flat.best_pieces(size, n - 1), flat.best_pieces(size)
            yield TimeAfterArrival(
                n,
                size,
                ring,
                halving_doubling,
                stragglar,
                flat.late_rank(size, multiple),
                multiple // (n - 1),
                flat.late_rank(size, free),
                free,
                flat.model.depth * alpha + size / bandwidth,
            )


# Lateness that hides a part of it


@dataclass(frozen=True)
class PartialLateness:
    """Seconds after the arrival of a rank that is ``share`` of the pre-phase late."""

    ranks: int
    share: float  # of the pre-phase with a piece for each early rank
    lateness: float
    ring: float
    stragglar: float | None
    late_rank: float  # one phase after the other: what is left of the pre-phase, late_rank, ring
    groups: int
    cut: int
    overlapped: float  # the same as one schedule, whose phases overlap where they can
    bound: float


def partial_lateness(
    ranks: Iterable[int] = (8, 16),
    shares: Iterable[float] = (0, 0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.2),
    size: float = GIB,
    alpha: float = ALPHA,
    bandwidth: float = BANDWIDTH,
) -> Iterator[PartialLateness]:
    """The best cut of each is found by the model, what it takes by simulation."""
    shares = tuple(shares)
    for n in ranks:
        flat = _Flat.of(n, alpha, bandwidth)
        late = n - 1
        ring = flat.ring(size)
        hidden = flat.seconds(build("late_rank", ranks=n, groups=1, phase="before"), size)
        published = flat.stragglar(size)
        for share in shares:
            lateness = share * hidden
            cut = flat.model.best_cut(size, lateness)
            options: dict[str, Any] = {"groups": cut.groups, "cut": cut.cut}
            if cut.cut == 0:
                phases = overlapped = ring
            else:
                parts = {p: build("late_rank", ranks=n, phase=p, **options) for p in ("before", "after")}
                left = max(0.0, flat.seconds(parts["before"], size) - lateness)
                phases = left + flat.seconds(parts["after"], size)
                whole = build("late_rank", ranks=n, **options)
                overlapped = flat.seconds(whole, size, {late: lateness})
            yield PartialLateness(
                n,
                share,
                lateness,
                ring,
                published and max(0.0, hidden - lateness) + published,
                phases,
                cut.groups,
                cut.cut,
                overlapped,
                flat.model.bound(size, lateness),
            )


# Several late ranks


@dataclass(frozen=True)
class SeveralLate:
    """Rounds from the last arrival, where the others' pre-phase was over by the first one."""

    ranks: int
    late: int
    gap: float  # between one arrival and the next, in units of S beta
    pieces: int
    rounds: int
    bound: int
    time: float  # in units of S beta, without alpha
    ring: float  # likewise: 2 (n-1) / n


def several_late(
    ranks: Iterable[int] = (8, 16),
    late: Iterable[int] = (1, 2, 3, 4),
    gaps: Iterable[float] = (0.25, 0.5, 0.75, 1),
    factor: int = 4,
) -> Iterator[SeveralLate]:
    """K = factor (n - L) pieces. Together for each number of late ranks, then two of them with each gap."""
    late, gaps = tuple(late), tuple(gaps)
    for n in ranks:
        cases = [(count, 0.0) for count in late] + [(2, gap) for gap in gaps]
        cases = [(count, gap) for count, gap in cases if count < n]
        for count, gap in cases:
            pieces = factor * (n - count)
            arrivals = [round(index * gap * pieces) for index in range(count)]
            options: dict[str, Any] = {"arrivals": arrivals} if count > 1 else {}
            who = list(range(n - count, n))
            schedule = build("late_rank", ranks=n, pieces=pieces, late=who, phase="after", **options)
            schedule.verify()
            after = schedule.rounds - arrivals[-1]
            together = math.ceil(pieces * max(1.0, (n - 1 + count) / n))
            least = together if gap == 0 else pieces
            yield SeveralLate(n, count, gap, pieces, after, least, after / pieces, 2 * (n - 1) / n)


# When it pays


@dataclass(frozen=True)
class CriticalLateness:
    """Seconds of lateness, and of what it is compared with, by the model."""

    ranks: int
    size: int
    on_time: float  # the best algorithm for ranks on time
    critical: float  # lateness from which late_rank with the best cut beats it
    without_cuts: float  # lateness from which late_rank of the whole buffer does
    pre_phase: float  # lateness from which nothing more is gained


def critical_lateness(
    ranks: Iterable[int] = (4, 8, 16, 64),
    sizes: Iterable[int] = _SIZES,
    alpha: float = ALPHA,
    bandwidth: float = BANDWIDTH,
) -> Iterator[CriticalLateness]:
    """From alpha and beta alone, for each number of ranks and size."""
    sizes = tuple(sizes)
    for n in ranks:
        model = FlatMachine(n, alpha, bandwidth)
        for size in sizes:
            yield CriticalLateness(
                n,
                size,
                model.on_time(size),
                model.critical_lateness(size),
                model.critical_lateness(size, cuts=False),
                model.pre_phase(size, model.best_pieces(size)),
            )


# As text


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns side by side, to the right but for the first."""
    lines = [list(heads), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def as_dicts(rows: Iterable[object]) -> list[dict[str, object]]:
    """For JSON."""
    return [dataclasses.asdict(row) for row in rows]  # type: ignore[call-overload]
