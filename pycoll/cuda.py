"""Collectives of the GPUs of one host, by kernels that reach into each other's memory.

    gpus = pycoll.cuda.Group(comm)                # comm: a pycoll.Communicator, one GPU a rank; collective
    gpus.allreduce(x)                             # a cupy array or a CUDA tensor of torch, in place
    gpus.run(pycoll.build("ring", ranks=8), x, x) # any schedule
    gpus.register(x)                              # schedules then work in x itself, without staging
    with torch.cuda.use_mem_pool(pool := gpus.mem_pool()): ...  # and in what is allocated here, once
    gpus.share_pool()                                           # the ranks have met here

Small buffers go through kernels that send data and flag in one word; all else is a schedule that one kernel
interprets. Everything is put on a stream, and nothing waits for the GPU. The compiled part is opened when it
is first needed: without it, a driver or a GPU this module still imports, and says what is missing.
"""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from pycoll import _core, _cuda_memory
from pycoll._cuda_library import Device, Options, available, devices, native, why_not
from pycoll._device_arrays import ArrayLibrary, library_of
from pycoll.errors import Error, InvalidArgument, Unsupported
from pycoll.gpu.selection import Selection

if TYPE_CHECKING:
    from pycoll.communicator import Communicator
    from pycoll.schedule import Schedule
    from pycoll.selection.decisions import DecisionTable
    from pycoll.selection.explanation import Explanation

__all__ = ["Device", "Group", "available", "devices", "mem_pool", "why_not"]

#: csrc/reduce/reduce.h and csrc/schedule/collective.h, in the order of their enums.
OPS = ("sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "premul_sum")
COLLECTIVES = (
    "allreduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "barrier",
)
#: What the kernels reduce.
DTYPES = ("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int32", "int64")
#: api.h's kernels for small buffers.
PACKETS = {"one_shot": 0, "two_shot": 1, "reduce_scatter": 2, "all_gather": 3}

#: As in api.h: up to so many bytes sent to each peer an allreduce is one-shot; up to the next one, two-shot.
ONE_SHOT_BYTES = 32 << 10
TWO_SHOT_BYTES = 512 << 10
#: api.h's collectives through the NVLink switch.
NVLS = {"allreduce": 0, "reduce_scatter": 1, "all_gather": 2}


def mem_pool(group: Group) -> Any:
    """:meth:`Group.mem_pool` as a function."""
    return group.mem_pool()


class Group(_cuda_memory.GroupMemory):
    """One rank's part in a group of GPUs of one host.

    Collectives are called by all ranks in one order; nothing checks that they agree. Ranks may share a GPU:
    then ``blocks`` times the ranks on it may be no more than its multiprocessors, and the ranks of different
    processes run at once only under NVIDIA's MPS. To be closed when done, also as a context.

    ``memory_kind`` says how ranks share memory ("ipc", "descriptors" or "fabric"), ``memory_reason`` why so;
    ``nvls`` whether collectives can go through the NVLink switch, ``nvls_reason`` why not.
    """

    def __init__(
        self,
        comm: Communicator,
        *,
        device: int | None = None,
        blocks: int = 0,
        slots: int = 0,
        packets: int = 0,
        staging: int = 0,
        profile: object = None,
        memory: str = "auto",
    ) -> None:
        """Collective over ``comm``.

        ``device`` is the GPU's index, by default the rank modulo the number of GPUs. ``blocks`` is the most
        thread blocks of a kernel (16), ``slots`` the flags of a pair of ranks at a block (4096), ``packets``
        those of a sender at a block (2049), ``staging`` the bytes of working memory (64 MiB); all the same on
        every rank. ``profile``: what `pycoll tune --device cuda` wrote, a file or a pycoll.Profile, of which
        rank 0's counts; False for none; by default PYCOLL_CUDA_PROFILE's, or the one that was tuned for
        these GPUs. PYCOLL_ALGO's rules for allreduce, or for ``cuda:allreduce``, are obeyed.
        ``memory``: "ipc" for CUDA IPC, "descriptors" or "fabric" for address ranges (which NVLS
        needs), handed over as file descriptors or over an NVLink fabric; "auto" takes what every GPU offers.

        Raises Unsupported or Error, on every rank, naming one where the CUDA part or a GPU is missing, or
        where GPUs cannot reach each other; InvalidArgument for options that do not fit.
        """
        self._comm, self._pointer = comm, ctypes.c_void_p()
        self._aborting = threading.Lock()
        self.rank, self.ranks = comm.rank, comm.ranks
        self._built: dict[tuple[str, str, int], Schedule] = {}
        self._plans: dict[tuple[int, bool], int] = {}
        self._registered: dict[int, int] = {}  # address -> registration

        def ask() -> bytes:
            self.device = len(devices()) and comm.rank % len(devices()) if device is None else device
            found = ctypes.c_uint32()
            native().call("offers", self.device, ctypes.byref(found))
            return bytes(found)

        told = self._together(ask)
        offers = np.frombuffer(told, np.uint32).tolist()
        self.memory_kind, self.memory_reason = _cuda_memory.choose(memory, offers)
        options = Options(comm.rank, comm.ranks, self.device, blocks, slots, packets, staging)
        try:
            try:
                self._open(options)
            except InvalidArgument:
                raise
            except Error as error:
                if memory != "auto" or self.memory_kind == "ipc":
                    raise
                self.close()
                self.memory_kind, self.memory_reason = "ipc", str(error)
                self._open(options)
            self.nvls_reason = self._open_nvls(offers)
            self._selection = Selection.begin(self, profile)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Free everything. Kernels still running are ended: synchronize first where their results count."""
        with self._aborting:
            pointer, self._pointer = self._pointer, ctypes.c_void_p()
        if pointer:
            native().call("close", pointer)

    def abort(self) -> None:
        """End the waits of kernels that run, whose results then are anything, and refuse what comes. From any
        thread: for a watchdog that finds a peer lost."""
        with self._aborting:  # not while close() frees what it needs
            if self._pointer:
                native().call("abort", self._pointer)

    # Collectives

    def allreduce(
        self,
        x: Any,
        op: str = "sum",
        *,
        out: Any | None = None,
        algorithm: str | Schedule | None = None,
        factor: float = 1.0,
        stream: int | None = None,
    ) -> Any:
        """Reduce ``x`` over all ranks into ``out`` (by default in place), on a stream; returns ``out``.

        ``algorithm`` is a schedule or a name: of the registry, with pieces (``"ring/16"``) or without,
        ``"one_shot"``, ``"two_shot"``, ``"nvls"``, ``"nccl"`` (NCCL's own), ``"nccl:ring"`` (a schedule over
        NCCL). By default what pins and profile say (:meth:`decisions`), and without either the kernels for
        small buffers up to 512 KiB a peer and the schedule ``direct_two_shot`` beyond. ``op``:
        sum, avg, min, max, prod, or premul_sum with this rank's ``factor``. ``stream``: a cudaStream_t as an
        int, by default the current one of the array's library. The array's dtype: see ``DTYPES``.

        NVLS reduces float32, float16 and bfloat16 by sum, avg and premul_sum, and the last two by min and
        max, of which a NaN may be lost. All ranks get the same bits; in what order the switch adds is not
        known, and 16-bit floats are summed in float32.

        Raises InvalidArgument and Unsupported for what does not fit; a failure of the GPU is an Error.
        """
        out = x if out is None else out
        library = library_of(x)
        if algorithm is None:
            algorithm = self._choice(library, x, op)
        if algorithm == "nvls":
            self._check(library, x, out, library.size(x), library.size(x), "allreduce")
            return self._through_switch("allreduce", library, x, out, library.size(x), op, factor, stream)
        if isinstance(algorithm, str) and algorithm in ("one_shot", "two_shot"):
            self._check(library, x, out, library.size(x), library.size(x), "allreduce")
            return self._packets(algorithm, library, x, out, library.size(x), op, factor, stream)
        if isinstance(algorithm, str):
            return self._selection.run(algorithm, x, out, op, factor, stream)
        return self.run(algorithm, x, out, op, factor=factor, stream=stream)

    def reduce_scatter(
        self,
        x: Any,
        out: Any,
        op: str = "sum",
        *,
        algorithm: str | Schedule | None = None,
        factor: float = 1.0,
        stream: int | None = None,
    ) -> Any:
        """Reduce shard r of ``x`` over all ranks into ``out`` of rank r. See :meth:`allreduce`."""
        library = library_of(x)
        count = library.size(out)
        if algorithm == "nvls":
            self._check(library, x, out, count * self.ranks, count, "reduce_scatter")
            return self._through_switch("reduce_scatter", library, x, out, count, op, factor, stream)
        if algorithm is None and count <= self._limit("reduce_scatter", library.dtype(x)):
            self._check(library, x, out, count * self.ranks, count, "reduce_scatter")
            return self._packets("reduce_scatter", library, x, out, count, op, factor, stream)
        schedule = self._schedule(algorithm or "direct", "reduce_scatter")
        return self.run(schedule, x, out, op, factor=factor, stream=stream)

    def all_gather(
        self, x: Any, out: Any, *, algorithm: str | Schedule | None = None, stream: int | None = None
    ) -> Any:
        """Put every rank's ``x`` side by side into ``out``. See :meth:`allreduce`; takes any dtype."""
        library = library_of(x)
        count = library.size(x)
        if algorithm == "nvls":
            self._check(library, x, out, count, count * self.ranks, "all_gather")
            return self._through_switch("all_gather", library, x, out, count, "sum", 1.0, stream)
        if algorithm is None and count <= self._limit("all_gather", library.dtype(x)):
            self._check(library, x, out, count, count * self.ranks, "all_gather")
            return self._packets("all_gather", library, x, out, count, "sum", 1.0, stream)
        return self.run(self._schedule(algorithm or "direct", "all_gather"), x, out, stream=stream)

    def broadcast(
        self, x: Any, root: int = 0, *, algorithm: str | Schedule | None = None, stream: int | None = None
    ) -> Any:
        """Give every rank ``x`` of the root, in place. See :meth:`allreduce`; takes any dtype."""
        schedule = self._schedule(algorithm or "double_binary_tree", "broadcast", root)
        return self.run(schedule, x, x, stream=stream)

    def run(
        self,
        schedule: Schedule,
        x: Any,
        out: Any | None = None,
        op: str = "sum",
        *,
        factor: float = 1.0,
        finds_late: bool = False,
        stream: int | None = None,
    ) -> Any:
        """Put a schedule's collective on a stream; returns ``out``.

        ``x`` and ``out`` are contiguous and as long as the collective has it (``out=None``: in place; a rank
        that has no input, or no output, gives its other buffer for it). With ``finds_late`` the schedule's
        *last* rank is the one that comes last at run time, whichever it is: for schedules of ``late_rank``;
        it needs atomic operations between GPUs, which NVLink has and PCIe mostly has not.
        Where ``out`` is registered and holds the whole buffer, ranks work in it. So they do where every
        rank's lies in a pool that it shared (:meth:`share_pool`), which they find out in the kernel. Else
        they work in staging, window by window.
        """
        out = x if out is None else out
        library = library_of(x)
        inputs, outputs = self._blocks(schedule)
        array, blocks = (x, inputs) if inputs else (out, outputs)
        size = library.size(array)
        if blocks and size % blocks:
            raise InvalidArgument(
                f"{schedule.collective}: takes a multiple of {blocks} elements here, not {size}"
            )
        count = size // blocks if blocks else 0
        self._check(library, x, out, count * inputs, count * outputs, schedule.collective)
        registration = self._registered.get(library.address(out), -1)
        plan = self._plan(schedule, finds_late)
        with library.on(stream) as pointer:
            native().call(
                "run",
                self._pointer,
                plan,
                self._dtype(library.dtype(x)),
                self._op(op),
                factor,
                library.address(x),
                library.address(out),
                count,
                registration,
                pointer,
            )
        return out

    def prepare(self, schedule: Schedule, finds_late: bool = False) -> None:
        """Put a schedule's table on the GPU, which its first :meth:`run` does otherwise. Where ranks are
        threads of one process, do so before any rank's kernel waits for another's: allocating may wait for
        the GPU."""
        self._blocks(schedule)
        self._plan(schedule, finds_late)

    # What allreduce without an algorithm goes by

    def decisions(self) -> DecisionTable:
        """The table that decides on allreduce: printable, and mergeable with others. Sizes are bytes; what no
        row covers is decided by fixed bounds."""
        return self._selection.table

    def install(self, table: DecisionTable) -> None:
        """Let another table decide, the same on all ranks. Collective. Raises InvalidArgument for ways that
        GPUs have not, Mismatch where the ranks' tables differ; the old table then stays."""
        self._selection.install(table)

    def chosen_algorithm(self, elements: int, dtype: str = "float32", op: str = "sum") -> str:
        """What an allreduce of so many elements would run."""
        from pycoll.bench.workload import DTYPES

        size = elements * DTYPES[_core.dtypes()[self._dtype(dtype)]].itemsize
        chosen = self._selection.choose(size, dtype, op, elements)
        return chosen or self._within_bounds(size, elements, dtype)

    def explain(self, size: int, dtype: str = "float32") -> Explanation:
        """Why an allreduce of ``size`` bytes runs what it runs: the candidates with their times, the bound,
        what comes next. ``print`` shows it. A local call."""
        return self._selection.explain(size, dtype)

    # What calls are made of

    def _choice(self, library: ArrayLibrary, x: Any, op: str = "sum") -> str:
        chosen = self._selection.choose(library.bytes(x), library.dtype(x), op, library.size(x))
        return chosen or self._by_bounds(library, x)

    def _by_bounds(self, library: ArrayLibrary, x: Any) -> str:
        """What runs where nothing was pinned or measured."""
        return self._within_bounds(library.bytes(x), library.size(x), library.dtype(x))

    def _within_bounds(self, size: int, elements: int, dtype: str) -> str:
        from pycoll.gpu.selector import by_bounds

        return by_bounds(self.ranks, size, elements, dtype, self._limit)

    def _through_switch(
        self,
        which: str,
        library: ArrayLibrary,
        x: Any,
        out: Any,
        count: int,
        op: str,
        factor: float,
        stream: int | None,
    ) -> Any:
        if not self.nvls:
            raise Unsupported(f"algorithm nvls: {self.nvls_reason}")
        self._put("nvls", NVLS[which], library, x, out, count, op, factor, stream)
        return out

    def _schedule(self, algorithm: str | Schedule, collective: str, root: int = 0) -> Schedule:
        from pycoll.schedule import build

        if not isinstance(algorithm, str):
            return algorithm
        key = (algorithm, collective, root)
        if key not in self._built:
            self._built[key] = build(algorithm, collective=collective, ranks=self.ranks, root=root)
        return self._built[key]

    def _blocks(self, schedule: Schedule) -> tuple[int, int]:
        """Equal blocks in this rank's input and output."""
        if schedule.ranks != self.ranks:
            raise InvalidArgument(f"the schedule is for {schedule.ranks} ranks, the group has {self.ranks}")
        if schedule.is_part:
            raise Unsupported(f"{schedule!r} is a part of a collective: it cannot be run")
        blocks = _core.pieces_multiple(schedule.collective, self.ranks)
        layout = _core.piece_layout(schedule.collective, self.ranks, blocks, schedule.root, self.rank)
        return sum(i >= 0 for i, _ in layout), sum(o >= 0 for _, o in layout)

    def _check(self, library: ArrayLibrary, x: Any, out: Any, size_in: int, size_out: int, call: str) -> None:
        if not self._pointer:
            raise InvalidArgument("the group is closed")
        for array, size, name in ((x, size_in, "x"), (out, size_out, "out")):
            if not library.contiguous(array) or not library.on_gpu(array):
                raise InvalidArgument(f"{call}: {name} must be a contiguous array on a GPU")
            if size and library.size(array) != size:
                raise InvalidArgument(
                    f"{call}: {name} must have {size} elements here, not {library.size(array)}"
                )
        if library.dtype(x) != library.dtype(out):
            raise InvalidArgument(f"{call}: x has dtype {library.dtype(x)}, out has {library.dtype(out)}")

    def _plan(self, schedule: Schedule, finds_late: bool) -> int:
        key = (schedule.hash, finds_late)
        if key not in self._plans:
            table = schedule.transfers
            rows = np.stack([table[name] for name in ("round", "src", "dst", "piece", "reduce")], axis=1)
            rows = np.ascontiguousarray(rows.reshape(-1, 5), np.int32)
            made = ctypes.c_int32()
            native().call(
                "plan",
                self._pointer,
                COLLECTIVES.index(schedule.collective),
                schedule.pieces,
                schedule.root,
                rows.ctypes.data,
                len(rows),
                int(finds_late),
                ctypes.byref(made),
            )
            self._plans[key] = made.value
        return self._plans[key]

    def _packets(
        self,
        which: str,
        library: ArrayLibrary,
        x: Any,
        out: Any,
        count: int,
        op: str,
        factor: float,
        stream: int | None,
    ) -> Any:
        self._put("packets", PACKETS[which], library, x, out, count, op, factor, stream)
        return out

    def _put(
        self,
        call: str,
        which: int,
        library: ArrayLibrary,
        x: Any,
        out: Any,
        count: int,
        op: str,
        factor: float,
        stream: int | None,
    ) -> None:
        with library.on(stream) as pointer:
            native().call(
                call,
                self._pointer,
                which,
                self._dtype(library.dtype(x)),
                self._op(op),
                factor,
                library.address(x),
                library.address(out),
                count,
                pointer,
            )

    def _limit(self, which: str, dtype: str) -> int:
        limit = ctypes.c_uint64()
        native().call("packets_limit", self._pointer, PACKETS[which], self._dtype(dtype), ctypes.byref(limit))
        return limit.value

    def _dtype(self, name: str) -> int:
        if name not in _core.dtypes():
            raise Unsupported(f"there is no dtype {name}")
        return _core.dtypes().index(name)

    def _op(self, op: str) -> int:
        if op not in OPS:
            raise InvalidArgument(f"there is no op {op!r}; there are {', '.join(OPS)}")
        return OPS.index(op)
