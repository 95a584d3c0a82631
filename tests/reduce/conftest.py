from __future__ import annotations

from collections.abc import Iterator

import pytest

from pycoll import _core


@pytest.fixture(params=_core.kernel_names())
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every set of kernels that this processor can run."""
    best = _core.kernel_name()
    _core.select_kernels(request.param)
    yield request.param
    _core.select_kernels(best)
