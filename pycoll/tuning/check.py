"""What a profile is worth: its choices and its model against fresh measurements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from pycoll import calibration
from pycoll.decisions import FAST_PATH
from pycoll.profile import Profile
from pycoll.tuning.measure import Measured

#: What a check must show to pass: regret and error as shares of the time.
MEDIAN_REGRET, WORST_REGRET, MEDIAN_ERROR = 0.05, 0.15, 0.20


@dataclass(frozen=True)
class Verdict:
    """One size: the way that the profile chooses, the one that was best now, and what the model said.

    `regret` is by how much more time the choice took than the best way (ratios within rounds); `error` how
    far the prediction was from the choice's time in `state`. `held_out`: the model was not fitted to this
    size.
    """

    collective: str
    bytes: int
    chosen: str
    seconds: float
    best: str
    best_seconds: float
    regret: float
    predicted: float | None
    error: float | None
    held_out: bool
    state: str
    rounds: int
    wrong: int


def verdicts(profile: Profile, measured: Iterable[Measured]) -> list[Verdict]:
    table = profile.decisions()
    models: dict[str, calibration.Calibration] = {}
    found = []
    for case in measured:
        collective, dtype = case.case.collective, case.case.dtype
        row = table.find(collective, case.bytes, dtype)
        chosen = row.way if row is not None else FAST_PATH
        best = case.best(against=chosen)
        state = case.state()
        model = models.setdefault(state, calibration.fit(profile, state))
        seconds = case.by_state(chosen).get(state, case.seconds(chosen))
        predicted = model.predict(collective, chosen, case.bytes, dtype)
        found.append(
            Verdict(
                collective,
                case.bytes,
                chosen,
                seconds,
                best,
                case.by_state(best).get(state, case.seconds(best)),
                max(1 / case.ratio(best, chosen) - 1, 0.0),
                predicted,
                None if predicted is None else predicted / seconds - 1,
                case.bytes not in model.sizes.get(collective, ()),
                state,
                len(case.rounds[chosen]),
                case.wrong,
            )
        )
    return found


@dataclass(frozen=True)
class Summary:
    """Over all sizes."""

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
        sum(row.wrong for row in rows),
    )
