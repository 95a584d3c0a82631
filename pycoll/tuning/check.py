"""What a profile is worth: its choices and its model against fresh measurements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from pycoll.selection import calibration
from pycoll.selection.profile import Profile
from pycoll.tuning.measure import AS_CALLED
from pycoll.tuning.results import CLEAN, Measured

#: What a check must show to pass: regret and error as shares of the time.
MEDIAN_REGRET, WORST_REGRET, MEDIAN_ERROR = 0.05, 0.15, 0.20
#: Rounds that a state must have been seen in to be judged.
_LEAST_ROUNDS = 4


@dataclass(frozen=True)
class Verdict:
    """One size in one state of the machine: the way that the profile chooses, the one that was best now, and
    what the model said.

    `regret` is by how much more time the choice took than the best way (ratios within rounds);
    `as_called` the time of calls that name no algorithm / the choice's; `error` how far the prediction was
    from the choice's time. `held_out`: the model was not fitted to this size.
    """

    collective: str
    bytes: int
    state: str
    chosen: str
    seconds: float
    best: str
    best_seconds: float
    regret: float
    as_called: float | None
    predicted: float | None
    error: float | None
    held_out: bool
    rounds: int
    wrong: int


def verdicts(profile: Profile, measured: Iterable[Measured]) -> list[Verdict]:
    return [verdict for case in measured for verdict in _of_case(profile, case)]


def _of_case(profile: Profile, case: Measured) -> Iterator[Verdict]:
    """A verdict for each state that was seen long enough; one for all together where none was."""
    counts = {state: list(case.states.values()).count(state) for state in CLEAN}
    seen = [state for state in CLEAN if counts[state] >= _LEAST_ROUNDS]
    for state in seen:
        yield _verdict(profile, case.in_state(state), state)
    if not seen:
        yield _verdict(profile, case, "")


def _verdict(profile: Profile, case: Measured, state: str) -> Verdict:
    collective, dtype = case.case.collective, case.case.dtype
    row = profile.decisions().find(collective, case.bytes, dtype, "far" if state == "far" else "near")
    chosen = row.way if row is not None else case.reference
    best = case.best(chosen, leave_out=[AS_CALLED])
    seconds = case.seconds(chosen)
    model = calibration.fit(profile, state)
    # Of a state that the profile has not met at this size it says nothing.
    met = not state or any(state in timing.by_state for timing in profile.at(collective, case.bytes))
    predicted = model.predict(collective, chosen, case.bytes, dtype) if met else None
    return Verdict(
        collective,
        case.bytes,
        state or "mixed",
        chosen,
        seconds,
        best,
        case.seconds(best),
        max(1 / case.ratio(best, chosen) - 1, 0.0),
        case.ratio(AS_CALLED, chosen) if AS_CALLED in case.rounds else None,
        predicted,
        None if predicted is None else predicted / seconds - 1,
        case.bytes not in model.sizes.get(collective, ()),
        len(case.rounds[chosen]),
        case.wrong,
    )


@dataclass(frozen=True)
class Summary:
    """Over all sizes and states."""

    median_regret: float
    worst_regret: float
    median_error: float | None
    median_error_held_out: float | None  #: of the sizes that the model was not fitted to
    wrong: int

    @property
    def passed(self) -> bool:
        close = self.median_error is None or self.median_error <= MEDIAN_ERROR
        return (
            self.median_regret <= MEDIAN_REGRET
            and self.worst_regret <= WORST_REGRET
            and close
            and not self.wrong
        )

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}


def summary(rows: Sequence[Verdict]) -> Summary:
    errors = [abs(row.error) for row in rows if row.error is not None]
    held_out = [abs(row.error) for row in rows if row.error is not None and row.held_out]
    return Summary(
        median(row.regret for row in rows),
        max(row.regret for row in rows),
        median(errors) if errors else None,
        median(held_out) if held_out else None,
        sum({(row.collective, row.bytes): row.wrong for row in rows}.values()),
    )
