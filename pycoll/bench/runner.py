"""The measurement itself, as every rank runs it.

For each size the libraries take turns, in blocks, in an order drawn anew for each block; every block is
surrounded by a probe of the distance between processors, so that only what was measured in one state of the
machine is compared.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

import pycoll
from pycoll import Unsupported, probe
from pycoll.bench import environment, results, sides
from pycoll.bench.buffers import Buffers, make_buffers
from pycoll.bench.lateness import Lateness
from pycoll.bench.options import BenchOptions
from pycoll.bench.progress import Progress, progress_bar
from pycoll.bench.results import Report, Row
from pycoll.bench.sides import Call, Side
from pycoll.bench.units import format_size
from pycoll.bench.workload import Case, Workload
from pycoll.probe import State

#: Calls of one timed batch, and the bytes of their buffers: enough to make the clock's cost small.
MOST_CALLS = 32
MOST_BATCH_BYTES = 2**16
MOST_ITERATIONS = 2000
LEAST_ITERATIONS = 10
WARMUP_SECONDS, MOST_WARMUPS = 0.2, 5
#: How many times the usual number of blocks may be tried for a wanted state.
PATIENCE = 6
#: Longer than a probe, so that the other ranks, waiting for rank 0, do not disturb it by spinning.
_PROBE_SECONDS = 0.008


@dataclass
class Subject:
    """A side at work on one case: its calls, and what was measured."""

    side: Side
    memory: list[Buffers]
    calls: list[Call]
    iterations: int = 0
    blocks: list[npt.NDArray[np.float64]] = field(default_factory=list)  # seconds a call, this rank's
    arrivals: list[npt.NDArray[np.float64]] = field(default_factory=list)  # seconds it came late, likewise
    wrong: int = 0


class Bench:
    """Measures what the options name, over a group and the sides to be compared."""

    def __init__(
        self,
        options: BenchOptions,
        comm: pycoll.Communicator,
        contestants: Sequence[Side],
        progress: Progress,
    ) -> None:
        self.options, self.comm, self.sides, self.progress = options, comm, contestants, progress
        self.random = random.Random(options.seed)  # the same on all ranks: they must agree on the order
        self.lateness = Lateness()
        self.came: npt.NDArray[np.float64] = np.zeros(0)
        self.draws = np.random.default_rng(options.seed)  # of lateness; the same on all ranks, too
        self.report = Report(environment.stamp(comm.ranks))

    def run(self) -> Report:
        cases = [
            self.options.case(collective, size)
            for collective in self.options.collectives
            for size in (self.options.sizes if collective != "barrier" else (0,))
        ]
        done: set[tuple[str, int]] = set()
        for index, case in enumerate(cases):
            workload = Workload(case, self.comm.rank, self.comm.ranks)
            self.progress(f"{case.collective} {format_size(workload.bytes)}", index / len(cases))
            if (case.collective, workload.bytes) not in done:  # sizes below one element come to the same
                for lateness in self.options.latenesses or (Lateness(),):
                    self.lateness = lateness
                    self._measure(case, workload)
            done.add((case.collective, workload.bytes))
        self.report.rows = results.with_speedups(self.report.rows)
        return self.report

    # One case

    def _measure(self, case: Case, workload: Workload) -> None:
        batch = 1 if self.lateness else _batch_size(workload)
        memory: dict[bool, list[Buffers]] = {}
        subjects = []
        for side in self.sides:
            shared = bool(getattr(side, "zero_copy", False))
            if shared not in memory:
                memory[shared] = make_buffers(workload, batch, side.allocate)
            try:
                calls = [side.bind(workload, buffers) for buffers in memory[shared]]
                subject = Subject(side, memory[shared], calls)
                self._warm_up(workload, subject)
            except (
                Unsupported,
                RuntimeError,
            ) as reason:  # decided from the arguments alone, so by all ranks alike
                if side.library == "pycoll" and not (
                    self.options.lenient and isinstance(reason, Unsupported)
                ):
                    raise
                self._note(
                    f"{side.library} {side.algorithm}".rstrip() + f" left out of {case.collective}: {reason}"
                )
                continue
            subjects.append(subject)
        if not subjects:
            return
        probes = self._run_blocks(case, workload, subjects)
        for subject in subjects:
            self._add_rows(workload, subject, probes)

    def _warm_up(self, workload: Workload, subject: Subject) -> None:
        """Runs a few times, the first one checked, and settles how many iterations fit in the time."""
        for buffers in subject.memory:
            buffers.poison(workload)
        seconds = self._slowest(self._iterate(workload, subject, 1).sum())
        self._check(workload, subject)
        share = self.options.budget / max(len(self.sides), 1)
        each = max(seconds * len(subject.calls), 1e-9)
        warmups = self.options.warmup
        if warmups is None:
            warmups = min(MOST_WARMUPS, int(WARMUP_SECONDS / each))
        if warmups:
            begin = time.perf_counter()
            self._iterate(workload, subject, warmups)
            each = max(self._slowest((time.perf_counter() - begin) / warmups), 1e-9)
        self._check(workload, subject)
        fitting = min(max(int(share / each), LEAST_ITERATIONS), MOST_ITERATIONS)
        wanted = self.options.iterations or fitting
        subject.iterations = -(-wanted // self.options.blocks)  # of one block

    def _run_blocks(
        self, case: Case, workload: Workload, subjects: list[Subject]
    ) -> list[tuple[float, float]]:
        """Every subject's blocks, with the probes before and after each round of blocks."""
        wanted, probes = self.options.state, []
        before = self._probe()
        accepted = 0
        for _ in range(self.options.blocks * (PATIENCE if wanted else 1)):
            for subject in self.random.sample(subjects, len(subjects)):
                subject.blocks.append(self._iterate(workload, subject, subject.iterations))
                subject.arrivals.append(self.came)
                self._check(workload, subject)
            after = self._probe()
            probes.append((before, after))
            accepted += wanted is None or probe.state_between((before, after)) == wanted
            before = after
            if accepted == self.options.blocks:
                break
        if accepted < self.options.blocks:
            self._note(
                f"{case.collective} {format_size(workload.bytes)}: only {accepted} of "
                f"{self.options.blocks} blocks "
                f"were measured in the state {wanted}"
            )
        return probes

    def _iterate(self, workload: Workload, subject: Subject, iterations: int) -> npt.NDArray[np.float64]:
        """Seconds a call in each iteration, on this rank. What is called is prepared, and met for, off the
        clock, which runs from the meeting on where ranks come late; how late this one did is in `came`."""
        taken, late = np.empty(iterations), np.zeros(iterations)
        clock, barrier, calls = time.perf_counter_ns, self.comm.barrier, subject.calls
        collecting = gc.isenabled()
        gc.disable()
        try:
            for iteration in range(iterations):
                for buffers in subject.memory:
                    buffers.fill(workload)
                wanted = self._lateness()
                barrier()
                begin = clock()
                if wanted:
                    time.sleep(wanted)
                    late[iteration] = clock() - begin
                for call in calls:
                    call()
                taken[iteration] = clock() - begin
        finally:
            if collecting:
                gc.enable()
        self.came = late / 1e9
        return taken / (1e9 * len(calls))

    def _lateness(self) -> float:
        if not self.lateness:
            return 0.0
        return float(self.lateness.draw(self.draws, self.comm.ranks)[self.comm.rank])

    def _check(self, workload: Workload, subject: Subject) -> None:
        if self.options.check:
            kept = subject.side.keeps_inputs
            subject.wrong += sum(buffers.count_wrong(workload, kept) for buffers in subject.memory)

    # What the ranks tell each other

    def _probe(self) -> float:
        measured = np.full(1, np.nan)
        if self.comm.rank == 0:
            time.sleep(_PROBE_SECONDS / 4)  # the others are asleep by now
            measured[0] = probe.core_to_core_ns()
        else:
            time.sleep(_PROBE_SECONDS)
        self.comm.broadcast(measured, 0)
        return float(measured[0])

    def _slowest(self, seconds: float) -> float:
        value = np.array([seconds])
        self.comm.allreduce(value, "max")
        return float(value[0])

    def _everyones_latest(self, blocks: list[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
        """Of each iteration, by block."""
        latest = np.array(blocks)
        self.comm.allreduce(latest, "max")
        return latest

    def _add_rows(self, workload: Workload, subject: Subject, probes: list[tuple[float, float]]) -> None:
        total = self._everyones_latest(subject.blocks)
        slowest = total - self._everyones_latest(subject.arrivals)
        wrong = np.array([subject.wrong])
        self.comm.allreduce(wrong, "sum")

        states = [probe.state_between(pair) for pair in probes]
        side, case, options = subject.side, workload.case, self.options
        chosen = side.chosen(workload)
        for state in _reported_states(states, options.state):
            chosen_blocks = [i for i, s in enumerate(states) if s == state]
            timing = results.times(slowest[chosen_blocks].reshape(-1))
            algbw = workload.bytes / timing["median_s"] / 1e9
            native = side.interface == "numpy" and side.library == "pycoll"
            self.report.rows.append(
                Row(
                    collective=case.collective,
                    bytes=workload.bytes,
                    count=workload.count,
                    dtype=case.dtype,
                    op=case.op if case.takes_op else "",
                    root=case.root,
                    library=side.library,
                    interface=side.interface,
                    algorithm=chosen,
                    algorithm_chosen=not side.algorithm,
                    pieces=options.pieces if native else 0,
                    in_place=workload.in_place,
                    zero_copy=bool(getattr(side, "zero_copy", False)),
                    iterations=subject.iterations * len(chosen_blocks),
                    batch=len(subject.calls),
                    algbw_gb_s=algbw,
                    busbw_gb_s=algbw * results.bus_factor(case.collective, self.comm.ranks),
                    wrong=int(wrong[0]) if options.check else None,
                    late=str(self.lateness) if self.options.latenesses else "",
                    late_s=self.lateness.seconds if self.options.latenesses else None,
                    total_median_s=float(np.median(total[chosen_blocks])) if self.lateness else None,
                    state=state,
                    probe_before_ns=probes[chosen_blocks[0]][0],
                    probe_after_ns=probes[chosen_blocks[-1]][1],
                    **timing,
                )
            )

    def _note(self, text: str) -> None:
        if text not in self.report.notes:
            self.report.notes.append(text)


def _batch_size(workload: Workload) -> int:
    """Calls that are timed together: many for tiny sizes, each on buffers of its own."""
    return max(1, min(MOST_CALLS, MOST_BATCH_BYTES // max(workload.bytes, 1)))


def _reported_states(states: Sequence[State], wanted: State | None) -> list[State]:
    """A row each for near and far; a mixture only where there is nothing clean."""
    if wanted is not None and wanted in states:
        return [wanted]
    clean: list[State] = [state for state in ("near", "far", "unknown") if state in states]
    return clean or ["mixed"]


def run_rank(comm: pycoll.Communicator, options: BenchOptions) -> Report:
    """Runs the benchmark as one rank of a group. All ranks' reports hold the same measurements.

    A failure is told in the report, after the rows measured before it.
    """
    with progress_bar(options.progress and comm.rank == 0) as progress:
        bench = Bench(options, comm, _contestants(options, comm), progress)
        try:
            return bench.run()
        except (pycoll.Error, RuntimeError) as error:
            bench.report.error = f"{type(error).__name__}: {error}"
            return bench.report
        finally:
            if "gloo" in options.peers:
                sides.leave_torch()


def join(options: BenchOptions) -> Report:
    """Runs the benchmark in a process that torchrun, or another launcher that sets its variables, has
    started."""
    with pycoll.init(timeout=options.timeout) as comm:
        return run_rank(comm, options)


def _contestants(options: BenchOptions, comm: pycoll.Communicator) -> list[Side]:
    """What is to be compared: through torch with gloo, through NumPy with MPI, as both are used."""
    contestants: list[Side] = []
    if "gloo" in options.peers:
        contestants += sides.torch_sides(comm)
    if options.peers != ("gloo",):
        contestants += [
            sides.NativeSide(comm, algorithm, options.pieces, options.zero_copy)
            for algorithm in options.algorithms
        ]
    if "mpi" in options.peers:
        contestants.append(sides.MpiSide())
    return contestants
