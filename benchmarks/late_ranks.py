"""Measures AllReduce over several hosts with late ranks: time from the last arrival to the slowest's end.

    python benchmarks/late_ranks.py               # all setups, six minutes; writes its part of RESULTS.md
    python benchmarks/late_ranks.py --only four,eight --iterations 5

Hosts are network namespaces with rated links (root and iproute2 needed). pycoll's default, its own ring and
gloo run in the same processes, in turns; who is late is drawn anew for each call. Times are multiples of
S*beta, what the late rank's own data take on its link.
"""

from __future__ import annotations

import datetime
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from across.setups import MIB, PAYLOAD
from across.worker import SLOTS
from comparison.libraries import pycoll_version
from rich.console import Console
from rich.table import Table
from sections import write_section

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "multihost"))
import netlab  # noqa: E402

console = Console(width=None if sys.stdout.isatty() else 150)
BEGIN, END = "<!-- late ranks -->", "<!-- end of late ranks -->"


@dataclass(frozen=True)
class Setup:
    name: str
    hosts: int
    rate: int  # bit/s
    size: int
    late: int = 1
    latenesses: tuple[float, ...] = (1.5,)  # multiples of the pre-phase
    engines: tuple[str, ...] = ("pycoll", "ring", "gloo")
    most: float = 0.0  # S*beta: the target at the greatest lateness
    least_ratio: float = 0.0  # to ring and gloo, likewise
    ratios: tuple[tuple[float, float], ...] = ()  # (lateness, least ratio to the best other)

    @property
    def unit(self) -> float:
        """S*beta in seconds, with what TCP gets of the link."""
        return self.size * 8 / (self.rate * PAYLOAD)

    @property
    def pre_phase(self) -> float:
        """A reduce-scatter among the early ranks, in S*beta."""
        early = self.hosts - self.late
        return (early - 1) / early

    def bound(self, lateness: float) -> float:
        """Least time after the last arrival, in S*beta: what must be received, less what could be before."""
        n = self.hosts
        early = n - self.late
        received_before = min(lateness * self.pre_phase, self.pre_phase) * early
        return max(1.0, (2 * (n - 1) - received_before) / n)

    @property
    def title(self) -> str:
        rate = f"{self.rate // 10**9} Gbit/s" if self.rate >= 10**9 else f"{self.rate // 10**6} Mbit/s"
        return f"{self.hosts} hosts at {rate}, {self.size // MIB} MiB, {self.late} late"


SWEEP = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5)
SETUPS = (
    Setup(
        "four",
        4,
        10**9,
        16 * MIB,
        latenesses=SWEEP,
        most=1.12,
        least_ratio=1.35,
        ratios=((0.0, 0.97), (0.25, 0.97), (0.5, 1.08), (0.75, 1.15), (1.0, 1.15)),
    ),
    Setup("four-large", 4, 10**9, 64 * MIB, most=1.12, least_ratio=1.35),
    Setup("eight", 8, 5 * 10**8, 16 * MIB, most=1.40, least_ratio=1.25),
    Setup("eight-large", 8, 5 * 10**8, 64 * MIB, most=1.30),
    Setup("eight-two", 8, 5 * 10**8, 64 * MIB, late=2, engines=("pycoll", "ring"), ratios=((1.5, 1.0),)),
    Setup("eight-three", 8, 5 * 10**8, 64 * MIB, late=3, engines=("pycoll", "ring"), ratios=((1.5, 1.0),)),
)


@dataclass
class Result:
    setup: Setup
    times: dict[tuple[float, str], list[float]]  # (lateness, engine) -> S*beta after the last arrival

    def median(self, lateness: float, engine: str) -> float:
        return statistics.median(self.times[lateness, engine])

    def ratio(self, lateness: float) -> float:
        """The best other's time to pycoll's."""
        others = [self.median(lateness, engine) for engine in self.setup.engines if engine != "pycoll"]
        return min(others) / self.median(lateness, "pycoll")

    def verdicts(self) -> list[tuple[str, bool]]:
        setup, latest = self.setup, max(self.setup.latenesses)
        found = []
        if setup.most:
            time = self.median(latest, "pycoll")
            found.append((f"{setup.title}: {time:.3f} S*beta (target {setup.most:g})", time <= setup.most))
        if setup.least_ratio:
            ratio = self.ratio(latest)
            said = (
                f"{setup.title}: {ratio:.2f} times as fast as the best other (target {setup.least_ratio:g})"
            )
            found.append((said, ratio >= setup.least_ratio))
        for lateness, least in setup.ratios:
            ratio = self.ratio(lateness)
            said = f"{setup.title}, {lateness:g} of a pre-phase: {ratio:.2f} times as fast as the best other"
            found.append((f"{said} (target {least:g})", ratio >= least))
        return found

    def rows(self) -> list[list[str]]:
        rows = []
        for lateness in self.setup.latenesses:
            cells = [self.setup.title, f"{lateness:g}", f"{self.setup.bound(lateness):.3f}"]
            for engine in ("pycoll", "ring", "gloo"):
                known = (lateness, engine) in self.times
                cells.append(f"{self.median(lateness, engine):.3f}" if known else "-")
            rows.append([*cells, f"{self.ratio(lateness):.2f}"])
        return rows


HEADING = ["setup", "lateness / pre-phase", "bound", "pycoll", "its ring", "gloo", "best other / pycoll"]


def measure(setup: Setup, iterations: int, seed: int) -> Result:
    with (
        tempfile.TemporaryDirectory(prefix="pycoll-late-") as folder,
        netlab.Lab(setup.hosts, rate=setup.rate, name=f"late{os.getpid()}") as lab,
    ):
        seconds = {lateness * setup.pre_phase * setup.unit: lateness for lateness in setup.latenesses}
        job = {
            "ranks": setup.hosts,
            "engines": setup.engines,
            "size": setup.size,
            "late": setup.late,
            "latenesses": list(seconds),
            "iterations": iterations,
            "address": lab.ip(0),
            "page": str(Path(folder, "page")),
            "folder": folder,
            "patience": 90.0,
            "seed": seed,
        }
        Path(folder, "page").write_bytes(bytes(setup.hosts * SLOTS * 8))
        Path(folder, "job.json").write_text(json.dumps(job))
        program = [sys.executable, str(HERE / "across" / "late_worker.py"), str(Path(folder, "job.json"))]
        environment = {"OMP_NUM_THREADS": "1", "PYCOLL_PROFILE": "none"}
        processes = [
            lab.popen(host, program, {**environment, "RANK": str(host)}, stderr=subprocess.STDOUT)
            for host in range(setup.hosts)
        ]
        for process in processes:
            process.wait(400)
        ranks: list[list[dict[str, Any]]] = [
            json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(setup.hosts)
        ]
    times: dict[tuple[float, str], list[float]] = defaultdict(list)
    for rows in zip(*ranks, strict=True):
        after = max(row["ended"] for row in rows) - max(row["came"] for row in rows)
        times[seconds[rows[0]["lateness"]], rows[0]["engine"]].append(after / setup.unit)
    return Result(setup, dict(times))


def show(result: Result) -> None:
    table = Table(*HEADING)
    for row in result.rows():
        table.add_row(*row)
    console.print(table)
    for said, met in result.verdicts():
        console.print(
            f"[{'green' if met else 'red'}]{'met' if met else 'MISSED'}: {said}[/]", highlight=False
        )


def markdown(results: list[Result], iterations: int) -> str:
    day = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        BEGIN,
        "## AllReduce with late ranks",
        "",
        f"`python benchmarks/late_ranks.py`, {day}, pycoll {pycoll_version()}, {os.cpu_count()} processors "
        f"for all hosts together; medians of {iterations}. Times from the last arrival to the slowest rank's "
        "end, in S*beta; who is late is drawn anew for each call. The pre-phase is the early ranks' "
        "reduce-scatter.",
        "",
        "| " + " | ".join(HEADING) + " |",
        "|" + "---|" * len(HEADING),
    ]
    lines += ["| " + " | ".join(row) + " |" for result in results for row in result.rows()]
    verdicts = [verdict for result in results for verdict in result.verdicts()]
    lines += ["", *(f"- {'met' if met else '**missed**'}: {said}" for said, met in verdicts)]
    return "\n".join([*lines, END, ""])


def main(
    only: Annotated[str | None, typer.Option(help="Names of setups, separated by commas.")] = None,
    iterations: Annotated[int, typer.Option(help="Calls of each library and lateness.")] = 7,
    results: Annotated[Path | None, typer.Option(help="Write the section here; default RESULTS.md.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of who is late, and of the order of turns.")] = None,
) -> None:
    """Measure AllReduce with late ranks over several hosts."""
    names = [setup.name for setup in SETUPS]
    chosen = [name.strip() for name in only.split(",")] if only else names
    if unknown := set(chosen) - set(names):
        raise typer.BadParameter(f"no setup {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if reason := netlab.unavailable():
        raise typer.BadParameter(f"there can be no hosts here: {reason}")
    drawn = seed if seed is not None else random.randrange(1 << 30)
    measured = []
    for setup in SETUPS:
        if setup.name in chosen:
            measured.append(measure(setup, iterations, drawn))
            show(measured[-1])
    if results or not only:
        write_section(results or HERE / "RESULTS.md", markdown(measured, iterations), BEGIN, END)


if __name__ == "__main__":
    typer.run(main)
