"""Any schedule over NCCL's point-to-point: for GPUs of several hosts, where NCCL knows the network.

    group = pycoll.nccl.Group.of(comm)                       # comm: a pycoll.Communicator, one GPU a rank
    group.run(pycoll.build("ring", ranks=8), x, x)           # x: a cupy array or a CUDA tensor of torch
    group.nccl_allreduce(x, x)                               # NCCL's own, for comparison

Each round of the schedule in which a rank has something to do is one NCCL group of its sends and receives,
with a reduction after it for what was to be reduced; rounds without work are not waited for, so ranks drift
apart as the schedule's dataflow allows. Everything is put on one stream, and nothing waits for the GPU.

NCCL is reached through ``cupy.cuda.nccl`` (the package cupy-cuda13x or cupy-cuda12x, with nvidia-nccl).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pycoll import _core
from pycoll._device_arrays import UFUNCS, ArrayLibrary, library_of
from pycoll.errors import InvalidArgument, Unsupported

if TYPE_CHECKING:
    from pycoll.communicator import Communicator
    from pycoll.schedule import Schedule

__all__ = ["Communications", "Group", "Nccl"]

#: ncclDataType_t and ncclRedOp_t, by pycoll's names.
NCCL_DTYPES = {
    "int8": 0,
    "uint8": 1,
    "bool": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
    "float8_e4m3fn": 10,
    "float8_e5m2": 11,
}
NCCL_OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
_BYTES = NCCL_DTYPES["uint8"]

_HALVES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


class Communications(Protocol):
    """What is needed of ``cupy.cuda.nccl.NcclCommunicator``."""

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None: ...
    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None: ...
    def allReduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int
    ) -> None: ...


class Nccl(Protocol):
    """What is needed of the module ``cupy.cuda.nccl``: functions of the module, not of the communicator."""

    def groupStart(self) -> None: ...
    def groupEnd(self) -> None: ...


@dataclass
class _Receive:
    src: int
    piece: int
    reduce: bool
    slot: int  # of scratch; -1: straight into its place


@dataclass
class _Round:
    sends: list[tuple[int, int]] = field(default_factory=list)  # (dst, piece)
    receives: list[_Receive] = field(default_factory=list)
    slots: int = 0


@dataclass
class _Plan:
    """A schedule as one rank runs it."""

    rounds: list[_Round]
    layout: list[tuple[int, int]]  # by piece: its index in the rank's input and output, -1 where it is not
    inputs: int  # blocks in the rank's input and output: shards, or the whole buffer as one
    outputs: int

    @classmethod
    def of(cls, schedule: Schedule, rank: int) -> _Plan:
        layout = _core.piece_layout(schedule.collective, schedule.ranks, schedule.pieces, schedule.root, rank)
        per_block = schedule.pieces // _core.pieces_multiple(schedule.collective, schedule.ranks)
        inputs = sum(index >= 0 for index, _ in layout) // per_block
        outputs = sum(index >= 0 for _, index in layout) // per_block
        return cls(_rounds_of(schedule, rank), layout, inputs, outputs)


def _rounds_of(schedule: Schedule, rank: int) -> list[_Round]:
    """What one rank does in each round in which it does anything. Both sides of every pair list what they
    exchange in the order of (round, piece), in which NCCL then matches sends and receives."""
    table = schedule.transfers
    mine = table[(table["src"] == rank) | (table["dst"] == rank)]
    mine = mine[np.lexsort((mine["piece"], mine["round"]))]
    rounds: list[_Round] = []
    last = None
    for number, src, dst, piece, reduce in mine.tolist():
        if number != last:
            rounds.append(_Round())
            last = number
        if src == rank:
            rounds[-1].sends.append((dst, piece))
        else:
            rounds[-1].receives.append(_Receive(src, piece, reduce, -1))
    for step in rounds:
        # Sends read the state before the round: what would overwrite it meanwhile goes aside first.
        sent = {piece for _, piece in step.sends}
        for receive in step.receives:
            if receive.reduce or receive.piece in sent:
                receive.slot = step.slots
                step.slots += 1
    return rounds


class Group:
    """One rank's part in a group of GPUs that NCCL connects.

    ``communications`` is an ``NcclCommunicator`` and ``nccl`` the module it comes from. Collectives are
    called by all ranks in one order, as NCCL's are; nothing checks that they agree.
    """

    def __init__(self, communications: Communications, nccl: Nccl, rank: int, ranks: int) -> None:
        self._communications, self._nccl = communications, nccl
        self.rank, self.ranks = rank, ranks
        self._plans: dict[int, _Plan] = {}
        self._scratch: dict[tuple[str, str, int], Any] = {}

    @classmethod
    def of(cls, comm: Communicator) -> Group:
        """A group of the same ranks; each uses the GPU that is current in cupy. Collective.

        Raises Unsupported, on every rank, where cupy, NCCL or a GPU is missing on any.
        """
        problem, nccl = "", None
        try:
            nccl = import_module("cupy.cuda.nccl")
            import_module("cupy.cuda.runtime").getDevice()
            _ = nccl.NcclCommunicator  # a cupy without NCCL has an empty module
        except Exception as error:
            problem = f"rank {comm.rank}: {type(error).__name__}: {error}"
        told = np.zeros((comm.ranks, 512), np.uint8)
        text = problem.encode()[:512]
        comm.all_gather(np.frombuffer(text.ljust(512, b"\0"), np.uint8).copy(), out=told)
        problems = [bytes(row).rstrip(b"\0").decode(errors="replace") for row in told if row.any()]
        if problems:
            raise Unsupported(
                "NCCL needs a GPU and cupy with NCCL (pip install cupy-cuda13x nvidia-nccl-cu13) on every "
                f"rank; {problems[0]}"
            )
        assert nccl is not None
        unique = np.zeros(128, np.uint8)
        if comm.rank == 0:
            unique[:] = np.array([byte & 0xFF for byte in nccl.get_unique_id()], np.uint8)
        comm.broadcast(unique, 0)
        signed = tuple(int(byte) for byte in unique.view(np.int8))
        return cls(nccl.NcclCommunicator(comm.ranks, signed, comm.rank), nccl, comm.rank, comm.ranks)

    def run(
        self,
        schedule: Schedule,
        x: Any,
        out: Any | None = None,
        op: str = "sum",
        *,
        factor: float = 1.0,
        stream: int | None = None,
    ) -> Any:
        """Put a schedule's collective on a stream; returns ``out``.

        ``x`` and ``out`` are contiguous arrays on the GPU, of the sizes that the collective has: a shard
        and the whole for all_gather, the whole and a shard for reduce_scatter, and so on; ``out=None``
        means in place where input and output are equally long. Where a rank has no input (a broadcast's
        other ranks) ``x`` is the output, where it has no output ``out`` is ignored. ``op`` is a name that
        Communicator.allreduce takes, or ``"premul_sum"`` with this rank's ``factor``. ``stream`` is a
        cudaStream_t as an int; by default the current one of the array's library.

        avg and premul_sum of 16-bit floats, and avg of integers, travel in a wider dtype, as on the CPU.
        Raises InvalidArgument for arrays and schedules that do not fit, Unsupported for what the array's
        library cannot reduce.
        """
        if schedule.ranks != self.ranks:
            raise InvalidArgument(f"the schedule is for {schedule.ranks} ranks, the group has {self.ranks}")
        if schedule.is_part:
            raise Unsupported(f"{schedule!r} is a part of a collective: it cannot be run")
        out = x if out is None else out
        library = library_of(x)
        scaling = None
        if schedule.collective not in ("allreduce", "reduce_scatter", "reduce"):
            op = "sum"
        elif op in ("avg", "premul_sum"):
            scaling = _Scaling(op, self.ranks, factor, _wire_dtype(library.dtype(x), op))
            op = "sum"
        elif op not in UFUNCS:
            raise InvalidArgument(f"there is no op {op!r}; there are avg, premul_sum, {', '.join(UFUNCS)}")
        with library.on(stream) as pointer:
            self._run(schedule, library, x, out, op, scaling, pointer)
        return out

    def nccl_allreduce(
        self, x: Any, out: Any | None = None, op: str = "sum", *, stream: int | None = None
    ) -> Any:
        """NCCL's own AllReduce: what schedules are compared with. ``op``: sum, prod, min, max or avg."""
        library = library_of(x)
        out = x if out is None else out
        dtype = library.dtype(x)
        if dtype not in NCCL_DTYPES or op not in NCCL_OPS:
            raise Unsupported(f"NCCL does not reduce dtype {dtype} by {op}")
        with library.on(stream) as pointer:
            self._communications.allReduce(
                library.address(x),
                library.address(out),
                library.size(x),
                NCCL_DTYPES[dtype],
                NCCL_OPS[op],
                pointer,
            )
        return out

    # A schedule's run

    def _plan_of(self, schedule: Schedule) -> _Plan:
        if schedule.hash not in self._plans:
            schedule.verify()
            self._plans[schedule.hash] = _Plan.of(schedule, self.rank)
        return self._plans[schedule.hash]

    def _run(
        self,
        schedule: Schedule,
        library: ArrayLibrary,
        x: Any,
        out: Any,
        op: str,
        scaling: _Scaling | None,
        stream: int,
    ) -> None:
        plan = self._plan_of(schedule)
        count = _checked_count(schedule.collective, plan, library, x, out)
        blocks = (
            0 if schedule.collective == "barrier" else _core.pieces_multiple(schedule.collective, self.ranks)
        )
        elements = count * blocks
        bounds = [_piece_begin(piece, elements, schedule.pieces) for piece in range(schedule.pieces + 1)]
        flat_in, flat_out = library.flat(x), library.flat(out)
        in_output = schedule.collective in ("allreduce", "all_gather", "broadcast") and scaling is None
        dtype = library.dtype(x)
        work = (
            flat_out
            if in_output
            else self._memory(library, x, "work", elements, scaling.wire if scaling else dtype, stream)
        )

        # Blocks are equally long, so a user's buffer is cut as the first pieces of the logical one are.
        for piece, (index, _) in enumerate(plan.layout):
            if index < 0 or bounds[piece] == bounds[piece + 1]:
                continue
            source = flat_in[bounds[index] : bounds[index] + bounds[piece + 1] - bounds[piece]]
            target = work[bounds[piece] : bounds[piece + 1]]
            if scaling is not None:
                library.copy(target, scaling.widened(library, source))
            elif library.address(source) != library.address(target):
                library.copy(target, source)

        self._move(plan, library, work, bounds, op, stream)

        for piece, (_, index) in enumerate(plan.layout):
            if in_output or index < 0 or bounds[piece] == bounds[piece + 1]:
                continue
            source = work[bounds[piece] : bounds[piece + 1]]
            target = flat_out[bounds[index] : bounds[index] + bounds[piece + 1] - bounds[piece]]
            library.copy(target, source if scaling is None else scaling.narrowed(library, source, dtype))

    def _move(
        self, plan: _Plan, library: ArrayLibrary, work: Any, bounds: list[int], op: str, stream: int
    ) -> None:
        longest = max(end - begin for begin, end in pairwise(bounds))
        slots = max((step.slots for step in plan.rounds), default=0)
        aside = work
        if slots:
            aside = self._memory(library, work, "aside", longest * slots, library.dtype(work), stream)

        def place(piece: int) -> Any:
            return work[bounds[piece] : bounds[piece + 1]]

        def scratch(receive: _Receive) -> Any:
            length = bounds[receive.piece + 1] - bounds[receive.piece]
            return aside[receive.slot * longest : receive.slot * longest + length]

        for step in plan.rounds:
            sends = [(dst, place(piece)) for dst, piece in step.sends if bounds[piece + 1] > bounds[piece]]
            receives = [r for r in step.receives if bounds[r.piece + 1] > bounds[r.piece]]
            if not sends and not receives:
                continue
            self._nccl.groupStart()
            for dst, array in sends:
                self._communications.send(library.address(array), library.bytes(array), _BYTES, dst, stream)
            for receive in receives:
                into = place(receive.piece) if receive.slot < 0 else scratch(receive)
                self._communications.recv(
                    library.address(into), library.bytes(into), _BYTES, receive.src, stream
                )
            self._nccl.groupEnd()
            for piece, received in _by_piece(receives).items():
                # In the order of ranks, this one's value among them: where several ranks reduce the same
                # values, they get the same bits.
                target = place(piece)
                values = [(receive.src, scratch(receive)) for receive in received if receive.slot >= 0]
                if received[0].reduce:
                    values = sorted([*values, (self.rank, target)], key=lambda pair: pair[0])
                for _, value in values[1:]:
                    library.reduce(op, values[0][1], value)
                if values and values[0][1] is not target:
                    library.copy(target, values[0][1])

    def _memory(
        self, library: ArrayLibrary, like: Any, purpose: str, elements: int, dtype: str, stream: int
    ) -> Any:
        """Scratch that is kept, for each stream: the next call on it is ordered after this one."""
        key = (purpose, dtype, stream)
        if key not in self._scratch or library.size(self._scratch[key]) < elements:
            self._scratch[key] = library.empty(like, elements, dtype)
        return self._scratch[key][:elements]


def _by_piece(receives: list[_Receive]) -> dict[int, list[_Receive]]:
    found: dict[int, list[_Receive]] = {}
    for receive in receives:
        found.setdefault(receive.piece, []).append(receive)
    return found


def _piece_begin(piece: int, elements: int, pieces: int) -> int:
    return piece * (elements // pieces) + piece * (elements % pieces) // pieces


# Ops that scale: the same numbers as csrc/reduce


def _wire_dtype(dtype: str, op: str) -> str:
    if dtype in _HALVES:
        return "float32"
    if op == "avg" and ("int" in dtype):
        if dtype in ("int64", "uint64"):
            raise Unsupported(f"avg of {dtype} over NCCL: its sum may not fit 64 bits; use sum, or float64")
        return "int64"
    return dtype


@dataclass(frozen=True)
class _Scaling:
    """avg or premul_sum as a sum in a dtype wide enough, with a step before and one after it."""

    op: str
    ranks: int
    factor: float
    wire: str

    def widened(self, library: ArrayLibrary, source: Any) -> Any:
        wide = library.cast(source, self.wire)
        whole = "int" in self.wire
        if self.op == "premul_sum":
            if whole and self.factor != int(self.factor):
                raise InvalidArgument(f"premul_sum of integers needs whole factors, got {self.factor}")
            return wide * (int(self.factor) if whole else self.factor)
        # A power of two, so that no sum overflows and no bit is lost; undone after the division.
        return wide if whole else wide * 2.0 ** -((self.ranks - 1).bit_length())

    def narrowed(self, library: ArrayLibrary, source: Any, dtype: str) -> Any:
        if self.op == "avg" and "int" in self.wire:
            source = abs(source) // self.ranks * library.sign(source)  # truncates toward zero
        elif self.op == "avg" and self.ranks & (self.ranks - 1):
            source = source / self.ranks * 2.0 ** ((self.ranks - 1).bit_length())
        return library.cast(source, dtype)


def _checked_count(collective: str, plan: _Plan, library: ArrayLibrary, x: Any, out: Any) -> int:
    """Elements of one block, of arrays that fit the collective and each other."""
    for array, name in ((x, "x"), (out, "out")):
        if not library.contiguous(array):
            raise InvalidArgument(f"{collective}: {name} must be contiguous")
    if library.dtype(x) != library.dtype(out):
        raise InvalidArgument(f"{collective}: x has dtype {library.dtype(x)}, out has {library.dtype(out)}")
    blocks, size, name = plan.inputs, library.size(x), "x"
    if blocks == 0:
        blocks, size, name = plan.outputs, library.size(out), "out"
    if blocks == 0:
        return 0
    if size % blocks != 0:
        raise InvalidArgument(
            f"{collective}: {name} must have a multiple of {blocks} elements here, not {size}"
        )
    count = size // blocks
    if plan.outputs and library.size(out) != count * plan.outputs:
        raise InvalidArgument(
            f"{collective}: with {size} elements in {name}, out must have {count * plan.outputs} elements "
            f"here, not {library.size(out)}"
        )
    return count
