"""Which memory a group takes, and what it does where a rank fails: against a stand-in for _cuda.so."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pycoll
from pycoll import _cuda_memory, cuda

DESCRIPTORS, FABRIC, MULTICAST = 1, 2, 4
ALL = DESCRIPTORS | FABRIC | MULTICAST


def test_the_kind_is_what_all_offer() -> None:
    assert _cuda_memory.choose("auto", [ALL, DESCRIPTORS, DESCRIPTORS])[0] == "descriptors"
    kind, reason = _cuda_memory.choose("auto", [ALL, FABRIC, ALL])
    assert kind == "fabric"
    assert "rank 1: " in reason
    kind, reason = _cuda_memory.choose("auto", [ALL, ALL, 0, 0])
    assert kind == "ipc"
    assert reason.startswith("rank 2 and others: the GPU offers no memory by address ranges")
    assert _cuda_memory.choose("ipc", [ALL, ALL])[0] == "ipc"


def test_what_a_rank_lacks_is_refused_by_name() -> None:
    assert _cuda_memory.choose("fabric", [FABRIC, FABRIC])[0] == "fabric"
    with pytest.raises(pycoll.Unsupported, match=r"^rank 1: .*fabric handles"):
        _cuda_memory.choose("fabric", [ALL, DESCRIPTORS])
    with pytest.raises(pycoll.InvalidArgument, match="auto, ipc, descriptors or fabric, not 'vmm'"):
        _cuda_memory.choose("vmm", [ALL])


class Native:
    """Calls of a rank in its own thread; ``fails``: what a call of a rank raises, once."""

    handle_bytes, batch_bytes = 24, 4000

    def __init__(self, offers: list[int]) -> None:
        self.offers = offers
        self.fails: dict[tuple[str, int], Exception] = {}
        self.calls: list[list[str]] = [[] for _ in offers]
        self.kinds: list[list[int]] = [[] for _ in offers]
        self.batches = 0  # that have to be repeated
        self._here = threading.local()

    def call(self, name: str, *arguments: Any) -> None:
        if name == "offers":
            self._here.rank = arguments[0]
            arguments[1]._obj.value = self.offers[self._here.rank]
        rank = self._here.rank
        self.calls[rank].append(name)
        if (name, rank) in self.fails:
            raise self.fails.pop((name, rank))
        if name == "open_memory":
            self.kinds[rank].append(arguments[1])
            arguments[2]._obj.value = rank + 1
        if name in ("handle", "multicast_offer", "pool_offer"):
            arguments[-1].raw = bytes([rank + 1]) * len(arguments[-1].raw)
        if name == "pool_connect":
            size = self.batch_bytes
            assert arguments[1] == b"".join(bytes([r + 1]) * size for r in range(len(self.offers)))
            done = self.calls[rank].count("pool_connect") > self.batches
            arguments[2]._obj.value = not done
        if name == "pool_finds":
            arguments[-1]._obj.value = arguments[1] == 4096


Run = Callable[[Native, Callable[[pycoll.Communicator], Any]], list[Any]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(native: Native, rank: Callable[[pycoll.Communicator], Any]) -> list[Any]:
        for module in (cuda, _cuda_memory):
            monkeypatch.setattr(module, "native", lambda: native)
        return pycoll.spawn(rank, ranks=len(native.offers), threads=True)

    monkeypatch.setattr(cuda, "devices", lambda: [None] * 8)
    return run


def test_a_group_says_what_it_took(run: Run) -> None:
    def rank(comm: pycoll.Communicator) -> tuple[str, bool, str]:
        with cuda.Group(comm) as gpus:
            return gpus.memory_kind, gpus.nvls, gpus.nvls_reason

    assert run(Native([ALL] * 3), rank) == [("descriptors", True, "")] * 3
    native = Native([ALL, DESCRIPTORS, ALL])
    for kind, nvls, reason in run(native, rank):
        assert (kind, nvls) == ("descriptors", False)
        assert reason == "rank 1: the GPU offers no multicast objects (NVLS)"
    assert "multicast_offer" not in native.calls[0]
    assert run(Native([ALL, 0, ALL]), rank)[2][0] == "ipc"


def test_what_cannot_be_handed_over_is_shared_by_ipc(run: Run) -> None:
    native = Native([DESCRIPTORS] * 3)
    native.fails["connect", 2] = pycoll.Error("rank 2 cannot hand its memory to rank 0: refused")

    def rank(comm: pycoll.Communicator) -> tuple[str, str]:
        with cuda.Group(comm) as gpus:
            return gpus.memory_kind, gpus.memory_reason

    for kind, reason in run(native, rank):
        assert kind == "ipc"
        assert reason == "rank 2: rank 2 cannot hand its memory to rank 0: refused"
    assert native.kinds == [[1, 0]] * 3
    assert all(calls.count("close") == 2 for calls in native.calls)


def test_what_was_asked_for_fails_on_every_rank(run: Run) -> None:
    native = Native([ALL] * 3)
    native.fails["connect", 1] = pycoll.Error("refused")

    def rank(comm: pycoll.Communicator) -> str:
        with pytest.raises(pycoll.Error) as raised:
            cuda.Group(comm, memory="descriptors")
        return str(raised.value)

    assert run(native, rank) == ["rank 1: refused"] * 3
    assert all(calls[-1] == "close" for calls in native.calls)


@pytest.mark.parametrize("step", ["multicast_offer", "multicast_join", "multicast_bind"])
def test_nvls_is_dropped_where_a_rank_fails(run: Run, step: str) -> None:
    native = Native([ALL] * 3)
    native.fails[step, 1] = pycoll.Error("the fabric manager does not run")

    def rank(comm: pycoll.Communicator) -> tuple[bool, str]:
        with cuda.Group(comm) as gpus:
            with pytest.raises(pycoll.Unsupported, match="algorithm nvls: rank 1: the fabric manager"):
                gpus._through_switch("allreduce", None, None, None, 1, "sum", 1.0, None)  # type: ignore[arg-type]
            return gpus.nvls, gpus.nvls_reason

    assert run(native, rank) == [(False, "rank 1: the fabric manager does not run")] * 3
    assert all("multicast_drop" in calls for calls in native.calls)


def test_pools_are_shared_in_as_many_steps_as_it_takes(run: Run) -> None:
    native = Native([DESCRIPTORS] * 2)
    native.batches = 2

    def rank(comm: pycoll.Communicator) -> None:
        with cuda.Group(comm) as gpus:
            gpus.share_pool()

    run(native, rank)
    steps = ["pool_offer", "pool_connect", "pool_use"] * 3
    assert all([name for name in calls if name.startswith("pool")] == steps for calls in native.calls)


def test_a_pool_that_a_rank_cannot_map_is_used_by_none(run: Run) -> None:
    native = Native([DESCRIPTORS] * 3)
    native.fails["pool_connect", 2] = pycoll.Error("no addresses left")

    def rank(comm: pycoll.Communicator) -> str:
        with cuda.Group(comm) as gpus, pytest.raises(pycoll.Error) as raised:
            gpus.share_pool()
        return str(raised.value)

    assert run(native, rank) == ["rank 2: no addresses left"] * 3
    assert not any("pool_use" in calls for calls in native.calls)


def test_pools_need_a_torch_with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(_cuda_memory, "native", lambda: Native([DESCRIPTORS]))
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(pycoll.Unsupported, match="built without CUDA"):
        _cuda_memory.mem_pool()


def test_pools_need_the_cuda_part() -> None:
    group = object.__new__(cuda.Group)
    if pycoll._cuda_library.library_path() is None:
        with pytest.raises(pycoll.Unsupported, match="PYCOLL_CUDA=ON"):
            cuda.mem_pool(group)
    group._pointer = ctypes.c_void_p()
    with pytest.raises(pycoll.InvalidArgument, match="closed"):
        group.share_pool()


def test_what_fails_in_any_way_is_told_to_all() -> None:
    """Also where it is no error of pycoll's: the others must not wait for a rank that has left."""

    def rank(comm: pycoll.Communicator) -> str:
        group = object.__new__(cuda.Group)
        group._comm, group.rank, group.ranks = comm, comm.rank, comm.ranks

        def step() -> bytes:
            if comm.rank == 1:
                raise ModuleNotFoundError("No module named 'pydantic'")
            return b"fine"

        try:
            group._together(step)
        except (pycoll.Error, ImportError) as error:
            return f"{type(error).__name__}: {error}"
        return "no error"

    others = "Error: rank 1: ModuleNotFoundError: No module named 'pydantic'"
    found = pycoll.spawn(rank, ranks=3, threads=True, timeout=20)
    assert found == [others, "ModuleNotFoundError: No module named 'pydantic'", others]


def test_a_buffer_is_registered_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    native = Native([DESCRIPTORS] * 2)

    def rank(comm: pycoll.Communicator) -> str:
        with cuda.Group(comm) as gpus:
            buffers = [np.zeros(8, np.float32) for _ in range(2)]
            gpus.register(buffers[0])
            with pytest.raises(pycoll.InvalidArgument) as raised:
                gpus.register(buffers[comm.rank])
            gpus.unregister(buffers[0])
            gpus.register(buffers[0])
            return str(raised.value)

    assert run(native, rank) == ["rank 0: the buffer is registered already"] * 2


def test_an_abort_ends_before_the_group_is_freed(run: Run) -> None:
    """It comes from a watchdog's thread, at any time."""
    native = Native([DESCRIPTORS])
    begun, may_end = threading.Event(), threading.Event()
    order: list[str] = []
    calls = native.call

    def call(name: str, *arguments: Any) -> None:
        if name == "abort":
            begun.set()
            assert may_end.wait(20)
            order.append("aborted")
        elif name == "close":
            order.append("freed")
            calls(name, *arguments)
        else:
            calls(name, *arguments)

    native.call = call  # type: ignore[method-assign]

    def rank(comm: pycoll.Communicator) -> None:
        gpus = cuda.Group(comm)
        watchdog = threading.Thread(target=gpus.abort)
        watchdog.start()
        assert begun.wait(20)
        closing = threading.Thread(target=gpus.close)  # of which the rank is known by its thread
        closing.run = lambda: (setattr(native._here, "rank", 0), gpus.close())  # type: ignore[method-assign]
        closing.start()
        closing.join(0.2)
        may_end.set()
        for thread in (watchdog, closing):
            thread.join(20)
        gpus.abort()

    run(native, rank)
    assert order == ["aborted", "freed"]
