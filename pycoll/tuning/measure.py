"""How long each way to run a collective takes, measured so that the comparison is fair.

Ways take turns, in an order drawn anew for each round, each round surrounded by a probe of the machine's
state. Two ways are compared by the median of their ratios within rounds, so that what slows the machine for a
second slows both. All sizes are visited several times, so that each is likely to be met in every state that
the machine takes. Ways far behind in a state leave early; the time saved goes to those that are close.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

import pycoll
from pycoll import probe
from pycoll.bench.buffers import Buffers, make_buffers, private_bytes
from pycoll.bench.progress import Progress, progress_bar
from pycoll.bench.runner import Bench, Subject, _batch_size
from pycoll.bench.sides import Call, NativeSide
from pycoll.bench.units import format_size
from pycoll.bench.workload import Case, Workload
from pycoll.selection import candidates
from pycoll.selection.decisions import DISTANCES, FAST_PATH, split_way
from pycoll.tuning.options import TuneOptions
from pycoll.tuning.results import Measured

#: The call that names no algorithm, beside those that do.
AS_CALLED = "as called"
#: Seconds that a block of one way should take, within these numbers of iterations.
_BLOCK_SECONDS, _LEAST_ITERATIONS, _MOST_ITERATIONS = 0.002, 3, 50
#: Visits to each size; rounds of all ways in each state, and of those that stay, by a visit.
_VISITS, _FIRST_ROUNDS, _LEAST_ROUNDS, _MOST_ROUNDS = 4, 3, 2, 40
#: Times the best one's time beyond which a way leaves: after its first calls, after the first rounds.
_HOPELESS, _FAR_BEHIND = 6.0, 1.4
#: How many stay.
_FINALISTS = 6
#: From here on a way so far behind at one size is not tried at the next, where bandwidth decides ...
_LARGE, _LEFT_OUT = 2**20, 2.0
#: ... but so many always are, so that there is something to change to.
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
class Race:
    """One case at work. Everything here is the same on all ranks."""

    case: Case
    workload: Workload
    ways: list[str]
    kept: set[str]  # stay to the end
    reference: str = FAST_PATH  # the way that would run if nothing were measured
    first: dict[str, float] = field(default_factory=dict)  # by way: seconds of its first calls
    rounds: dict[str, dict[int, float]] = field(default_factory=dict)
    states: dict[int, probe.State] = field(default_factory=dict)
    full_rounds: Counter[str] = field(default_factory=Counter)  # of all ways, by state
    wrong: int = 0

    def result(self) -> Measured:
        rounds = {way: dict(taken) for way, taken in self.rounds.items() if taken}
        states = dict(self.states)
        return Measured(self.case, self.workload.bytes, rounds, states, self.wrong, self.reference)

    def hopeful(self) -> list[str]:
        limit = _HOPELESS * min(self.first.values())
        return [way for way in self.ways if self.first[way] <= limit or way in self.kept]

    def racing(self, state: str) -> list[str]:
        """The ways that are still in the race in a state of the machine."""
        hopeful = self.hopeful()
        if self.full_rounds[state] < _FIRST_ROUNDS:
            return hopeful
        seen = self.result().in_state(state)
        times = {way: seen.ratio(way, self.reference) for way in hopeful if way in seen.rounds}
        best = min(times.values())
        close = [way for way in sorted(times, key=lambda way: times[way]) if times[way] <= _FAR_BEHIND * best]
        staying = {*close[:_FINALISTS], *self.kept}
        return [way for way in hopeful if way in staying]


class Tuner(Bench):
    """Measures every way for every case, over a group."""

    def __init__(self, options: TuneOptions, comm: pycoll.Communicator, progress: Progress) -> None:
        super().__init__(options.bench(), comm, [], progress)
        self.tune = options

    def measure_all(self, keep: Callable[[str, int], set[str]]) -> list[Measured]:
        """`keep` names, for a collective and a size, ways that must stay to the end."""
        begin = time.perf_counter()
        cases = self._cases()
        races: list[Race] = []
        for visit in range(_VISITS):
            for index, (case, workload) in enumerate(cases):
                done = visit * len(cases) + index
                self.progress(f"{case.collective} {format_size(workload.bytes)}", done / len(cases) / _VISITS)
                if visit == 0:
                    reference = self._reference(workload)
                    kept = {reference, *keep(case.collective, workload.bytes)}
                    ways = self._ways(workload, kept, races)
                    races.append(Race(case, workload, ways, kept, reference))
                left = self.tune.budget - self._slowest(time.perf_counter() - begin)
                self._visit(races[index], left / (len(cases) * _VISITS - done))
        return [race.result() for race in races]

    def _cases(self) -> list[tuple[Case, Workload]]:
        """Sizes below one element come to the same as one."""
        cases: dict[tuple[str, int], tuple[Case, Workload]] = {}
        for collective in self.options.collectives:
            for size in self.options.sizes:
                case = self.options.case(collective, size)
                workload = Workload(case, self.comm.rank, self.comm.ranks)
                cases.setdefault((collective, workload.bytes), (case, workload))
        return list(cases.values())

    # What there is to measure: groups of GPUs have other ways, and other memory

    def _reference(self, workload: Workload) -> str:
        return FAST_PATH

    def _candidates(self, workload: Workload) -> list[str]:
        return candidates.ways(workload.case.collective, self.comm.ranks)

    def _subjects(self, race: Race, ways: Sequence[str]) -> dict[str, Subject]:
        """Everything that a visit needs, prepared and checked."""
        memory = make_buffers(race.workload, _batch_size(race.workload), private_bytes)
        return {way: self._prepare(race, way, memory) for way in ways}

    # The races

    def _ways(self, workload: Workload, kept: set[str], races: list[Race]) -> list[str]:
        case = workload.case
        ways = self._candidates(workload)
        ways += sorted(kept - set(ways))
        before = races[-1].result() if races and races[-1].case.collective == case.collective else None
        if before is None or before.bytes < _LARGE:
            return ways
        times = {way: before.ratio(way, before.reference) for way in before.rounds}
        limit = max(_LEFT_OUT * min(times.values()), sorted(times.values())[:_ALWAYS_IN][-1])
        return [way for way in ways if way in kept or times.get(way, np.inf) <= limit]

    def _visit(self, race: Race, budget: float) -> None:
        begin = time.perf_counter()
        subjects = self._subjects(race, race.hopeful() if race.first else race.ways)
        most = _FIRST_ROUNDS + _MOST_ROUNDS
        for count in range(most):
            over = self._slowest(time.perf_counter() - begin) > budget
            if over and count >= (_LEAST_ROUNDS if race.full_rounds else _FIRST_ROUNDS):
                break
            self._round(race, subjects)
        wrong = np.array([sum(subject.wrong for subject in subjects.values())])
        self.comm.allreduce(wrong)
        race.wrong += int(wrong[0])

    def _prepare(self, race: Race, way: str, memory: list[Buffers]) -> Subject:
        """One call that prepares everything and is checked; and in the first visit two more, which say
        whether it is worth going on, and how many calls make a block."""
        algorithm, pieces = ("", 0) if way == AS_CALLED else split_way(way)
        side = EngineSide(self.comm, algorithm, pieces)
        subject = Subject(side, memory, [side.bind(race.workload, buffers) for buffers in memory])
        for buffers in memory:
            buffers.poison(race.workload)
        self._iterate(race.workload, subject, 1)
        self._check(race.workload, subject)
        self._settle_iterations(race, way, subject)
        return subject

    def _settle_iterations(self, race: Race, way: str, subject: Subject) -> None:
        """Two calls, once, and how many make a block."""
        if way not in race.first:
            race.first[way] = self._slowest(self._iterate(race.workload, subject, 2).min())
        each = max(race.first[way] * len(subject.calls), 1e-9)
        subject.iterations = min(max(int(_BLOCK_SECONDS / each), _LEAST_ITERATIONS), _MOST_ITERATIONS)

    def _round(self, race: Race, subjects: dict[str, Subject]) -> None:
        number = len(race.states)
        before = self._probe()
        racing = race.racing(probe.state_of(before))
        taken = {}
        for way in self.random.sample(racing, len(racing)):
            taken[way] = self._iterate(race.workload, subjects[way], subjects[way].iterations)
        state = race.states[number] = probe.state_between((before, self._probe()))
        if len(racing) == len(race.hopeful()):
            race.full_rounds[state] += 1
        for way in racing:
            everyone = np.empty((self.comm.ranks, *taken[way].shape))
            self.comm.all_gather(taken[way], out=everyone)
            race.rounds.setdefault(way, {})[number] = float(np.median(everyone.max(axis=0)))


def run_rank(comm: pycoll.Communicator, options: TuneOptions) -> list[Measured]:
    """Measures as one rank of a group; all ranks return the same. With `options.check` the group goes by this
    profile, and what that chooses stays in the race to its end, whatever it takes."""
    table = options.check.decisions() if options.check is not None else pycoll.DecisionTable()
    comm.install(table)

    def keep(collective: str, size: int) -> set[str]:
        if options.check is None:
            return set()
        rows = (table.find(collective, size, options.dtype, distance) for distance in DISTANCES)
        return {AS_CALLED, *(row.way for row in rows if row is not None)}

    with progress_bar(options.progress and comm.rank == 0) as progress:
        return Tuner(options, comm, progress).measure_all(keep)


def join(options: TuneOptions) -> list[Measured]:
    """Measures in a process that torchrun, or another launcher that sets its variables, has started."""
    with pycoll.init(timeout=options.timeout, profile=False) as comm:
        return run_rank(comm, options)
