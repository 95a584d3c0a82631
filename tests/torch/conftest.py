from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .gang import Gang

pytest.importorskip("torch", reason="the torch backend needs torch")

SIZE = 4
_gangs: list[Gang] = []


@pytest.fixture(scope="session", autouse=True)
def _adapter_is_compiled() -> None:
    from pycoll.torch import build

    build.compiled()


@pytest.fixture(scope="session")
def _session() -> Iterator[None]:
    yield
    while _gangs:
        _gangs.pop().close()


@pytest.fixture
def ranks(_session: None) -> Callable[..., list[Any]]:
    """`ranks(n, function, *args)` runs the function in a pycoll group of n processes; see Gang.run."""
    if _gangs and not _gangs[0].usable:
        _gangs.pop().close()
    if not _gangs:
        _gangs.append(Gang(SIZE))
    return _gangs[0].run
