"""One rank of a comparison with late ranks: as worker.py, but in each iteration a few ranks come late.

python late_worker.py JOB.json       started in its host with RANK set
"""

from __future__ import annotations

import functools
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from worker import Engine, Page, gloo_engine, pycoll_engine

_CLOCK = time.monotonic  # one clock for all ranks: the hosts are namespaces of one machine


def make_engines(job: dict[str, Any], rank: int) -> dict[str, Engine]:
    engines: dict[str, Engine] = {}
    for number, name in enumerate(job["engines"]):
        if name == "gloo":
            engines[name] = gloo_engine(job, rank)
        else:
            engine = pycoll_engine(job, rank, number, "")
            engines[name] = functools.partial(engine, algorithm="ring") if name == "ring" else engine
    return engines


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    rank = int(os.environ["RANK"])
    page = Page(job["page"], rank, job["ranks"], job["patience"])
    engines = make_engines(job, rank)
    dice = random.Random(job["seed"])  # the same on all ranks
    pattern = ((np.arange(job["size"] // 4) * 3 + rank) % 7 + 1.0).astype(np.float32)
    expected = sum((np.arange(job["size"] // 4) * 3 + r) % 7 + 1.0 for r in range(job["ranks"]))
    x = np.empty_like(pattern)
    rows: list[dict[str, Any]] = []
    for lateness in job["latenesses"]:  # seconds
        for iteration in range(job["iterations"] + 1):  # the first to warm up
            for name in dice.sample(list(engines), len(engines)):
                late = dice.sample(range(job["ranks"]), job["late"])
                x[:] = pattern
                page.meet()
                time.sleep(0.02 + (lateness if rank in late else 0))
                came = _CLOCK()
                engines[name](x)
                ended = _CLOCK()
                if not np.array_equal(x, expected):
                    raise AssertionError(f"{name} on rank {rank}: wrong result, {lateness} s late")
                if iteration:
                    rows.append({"engine": name, "lateness": lateness, "came": came, "ended": ended})
    page.meet()
    Path(job["folder"], f"{rank}.json").write_text(json.dumps(rows))
    sys.stdout.flush()
    os._exit(0)  # libraries that wait for each other at exit are not what is measured


if __name__ == "__main__":
    main()
