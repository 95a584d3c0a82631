"""Runs a test's function on several ranks: threads, processes, or a job whose ranks live and die alone."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import hypothesis
import pytest

import pycoll

from .python.job import Job

os.environ.setdefault("PYCOLL_PROFILE", "none")  # a tuned machine must not make tests differ

# What a shell starts in the background ignores Ctrl-C, and so do its children; tests press it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A run is judged by what it finds and not by how long a busy machine takes, and one commit gets one verdict.
# HYPOTHESIS_PROFILE=explore looks at other examples each time.
hypothesis.settings.register_profile("pycoll", deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "pycoll"))

TIMEOUT = 30.0  # seconds for a collective; far more than any takes, far less than a hang
DEADLINE = 100.0


def by_value(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Has other processes get the tests' functions themselves, not names of modules they cannot import."""
    package = sys.modules.get(fn.__module__.partition(".")[0])
    if package is not None and package.__name__ != "__main__":
        cloudpickle.register_pickle_by_value(package)
    return fn


@pytest.fixture
def on_threads() -> Callable[..., list[Any]]:
    """on_threads(ranks, fn, *args): what fn(comm, *args) returned on each rank; ranks are threads."""

    def run(ranks: int, fn: Callable[..., Any], *args: Any, timeout: float = TIMEOUT) -> list[Any]:
        return pycoll.spawn(fn, ranks, args, timeout=timeout, threads=True, deadline=DEADLINE)

    return run


@pytest.fixture
def on_processes() -> Callable[..., list[Any]]:
    """Likewise, and ranks are processes; the first failure ends all."""

    def run(ranks: int, fn: Callable[..., Any], *args: Any, timeout: float = TIMEOUT) -> list[Any]:
        return pycoll.spawn(by_value(fn), ranks, args, timeout=timeout, deadline=DEADLINE)

    return run


@pytest.fixture
def start_job() -> Iterator[Callable[..., Job]]:
    """start_job(ranks, fn, *args): ranks that nobody ends when one of them fails, joined by pycoll.init."""
    jobs: list[Job] = []

    def start(ranks: int, fn: Callable[..., Any], *args: Any, **options: Any) -> Job:
        jobs.append(Job(ranks, by_value(fn), args, **options))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[pycoll.Communicator]:
    """A group of this process alone."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pycoll.init() as communicator:
        yield communicator


@pytest.fixture(scope="session", autouse=True)
def _nothing_in_dev_shm() -> Iterator[None]:
    """Shared memory of ours is anonymous: whatever happens in a test, no name of ours ever appears there."""

    def names() -> set[str]:
        return {name for name in os.listdir("/dev/shm") if "pycoll" in name}

    before = names()
    yield
    assert names() <= before
