"""What a measurement found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pycoll import probe
from pycoll.bench.workload import Case
from pycoll.selection.decisions import FAST_PATH
from pycoll.selection.profile import Timing

#: States that a choice can go by: the machine was in one of them throughout a round.
CLEAN: tuple[probe.State, ...] = ("near", "far", "unknown")


@dataclass(frozen=True)
class Measured:
    """One case: how long each way took in each round, and in which state the machine was."""

    case: Case
    bytes: int
    rounds: dict[str, dict[int, float]]  # by way, by round: seconds
    states: dict[int, probe.State]  # by round
    wrong: int = 0  # elements that differ from what they must be
    reference: str = FAST_PATH  # what would run if nothing had been measured

    def in_state(self, state: str) -> Measured:
        """The rounds that were in a state throughout."""
        numbers = {number for number, found in self.states.items() if found == state}
        rounds = {way: {n: s for n, s in taken.items() if n in numbers} for way, taken in self.rounds.items()}
        return replace(
            self,
            rounds={way: taken for way, taken in rounds.items() if taken},
            states={number: self.states[number] for number in numbers},
        )

    def ratio(self, way: str, to: str, quantile: float = 0.5) -> float:
        """The median (or another quantile) over rounds of one way's time / another's."""
        mine, other = self.rounds[way], self.rounds[to]
        return float(np.quantile([mine[r] / other[r] for r in mine if r in other], quantile))

    def seconds(self, way: str) -> float:
        return float(np.median(list(self.rounds[way].values())))

    def best(self, against: str, leave_out: Iterable[str] = ()) -> str:
        """The way whose ratio to `against` is the least, among those that stayed to the end."""
        ways = [way for way in self.rounds if way not in leave_out]
        most = max(len(self.rounds[way]) for way in ways)
        stayed = [way for way in ways if len(self.rounds[way]) > most / 2]
        return min(stayed, key=lambda way: self.ratio(way, against))

    def timings(self) -> Iterator[Timing]:
        clean = {state: self.in_state(state) for state in CLEAN if state in self.states.values()}
        for way, taken in self.rounds.items():
            by_state = {
                str(state): (part.seconds(way), part.ratio(way, self.reference))
                for state, part in clean.items()
                if way in part.rounds
            }
            yield Timing(
                self.case.collective,
                self.bytes,
                self.case.dtype,
                way,
                self.seconds(way),
                self.ratio(way, self.reference),
                len(taken),
                self.ratio(way, self.reference, quantile=0.7),
                by_state,
                self.reference,
            )

    def to_dict(self) -> dict[str, Any]:
        return {"bytes": self.bytes, "rounds": self.rounds, "states": self.states, "wrong": self.wrong}
