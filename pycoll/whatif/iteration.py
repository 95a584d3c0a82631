"""A whole training step on a machine: how long it takes, and how much of the sending is not hidden by
computing.

    print(iterate("hgx-h100-128-fat", Workload.load("7b")))
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from statistics import mean
from typing import TYPE_CHECKING, Any

from pycoll.errors import InvalidArgument
from pycoll.topology import Topology
from pycoll.whatif.changes import Change, apply
from pycoll.whatif.compare import topology_of
from pycoll.whatif.evaluate import Evaluator, Outcome
from pycoll.whatif.pipeline import pipeline, stages_of
from pycoll.whatif.result import Result
from pycoll.whatif.scenario import Scenario
from pycoll.whatif.workload import Layer, Workload

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["Iteration", "Steps", "Transfer", "buckets", "iterate"]

#: Above so many ranks a way is simulated once, for the largest size; smaller ones by its latency and bytes.
_MOST_RANKS = 256
#: So many sizes are simulated; between them times are interpolated.
_MOST_SIZES = 8

Clock = Callable[[str, int], float]


@dataclass(frozen=True)
class Transfer:
    """A collective of the step: seconds from the step's begin at which it is ready, starts and ends."""

    what: str
    collective: str
    bytes: int
    ready: float
    start: float
    end: float


@dataclass(frozen=True)
class Iteration(Result):
    """A step's time (s), that of computing alone, and of all collectives; the difference is exposed."""

    workload: str
    pattern: str
    machine: str
    ranks: int
    time: float
    compute: float
    transfers: tuple[Transfer, ...]
    choices: tuple[Outcome, ...]  # what the collectives were priced by, the largest size last
    bubble: float = 0.0  # seconds that the busiest stage of a pipeline waits though sending took no time
    waiting: float = 0.0  # seconds that all wait for the rank that comes last

    @property
    def communication(self) -> float:
        """Seconds of all collectives together."""
        return sum(each.end - each.start for each in self.transfers)

    @property
    def exposed(self) -> float:
        """Seconds that the step takes longer than it would if sending took no time."""
        return max(0.0, self.time - self.compute - self.bubble - self.waiting)

    @property
    def overlap(self) -> float:
        """The share (0..1) of the communication that computing hides."""
        return max(0.0, 1 - self.exposed / self.communication) if self.communication else 1.0

    @property
    def efficiency(self) -> float:
        """Computing's share of the step: 1 scales perfectly."""
        return self.compute / self.time if self.time else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON; seconds and bytes."""
        return {
            "workload": self.workload,
            "pattern": self.pattern,
            "topology": self.machine,
            "ranks": self.ranks,
            "time_s": self.time,
            "compute_s": self.compute,
            "bubble_s": self.bubble,
            "waiting_s": self.waiting,
            "communication_s": self.communication,
            "exposed_s": self.exposed,
            "overlap": self.overlap,
            "efficiency": self.efficiency,
            "transfers": [vars(each) for each in self.transfers],
            "priced_by": [{"size_bytes": each.size, **each.to_dict()} for each in self.choices],
        }

    def flat(self) -> list[dict[str, Any]]:
        """A dict of plain values a collective, for CSV and data frames; seconds and bytes."""
        head = {"workload": self.workload, "topology": self.machine}
        return [head | vars(each) for each in self.transfers]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from pycoll.whatif.tables import iteration_table

        yield iteration_table(self)


@dataclass(frozen=True)
class Steps(Result):
    """A step before and after changes; ``measured`` is its seconds in the trace that it comes from."""

    before: Iteration
    after: Iteration | None = None
    changes: tuple[str, ...] = ()
    measured: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON; seconds and bytes."""
        return {
            "before": self.before.to_dict(),
            "changes": list(self.changes),
            "after": self.after and self.after.to_dict(),
            "time_ratio": self.after.time / self.before.time if self.after and self.before.time else None,
            "measured_s": self.measured,
        }

    def flat(self) -> list[dict[str, Any]]:
        """A dict of plain values a side and collective, for CSV and data frames; seconds and bytes."""
        sides = [("before", self.before)] + ([("after", self.after)] if self.after is not None else [])
        return [{"side": side} | row for side, step in sides for row in step.flat()]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from pycoll.whatif.tables import steps_table

        yield from steps_table(self)


def iterate(
    machine: Topology | str | PathLike[str],
    workload: Workload,
    changes: Iterable[Change] = (),
    algorithm: str = "auto",
) -> Iteration:
    """A step of the workload, every rank of the machine taking part, after the changes.

    A rank that is late is so once a step, not once a collective: what it computes comes that much later, all
    wait for it, and the step takes that much longer; with drawn lateness, by the mean of what the last comes
    late. Raises what :func:`pycoll.whatif.compare` raises.
    """
    return iterate_in(apply(Scenario(topology_of(machine)), changes), workload, algorithm)


def iterate_in(scenario: Scenario, workload: Workload, algorithm: str = "auto") -> Iteration:
    """A step of the workload in a scenario."""
    if algorithm == "all":
        raise InvalidArgument("--algorithm all: a step is priced by auto or by the name of one algorithm")
    late = mean(max(start, default=0.0) if start is not None else 0.0 for start in scenario.starts())
    step = _punctual(replace(scenario, late=(), lateness=None), workload, algorithm)
    if not late:
        return step
    transfers = tuple(
        replace(each, ready=each.ready + late, start=each.start + late, end=each.end + late)
        for each in step.transfers
    )
    return replace(step, time=step.time + late, transfers=transfers, waiting=late)


def _punctual(scenario: Scenario, workload: Workload, algorithm: str) -> Iteration:
    """A step where nobody is late."""
    if workload.pattern == "pp":
        return _pipelined(scenario, workload, algorithm)
    needed = _needed(workload)
    prices = {
        collective: _Price(Evaluator(scenario), collective, sizes, algorithm)
        for collective, sizes in needed.items()
    }

    def clock(collective: str, size: int) -> float:
        return prices[collective](size)

    run = {"ddp": _ddp, "fsdp": _fsdp, "tp": _tp}[workload.pattern]
    time, transfers = run(workload, clock)
    choices = tuple(outcome for price in prices.values() for outcome in price.outcomes)
    return _iteration(scenario, workload, time, workload.compute, transfers, choices)


def _iteration(
    scenario: Scenario,
    workload: Workload,
    time: float,
    compute: float,
    transfers: Iterable[Transfer],
    choices: tuple[Outcome, ...],
    bubble: float = 0.0,
) -> Iteration:
    topology = scenario.topology
    head = (workload.name, workload.pattern, topology.name, len(topology.ranks))
    return Iteration(*head, time, compute, tuple(transfers), choices, bubble)


def _pipelined(scenario: Scenario, workload: Workload, algorithm: str) -> Iteration:
    """Stages, each with its replicas, whose gradients are priced where they live."""
    topology = scenario.topology
    replicas = stages_of(workload, len(topology.ranks)).replicas
    choices: dict[int, Outcome] = {}

    def allreduce(stage: int, size: int) -> float:
        group = topology.place(range(stage * replicas, (stage + 1) * replicas))
        evaluator = Evaluator(scenario.on(group))
        outcome = evaluator.best_of(evaluator.ways("allreduce", algorithm), "allreduce", size)
        if size not in choices or outcome.time > choices[size].time:
            choices[size] = outcome
        return outcome.time

    time, compute, bubble, rows = pipeline(workload, topology, scenario.routing, scenario.seed, allreduce)
    transfers = [Transfer(*row) for row in rows]
    ordered = tuple(choices[size] for size in sorted(choices))
    return _iteration(scenario, workload, time, compute, transfers, ordered, bubble)


# ---- prices


class _Price:
    """Seconds of a collective by size: simulated at a few sizes, straight lines between them."""

    def __init__(self, evaluator: Evaluator, collective: str, sizes: Sequence[int], algorithm: str) -> None:
        wanted = sorted(set(sizes))
        large = len(evaluator.scenario.topology.ranks) > _MOST_RANKS
        if large:
            wanted = wanted[-1:]
        elif len(wanted) > _MOST_SIZES:
            last = len(wanted) - 1
            wanted = sorted({wanted[index * last // (_MOST_SIZES - 1)] for index in range(_MOST_SIZES)})
        ways = evaluator.ways(collective, algorithm)
        self.outcomes = [evaluator.best_of(ways, collective, size) for size in wanted]
        self._sizes = [outcome.size for outcome in self.outcomes]
        self._times = [outcome.time for outcome in self.outcomes]
        if large:
            made = self.outcomes[0].composition
            self._sizes.insert(0, 0)
            self._times.insert(0, made["overhead"] + made["latency"] + made["arrival"])

    def __call__(self, size: int) -> float:
        place = bisect.bisect_left(self._sizes, size)
        if place < len(self._sizes) and self._sizes[place] == size:
            return self._times[place]
        low, high = self._sizes[place - 1], self._sizes[place]
        share = (size - low) / (high - low)
        return self._times[place - 1] + share * (self._times[place] - self._times[place - 1])


def _needed(workload: Workload) -> dict[str, list[int]]:
    if workload.pattern == "tp":
        return {"allreduce": [layer.activation for layer in workload.layers if layer.activation]}
    if workload.pattern == "fsdp":
        sizes = [layer.bytes for layer in workload.layers if layer.bytes]
        return {"all_gather": sizes, "reduce_scatter": sizes}
    return {"allreduce": [size for size, _ in buckets(workload)]}


# ---- patterns


def buckets(workload: Workload) -> list[tuple[int, tuple[int, ...]]]:
    """DDP's buckets in the order of backward: bytes, and the indices of the layers whose tensors they hold.

    A bucket closes with the tensor that brings it to its limit (torch's compute_bucket_assignment_by_size).
    """
    found: list[tuple[int, tuple[int, ...]]] = []
    size, layers, limit = 0, [], workload.first_bucket
    for index in reversed(range(len(workload.layers))):
        for tensor in reversed(workload.layers[index].tensors):
            size += tensor
            layers.append(index)
            if size >= limit:
                found.append((size, tuple(dict.fromkeys(layers))))
                size, layers, limit = 0, [], workload.bucket
    if size:
        found.append((size, tuple(dict.fromkeys(layers))))
    return found


def _ddp(workload: Workload, clock: Clock) -> tuple[float, list[Transfer]]:
    """From the begin of backward to the end of the next forward; in the steady state that is a step."""
    ready: dict[int, float] = {}
    now = 0.0
    for index in reversed(range(len(workload.layers))):
        now += workload.layers[index].backward
        ready[index] = now
    waiting = [(max(ready[index] for index in layers), size, layers) for size, layers in buckets(workload)]
    transfers = []
    done: dict[int, float] = {}
    free = 0.0
    while waiting:
        free = max(free, min(at for at, _, _ in waiting))
        able = [each for each in waiting if each[0] <= free]
        chosen = min(able, key=lambda each: min(each[2])) if workload.order == "priority" else able[0]
        waiting.remove(chosen)
        at, size, layers = chosen
        end = free + clock("allreduce", size)
        names = [workload.layers[index].name for index in (layers[0], layers[-1])]
        transfers.append(Transfer(" to ".join(dict.fromkeys(names)), "allreduce", size, at, free, end))
        free = end
        for index in layers:
            done[index] = max(done.get(index, 0.0), end)
    barrier = max(done.values(), default=0.0) if workload.order == "fifo" else 0.0
    now = max(now, barrier) + workload.step
    for index, layer in enumerate(workload.layers):
        now = max(now, done.get(index, 0.0)) + layer.forward
    return now, transfers


def _fsdp(workload: Workload, clock: Clock) -> tuple[float, list[Transfer]]:
    """Gathers go one layer ahead of computing, on one stream with the scatters."""
    layers = workload.layers
    transfers: list[Transfer] = []
    stream = 0.0

    def send(what: str, collective: str, size: int, ready: float) -> float:
        nonlocal stream
        if not size:
            return ready
        start = max(stream, ready)
        stream = start + clock(collective, size)
        transfers.append(Transfer(what, collective, size, ready, start, stream))
        return stream

    def gathered(
        order: Sequence[Layer], begin: float, seconds: Callable[[Layer], float], scatter: bool
    ) -> float:
        computed = begin
        here = send(order[0].name, "all_gather", order[0].bytes, begin)
        for place, layer in enumerate(order):
            start = max(computed, here)
            if place + 1 < len(order):
                here = send(order[place + 1].name, "all_gather", order[place + 1].bytes, start)
            computed = start + seconds(layer)
            if scatter:
                send(layer.name, "reduce_scatter", layer.bytes, computed)
        return computed

    forward = gathered(layers, 0.0, lambda layer: layer.forward, scatter=False)
    backward = gathered(layers[::-1], forward, lambda layer: layer.backward, scatter=True)
    return max(backward, stream) + workload.step, transfers


def _tp(workload: Workload, clock: Clock) -> tuple[float, list[Transfer]]:
    """Attention and feed-forward each end with an allreduce, forward and backward (arXiv 1909.08053)."""
    now, transfers = 0.0, []
    passes = [(layer, layer.forward) for layer in workload.layers]
    passes += [(layer, layer.backward) for layer in reversed(workload.layers)]
    for layer, seconds in passes:
        for _ in range(2):
            now += seconds / 2
            if layer.activation:
                end = now + clock("allreduce", layer.activation)
                transfers.append(Transfer(layer.name, "allreduce", layer.activation, now, now, end))
                now = end
    return now + workload.step, transfers
