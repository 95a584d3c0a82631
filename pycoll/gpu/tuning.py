"""`pycoll tune --device cuda`: which way is the quickest on these GPUs, measured as it is on processors.

Ways take turns in rounds, in an order drawn anew for each; a way's time in a round is the slowest rank's, of
several calls one after another on a stream, by the GPU's clock. What would run if nothing were measured, the
reference of a size, stays to the end: another way must beat it clearly, and in most rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

import pycoll
from pycoll import cuda
from pycoll.bench.progress import Progress, progress_bar
from pycoll.bench.runner import Subject
from pycoll.bench.sides import NativeSide
from pycoll.bench.workload import Workload
from pycoll.errors import InvalidArgument, Unsupported
from pycoll.gpu import ways
from pycoll.gpu.arrays import Arrays, arrays_of
from pycoll.gpu.machine import GpuMachine
from pycoll.gpu.selection import machine_of
from pycoll.selection.decisions import DecisionTable
from pycoll.selection.profile import Profile, default_path
from pycoll.tuning.measure import AS_CALLED, Race, Tuner
from pycoll.tuning.options import TuneOptions
from pycoll.tuning.results import Measured

__all__ = ["GpuTuning", "default_ranks", "run", "run_rank"]

#: Bytes that the calls of one timed batch move together, about, and the most and fewest calls of one.
_BATCH_BYTES, _MOST_CALLS, _LEAST_CALLS = 64 << 20, 50, 2


@dataclass(frozen=True)
class GpuTuning:
    """What a run found: on what, and what it took; ``earlier`` is the profile that was checked."""

    machine: GpuMachine
    wiring: str
    measured: list[Measured]
    left_out: list[str]
    earlier: Profile | None = None


class GpuTuner(Tuner):
    """Measures every way of a group of GPUs."""

    def __init__(
        self,
        options: TuneOptions,
        comm: pycoll.Communicator,
        progress: Progress,
        gpus: cuda.Group,
        arrays: Arrays,
        link: str,
    ) -> None:
        super().__init__(options, comm, progress)
        self.gpus, self.arrays = gpus, arrays
        self.groups = ways.Groups(gpus)
        self.left_out: list[str] = []
        self._names = ways.names(comm.ranks, link, nccl=self._has_nccl())

    def _has_nccl(self) -> bool:
        try:
            _ = self.groups.nccl
        except Unsupported as error:
            self.left_out.append(f"NCCL: {error}")
            return False
        return True

    def _reference(self, workload: Workload) -> str:
        return self.gpus._within_bounds(workload.bytes, workload.count, workload.case.dtype)

    def _candidates(self, workload: Workload) -> list[str]:
        case = workload.case
        return [
            way
            for way in self._names
            if ways.kind_of(way).takes(self.groups, way, case.dtype, case.op, workload.count)
        ]

    def _subjects(self, race: Race, names: Sequence[str]) -> dict[str, Subject]:
        """All calls prepared before the first: putting a schedule on the GPU may wait for kernels."""
        mine, right = _summands(race.workload, self.arrays)
        x = self.arrays.array(np.zeros(race.workload.count, np.float32), race.workload.case.dtype)
        calls = {way: self._call(way, x, race.workload.case.op) for way in names}
        self.arrays.synchronize()
        self.comm.barrier()
        return {way: self._ready(race, way, call, x, mine, right) for way, call in calls.items()}

    def _call(self, way: str, x: Any, op: str) -> Callable[[], object]:
        if way == AS_CALLED:
            return partial(self.gpus.allreduce, x, op)
        kind = ways.kind_of(way)
        kind.prepare(self.groups, way)
        return partial(kind.call(self.groups, way), x, x, op, 1.0, None)

    def _ready(
        self, race: Race, way: str, call: Callable[[], object], x: Any, mine: Any, right: Any
    ) -> Subject:
        subject = Subject(_WaySide(self.comm, way), [], [call])
        self.arrays.assign(x, mine)
        self.arrays.synchronize()
        self.comm.barrier()
        call()
        self.arrays.synchronize()
        subject.wrong = self.arrays.count_wrong(x, right)
        self.arrays.clear(x)  # zeros stay zeros, however often they are summed
        self._settle_iterations(race, way, subject)
        size = race.workload.bytes
        subject.iterations = max(_LEAST_CALLS, min(subject.iterations, _MOST_CALLS, _BATCH_BYTES // size))
        return subject

    def _iterate(self, workload: Workload, subject: Subject, iterations: int) -> npt.NDArray[np.float64]:
        self.arrays.synchronize()
        self.comm.barrier()
        return np.array([self.arrays.seconds(subject.calls[0], iterations)])

    def _probe(self) -> float:
        return float("nan")  # GPUs do not move about


class _WaySide(NativeSide):
    """The name of a way, where the processors' benchmark has a library."""


def _summands(workload: Workload, arrays: Arrays) -> tuple[Any, Any]:
    """This rank's summands and the right result: small whole numbers that repeat every third element."""
    ranks, count, case = workload.ranks, workload.count, workload.case
    thirds = np.array([[(i + rank) % 3 == 0 for i in range(3)] for rank in range(ranks)], np.float32)
    if case.op != "sum":
        raise Unsupported(f"tune --device cuda measures sums, not {case.op}")

    def spread(three: npt.NDArray[np.float32]) -> Any:
        return arrays.array(np.resize(three, count).astype(np.float32), case.dtype)

    return spread(thirds[workload.rank]), spread(thirds.sum(0))


def run_rank(
    comm: pycoll.Communicator, options: TuneOptions, check: bool = False, path: str | None = None
) -> GpuTuning:
    """Measures as one rank of a group of the CPU whose ranks have a GPU each; all ranks return the same. With
    ``check`` the group goes by the profile made earlier (at ``path``, or where groups look for it), whose
    choices stay in the races to the end."""
    with cuda.Group(comm, profile=False) as gpus:
        machine, wiring = machine_of(gpus)
        earlier = _earlier(comm, machine, path) if check else None
        gpus.install(DecisionTable() if earlier is None else earlier.decisions())
        arrays = _arrays(gpus)
        table = gpus.decisions()

        def keep(collective: str, size: int) -> set[str]:
            if earlier is None:
                return set()
            row = table.find(collective, size, options.dtype)
            return {AS_CALLED, *((row.way,) if row is not None else ())}

        with arrays.stream(), progress_bar(options.progress and comm.rank == 0) as progress:
            tuner = GpuTuner(options, comm, progress, gpus, arrays, machine.link)
            measured = tuner.measure_all(keep)
            arrays.synchronize()
            comm.barrier()
    text = "" if wiring is None else wiring.to_yaml()
    return GpuTuning(machine, text, measured, tuner.left_out, earlier)


def _arrays(gpus: cuda.Group) -> Arrays:
    """Raises on every rank what is missing on any."""
    made: list[Arrays] = []

    def step() -> bytes:
        made.append(arrays_of(gpus.device))
        return b""

    gpus._together(step)
    return made[0]


def _earlier(comm: pycoll.Communicator, machine: GpuMachine, path: str | None) -> Profile:
    where = path or str(default_path(comm.ranks, machine))
    try:
        profile = Profile.load(where)
    except InvalidArgument as error:
        raise InvalidArgument(f"{error}; pycoll tune --device cuda makes one") from None
    profile.require(machine, comm.ranks, where)
    return profile


def default_ranks() -> int:
    """One a GPU."""
    return len(cuda.devices())


def run(ranks: int | None, options: TuneOptions, check: bool, path: str | None) -> GpuTuning:
    """In the job that a launcher started, as one of its ranks, or in processes of its own: by default one a
    GPU. Raises Unsupported where the CUDA part, a GPU or torch is missing."""
    from dataclasses import replace

    from pycoll import launchers

    if reason := cuda.why_not():
        raise Unsupported(f"--device cuda: {reason}")
    if launchers.place().launcher:
        with pycoll.init(timeout=options.timeout, profile=False) as comm:
            return run_rank(comm, options, check, path)
    count = ranks or default_ranks()
    if count < 2:
        raise InvalidArgument(
            "tune --device cuda: there is one GPU here, and with one rank there is nothing to choose; "
            "--ranks 2 lets ranks share it, which says little of several"
        )
    untuned = {"PYCOLL_PROFILE": "none", "PYCOLL_CUDA_PROFILE": "", "PYCOLL_ALGO": ""}
    found: GpuTuning = pycoll.spawn(
        run_rank,
        ranks=count,
        args=(replace(options, ranks=count), check, path),
        timeout=options.timeout,
        env=untuned,
    )[0]
    return found
