"""A machine and how it is used: what changes are made to, and what is timed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pycoll.errors import InvalidArgument, TopologyError
from pycoll.topology import Topology
from pycoll.whatif import connected
from pycoll.whatif.names import cables, short

__all__ = ["Disconnected", "Lateness", "Scenario"]


class Disconnected(TopologyError):
    """Ranks that no longer reach each other; ``cut_off`` names the devices of all but the largest part."""

    def __init__(self, message: str, cut_off: tuple[str, ...]) -> None:
        super().__init__(message)
        self.cut_off = cut_off

    def __reduce__(self) -> tuple[type[Disconnected], tuple[str, tuple[str, ...]]]:
        return Disconnected, (str(self), self.cut_off)


class Lateness(NamedTuple):
    """A distribution of how late ranks come: ``shape`` exponential, uniform or normal (its upper half).

    ``scale`` (s) is the mean, the latest, the standard deviation. Every rank draws on its own, ``draws``
    times.
    """

    shape: str
    scale: float
    seed: int = 0
    draws: int = 15

    def sample(self, ranks: int) -> list[tuple[float, ...]]:
        """Seconds at which each rank comes, a row a draw; the first of a row comes at 0."""
        random = np.random.default_rng(self.seed)
        draw: Callable[[], npt.NDArray[np.float64]] = {
            "exponential": lambda: random.exponential(self.scale, ranks),
            "uniform": lambda: random.uniform(0, self.scale, ranks),
            "normal": lambda: np.abs(random.normal(0, self.scale, ranks)),
        }[self.shape]
        rows = (draw() for _ in range(self.draws))
        return [tuple((row - row.min()).tolist()) for row in rows]


@dataclass(frozen=True)
class Scenario:
    """A topology, and what a run on it is told.

    ``late`` gives (device, seconds) of ranks that come late, ``lateness`` a distribution for all of them;
    ``routing`` and ``seed`` are the simulator's; with ``flows`` above 1, every connection is that many, each
    with its share of the bytes and, where routers hash, a path of its own.
    """

    topology: Topology
    late: tuple[tuple[str, float], ...] = ()
    lateness: Lateness | None = None
    routing: str = "spread"
    seed: int = 0
    flows: int = 1

    def starts(self) -> list[tuple[float, ...] | None]:
        """Seconds at which each rank comes, once for each draw of ``lateness``; None where all come at 0.

        Raises TopologyError for a late device that has no rank.
        """
        ranks = len(self.topology.ranks)
        fixed = [0.0] * ranks
        of_device = {self.topology.nodes[node].name: rank for rank, node in enumerate(self.topology.ranks)}
        for device, seconds in self.late:
            if device not in of_device:
                raise TopologyError(f"{device} cannot be late: no rank lives there (any more)")
            fixed[of_device[device]] += seconds
        if self.lateness is None:
            return [tuple(fixed) if any(fixed) else None]
        drawn = self.lateness.sample(ranks)
        return [tuple(a + b for a, b in zip(row, fixed, strict=True)) for row in drawn]

    def on(self, topology: Topology) -> Scenario:
        """The same use of another machine."""
        return replace(self, topology=topology)

    def check(self, blame: str = "the change") -> None:
        """Raises TopologyError where ranks no longer reach each other; ``blame`` is what did it."""
        parts = connected.parts(self.topology)
        if len(parts) == 1:
            return
        names = [[self.topology.nodes[self.topology.ranks[rank]].name for rank in part] for part in parts]
        cut_off = [name for part in names[1:] for name in part]
        seen = connected.sees(self.topology)
        lost = [rank for part in parts[1:] for rank in part]
        apart = not any(seen[rank] >> other & 1 for rank in lost for other in parts[0])
        how = "cut off from" if apart else "without a path to some of"
        raise Disconnected(
            f"{blame} leaves {short(cut_off)} {how} {short(names[0])}: no group of all "
            f"{len(self.topology.ranks)} ranks can work. Take the smaller part out as well (--remove "
            f"{cut_off[0]}), or break something that has a way around; left are the links "
            f"{short(cables(self.topology))}",
            tuple(cut_off),
        )


def positive(value: float, what: str) -> float:
    """The value; InvalidArgument where it is no positive number."""
    if not (value > 0 and math.isfinite(value)):
        raise InvalidArgument(f"{what} must be a positive number, not {value:g}")
    return value


def sensible(value: float, what: str) -> float:
    """The value; InvalidArgument where it is no factor that a machine could change by."""
    if not 1e-6 <= value <= 1e6:
        raise InvalidArgument(f"{what} must be from 1e-06 to 1e+06, not {value:g}")
    return value
