"""Processes that run a test's function, a rank each.

Importing torch takes seconds: one server process does it, and all ranks are forked from that. They run this
file, and get functions by value, so they import no test.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import runpy
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import cloudpickle

GROUP_TIMEOUT = 20.0  # seconds; of a group unless the test says otherwise


class RankFailed(AssertionError):
    """The function raised on some ranks; the text has each one's traceback."""


class Gang:
    def __init__(self, size: int, backend: str = "pycoll") -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            ["torch", "torch._dynamo", "torch.distributed", "pytest", "cloudpickle"]
        )
        self.backend = backend
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(size):
            here, there = Pipe()
            process = context.Process(
                target=runpy.run_path, args=(__file__, {"SERVE": (rank, there)}, "a rank"), daemon=True
            )
            process.start()
            there.close()
            self.processes.append(process)
            self.pipes.append(here)
        self._directory = tempfile.TemporaryDirectory()
        self._stores = itertools.count()
        self._grouped = 0  # ranks of the group that is up

    def run(
        self,
        ranks: int,
        function: Callable[..., Any],
        *args: Any,
        timeout: float = GROUP_TIMEOUT,
        breaks_group: bool = False,
        deaths: frozenset[int] = frozenset(),
        limit: float = 60.0,
    ) -> list[Any]:
        """Run `function(*args)` in a group of `ranks` processes; what each returned, by rank.

        `breaks_group`: the next run needs a new group. `deaths`: ranks that the function kills.
        `limit`: seconds.
        """
        if self._grouped != ranks or timeout != GROUP_TIMEOUT:
            self.regroup(ranks, timeout)
        try:
            results = self.call(ranks, function, *args, deaths=deaths, limit=limit)
        except BaseException:
            self._grouped = 0
            raise
        if breaks_group or deaths or timeout != GROUP_TIMEOUT:
            self._grouped = 0
        return results

    def regroup(self, ranks: int, timeout: float = GROUP_TIMEOUT) -> None:
        store = Path(self._directory.name) / f"store{next(self._stores)}"
        self.call(len(self.pipes), _leave)
        self.call(ranks, _join, str(store), ranks, self.backend, timeout)
        self._grouped = ranks

    def call(
        self,
        ranks: int,
        function: Callable[..., Any],
        *args: Any,
        deaths: frozenset[int] = frozenset(),
        limit: float = 60,
    ) -> list[Any]:
        """Run `function(*args)` on the first `ranks` processes as they are."""
        self.send(ranks, function, *args)
        return self.collect(ranks, deaths, limit)

    def send(self, ranks: int, function: Callable[..., Any], *args: Any) -> None:
        for module in {function.__module__, __name__}:
            cloudpickle.register_pickle_by_value(sys.modules[module])
        task = cloudpickle.dumps((function, args))
        for pipe in self.pipes[:ranks]:
            pipe.send_bytes(task)

    def collect(self, ranks: int, deaths: frozenset[int] = frozenset(), limit: float = 60) -> list[Any]:
        deadline = time.monotonic() + limit
        results: list[Any] = [None] * ranks
        failures = []
        for rank, pipe in enumerate(self.pipes[:ranks]):
            if rank in deaths:
                continue
            try:
                if not pipe.poll(max(0.0, deadline - time.monotonic())):
                    failures.append(f"rank {rank} has not returned after {limit:.0f} s")
                    continue
                good, value = cloudpickle.loads(pipe.recv_bytes())
            except (EOFError, ConnectionResetError):
                failures.append(f"rank {rank} died, exit code {self.exit_code(rank)}")
                continue
            if good:
                results[rank] = value
            else:
                failures.append(f"rank {rank} raised\n{value}")
        if failures:
            raise RankFailed("\n".join(failures))
        return results

    def exit_code(self, rank: int) -> int | None:
        self.processes[rank].join(5)
        return self.processes[rank].exitcode

    @property
    def usable(self) -> bool:
        return all(process.is_alive() for process in self.processes) and not any(p.poll() for p in self.pipes)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        self._directory.cleanup()

    def __enter__(self) -> Gang:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(rank: int, pipe: Connection) -> None:
    import torch

    os.environ["RANK"] = str(rank)
    torch.set_num_threads(1)
    while True:
        try:
            task = pipe.recv_bytes()
        except EOFError:
            return
        try:
            function, args = cloudpickle.loads(task)
            answer = (True, function(*args))
        except BaseException:
            answer = (False, traceback.format_exc())
        pipe.send_bytes(cloudpickle.dumps(answer))


def _leave() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
    # torch names groups by a counter of the process, which a failed init leaves advanced on some ranks only.
    dist.distributed_c10d._world.group_count = 0


def _join(store: str, ranks: int, backend: str, timeout: float) -> None:
    import torch.distributed as dist

    dist.init_process_group(
        backend,
        store=dist.FileStore(store, ranks),
        rank=int(os.environ["RANK"]),
        world_size=ranks,
        timeout=timedelta(seconds=timeout),
    )


if "SERVE" in globals():
    _serve(*globals()["SERVE"])
