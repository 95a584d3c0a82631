"""GPUs that are none: pycoll.cuda's library, cupy's arrays and NCCL, between threads, on a made-up clock.

The real `pycoll.cuda.Group` and `pycoll.nccl.Group` run on it: only what reaches the driver is replaced. All
collectives are synchronous; each moves the clocks of all ranks to the latest one's plus its cost.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import types
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np

from pycoll import _core, cuda, nccl
from pycoll._cuda_library import Device
from pycoll.errors import Unsupported
from tests.nccl.fake import FakeCommunicator, FakeNccl

PATIENCE = 60.0
HANDLE = 64
REDUCE = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


@dataclass(frozen=True)
class Work:
    """What ran: a kernel's name, "schedule" or "late" (with its pieces and rounds), "nccl" or "group"."""

    what: str
    bytes: int
    ranks: int
    pieces: int = 0
    rounds: int = 0


def cost(work: Work) -> float:
    """Seconds. One-shot wins small sizes, two-shot middle ones, few-round schedules large ones."""
    n = work.ranks
    if work.what == "one_shot":
        return 5e-6 + 2 * work.bytes * (n - 1) / 200e9
    if work.what == "two_shot":
        return 8e-6 + 4 * work.bytes * (n - 1) / n / 200e9
    if work.what == "nccl":
        return 20e-6 + 2 * work.bytes * (n - 1) / n / 180e9
    if work.what == "group":
        return 15e-6 + work.bytes / 200e9
    return 10e-6 + 2e-6 * work.rounds + 2 * work.bytes * (n - 1) / n / 190e9


class GpuArray(np.ndarray):
    """Looks like cupy's: it has a GPU's interface, and its module's name."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.__array_interface__


GpuArray.__module__ = "cupy"


def gpu_array(values: Any, dtype: Any = np.float32) -> Any:
    return np.array(values, dtype).view(GpuArray)


def _cupy() -> Any:
    module = types.ModuleType("cupy")
    module.empty = lambda elements, dtype: np.empty(elements, dtype).view(GpuArray)  # type: ignore[attr-defined]
    for name in ("add", "multiply", "maximum", "minimum", "sign"):
        setattr(module, name, getattr(np, name))
    stream = types.SimpleNamespace(ptr=7)
    module.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
        get_current_stream=lambda: stream, ExternalStream=lambda pointer: nullcontext()
    )
    return module


@dataclass
class World:
    """Ranks that connected to each other."""

    ranks: int
    barrier: threading.Barrier = field(init=False)
    slots: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.ranks, timeout=PATIENCE)
        self.slots = [None] * self.ranks


@dataclass
class Opened:
    rank: int
    ranks: int
    world: World | None = None
    plans: list[Work] = field(default_factory=list)


class FakeLibrary:
    """pycoll._cuda_library.Library, as `native()` gives it."""

    handle_bytes = HANDLE

    def __init__(self, machine: FakeGpus) -> None:
        self.machine = machine
        self.opened: dict[int, Opened] = {}
        self.worlds: dict[bytes, World] = {}
        self.lock = threading.Lock()

    def call(self, name: str, *arguments: Any) -> None:
        getattr(self, f"_{name}")(*arguments)

    def _open(self, options: Any, pointer: Any) -> None:
        with self.lock:
            number = len(self.opened) + 1
            self.opened[number] = Opened(options._obj.rank, options._obj.ranks)
        pointer._obj.value = number

    def _offers(self, device: int, found: Any) -> None:
        """Nothing but what every GPU has."""

    def _open_memory(self, options: Any, kind: int, pointer: Any) -> None:
        self._open(options, pointer)

    def _handle(self, pointer: Any, buffer: Any) -> None:
        buffer.raw = pointer.value.to_bytes(8, "little").ljust(HANDLE, b"\0")

    def _connect(self, pointer: Any, handles: bytes) -> None:
        group = self.opened[pointer.value]
        with self.lock:
            group.world = self.worlds.setdefault(bytes(handles), World(group.ranks))

    def _close(self, pointer: Any) -> None:
        """The ranks' other calls are over: they are synchronous."""

    def _packets_limit(self, pointer: Any, which: int, dtype: int, limit: Any) -> None:
        limit._obj.value = self.machine.limits[which]

    def _plan(
        self, pointer: Any, kind: int, pieces: int, root: int, rows: int, count: int, late: int, made: Any
    ) -> None:
        group = self.opened[pointer.value]
        table = np.ctypeslib.as_array(ctypes.cast(rows, ctypes.POINTER(ctypes.c_int32)), (count, 5))
        rounds = len(np.unique(table[:, 0]))
        group.plans.append(Work("late" if late else "schedule", 0, group.ranks, pieces, rounds))
        made._obj.value = len(group.plans) - 1

    def _run(
        self,
        pointer: Any,
        plan: int,
        dtype: int,
        op: int,
        factor: float,
        source: int,
        target: int,
        count: int,
        registration: int,
        stream: int,
    ) -> None:
        work = self.opened[pointer.value].plans[plan]
        self._allreduce(pointer, work, dtype, op, source, target, count)

    def _packets(
        self,
        pointer: Any,
        which: int,
        dtype: int,
        op: int,
        factor: float,
        source: int,
        target: int,
        count: int,
        stream: int,
    ) -> None:
        name = next(name for name, number in cuda.PACKETS.items() if number == which)
        assert count <= self.machine.limits[which], "more than the kernel takes"
        work = Work(name, 0, self.opened[pointer.value].ranks)
        self._allreduce(pointer, work, dtype, op, source, target, count)

    def _allreduce(
        self, pointer: Any, work: Work, dtype: int, op: int, source: int, target: int, count: int
    ) -> None:
        group = self.opened[pointer.value]
        world = group.world
        assert world is not None
        kind = np.dtype(_core.dtypes()[dtype])
        work = Work(work.what, count * kind.itemsize, group.ranks, work.pieces, work.rounds)
        world.slots[group.rank] = _at(source, count, kind).copy()
        self.machine.meet(world.barrier, group.rank, work)
        total = world.slots[0]
        for other in world.slots[1:]:
            total = REDUCE[cuda.OPS[op]](total, other)
        world.barrier.wait()
        _at(target, count, kind)[:] = total


def _at(address: int, count: int, dtype: Any) -> Any:
    raw = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(raw, dtype)


class FakeGpus:
    """A host with GPUs. ``install`` puts it in the place of the real things, for threads of this process."""

    def __init__(
        self,
        ranks: int,
        model: str = "Fake GPU",
        price: Callable[[Work], float] = cost,
        has_nccl: bool = True,
        gpus: int | None = None,
    ) -> None:
        self.ranks, self.model, self.price, self.has_nccl = ranks, model, price, has_nccl
        self.gpus = gpus or ranks
        self.limits = dict.fromkeys(cuda.PACKETS.values(), 1 << 20)
        self.clocks = [0.0] * ranks
        self.ran: list[Work] = []  # rank 0's
        self.nccl = TimedNccl(self)

    def meet(self, barrier: threading.Barrier, rank: int, work: Work) -> None:
        """All ranks' clocks come to the latest plus the cost."""
        if rank == 0:
            self.ran.append(work)
        if barrier.wait() == 0:
            now = max(self.clocks) + self.price(work)
            self.clocks[:] = [now] * self.ranks
        barrier.wait()

    def devices(self) -> list[Device]:
        return [Device(i, self.model, (9, 0), 132, 80 << 30) for i in range(self.gpus)]

    def group_of(self, comm: Any) -> nccl.Group:
        comm.barrier()  # it is collective
        if not self.has_nccl:
            raise Unsupported("NCCL needs a GPU and cupy with NCCL")
        return nccl.Group(self.nccl.communicator(comm.rank), self.nccl, comm.rank, comm.ranks)

    def install(self, patch: Any) -> None:
        """``patch``: pytest's monkeypatch."""
        library = FakeLibrary(self)
        for home in ("pycoll.cuda", "pycoll._cuda_memory"):
            if find_spec(home) is not None:
                patch.setattr(f"{home}.native", lambda: library)
        patch.setattr(cuda, "devices", self.devices)
        patch.setattr(cuda, "why_not", lambda: "")
        patch.setattr(cuda, "available", lambda: True)
        patch.setattr(nccl.Group, "of", self.group_of)
        patch.setitem(sys.modules, "cupy", _cupy())
        patch.setattr("pycoll.gpu.tuning.arrays_of", lambda device: FakeArrays(self, device))


class TimedNccl(FakeNccl):
    """With an AllReduce of its own."""

    def __init__(self, machine: FakeGpus) -> None:
        super().__init__(machine.ranks)
        self.machine = machine
        self.world = World(machine.ranks)

    def communicator(self, rank: int) -> TimedCommunicator:
        return TimedCommunicator(self, rank)

    def groupEnd(self) -> None:
        first = self.thread.group[0]
        moved = sum(operation.bytes for operation in self.thread.group if operation.sends)
        super().groupEnd()
        rank = first.communicator.rank
        work = Work("group", moved, self.ranks)
        if rank == 0:
            self.machine.ran.append(work)
        self.machine.clocks[rank] += self.machine.price(work)


@dataclass
class TimedCommunicator(FakeCommunicator):
    def allReduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int) -> None:
        machine, world = self.nccl.machine, self.nccl.world
        kind = np.dtype({7: np.float32, 6: np.float16, 2: np.int32}[datatype])
        world.slots[self.rank] = _at(sendbuf, count, kind).copy()
        machine.meet(world.barrier, self.rank, Work("nccl", count * kind.itemsize, machine.ranks))
        total = np.sum(world.slots, axis=0, dtype=kind)
        world.barrier.wait()
        _at(recvbuf, count, kind)[:] = total


class FakeArrays:
    """pycoll.gpu.arrays.Arrays, by the made-up clock: every call takes what the cost says."""

    def __init__(self, machine: FakeGpus, rank: int) -> None:
        self.machine, self.rank = machine, rank

    def stream(self) -> Any:
        return nullcontext()

    def array(self, values: Any, dtype: str) -> Any:
        return gpu_array(values, dtype)

    def assign(self, target: Any, source: Any) -> None:
        target[...] = source

    def clear(self, array: Any) -> None:
        array[...] = 0

    def count_wrong(self, array: Any, right: Any) -> int:
        return int((np.asarray(array) != np.asarray(right)).sum())

    def seconds(self, call: Callable[[], object], calls: int) -> float:
        call()
        begin = self.machine.clocks[self.rank]
        for _ in range(calls):
            call()
        return (self.machine.clocks[self.rank] - begin) / calls

    def synchronize(self) -> None:
        pass
