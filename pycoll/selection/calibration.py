"""A cost model of shared memory, fitted to what `pycoll tune` measured.

A way whose times were measured at several sizes is a chain of straight lines, one a size class: alpha seconds
and beta seconds a byte between two neighbouring sizes of the fit. Any other schedule's time is

    constant + alpha * (its rounds) + overhead * (transfers of the busiest rank)
             + beta * (bytes that rank sends and receives) + gamma * (bytes it reduces)

with coefficients fitted, a size class each, to all schedules measured. Only every other size is used for the
fit: at the sizes in between the model can be held against the measurement.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pycoll.selection.candidates import schedule_of, work_of
from pycoll.selection.decisions import FAST_PATH, dtype_class, split_way
from pycoll.selection.profile import Profile, Timing

Floats = npt.NDArray[np.float64]

#: Where size classes of schedules end: what fits a channel's buffer at once, the caches, and what does not.
_CLASS_ENDS = (16 << 10, 1 << 20)


class Line(NamedTuple):
    """From `begin` bytes on a time of alpha + beta * bytes seconds."""

    begin: int
    alpha: float
    beta: float


@dataclass(frozen=True)
class Calibration:
    """Predicts times on the machine that a profile is of; `state` is the machine's that it was fitted in."""

    ranks: int
    state: str
    sizes: dict[str, tuple[int, ...]]  #: by collective: the sizes that it was fitted to
    lines: dict[tuple[str, str, str], tuple[Line, ...]]  #: by collective, dtype class, way
    coefficients: dict[tuple[str, int], tuple[float, ...]]  #: by dtype class, size class: of `features`

    def predict(self, collective: str, way: str, size: int, dtype: str = "float32") -> float | None:
        """Seconds; None where nothing measured says anything about it."""
        lines = self.lines.get((collective, dtype_class(dtype), way))
        if lines:
            line = lines[max(bisect_right([line.begin for line in lines], size) - 1, 0)]
            return line.alpha + line.beta * max(size, lines[0].begin)
        if not _is_schedule(way):
            return None
        coefficients = self.coefficients.get((dtype_class(dtype), _class_of(size)))
        if coefficients is None:
            return None
        return float(np.dot(features(collective, way, size, self.ranks), coefficients))


def fit(profile: Profile, state: str = "", sizes: Sequence[int] | None = None) -> Calibration:
    """The model that fits a profile's times at `sizes`, by default every other one of those measured, the
    smallest first. `state`: use the times of this state of the machine, where there are any."""
    collectives = sorted({timing.collective for timing in profile.timings})
    every_other = {name: tuple(profile.sizes_of(name)[::2]) for name in collectives}
    chosen = every_other if sizes is None else dict.fromkeys(collectives, tuple(sizes))
    known = [timing for timing in profile.timings if timing.bytes in chosen[timing.collective]]
    known = [timing for timing in known if state in timing.by_state] or known

    def seconds(timing: Timing) -> float:
        return timing.seconds_in(state)

    lines = {}
    for key in {(t.collective, dtype_class(t.dtype), t.way) for t in known}:
        points = sorted(
            (t.bytes, seconds(t)) for t in known if (t.collective, dtype_class(t.dtype), t.way) == key
        )
        if len(points) > 1:
            lines[key] = _chain(points)
    return Calibration(profile.ranks, state, chosen, lines, _coefficients(known, seconds, profile.ranks))


def _chain(points: Sequence[tuple[int, float]]) -> tuple[Line, ...]:
    lines = []
    for (b0, t0), (b1, t1) in pairwise(points):
        beta = max((t1 - t0) / (b1 - b0), 0.0)
        lines.append(Line(b0, t0 - beta * b0, beta))
    return tuple(lines)


def _coefficients(
    known: Sequence[Timing], seconds: Callable[[Timing], float], ranks: int
) -> dict[tuple[str, int], tuple[float, ...]]:
    coefficients = {}
    scheduled = [t for t in known if _is_schedule(t.way)]
    for key in {(dtype_class(t.dtype), _class_of(t.bytes)) for t in scheduled}:
        rows = [t for t in scheduled if (dtype_class(t.dtype), _class_of(t.bytes)) == key]
        times = np.array([seconds(t) for t in rows])
        matrix = np.array([features(t.collective, t.way, t.bytes, ranks) for t in rows])
        # Divided by the times, so that a relative error counts the same at every size.
        coefficients[key] = tuple(nonnegative(matrix / times[:, None], np.ones(len(rows))))
    return coefficients


def features(collective: str, way: str, size: int, ranks: int) -> Floats:
    """What the model's coefficients are multiplied by; see the module."""
    schedule = schedule_of(way, collective, ranks)
    rounds, _, moved, reduced = work_of(schedule)
    logical = size * ranks if collective == "all_to_all" else size
    piece = logical / schedule.pieces
    return np.array([1.0, rounds, moved, moved * piece, reduced * piece])


def _is_schedule(way: str) -> bool:
    """Whether the features of a way are known: not of the fast path, kernels for small buffers, or NCCL's."""
    from pycoll.schedule import algorithms

    return way != FAST_PATH and split_way(way)[0] in algorithms()


def _class_of(size: int) -> int:
    return sum(size > end for end in _CLASS_ENDS)


def nonnegative(matrix: Floats, target: Floats) -> Floats:
    """The x >= 0 that brings matrix @ x nearest to target, by descent along one coordinate at a time."""
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    normal = (matrix / scale).T @ (matrix / scale)
    wanted = (matrix / scale).T @ target
    x = np.zeros(matrix.shape[1])
    for _ in range(2000):
        for j in range(len(x)):
            if normal[j, j] > 0:
                x[j] = max(0.0, x[j] + (wanted[j] - normal[j] @ x) / normal[j, j])
    result: Floats = x / scale
    return result
