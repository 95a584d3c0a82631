"""How long each way to run a collective takes, measured so that the comparison is fair.

Ways take turns, in an order drawn anew for each round, each round surrounded by a probe of the machine's
state. Two ways are compared by the median of their ratios within rounds, so that what slows the machine for a
second slows both. Ways far behind leave early; the time saved goes to those that are close.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

import pycoll
from pycoll import candidates, probe
from pycoll.bench.buffers import Buffers, make_buffers, private_bytes
from pycoll.bench.progress import Progress, progress_bar
from pycoll.bench.runner import Bench, Subject, _batch_size
from pycoll.bench.sides import Call, NativeSide
from pycoll.bench.units import format_size
from pycoll.bench.workload import Case, Workload
from pycoll.decisions import FAST_PATH, split_way
from pycoll.profile import Timing
from pycoll.tuning.options import TuneOptions

#: Seconds that a block of one way should take, within these numbers of iterations.
_BLOCK_SECONDS, _LEAST_ITERATIONS, _MOST_ITERATIONS = 0.002, 3, 50
#: Rounds of all ways, and times the best one's time beyond which a way leaves after them.
_FIRST_ROUNDS, _FAR_BEHIND, _HOPELESS = 3, 1.4, 6.0
#: Rounds of the ways that stay, and how many may stay.
_LEAST_ROUNDS, _MOST_ROUNDS, _FINALISTS = 5, 40, 6
#: From here on a way so far behind at one size is not tried at the next: bandwidth decides.
_LARGE, _LEFT_OUT = 2**20, 2.0
#: But so many always are, so that there is something to change to.
_ALWAYS_IN = 4


class EngineSide(NativeSide):
    """The engine's collectives by name, without what the Python face adds to every call."""

    def bind(self, workload: Workload, memory: Buffers) -> Call:
        case = workload.case
        reads = workload.input_length is not None and (
            case.collective != "broadcast" or workload.rank == case.root
        )
        output = memory.input if workload.input_is_output and not len(memory.output) else memory.output
        return partial(
            self.comm._core.run,
            case.collective,
            case.dtype,
            case.op if case.takes_op else "sum",
            1.0,
            case.root,
            memory.input.ctypes.data if reads else 0,
            output.ctypes.data if workload.output_length is not None else 0,
            workload.count,
            None,
            self.algorithm,
            self.pieces,
            None,
        )


@dataclass
class Entrant:
    """A way at work on one case, and the seconds it took: by round, of the slowest rank."""

    way: str
    subject: Subject
    first: float  # seconds, roughly
    rounds: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """One case: how long each way took in each round, and in which state the machine was."""

    case: Case
    bytes: int
    rounds: dict[str, dict[int, float]]  # by way, by round: seconds
    states: dict[int, probe.State]  # by round
    wrong: int  # elements that differ from what they must be

    def ratio(self, way: str, to: str) -> float:
        """The median over rounds of one way's time / another's."""
        mine, other = self.rounds[way], self.rounds[to]
        return float(np.median([mine[r] / other[r] for r in mine if r in other]))

    def seconds(self, way: str) -> float:
        return float(np.median(list(self.rounds[way].values())))

    def best(self, against: str) -> str:
        """The way whose ratio to `against` is the least, among those that stayed to the end."""
        most = max(len(taken) for taken in self.rounds.values())
        stayed = [way for way, taken in self.rounds.items() if len(taken) == most]
        return min(stayed, key=lambda way: self.ratio(way, against))

    def by_state(self, way: str) -> dict[str, float]:
        """Median seconds in each state that the machine was in."""
        taken = defaultdict(list)
        for number, seconds in self.rounds[way].items():
            taken[str(self.states[number])].append(seconds)
        return {state: float(np.median(times)) for state, times in sorted(taken.items())}

    def state(self) -> probe.State:
        """The state that most rounds were measured in."""
        states = list(self.states.values())
        return max(set(states), key=states.count)

    def timings(self) -> Iterator[Timing]:
        for way, taken in self.rounds.items():
            yield Timing(
                self.case.collective,
                self.bytes,
                self.case.dtype,
                way,
                self.seconds(way),
                self.ratio(way, FAST_PATH),
                len(taken),
                self.by_state(way),
            )


class Tuner(Bench):
    """Measures every way for every case, over a group."""

    def __init__(self, options: TuneOptions, comm: pycoll.Communicator, progress: Progress) -> None:
        super().__init__(options.bench(), comm, [], progress)
        self.tune = options

    def measure_all(self, keep: Callable[[str, int], str] | None = None) -> list[Measured]:
        """`keep` names, for a collective and a size, a way that must stay to the end."""
        cases = [
            self.options.case(collective, size)
            for collective in self.options.collectives
            for size in self.options.sizes
        ]
        begin = time.perf_counter()
        measured: list[Measured] = []
        for index, case in enumerate(cases):
            workload = Workload(case, self.comm.rank, self.comm.ranks)
            self.progress(f"{case.collective} {format_size(workload.bytes)}", index / len(cases))
            before = measured[-1] if measured and measured[-1].case.collective == case.collective else None
            if before is not None and before.bytes == workload.bytes:
                continue
            left = self.tune.budget - self._slowest(time.perf_counter() - begin)
            kept = {FAST_PATH} | ({keep(case.collective, workload.bytes)} if keep else set())
            measured.append(self._case(case, workload, left / (len(cases) - index), kept, before))
        return measured

    def _case(
        self, case: Case, workload: Workload, budget: float, kept: set[str], before: Measured | None
    ) -> Measured:
        begin = time.perf_counter()
        memory = make_buffers(workload, _batch_size(workload), private_bytes)
        entrants = []
        for way in self._ways(case.collective, workload, kept, before):
            algorithm, pieces = split_way(way)
            side = EngineSide(self.comm, algorithm, pieces)
            subject = Subject(side, memory, [side.bind(workload, buffers) for buffers in memory])
            entrants.append(Entrant(way, subject, self._first_calls(workload, subject)))
        states: dict[int, probe.State] = {}
        quickest = min(entrant.first for entrant in entrants)
        racing = [e for e in entrants if e.first <= _HOPELESS * quickest or e.way in kept]
        for number in range(_FIRST_ROUNDS):
            self._round(workload, racing, number, states)
        racing = self._finalists(_result(case, workload, racing, states), racing, kept)
        for number in range(_FIRST_ROUNDS, _FIRST_ROUNDS + _MOST_ROUNDS):
            over = self._slowest(time.perf_counter() - begin) > budget
            if over and number >= _FIRST_ROUNDS + _LEAST_ROUNDS:
                break
            self._round(workload, racing, number, states)
        for entrant in racing:
            self._run_checked(workload, entrant.subject)
        wrong = np.array([sum(entrant.subject.wrong for entrant in entrants)])
        self.comm.allreduce(wrong)
        return _result(case, workload, entrants, states, int(wrong[0]))

    def _ways(
        self, collective: str, workload: Workload, kept: set[str], before: Measured | None
    ) -> list[str]:
        ways = candidates.ways(collective, self.comm.ranks)
        ways += sorted(kept - set(ways))
        if before is None or before.bytes < _LARGE:
            return ways
        times = {way: before.ratio(way, FAST_PATH) for way in before.rounds}
        limit = max(_LEFT_OUT * min(times.values()), sorted(times.values())[:_ALWAYS_IN][-1])
        return [way for way in ways if way in kept or times.get(way, np.inf) <= limit]

    def _first_calls(self, workload: Workload, subject: Subject) -> float:
        """One call that prepares everything and is checked, and two that say whether it is worth going on."""
        self._run_checked(workload, subject)
        seconds = self._slowest(self._iterate(workload, subject, 2).min())
        each = max(seconds * len(subject.calls), 1e-9)
        subject.iterations = min(max(int(_BLOCK_SECONDS / each), _LEAST_ITERATIONS), _MOST_ITERATIONS)
        return seconds

    def _run_checked(self, workload: Workload, subject: Subject) -> None:
        for buffers in subject.memory:
            buffers.poison(workload)
        self._iterate(workload, subject, 1)
        self._check(workload, subject)

    def _round(
        self, workload: Workload, racing: list[Entrant], number: int, states: dict[int, probe.State]
    ) -> None:
        before = self._probe()
        taken = {}
        for entrant in self.random.sample(racing, len(racing)):
            taken[entrant.way] = self._iterate(workload, entrant.subject, entrant.subject.iterations)
        states[number] = probe.state_between((before, self._probe()))
        for entrant in racing:
            own = taken[entrant.way]
            everyone = np.empty((self.comm.ranks, *own.shape))
            self.comm.all_gather(own, out=everyone)
            entrant.rounds[number] = float(np.median(everyone.max(axis=0)))

    def _finalists(self, result: Measured, racing: list[Entrant], kept: set[str]) -> list[Entrant]:
        times = {entrant.way: result.ratio(entrant.way, FAST_PATH) for entrant in racing}
        best = min(times.values())
        close = [e for e in sorted(racing, key=lambda e: times[e.way]) if times[e.way] <= _FAR_BEHIND * best]
        staying = {entrant.way for entrant in close[:_FINALISTS]} | kept
        return [entrant for entrant in racing if entrant.way in staying]


def _result(
    case: Case, workload: Workload, entrants: list[Entrant], states: dict[int, probe.State], wrong: int = 0
) -> Measured:
    rounds = {entrant.way: dict(entrant.rounds) for entrant in entrants if entrant.rounds}
    return Measured(case, workload.bytes, rounds, dict(states), wrong)


def run_rank(comm: pycoll.Communicator, options: TuneOptions) -> list[Measured]:
    """Measures as one rank of a group; all ranks return the same. With `options.check`, the ways that this
    profile chooses stay in the race to its end, whatever they take."""
    comm.install(pycoll.DecisionTable())  # the measurement's own barriers must not go by what is measured
    table = options.check.decisions() if options.check is not None else None

    def chosen(collective: str, size: int) -> str:
        row = table.find(collective, size, options.dtype) if table is not None else None
        return row.way if row is not None else FAST_PATH

    with progress_bar(options.progress and comm.rank == 0) as progress:
        return Tuner(options, comm, progress).measure_all(chosen)


def join(options: TuneOptions) -> list[Measured]:
    """Measures in a process that torchrun, or another launcher that sets its variables, has started."""
    with pycoll.init(timeout=options.timeout, profile=False) as comm:
        return run_rank(comm, options)
