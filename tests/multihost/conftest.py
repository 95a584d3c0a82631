"""Ranks on several hosts, which are network namespaces of this machine. Where it can have none, all tests
here are skipped, and the summary says why."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ..conftest import by_value
from ..python.job import Job
from . import netlab
from .netlab import Lab

_HERE = Path(__file__).parent
PORT = 29577
LONG = os.environ.get("PYCOLL_LONG_TESTS", "") not in ("", "0")
_PREFIX = "test"
_skipped: list[str] = []


@cache
def unavailable() -> str:
    return netlab.unavailable()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: takes minutes; runs where PYCOLL_LONG_TESTS=1 is set")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.parent == _HERE]
    if not here:
        return
    reason = unavailable()
    for item in here:
        if reason:
            item.add_marker(pytest.mark.skip(reason=f"no hosts to test on: {reason}"))
            _skipped.append(item.nodeid)
        elif item.get_closest_marker("long") and not LONG:
            item.add_marker(pytest.mark.skip(reason="takes minutes; set PYCOLL_LONG_TESTS=1"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _skipped:
        terminalreporter.write_line(
            f"NOT TESTED: many hosts ({len(_skipped)} tests): {unavailable()}", yellow=True
        )


class Labs:
    """Labs of this test session; each size is made once, and kept while tests leave it as it was."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, bool], Lab] = {}
        self._made: list[Lab] = []
        _sweep()

    def get(self, hosts: int, ipv6: bool = False) -> Lab:
        if (hosts, ipv6) not in self._kept:
            self._kept[hosts, ipv6] = self.make(hosts=hosts, rate=None, ipv6=ipv6)
        return self._kept[hosts, ipv6]

    def make(self, **options: Any) -> Lab:
        lab = Lab(name=f"{_PREFIX}{os.getpid()}x{len(self._made)}", **options)
        self._made.append(lab)
        return lab.up()

    def end(self) -> None:
        for lab in self._made:
            lab.down()


def _sweep() -> None:
    """Takes away the labs of sessions that were killed."""
    for name in {namespace.split("-")[1] for namespace in netlab.namespaces()}:
        number = name.removeprefix(_PREFIX).partition("x")[0]
        if name.startswith(_PREFIX) and number.isdigit() and not os.path.exists(f"/proc/{number}"):
            netlab.destroy(name)


@pytest.fixture(scope="session")
def labs() -> Iterator[Labs]:
    made = Labs()
    yield made
    made.end()


def start_in(
    lab: Lab, fn: Callable[..., Any], *args: Any, per_host: int = 1, env: Any = None, **options: Any
) -> Job:
    """Starts fn(comm, *args) on per_host ranks in each host; ranks 0 to per_host - 1 are on host 0."""

    def popen(rank: int, command: list[str], **how: Any) -> subprocess.Popen[str]:
        return lab.popen(rank // per_host, command, **how)

    def variables(rank: int) -> dict[str, str]:
        own = (env(rank) if callable(env) else env) or {}
        return {**lab.env(rank, per_host, PORT), **own}

    host = lab.ip(0)
    address = f"[{host}]:{PORT}" if ":" in host else f"{host}:{PORT}"
    return Job(
        lab.hosts * per_host,
        by_value(fn),
        args,
        **{"address": address, "env": variables, "popen": popen, **options},
    )


@pytest.fixture
def start_hosts(labs: Labs) -> Iterator[Callable[..., Job]]:
    """start_hosts(hosts, fn, *args, per_host=1): a job over hosts whose links are as quick as they can be.
    A lab of the test's own may stand in place of `hosts`."""
    with contextlib.ExitStack() as jobs:

        def start(hosts: int | Lab, fn: Callable[..., Any], *args: Any, **options: Any) -> Job:
            lab = hosts if isinstance(hosts, Lab) else labs.get(hosts)
            job = start_in(lab, fn, *args, **options)
            jobs.callback(job.end)
            return job

        yield start


@pytest.fixture
def on_hosts(start_hosts: Callable[..., Job]) -> Callable[..., list[Any]]:
    """on_hosts(hosts, fn, *args, per_host=1): what fn(comm, *args) returned, by rank; AssertionError if any
    raised."""

    def run(
        hosts: int | Lab, fn: Callable[..., Any], *args: Any, patience: float = 90.0, **how: Any
    ) -> list[Any]:
        outcomes = start_hosts(hosts, fn, *args, **how).outcomes(patience)
        failed = {rank: one for rank, one in outcomes.items() if (one.code, one.error) != (0, "")}
        assert not failed, "\n".join(f"rank {rank}: {outcome}" for rank, outcome in failed.items())
        return [outcome.value for outcome in outcomes.values()]

    return run
