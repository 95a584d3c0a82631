"""One rank of a comparison over several hosts: all libraries in one process, in turns.

    python worker.py JOB.json       started in its host with RANK set, or by mpirun

Ranks keep in step, and hand in what they measured, through a file that all of them map: no library is used
for what surrounds the calls of another.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SLOTS = 8  # numbers that a rank shows the others
_POLL = 1e-4  # seconds
_CLOCK = time.perf_counter


class Page:
    """The file that all ranks map: a row of numbers a rank, of which each rank writes its own only."""

    def __init__(self, path: str, rank: int, ranks: int, patience: float) -> None:
        self.rows = np.memmap(path, np.float64, "r+", shape=(ranks, SLOTS))
        self.rank, self.patience, self.phase = rank, patience, 0

    def meet(self) -> None:
        self.phase += 1
        self.rows[self.rank, 0] = self.phase
        end = time.monotonic() + self.patience
        while self.rows[:, 0].min() < self.phase:
            time.sleep(_POLL)
            if time.monotonic() > end:
                late = np.flatnonzero(self.rows[:, 0] < self.phase).tolist()
                raise TimeoutError(f"rank {self.rank}: ranks {late} did not come within {self.patience:g} s")

    def largest(self, value: float) -> float:
        self.rows[self.rank, 1] = value
        self.meet()
        found = float(self.rows[:, 1].max())
        self.meet()
        return found


Engine = Callable[[np.ndarray[Any, Any]], object]


def pycoll_engine(job: dict[str, Any], rank: int, number: int, topology: str) -> Engine:
    import pycoll

    comm = pycoll.init(
        60,
        f"engine{number}",
        rank=rank,
        ranks=job["ranks"],
        address=f"{job['address']}:{29600 + number}",
        topology=topology or False,
        profile=False,
    )
    _kept.append(comm)
    return comm.allreduce


def gloo_engine(job: dict[str, Any], rank: int) -> Engine:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    store = dist.TCPStore(job["address"], 29590, job["ranks"], rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=job["ranks"])
    return lambda x: dist.all_reduce(torch.from_numpy(x))


def mpi_engine() -> Engine:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return lambda x: world.Allreduce(MPI.IN_PLACE, x)


_kept: list[object] = []  # groups live as long as the process


def make_engines(job: dict[str, Any], rank: int) -> dict[str, Engine]:
    engines: dict[str, Engine] = {}
    for number, (name, kind, topology) in enumerate(job["engines"]):
        if kind == "pycoll":
            engines[name] = pycoll_engine(job, rank, number, topology)
        else:
            engines[name] = gloo_engine(job, rank) if kind == "gloo" else mpi_engine()
    return engines


def bytes_sent() -> int:
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


class Measurement:
    def __init__(self, job: dict[str, Any], rank: int, page: Page, engines: dict[str, Engine]) -> None:
        self.job, self.rank, self.page, self.engines = job, rank, page, engines
        self.random = random.Random(job["seed"])  # the same on all ranks
        self.rows: list[dict[str, Any]] = []

    def run(self) -> None:
        for size in self.job["sizes"]:
            self.of_size(size)

    def of_size(self, size: int) -> None:
        pattern = (np.arange(size // 4) * 3 + self.rank) % 7 + 1.0
        pattern = pattern.astype(np.float32)
        expected = sum((np.arange(size // 4) * 3 + r) % 7 + 1.0 for r in range(self.job["ranks"]))
        x = np.empty_like(pattern)
        seconds: dict[str, float] = {}
        for name, engine in self.engines.items():  # checked, and how long it takes
            for turn in range(3):
                x[:] = pattern
                self.page.meet()
                begin = _CLOCK()
                engine(x)
                seconds[name] = self.page.largest(_CLOCK() - begin)
                if turn == 0 and not np.array_equal(x, expected):
                    raise AssertionError(f"{name} on rank {self.rank}: wrong result at {size} bytes")
        # Of short calls several in a row, as the clock and the ranks' setting off are not that exact.
        batch = {name: int(min(max(0.02 / took, 1), 50)) for name, took in seconds.items()}
        each = sum(batch[name] * took for name, took in seconds.items())
        samples = int(min(max(self.job["seconds"] / each, self.job["least"]), 60))
        for sample in range(samples):
            for name in self.random.sample(list(self.engines), len(self.engines)):
                x[:] = pattern
                self.page.meet()
                before = bytes_sent()
                self.page.meet()
                begin = _CLOCK()
                for _ in range(batch[name]):
                    self.engines[name](x)
                taken = (_CLOCK() - begin) / batch[name]
                self.page.meet()
                self.rows.append(
                    {
                        "engine": name,
                        "size": size,
                        "sample": sample,
                        "seconds": taken,
                        "sent": (bytes_sent() - before) / batch[name],
                    }
                )


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["RANK"])
    page = Page(job["page"], rank, job["ranks"], job["patience"])
    engines = make_engines(job, rank)
    page.meet()
    measurement = Measurement(job, rank, page, engines)
    measurement.run()
    page.meet()
    target = Path(job["folder"], f"{rank}.json")
    target.write_text(json.dumps(measurement.rows))
    sys.stdout.flush()
    os._exit(0)  # libraries that wait for each other at exit are not what is measured


if __name__ == "__main__":
    main()
