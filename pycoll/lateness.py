"""Who is late to a group's collectives, what that costs, and what beginning without the late rank has won."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pycoll.communicator import Communicator

__all__ = ["RankLateness", "StragglerReport", "stragglers"]


@dataclass(frozen=True)
class RankLateness:
    """One rank's lateness: seconds after the first arrival, over the collectives looked at."""

    rank: int
    median: float
    p99: float
    last: float  #: share of collectives to which it came last
    waited: float  #: seconds that it has waited for the last one, in all

    def row(self) -> str:
        return (
            f"{self.rank:>5}  {_milliseconds(self.median):>10}  {_milliseconds(self.p99):>10}  "
            f"{self.last:>7.0%}  {self.waited:>9.3f} s"
        )


@dataclass(frozen=True)
class StragglerReport:
    """What :func:`stragglers` found. ``str()`` is a table for people."""

    ranks: tuple[RankLateness, ...]
    collectives: int  #: the last ones, up to 1024, of which arrivals are known
    may_begin: int  #: AllReduces since the group began that need not have waited for their last rank
    began: int  #: those that did not: the others reduced while they waited
    won: float  #: seconds by these, against calls for which nobody was late

    @property
    def worst(self) -> RankLateness | None:
        """Who came last most often; None before the first collective."""
        return max(self.ranks, key=lambda one: (one.last, one.median), default=None)

    def __str__(self) -> str:
        if not self.collectives:
            return "no collectives yet"
        lines = [f"lateness in the last {self.collectives} collectives, after the first arrival:"]
        lines.append(f"{'rank':>5}  {'median':>10}  {'p99':>10}  {'last':>7}  {'waited':>11}")
        lines += [one.row() for one in self.ranks]
        lines.append(
            f"{self.began} of {self.may_begin} large AllReduces began before their last rank came; won "
            f"{self.won:.3f} s"
        )
        return "\n".join(lines)


def stragglers(comm: Communicator | None = None) -> StragglerReport:
    """Who is late to the collectives of a group, the default one's unless `comm` is given. A local call.

    Arrivals are known of the last 1,024 collectives; across hosts to within the latency between them. What
    was won is counted since the group began, and only once a call has been seen for which nobody was late.
    """
    if comm is None:
        from pycoll.bootstrap import default_group

        comm = default_group("stragglers")
    return comm.stragglers()


def report(arrivals: Sequence[tuple[int, Sequence[float]]], early: tuple[int, int, float]) -> StragglerReport:
    """From the engine's records: (sequence number, lateness by rank), and (calls, early ones, seconds)."""
    may_begin, began, won = early
    if not arrivals:
        return StragglerReport((), 0, may_begin, began, won)
    lateness = np.array([row for _, row in arrivals])
    last = lateness.argmax(axis=1)
    waited = (lateness.max(axis=1, keepdims=True) - lateness).sum(axis=0)
    ranks = tuple(
        RankLateness(
            rank,
            float(np.median(lateness[:, rank])),
            float(np.percentile(lateness[:, rank], 99)),
            float((last == rank).mean()),
            float(waited[rank]),
        )
        for rank in range(lateness.shape[1])
    )
    return StragglerReport(ranks, len(arrivals), may_begin, began, won)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"
