"""The single measurements that a probe is made of: each can be repeated, and says how settled it is."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence

import numpy as np

from pycoll.topology.matrix import Figure, Together
from pycoll.topology.measure import Activity, Flow, Measurer

__all__ = ["ComputeTask", "PingTask", "StreamTask", "Task", "TransferTask"]

#: Repetitions of one run. A figure is the median over all runs, which are apart in time.
REPEATS = 3
_BURST = 8
_PING_SECONDS, _LEAST_PINGS, _MOST_PINGS = 15e-3, 3, 30
_FIRST_BYTES = 1 << 16
_LEAST_BYTES, _MOST_BYTES = 1 << 16, 1 << 26


class Task(ABC):
    """Something to measure. ``kind`` and ``name`` say what, for people."""

    kind = ""
    name = ""
    runs = 0
    cost = 0.0  # seconds of the last run

    def __init__(self) -> None:
        self.states: Counter[str] = Counter()  # state of the machine -> runs

    @abstractmethod
    def measure(self, measurer: Measurer) -> None:
        """Adds some repetitions to the figures."""

    @abstractmethod
    def figures(self) -> Sequence[Figure]:
        """Everything that is measured, what has to settle first."""

    to_settle = 1  # of the figures, so many from the first on

    def run(self, measurer: Measurer) -> None:
        begin = measurer.elapsed()
        self.measure(measurer)
        self.cost = measurer.elapsed() - begin
        self.runs += 1

    @property
    def error(self) -> float:
        """Of the least settled figure: see :attr:`Figure.error`."""
        return max(figure.error for figure in self.figures()[: self.to_settle])


class PingTask(Task):
    """Latency of a pair: round trips, of one message there and back, and of a burst there and one back."""

    kind = "latency"

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.a, self.b = a, b
        self.name = f"{a}-{b}"
        self.single, self.burst = Figure(), Figure()

    def measure(self, measurer: Measurer) -> None:
        first = measurer.ping(self.a, self.b, 1, _LEAST_PINGS)
        fitting = int(_PING_SECONDS / max(float(np.median(first)), 1e-9))
        repeats = min(max(fitting, _LEAST_PINGS), _MOST_PINGS)
        self.single.add(measurer.ping(self.a, self.b, 1, repeats))
        self.burst.add(measurer.ping(self.a, self.b, _BURST, repeats))

    def figures(self) -> Sequence[Figure]:
        return (self.single, self.burst)

    @property
    def alpha(self) -> float:
        """Half the round trip, s."""
        return self.single.median / 2

    @property
    def gap(self) -> float:
        """Seconds by which each further message of a burst comes later."""
        return max(0.0, (self.burst.median - self.single.median) / (_BURST - 1))


class TransferTask(Task):
    """Bandwidth of a pair alone, from messages of three sizes whose largest takes about ``seconds``."""

    kind = "bandwidth alone"

    def __init__(self, flow: Flow, seconds: float) -> None:
        super().__init__()
        self.flow = flow
        self.name = f"{flow.src}->{flow.dst}"
        self._seconds = seconds
        self._times: dict[int, Figure] = {}

    def measure(self, measurer: Measurer) -> None:
        if not self._times:
            small, large = (
                float(np.median(measurer.transfer(self.flow, size, REPEATS)))
                for size in (_FIRST_BYTES, 4 * _FIRST_BYTES)
            )
            each = max(large - small, large / 8) / (3 * _FIRST_BYTES)  # seconds a byte, about
            # Long enough that its latency does not matter much.
            wanted = max(self._seconds, min(8 * (small - _FIRST_BYTES * each), 4 * self._seconds))
            largest = int(min(max(wanted / each, _LEAST_BYTES), _MOST_BYTES)) // 4096 * 4096
            self._times = {largest // part: Figure() for part in (4, 2, 1)}
        for size, figure in self._times.items():
            figure.add(measurer.transfer(self.flow, size, REPEATS))

    def figures(self) -> Sequence[Figure]:
        return list(self._times.values())[::-1] or (Figure(),)

    @property
    def beta(self) -> float:
        """Seconds a byte: the slope of a straight line through the medians, least squares of relative
        errors."""
        sizes = np.array(list(self._times), np.float64)
        times = np.array([figure.median for figure in self._times.values()])
        columns = np.stack([sizes / times, 1 / times], axis=1)
        slope, intercept = np.linalg.lstsq(columns, np.ones(len(sizes)), rcond=None)[0]
        if slope <= 0 or intercept < 0:  # noise only: no message takes less than no time
            slope = np.linalg.lstsq(columns[:, :1], np.ones(len(sizes)), rcond=None)[0][0]
        return float(slope)


class StreamTask(Task):
    """Rates of several flows at once."""

    def __init__(self, kind: str, flows: Sequence[Flow], sizes: Sequence[int], seconds: float) -> None:
        super().__init__()
        self.kind = kind
        self.flows, self.sizes = tuple(flows), tuple(sizes)
        self.name = ", ".join(f"{flow.src}->{flow.dst}" for flow in self.flows[:4])
        self.name += ", ..." if len(self.flows) > 4 else ""
        self._seconds = seconds
        self._rates = [Figure() for _ in self.flows]
        self._total = Figure()

    def measure(self, measurer: Measurer) -> None:
        rates = measurer.stream(self.flows, self.sizes, self._seconds, REPEATS)
        for index, figure in enumerate(self._rates):
            figure.add(rates[:, index])
        self._total.add(rates.sum(axis=1))

    def figures(self) -> Sequence[Figure]:
        return (self._total, *self._rates)

    @property
    def result(self) -> Together:
        return Together(
            self.kind,
            self.flows,
            tuple(figure.median for figure in self._rates),
            tuple(figure.spread for figure in self._rates),
        )


class ComputeTask(Task):
    """Bytes/s that ranks copy, or add into a buffer: one alone, or all at once."""

    def __init__(self, activity: Activity, ranks: Sequence[int], size: int, seconds: float) -> None:
        super().__init__()
        self.activity, self.ranks = activity, tuple(ranks)
        self.kind = f"{activity} rate" + (" of all ranks at once" if len(ranks) > 1 else "")
        self.name = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"
        self._size, self._seconds = size, seconds
        self._rates = [Figure() for _ in ranks]
        self.to_settle = len(ranks)

    def measure(self, measurer: Measurer) -> None:
        for _ in range(REPEATS):
            rates = measurer.compute(self.activity, self.ranks, self._size, self._seconds)
            for figure, rate in zip(self._rates, rates, strict=True):
                figure.add([rate])

    def figures(self) -> Sequence[Figure]:
        return self._rates

    @property
    def rates(self) -> dict[int, float]:
        """Rank -> bytes/s."""
        return {rank: figure.median for rank, figure in zip(self.ranks, self._rates, strict=True)}

    @property
    def spread(self) -> float:
        """Of the least certain rank: NaN before it was repeated."""
        return max((figure.spread for figure in self._rates), default=math.nan)
