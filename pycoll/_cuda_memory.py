"""How the ranks of a pycoll.cuda.Group share memory: which kind is chosen, and what of it peers map."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from pycoll._cuda_library import ERRORS, Options, library_path, native
from pycoll._device_arrays import library_of
from pycoll.errors import Error, InvalidArgument, Unsupported

if TYPE_CHECKING:
    from pycoll.communicator import Communicator

#: api.h's kinds, in order: CUDA IPC; address ranges, as file descriptors or as handles of an NVLink fabric.
KINDS = ("ipc", "descriptors", "fabric")
#: api.h's bits of what a device offers.
OFFERS = {"descriptors": 1, "fabric": 2, "multicast": 4}
_WHAT = {
    "descriptors": "memory by address ranges as file descriptors",
    "fabric": "memory by address ranges as fabric handles (they need an NVLink fabric and an IMEX channel)",
    "multicast": "multicast objects (NVLS)",
}


def lacking(what: str, offers: Sequence[int]) -> str:
    """Why not all ranks can have it, naming the first that cannot; empty where all can."""
    ranks = [rank for rank, offer in enumerate(offers) if not offer & OFFERS[what]]
    if not ranks:
        return ""
    return f"rank {ranks[0]}{' and others' if ranks[1:] else ''}: the GPU offers no {_WHAT[what]}"


def choose(asked: str, offers: Sequence[int]) -> tuple[str, str]:
    """The kind for a group whose ranks' GPUs offer this, and why none better; alike on all ranks.

    Raises InvalidArgument for an unknown name, Unsupported, naming a rank, where one cannot have what was
    asked for.
    """
    if asked not in ("auto", *KINDS):
        raise InvalidArgument(f"memory must be auto, {', '.join(KINDS[:-1])} or {KINDS[-1]}, not {asked!r}")
    if asked == "ipc":
        return "ipc", "it was asked for"
    if asked != "auto":
        if reason := lacking(asked, offers):
            raise Unsupported(reason)
        return asked, "it was asked for"
    reason = lacking("descriptors", offers)
    if not reason:
        return "descriptors", "every rank's GPU offers it"
    if not lacking("fabric", offers):
        return "fabric", f"every rank's GPU offers it ({reason})"
    return "ipc", reason


def mem_pool() -> Any:
    """A torch.cuda.MemPool whose memory peers can map; see :meth:`pycoll.cuda.Group.mem_pool`."""
    native()
    torch = import_module("torch")
    if torch.version.cuda is None:
        raise Unsupported(f"torch {torch.__version__} was built without CUDA: it has no memory of GPUs")
    if not hasattr(torch.cuda, "MemPool"):
        raise Unsupported(f"torch {torch.__version__} has no torch.cuda.MemPool: it takes 2.5 or later")
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        str(library_path()), "pycoll_cuda_pool_alloc", "pycoll_cuda_pool_free"
    )
    pool = torch.cuda.MemPool(allocator.allocator())
    pool._pycoll_allocator = allocator  # as long as the pool
    return pool


class GroupMemory:
    """What a group's ranks have of each other's memory: heaps, the multicast object, buffers and pools."""

    _comm: Communicator
    _pointer: ctypes.c_void_p
    _registered: dict[int, int]  # address -> registration
    rank: int
    ranks: int
    memory_kind: str
    nvls_reason: str

    def _open(self, options: Options) -> None:
        kind = KINDS.index(self.memory_kind)

        def open_heap() -> bytes:
            native().call("open_memory", ctypes.byref(options), kind, ctypes.byref(self._pointer))
            return self._handle("handle")

        handles = self._together(open_heap)
        self._together(partial(native().call, "connect", self._pointer, handles))

    def _open_nvls(self, offers: list[int]) -> str:
        """Makes the multicast object, or says why not."""
        if reason := lacking("multicast", offers):
            return reason
        try:
            made = self._together(partial(self._handle, "multicast_offer"))
            self._together(partial(native().call, "multicast_join", self._pointer, made))
            self._together(partial(native().call, "multicast_bind", self._pointer))
        except Error as error:
            native().call("multicast_drop", self._pointer)
            return str(error)
        return ""

    @property
    def nvls(self) -> bool:
        """Whether collectives can go through the NVLink switch."""
        return not self.nvls_reason

    def _handle(self, call: str, *arguments: Any) -> bytes:
        buffer = ctypes.create_string_buffer(native().handle_bytes)
        native().call(call, self._pointer, *arguments, buffer)
        return buffer.raw

    def _together(self, step: Any, most: int = 1000) -> bytes:
        """Runs a step on every rank and gathers the bytes that it returns, as many on every rank (over 1000:
        ``most``); where it fails on any rank, whatever with, raises on every one."""
        error: Exception | None = None
        mine = b""
        try:
            mine = step() or b""
        except Exception as raised:
            error = raised
            kind = "" if isinstance(raised, Error) else f"{type(raised).__name__}: "
            mine = f"rank {self.rank}: {kind}{raised}".encode()[:1000]
        size = 4 + max(1000, most, len(mine))
        kinds = [None, *ERRORS.values()]
        status = 0 if error is None else next((i for i, kind in enumerate(kinds) if type(error) is kind), 3)
        sent = np.zeros(size, np.uint8)
        sent[0] = status
        sent[2:4] = np.frombuffer(len(mine).to_bytes(2, "little"), np.uint8)
        sent[4 : 4 + len(mine)] = np.frombuffer(mine, np.uint8)
        told = np.zeros((self.ranks, size), np.uint8)
        self._comm.all_gather(sent, out=told)
        if error is not None and not isinstance(error, Error):
            raise error  # no wait for what the others will not do: they have heard of it
        texts = [bytes(row[4 : 4 + int.from_bytes(bytes(row[2:4]), "little")]) for row in told]
        for row, text in zip(told, texts, strict=True):
            if row[0]:
                raise ERRORS[int(row[0])](text.decode(errors="replace")) from error
        return b"".join(texts)

    def register(self, x: Any) -> None:
        """Let peers read and write ``x`` itself. Collective, each rank with a buffer of its own, aligned to
        16 bytes; ``x`` must outlive its registration. Buffers that were registered together are the outputs
        of one call together: where one rank gives another one, results are anything. Raises on every rank
        where it fails on one, and where a rank's ``x`` is registered already."""
        library = library_of(x)

        def offer() -> bytes:
            if library.address(x) in self._registered:
                raise InvalidArgument("the buffer is registered already")
            return self._handle("register", library.address(x), library.bytes(x))

        handles, made = self._together(offer), ctypes.c_int32()
        self._together(partial(native().call, "register_connect", self._pointer, handles, ctypes.byref(made)))
        self._registered[library.address(x)] = made.value

    def unregister(self, x: Any) -> None:
        """Take back :meth:`register`. Waits for this rank's last collective; the ranks should meet first."""
        registration = self._registered.pop(library_of(x).address(x), None)
        if registration is None:
            raise InvalidArgument("the buffer is not registered")
        native().call("unregister", self._pointer, registration)

    def mem_pool(self) -> Any:
        """A torch.cuda.MemPool whose memory ranks can map: what is allocated from it needs no registration.

        Used with ``torch.cuda.use_mem_pool``; call :meth:`share_pool` when its tensors are there. Raises
        Unsupported where the CUDA part, or a torch with CUDA and MemPool (2.5), is missing.
        """
        return mem_pool()

    def share_pool(self) -> None:
        """Let peers map the memory that this process's pools have taken so far. Collective.

        From then on schedules work without staging in outputs that lie there, where every rank's does; ranks
        need not have allocated alike, nor use the same tensors. What is allocated later is staged until this
        is called again. Memory stays mapped until the group is closed. Raises on every rank where it fails on
        one, and leaves what was shared before as it was.
        """
        if not self._pointer:
            raise InvalidArgument("the group is closed")

        def offer() -> bytes:
            buffer = ctypes.create_string_buffer(native().batch_bytes)
            native().call("pool_offer", self._pointer, buffer)
            return buffer.raw

        more = ctypes.c_int32(1)
        while more.value:
            batches = self._together(offer, native().batch_bytes)
            self._together(partial(native().call, "pool_connect", self._pointer, batches, ctypes.byref(more)))
            native().call("pool_use", self._pointer)

    def is_shared(self, x: Any) -> bool:
        """Whether this rank's ``x`` is registered, or lies in memory of a pool that was shared."""
        library, found = library_of(x), ctypes.c_int32()
        if library.address(x) in self._registered:
            return True
        address, size = library.address(x), library.bytes(x)
        native().call("pool_finds", self._pointer, address, size, ctypes.byref(found))
        return bool(found.value)
