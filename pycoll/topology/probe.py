"""Measures the links between the ranks of a group: `pycoll topo probe`.

    matrix = probe(comm)                      # on every rank; rank 0 gets it
    topology = fit(matrix).topology           # pycoll.topology.fit

First every pair alone: latency, and bandwidth from messages of several sizes. Then pairs together, in rounds
of a tournament, and what the clusters that this shows make interesting: all ranks of one sending out of it,
one rank sending to several. Whatever falls when it is not alone shares something.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from pycoll import probe as processors
from pycoll.communicator import Communicator
from pycoll.errors import InvalidArgument, Timeout
from pycoll.topology.clusters import Cluster, cluster_tree, sampled_tree
from pycoll.topology.matrix import LinkMatrix
from pycoll.topology.measure import Activity, Flow, GroupMeasurer, Measurer, serve
from pycoll.topology.tasks import ComputeTask, PingTask, StreamTask, Task, TransferTask
from pycoll.topology.traffic import structured, tournament

__all__ = ["ProbeOptions", "measure", "probe"]

Progress = Callable[[str, float], None]

#: A figure is settled when the standard error of its median is below this share of it.
SETTLED = 0.03
#: Of the budget: for pairs alone, for flows at once; what is left over goes to what has not settled.
_ALONE, _TOGETHER = 0.35, 0.3
_LEAST_SECONDS, _MOST_SECONDS = 0.4e-3, 10e-3  # that the largest message alone takes
_LEAST_WINDOW, _MOST_WINDOW = 6e-3, 40e-3  # in which flows run at once
_LEAST_STREAM_BYTES, _MOST_STREAM_BYTES = 1 << 14, 4 << 20
_LATENCIES = 30  # in a window
_MESSAGES = 12  # of the fastest flow in a window
_COMPUTE_BYTES, _COMPUTE_SECONDS = 4 << 20, 8e-3
_LEAST_RUNS, _MOST_RUNS = 3, 12
_STATE_SECONDS = 0.1  # between looks at the state of the machine


@dataclass(frozen=True)
class ProbeOptions:
    """``budget``: seconds that all may take. ``sample_above``: with more ranks, pairs are sampled.

    ``quick``: nothing is measured again until it has settled.
    """

    budget: float = 30.0
    sample_above: int = 24
    quick: bool = False

    def __post_init__(self) -> None:
        if not (self.budget > 0 and math.isfinite(self.budget)):
            raise InvalidArgument(f"the budget must be a positive number of seconds, not {self.budget}")


def probe(
    comm: Communicator, options: ProbeOptions | None = None, progress: Progress | None = None
) -> LinkMatrix | None:
    """Measures the group's links. Called by all its ranks alike; rank 0 gets the matrix, the others None.

    ``progress`` (rank 0) is told what is measured, and the fraction of the budget that is used.

    Raises:
        InvalidArgument: fewer than 2 ranks.
        Timeout: the budget was over before every pair was measured once; the text says what was not. Not
            having measured what several flows get together is no error but a note in ``unsettled``.
        PeerLost: a rank ended meanwhile; the text names it.
    """
    if comm.ranks < 2:
        raise InvalidArgument(
            "a probe measures links between ranks, and there is only 1 rank: start it with --ranks 2 or "
            "more, or under torchrun"
        )
    if comm.rank:
        serve(comm)
        return None
    with GroupMeasurer(comm) as measurer:
        return measure(measurer, options, progress)


def measure(
    measurer: Measurer, options: ProbeOptions | None = None, progress: Progress | None = None
) -> LinkMatrix:
    """What :func:`probe` does on rank 0, with anything that can measure."""
    return _Probe(measurer, options or ProbeOptions(), progress or (lambda what, share: None)).run()


@dataclass
class _Probe:
    measurer: Measurer
    options: ProbeOptions
    progress: Progress
    pings: dict[Flow, PingTask] = field(default_factory=dict)
    transfers: dict[Flow, TransferTask] = field(default_factory=dict)
    streams: list[StreamTask] = field(default_factory=list)
    computes: list[ComputeTask] = field(default_factory=list)
    skipped: list[Task] = field(default_factory=list)
    unlabelled: list[Task] = field(default_factory=list)  # measured since the last look at the state
    labels: Counter[str] = field(default_factory=Counter)  # state -> measurements
    state: str = ""
    usual: str = ""
    looked: float = 0.0
    look_cost: float = 0.0

    def __post_init__(self) -> None:
        self.ranks = len(self.measurer.hosts)
        self.sampled = self.ranks > self.options.sample_above

    def run(self) -> LinkMatrix:
        before = self.measurer.distances()
        self._look()
        tree = self._pairs_alone()
        self._inside_ranks(tree)
        self._require_all()
        tree = self._several_at_once(tree)
        self._settle(self.options.budget)
        if not self.sampled:
            tree = self._clusters()  # now that figures have settled
        after = self.measurer.distances()
        return self._matrix(tree, before, after)

    # What is measured, in order of need

    def _pairs_alone(self) -> Cluster:
        if self.sampled:
            tree = sampled_tree(self.ranks, self._latency)
            pairs = list(_sampled_pairs(tree))
        else:
            tree = Cluster(tuple(range(self.ranks)))
            pairs = [Flow(a, b) for a in range(self.ranks) for b in range(self.ranks) if a != b]
            self.pings = {pair: PingTask(*pair) for pair in pairs}
            self._first_pass(self.pings.values())
        each = _ALONE * self.options.budget / (len(pairs) * 7)
        seconds = min(max(each, _LEAST_SECONDS), _MOST_SECONDS)
        self.transfers = {pair: TransferTask(pair, seconds) for pair in pairs}
        self._first_pass(self.transfers.values())
        return tree

    def _latency(self, a: int, b: int) -> float:
        task = self.pings[Flow(a, b)] = PingTask(a, b)
        self._first_pass([task])
        self._require_all()
        return task.alpha

    def _inside_ranks(self, tree: Cluster) -> None:
        """What ranks copy and add, each alone (or one of each cluster), and all at once."""
        alone = list(range(self.ranks))
        if self.sampled:
            alone = sorted({part[0] for cluster in tree.walk() for part in cluster.parts()})[:16]
        activities: tuple[Activity, ...] = ("copy", "reduce")
        for activity in activities:
            for ranks in [*([rank] for rank in alone), list(range(self.ranks))]:
                self.computes.append(ComputeTask(activity, ranks, _COMPUTE_BYTES, _COMPUTE_SECONDS))
        self._first_pass(self.computes)

    def _several_at_once(self, tree: Cluster) -> Cluster:
        rounds = [] if self.sampled or self.ranks < 3 else [("matching", r) for r in tournament(self.ranks)]
        expected = len(rounds) + 2 * self.ranks + 4
        window = _TOGETHER * self.options.budget / (3 * expected)
        window = min(max(window, _LEAST_WINDOW), _MOST_WINDOW)
        # Until first messages arrive, no time is lost that matters.
        window = max(window, _LATENCIES * max(task.alpha for task in self.pings.values()))
        self._stream(rounds, window)
        if not self.sampled:
            self._settle((_ALONE + _TOGETHER) * self.options.budget)
            tree = self._clusters()
        self._stream(list(structured(tree, self.sampled)), window)
        return tree

    def _clusters(self) -> Cluster:
        together = self._blank()
        self._fill_streams(together)
        unknown = np.isnan(together.beta_together[~np.eye(self.ranks, dtype=bool)])
        latency_varies = 2 * float(np.percentile([task.error for task in self.pings.values()], 90))
        if unknown.any():
            return cluster_tree(self._alphas(), None, latency_varies)
        rate_varies = float(np.nanmedian(together.beta_together_spread))
        return cluster_tree(self._alphas(), 1 / together.beta_together, latency_varies, rate_varies)

    def _stream(self, sets: Sequence[tuple[str, tuple[Flow, ...]]], window: float) -> None:
        betas = {pair: task.beta for pair, task in self.transfers.items()}
        slowest = max(betas.values())
        known = {frozenset(task.flows) for task in self.streams}
        tasks = []
        for kind, flows in sets:
            if frozenset(flows) in known or (len(flows) == 1 and self.ranks > 2):
                continue
            known.add(frozenset(flows))
            bytes_ = [window / _MESSAGES / betas.get(flow, slowest) for flow in flows]
            sizes = [int(min(max(size, _LEAST_STREAM_BYTES), _MOST_STREAM_BYTES)) for size in bytes_]
            tasks.append(StreamTask(kind, flows, sizes, window))
        self.streams += tasks
        self._first_pass(tasks)

    def _first_pass(self, tasks: Iterable[Task]) -> None:
        cost = 0.0
        for task in tasks:
            elapsed = self.measurer.elapsed()
            if elapsed + cost > self.options.budget:
                self.skipped.append(task)
                continue
            self._run(task, "")
            cost = task.cost
        self._look()

    def _settle(self, until: float) -> None:
        """Repeats everything a few times, apart in time, and what varies most until it has settled."""
        if self.options.quick:
            return
        while loose := sorted(
            self._loose(), key=lambda task: (task.states[self.usual] >= _LEAST_RUNS, -task.error)
        ):
            for task in loose:
                elapsed = self.measurer.elapsed()
                if elapsed + task.cost > until:
                    self._look()
                    return
                self._run(task, "again: ")
            self._look()

    def _run(self, task: Task, prefix: str) -> None:
        """Measures, and looks now and then what state the machine is in."""
        elapsed = self.measurer.elapsed()
        self.progress(f"{prefix}{task.kind} {task.name}", elapsed / self.options.budget)
        task.run(self.measurer)
        self.unlabelled.append(task)
        if elapsed + task.cost - self.looked > max(_STATE_SECONDS, 10 * self.look_cost):
            self._look()

    def _look(self) -> None:
        """Labels what was measured since the last look with the state of the machine, if that has not
        changed, and looks at the figures of the state that it is in most often."""
        begin = self.measurer.elapsed()
        distances = self.measurer.distances()
        self.looked = self.measurer.elapsed()
        self.look_cost = self.looked - begin
        state = ", ".join(dict.fromkeys(processors.state_of(ns) for ns in distances.values()))
        for task in self.unlabelled:
            label = state if state == self.state else "mixed"
            self.labels[label] += 1
            task.states[label] += 1
            for figure in task.figures():
                figure.label(label)
        self.unlabelled, self.state = [], state
        clean = [(count, label) for label, count in self.labels.items() if label != "mixed"]
        usual = max(clean, default=(0, "mixed"))[1]
        for task in self._done():
            for figure in task.figures():
                figure.state = usual
        self.usual = usual

    def _loose(self) -> list[Task]:
        return [
            task
            for task in self._done()
            if task.runs < _MOST_RUNS and (task.states[self.usual] < _LEAST_RUNS or task.error > SETTLED)
        ]

    def _done(self) -> list[Task]:
        tasks = [*self.pings.values(), *self.transfers.values(), *self.computes, *self.streams]
        return [task for task in tasks if task.runs]

    def _require_all(self) -> None:
        if self.skipped:
            raise Timeout(
                f"the budget of {self.options.budget:g} s was over after {self.measurer.elapsed():.2g} s, "
                f"and not measured are: {_counted(self.skipped)}; give a larger --budget"
            )

    # What came of it

    def _blank(self) -> LinkMatrix:
        return LinkMatrix.empty(self.measurer.hosts)

    def _alphas(self) -> np.ndarray:
        alpha = self._blank().alpha
        for (a, b), task in self.pings.items():
            alpha[a, b] = task.alpha
        return alpha

    def _matrix(self, tree: Cluster, before: dict[str, float], after: dict[str, float]) -> LinkMatrix:
        matrix = self._blank()
        for (a, b), ping in self.pings.items():
            ends = [(a, b)] if Flow(b, a) in self.pings else [(a, b), (b, a)]
            for end in ends:
                matrix.alpha[end], matrix.alpha_spread[end] = ping.alpha, ping.single.spread
                matrix.gap[end] = ping.gap
        for pair, transfer in self.transfers.items():
            matrix.beta[pair], matrix.beta_spread[pair] = transfer.beta, transfer.figures()[0].spread
        self._fill_streams(matrix)
        for compute in self.computes:
            together = "_together" if len(compute.ranks) > 1 else ""
            rates = getattr(matrix, f"{compute.activity}_rate{together}")
            rates[list(compute.rates)] = list(compute.rates.values())
        matrix.clusters = tree.nested()
        matrix.sampled = self.sampled
        used = {flow for task in self.streams if task.runs for flow in task.flows}
        used |= {Flow(a, b) for a, b in np.argwhere(~np.isnan(matrix.alpha)).tolist()}
        matrix.pairs_measured = len(used | set(self.transfers))
        matrix.seconds, matrix.budget = self.measurer.elapsed(), self.options.budget
        matrix.unsettled = self._unsettled()
        matrix.stamp = _stamp(self.ranks, before, after)
        matrix.stamp |= {"state": self.usual, "measurements": dict(self.labels)}
        return matrix

    def _fill_streams(self, matrix: LinkMatrix) -> None:
        for task in self.streams:
            if not task.runs:
                continue
            result = task.result
            matrix.together.append(result)
            if task.kind != "matching":
                continue
            for flow, rate, spread in zip(result.flows, result.rates, result.spreads, strict=True):
                matrix.beta_together[flow], matrix.beta_together_spread[flow] = 1 / rate, spread

    def _unsettled(self) -> list[str]:
        notes = []
        if self.skipped:
            notes.append(
                f"not measured, for the budget of {self.options.budget:g} s: {_counted(self.skipped)}; what "
                "these flows share is not in the topology: give a larger --budget"
            )
        loose = [task for task in self._done() if task.error > SETTLED]
        if loose:
            worst = max(loose, key=lambda task: task.error)
            notes.append(
                f"not settled within {SETTLED:.0%}: {_counted(loose)}; the worst, {worst.kind} {worst.name}, "
                f"within {worst.error:.0%}"
            )
        return notes


def _sampled_pairs(tree: Cluster) -> Iterator[Flow]:
    """Of each cluster the first member's first rank with the others', there and back."""
    for cluster in tree.walk():
        parts = cluster.parts()
        for part in parts[1:]:
            yield Flow(parts[0][0], part[0])
            yield Flow(part[0], parts[0][0])


def _counted(tasks: Iterable[Task]) -> str:
    return ", ".join(f"{kind} ({count})" for kind, count in Counter(task.kind for task in tasks).items())


def _stamp(ranks: int, before: dict[str, float], after: dict[str, float]) -> dict[str, object]:
    """Date, machine and versions, and how far apart each host's processors were before and after."""
    from pycoll.bench.environment import stamp

    states = {
        host: {
            "state": processors.state_between((before[host], after[host])),
            "before_ns": before[host],
            "after_ns": after[host],
        }
        for host in before
    }
    return {**stamp(ranks), "hosts": states}
