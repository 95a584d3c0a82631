"""Ranks that come late to a benchmark's calls: `--late 3:5ms`, `--late any:5ms`, `--late-dist lognormal:3ms`.

arrivals = parse_late("3:5ms,0:2ms", ranks=4)     # rank 3 comes 5 ms late, rank 0 2 ms
arrivals.draw(random, ranks=4)                    # -> seconds by rank, of one iteration
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pycoll.errors import InvalidArgument
from pycoll.topology.units import format_time, parse_time

__all__ = ["Lateness", "parse_late", "parse_late_dist"]

ANY = -1  #: instead of a rank: another one in each iteration
SHAPES = ("lognormal", "exponential", "uniform", "normal")


@dataclass(frozen=True)
class Lateness:
    """How late ranks come, beyond the barrier that precedes each call.

    ``ranks``: (rank or ANY, seconds). Or, with ``shape``, every rank draws by itself in each iteration: of
    `lognormal` ``scale`` (s) is the median (sigma 1), of `exponential` the mean, of `uniform` the latest, of
    `normal` (its upper half) the standard deviation. Neither: nobody is late.
    """

    ranks: tuple[tuple[int, float], ...] = ()
    shape: str = ""
    scale: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.ranks or self.shape)

    def draw(self, random: np.random.Generator, ranks: int) -> npt.NDArray[np.float64]:
        """Seconds by rank, of one iteration; the same on all ranks whose generators are."""
        if self.shape:
            return self._drawn(random, ranks)
        late = np.zeros(ranks)
        named = [rank for rank, _ in self.ranks]
        others = list(random.permutation([rank for rank in range(ranks) if rank not in named]))
        for rank, seconds in self.ranks:
            late[others.pop() if rank == ANY else rank] = seconds
        return late

    def _drawn(self, random: np.random.Generator, ranks: int) -> npt.NDArray[np.float64]:
        if self.shape == "lognormal":
            return random.lognormal(math.log(self.scale), 1.0, ranks)
        if self.shape == "exponential":
            return random.exponential(self.scale, ranks)
        if self.shape == "uniform":
            return random.uniform(0, self.scale, ranks)
        return np.abs(random.normal(0, self.scale, ranks))

    @property
    def seconds(self) -> float:
        """A number to draw a curve over: the latest rank's lateness, or the distribution's scale."""
        return self.scale if self.shape else max((seconds for _, seconds in self.ranks), default=0.0)

    def __str__(self) -> str:
        if self.shape:
            return f"{self.shape} {format_time(self.scale)}"
        if not self.ranks:
            return "on time"
        return ", ".join(
            f"{'any rank' if rank == ANY else f'rank {rank}'} {format_time(seconds)}"
            for rank, seconds in self.ranks
        )


def parse_late(text: str, ranks: int) -> Lateness:
    """`RANK:TIME[,RANK:TIME...]`, RANK a number or `any`.

    Raises InvalidArgument that says how to write it.
    """
    found: list[tuple[int, float]] = []
    for part in text.split(","):
        who, colon, time = part.strip().partition(":")
        example = "write RANK:TIME, such as 3:5ms or any:5ms"
        if not colon:
            raise InvalidArgument(f"--late {text!r}: {part.strip()!r} has no time: {example}")
        if who != "any" and not (who.isdigit() and int(who) < ranks):
            raise InvalidArgument(
                f"--late {text!r}: there is no rank {who!r}: ranks are 0 to {ranks - 1}, or any; {example}"
            )
        rank = ANY if who == "any" else int(who)
        if rank != ANY and rank in [known for known, _ in found]:
            raise InvalidArgument(f"--late {text!r}: rank {rank} is there twice")
        found.append((rank, _seconds("--late", text, time)))
    if len(found) > ranks:
        raise InvalidArgument(f"--late {text!r} makes {len(found)} ranks late, and there are {ranks}")
    return Lateness(tuple(found))


def parse_late_dist(text: str) -> Lateness:
    """`SHAPE:TIME`. Raises InvalidArgument that lists the shapes."""
    shape, colon, time = text.strip().partition(":")
    if not colon or shape not in SHAPES:
        raise InvalidArgument(
            f"--late-dist {text!r}: write SHAPE:TIME, such as lognormal:3ms; shapes are {', '.join(SHAPES)}"
        )
    scale = _seconds("--late-dist", text, time)
    if scale <= 0:
        raise InvalidArgument(f"--late-dist {text!r}: the time must be more than 0")
    return Lateness(shape=shape, scale=scale)


def _seconds(option: str, text: str, time: str) -> float:
    if time.strip() in ("0", "0.0"):
        return 0.0
    try:
        return parse_time(time)
    except InvalidArgument as error:
        raise InvalidArgument(f"{option} {text!r}: {error}") from None
