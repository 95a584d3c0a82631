"""A probe of a topology instead of a machine: what measuring it would give."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from pycoll.schedule import Schedule
from pycoll.simulation import Simulation
from pycoll.topology.measure import PING_BYTES, Activity, Flow, Samples
from pycoll.topology.model import Topology

__all__ = ["SimulatedMeasurer"]

_MESSAGES = 32


class SimulatedMeasurer:
    """A :class:`pycoll.topology.measure.Measurer` whose machine is a topology, by way of the simulator.

    Every sample is off by a random factor of standard deviation ``noise``. Its clock is the simulated time.
    """

    def __init__(
        self, topology: Topology, noise: float = 0.0, seed: int = 0, hosts: Sequence[str] | None = None
    ) -> None:
        self.topology = topology
        self.hosts = list(hosts) if hosts else [f"host{rank}" for rank in range(len(topology.ranks))]
        self._random = np.random.default_rng(seed)
        self._noise = noise
        self._clock = 0.0
        self._times: dict[tuple[object, ...], float] = {}
        self._streams: dict[tuple[Flow, ...], np.ndarray] = {}

    def elapsed(self) -> float:
        return self._clock

    def ping(self, a: int, b: int, messages: int, repeats: int) -> Samples:
        rows = [(index, a, b, 0) for index in range(messages)] + [(messages, b, a, 0)]
        return self._samples(
            ("ping", a, b, messages), lambda: self._simulate(rows, 1, PING_BYTES).time, repeats
        )

    def transfer(self, flow: Flow, size: int, repeats: int) -> Samples:
        def once() -> float:
            ask = self._simulate([(0, flow.dst, flow.src, 0)], 1, PING_BYTES).time
            return ask + self._simulate([(0, flow.src, flow.dst, 0)], 1, float(size)).time

        return self._samples(("transfer", *flow, size), once, repeats)

    def stream(self, flows: Sequence[Flow], sizes: Sequence[int], seconds: float, repeats: int) -> Samples:
        key = tuple(flows)
        if key not in self._streams:
            self._streams[key] = self.rates(flows)
        self._clock += seconds * repeats
        shape = (repeats, len(flows))
        return self._streams[key] * self._factors(shape)

    def rates(self, flows: Sequence[Flow]) -> np.ndarray:
        """Bytes/s of flows while all are under way: what each has sent when the fastest is through."""
        size, turns = 1e15, _MESSAGES if len(flows) > 1 else 1  # so long that no latency counts
        rows = [(turn, *flow, index) for turn in range(turns) for index, flow in enumerate(flows)]
        ends = self._simulate(rows, len(flows), size * len(flows)).arrays["end"].reshape(turns, -1)
        over = ends[-1].min() * (1 + 1e-9)
        sent = np.maximum((ends <= over).sum(axis=0), 1)
        rates: np.ndarray = sent * size / ends[sent - 1, np.arange(len(flows))]
        return rates

    def compute(self, activity: Activity, ranks: Sequence[int], size: int, seconds: float) -> Samples:
        devices = [self.topology.nodes[self.topology.ranks[rank]] for rank in ranks]
        rates = [node.copy_rate if activity == "copy" else node.reduce_rate for node in devices]
        self._clock += seconds
        return np.minimum(rates, 1e15) * self._factors((len(ranks),))

    def distances(self) -> dict[str, float]:
        return dict.fromkeys(self.hosts, math.nan)

    def _simulate(self, rows: Sequence[tuple[int, int, int, int]], pieces: int, size: float) -> Simulation:
        schedule = Schedule.from_transfers(
            [(*row, 0) for row in rows], collective="broadcast", ranks=len(self.hosts), pieces=pieces
        )
        return schedule.simulate(self.topology, size, verify=False)

    def _samples(self, key: tuple[object, ...], once: Callable[[], float], repeats: int) -> Samples:
        if key not in self._times:
            self._times[key] = once()
        seconds = self._times[key]
        self._clock += seconds * repeats
        return seconds * self._factors((repeats,))

    def _factors(self, shape: tuple[int, ...]) -> Samples:
        return np.maximum(1 + self._noise * self._random.standard_normal(shape), 0.1)
