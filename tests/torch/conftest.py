from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .gang import Gang

pytest.importorskip("torch", reason="the torch backend needs torch")

SIZE = 4
GPU_RANKS = 3
_gangs: list[Gang] = []
_gpu_gangs: list[Gang] = []


@pytest.fixture(scope="session", autouse=True)
def _adapter_is_compiled() -> None:
    from pycoll.torch import build

    build.compiled()


@pytest.fixture(scope="session")
def _session() -> Iterator[None]:
    yield
    for gangs in (_gangs, _gpu_gangs):
        while gangs:
            gangs.pop().close()


@pytest.fixture
def ranks(_session: None) -> Callable[..., list[Any]]:
    """`ranks(n, function, *args)` runs the function in a pycoll group of n processes; see Gang.run."""
    if _gangs and not _gangs[0].usable:
        _gangs.pop().close()
    if not _gangs:
        _gangs.append(Gang(SIZE))
    return _gangs[0].run


@pytest.fixture(scope="session")
def fake_gpu_library() -> str:
    from . import fake_gpu

    return str(fake_gpu.library())


@pytest.fixture
def gpu_ranks(_session: None, fake_gpu_library: str) -> Callable[..., list[Any]]:
    """As `ranks`, in processes that have the device "fakegpu" and the module `fake_gpu`."""
    from . import fake_gpu

    if _gpu_gangs and not _gpu_gangs[0].usable:
        _gpu_gangs.pop().close()
    if not _gpu_gangs:
        _gpu_gangs.append(Gang(GPU_RANKS, "pycoll_fake"))
        _gpu_gangs[0].call(GPU_RANKS, fake_gpu.set_up, fake_gpu_library)
    return _gpu_gangs[0].run
