"""When it pays to work while waiting for a late rank: the alpha-beta model of ``late_rank``.

    flat = FlatMachine(ranks=8, alpha=3e-6, bandwidth=300e9)
    flat.best_cut(2**30, lateness=1e-3)    # Cut(groups=8, cut=2, seconds=0.0060...)
    flat.critical_lateness(2**30)          # seconds of lateness from which it pays

One port a rank, any rank to any other at the full bandwidth; ``alpha`` seconds a round, of which a rank sends
and receives one piece. All times are seconds after the last rank's arrival; lateness is counted from the
moment at which all others are there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pycoll.errors import InvalidArgument

__all__ = ["Cut", "FlatMachine"]

#: Groups that the buffer is cut in; more cost more rounds than they gain.
_GROUPS = tuple(2**power for power in range(8))


@dataclass(frozen=True)
class Cut:
    """How to do an AllReduce with one late rank: of ``groups`` equal parts of the buffer, ``cut`` by the
    late-rank schedule, the rest by a ring; ``cut=0``: all by the best algorithm for ranks on time."""

    groups: int
    cut: int
    seconds: float


@dataclass(frozen=True)
class FlatMachine:
    """``ranks`` devices on one switch; ``bandwidth`` in bytes/s, ``alpha`` in seconds.

    Raises InvalidArgument for less than two ranks and for numbers that are not positive.
    """

    ranks: int
    alpha: float
    bandwidth: float

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise InvalidArgument(f"a late rank needs others: ranks must be at least 2, not {self.ranks}")
        if not (self.alpha >= 0 and self.bandwidth > 0):
            raise InvalidArgument("alpha must not be negative, and bandwidth must be positive")

    @property
    def depth(self) -> int:
        """ceil(log2 ranks): rounds in which one rank's piece can reach all."""
        return (self.ranks - 1).bit_length()

    def rounds(self, rounds: int, bytes_: float) -> float:
        """Seconds of so many rounds with so many bytes each."""
        return rounds * (self.alpha + bytes_ / self.bandwidth)

    # Algorithms for ranks that are on time

    def ring(self, size: float) -> float:
        return self.rounds(2 * (self.ranks - 1), size / self.ranks)

    def recursive_halving_doubling(self, size: float) -> float:
        """For a power of two; for others, with two more rounds of whole buffers."""
        power = 1 << (self.ranks.bit_length() - 1)
        steps = 2 * (power.bit_length() - 1)
        seconds = steps * self.alpha + 2 * (power - 1) / power * size / self.bandwidth
        return seconds + (self.rounds(2, size) if power != self.ranks else 0.0)

    def on_time(self, size: float) -> float:
        """The quicker of both, which need all ranks from the start."""
        return min(self.ring(size), self.recursive_halving_doubling(size))

    # Late ranks

    def pre_phase(self, size: float, pieces: int) -> float:
        """The early ranks' reduce-scatter; exact where ``pieces`` is a multiple of ranks - 1 and every early
        rank owns pieces (ranks a power of two)."""
        early = self.ranks - 1
        return self.rounds((early - 1) * max(1, math.ceil(pieces / early)), size / pieces)

    def after_pre_phase(self, size: float, pieces: int) -> float:
        """From the arrival to the end, where the pre-phase is over by then: K-1+depth rounds (one or two
        more for the few numbers of ranks without a closed form)."""
        return self.rounds(pieces - 1 + self.depth, size / pieces)

    def best_pieces(self, size: float) -> int:
        """The K at which :meth:`after_pre_phase` is least: sqrt((depth - 1) S beta / alpha)."""
        if self.alpha == 0:
            raise InvalidArgument("without alpha there is no best number of pieces: more are always better")
        best = max(1.0, math.sqrt((self.depth - 1) * size / self.bandwidth / self.alpha))
        return min(math.floor(best), math.ceil(best), key=lambda k: (self.after_pre_phase(size, k), k))

    def with_cut(self, size: float, groups: int, cut: int, lateness: float) -> float:
        """The first ``cut`` of ``groups`` parts by the late-rank schedule, then a ring for the rest."""
        early = self.ranks - 1
        if cut == 0:
            return self.ring(size)
        piece = size / (groups * early)
        waited = max(0.0, self.rounds(cut * (early - 1), piece) - lateness)
        swapped = self.rounds(cut * early - 1 + self.depth, piece)
        rest = self.ring(size * (groups - cut) / groups) if cut < groups else 0.0
        return waited + swapped + rest

    def best_cut(self, size: float, lateness: float) -> Cut:
        """The quickest of all cuts, and of what ranks on time would run."""
        best = Cut(1, 0, self.on_time(size))
        for option in self._cuts(size, lateness):
            if option.seconds < best.seconds:
                best = option
        return best

    def _cuts(self, size: float, lateness: float) -> Iterator[Cut]:
        for groups in _GROUPS:
            for cut in range(1, groups + 1):
                yield Cut(groups, cut, self.with_cut(size, groups, cut, lateness))

    def critical_lateness(self, size: float, *, cuts: bool = True) -> float:
        """The lateness above which the late-rank schedule beats what ranks on time would run; infinity where
        it never does. ``cuts=False``: with the whole buffer in the late-rank schedule, at any of the numbers
        of groups."""
        best = math.inf
        on_time = self.on_time(size)
        early = self.ranks - 1
        for groups in _GROUPS:
            for cut in range(1, groups + 1) if cuts else (groups,):
                reduced = self.rounds(cut * (early - 1), size / (groups * early))
                after = self.with_cut(size, groups, cut, reduced)
                if after < on_time:  # from this lateness on, and already while what is left to wait is less
                    best = min(best, max(0.0, reduced - (on_time - after)))
        return best

    def bound(self, size: float, lateness: float = math.inf) -> float:
        """No algorithm is quicker: each rank must send and receive the buffer once after the arrival, and
        2(n-1) receptions of each byte are needed in all, of which n-1 ranks can make some while they wait."""
        n, each = self.ranks, size / self.bandwidth
        return max(each, (2 * each - lateness) * (n - 1) / n, self.depth * self.alpha)
