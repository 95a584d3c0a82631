"""A cache folder of its own for every test, and GPUs that are none."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("PYCOLL_ALGO", "PYCOLL_PROFILE", "PYCOLL_CUDA_PROFILE", "PYCOLL_DETERMINISTIC"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(autouse=True)
def short_races(monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up clock is never off: more visits, rounds and calls would only take longer."""
    monkeypatch.setattr("pycoll.tuning.measure._VISITS", 1)
    monkeypatch.setattr("pycoll.tuning.measure._MOST_ROUNDS", 3)
    monkeypatch.setattr("pycoll.gpu.tuning._MOST_CALLS", 2)
