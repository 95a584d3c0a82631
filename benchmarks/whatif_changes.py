"""Ten changes to a small network: predicted by `pycoll whatif` before they are made, then made and measured.

    sudo python benchmarks/whatif_changes.py                  # 8 hosts in two racks; writes nothing
    sudo python benchmarks/whatif_changes.py --hosts 4 --rate 200mbit -o whatif_changes.md

The hosts are network namespaces of this machine, joined by shaped links (tests/multihost/netlab.py), so it
takes root and iproute2, and an otherwise idle machine. First the unchanged network is measured at two sizes,
which gives the two figures of its links that a topology file needs; with these every change is predicted.
Then each change is made and the same schedule is run. The table says both, and the error of the prediction.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.console import Console
from rich.table import Table

from pycoll import Topology, whatif
from pycoll.bench.units import format_seconds, format_size, parse_size
from pycoll.selection.candidates import schedule_of
from pycoll.whatif.evaluate import Evaluator
from pycoll.whatif.scenario import Scenario

_LAB = Path(__file__).resolve().parents[1] / "tests" / "multihost" / "netlab.py"
_TCP = 1448 / 1514  # payload of an Ethernet frame, which is what a rate is counted in
_PORT = 29650


# ---- what is done


@dataclass(frozen=True)
class Case:
    """A change on paper (of a lab of so many hosts), how it is made in the lab, and what runs then."""

    name: str
    changes: tuple[whatif.Change, ...]
    make: Callable[[Any], None] = lambda lab: None
    way: str = "ring"
    without: tuple[int, ...] = ()  # hosts that have failed
    late: dict[int, float] = field(default_factory=dict)
    order: tuple[int, ...] = ()  # rank -> host
    jobs: int = 1


def cases(hosts: int, rate: int, delay: float) -> list[Case]:
    """``rate`` bit/s of every link, ``delay`` seconds that a late rank comes late."""
    half = hosts // 2
    dealt = tuple(host for pair in zip(range(half), range(half, hosts), strict=True) for host in pair)
    spine, every = "tor0-tor1", "*"

    def host(number: int, factor: float) -> Callable[[Any], None]:
        return lambda lab: lab.set_rate(number, int(rate * factor))

    def spine_at(factor: float) -> Callable[[Any], None]:
        return lambda lab: lab.set_spine_rate(int(rate * factor))

    def all_at(factor: float) -> Callable[[Any], None]:
        def make(lab: Any) -> None:
            for number in range(hosts):
                lab.set_rate(number, int(rate * factor))
            lab.set_spine_rate(int(rate * factor))

        return make

    slow, fail, place = whatif.Slow, whatif.Fail, whatif.Place
    last = hosts - 1
    return [
        Case("a host at half its rate", (slow("h1-*", 0.5),), host(1, 0.5)),
        Case("a host at a quarter, trees", (slow("h1-*", 0.25),), host(1, 0.25), "double_binary_tree/16"),
        Case("the spine at half its rate", (slow(spine, 0.5),), spine_at(0.5)),
        Case(
            "the spine at a quarter, halving",
            (slow(spine, 0.25),),
            spine_at(0.25),
            "recursive_halving_doubling",
        ),
        Case("everything at half its rate", (slow(every, 0.5),), all_at(0.5)),
        Case("a host fails", (fail(f"node:h{last}"),), without=(last,)),
        Case("a host fails in either rack", (fail("node:h0"), fail(f"node:h{last}")), without=(0, last)),
        Case("a rank is late", (whatif.Late(f"h{half}", delay),), late={half: delay}),
        Case("ranks dealt over the racks", (place(order=dealt),), order=dealt),
        Case("two jobs at once", (whatif.Busy(every, 0.5),), jobs=2),
    ]


def machine(hosts: int, bandwidth: float, latency: float) -> Topology:
    """Two racks; ``bandwidth`` (bytes/s) of every link, ``latency`` (s) from rank to rank in a rack."""
    half = hosts // 2
    return Topology.from_yaml(
        f"""
pycoll: 1
name: lab of {hosts} hosts
nodes:
  - {{name: "h[0-{hosts - 1}]", kind: device}}
  - {{name: "tor[0-1]", kind: switch}}
links:
  - {{between: ["h[0-{half - 1}]", tor0], bandwidth: {bandwidth!r} B/s, latency: {latency / 2!r} s}}
  - {{between: ["h[{half}-{hosts - 1}]", tor1], bandwidth: {bandwidth!r} B/s, latency: {latency / 2!r} s}}
  - {{between: [tor0, tor1], bandwidth: {bandwidth!r} B/s, latency: 0 s}}
ranks: ["h[0-{hosts - 1}]"]
"""
    )


def predicted(topology: Topology, case: Case, size: int) -> float:
    """Seconds of the schedule that is run: built for so many ranks, for no machine."""
    after = whatif.apply(Scenario(topology), case.changes)
    schedule = schedule_of(case.way, "allreduce", len(after.topology.ranks))
    return Evaluator(after).run(schedule, "allreduce", size).seconds


# ---- how it is measured


def measured(lab: Any, case: Case, size: int, rounds: int) -> list[float]:
    """Seconds of each round, from the first rank's call to the last one's return; of several jobs the
    first's."""
    order = [host for host in case.order or range(lab.hosts) if host not in case.without]
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for job in range(case.jobs):
            for rank, host in enumerate(order):
                task = {
                    "way": case.way,
                    "bytes": size,
                    "rounds": rounds,
                    "late": case.late.get(host, 0.0),
                    "output": f"{folder}/{job}-{rank}.json",
                }
                environment = {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(len(order)),
                    "LOCAL_RANK": "0",
                    "LOCAL_WORLD_SIZE": "1",
                    "MASTER_ADDR": lab.ip(order[0]),
                    "MASTER_PORT": str(_PORT + job),
                    "OMP_NUM_THREADS": "1",
                }
                command = [sys.executable, str(Path(__file__).resolve()), "rank", json.dumps(task)]
                processes.append(lab.popen(host, command, environment, stderr=subprocess.PIPE, text=True))
        deadline = time.monotonic() + 300
        for process in processes:
            _, errors = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
            if process.returncode:
                raise RuntimeError(f"{case.name}: a rank failed:\n{errors}")
        spans = [json.loads(Path(f"{folder}/0-{rank}.json").read_text()) for rank in range(len(order))]
    return [
        max(rank[number][1] for rank in spans) - min(rank[number][0] for rank in spans)
        for number in range(1, rounds)  # the first one warms up
    ]


def run_rank(task: dict[str, Any]) -> None:
    """One rank: rounds of the collective, the moments at which each began and ended."""
    import numpy as np

    import pycoll

    spans = []
    with pycoll.init(timeout=120) as comm:
        schedule = schedule_of(task["way"], "allreduce", comm.ranks)
        values = np.zeros(task["bytes"] // 4, dtype=np.float32)
        for _ in range(task["rounds"]):
            values[:] = comm.rank
            comm.barrier()
            begin = time.monotonic()  # one clock: the hosts are one machine
            if task["late"]:
                time.sleep(task["late"])
            comm.allreduce(values, algorithm=schedule)
            spans.append((begin, time.monotonic()))
            if values[-1] != comm.ranks * (comm.ranks - 1) / 2:
                raise SystemExit(f"wrong sum: {values[-1]}")
        comm.barrier()
    Path(task["output"]).write_text(json.dumps(spans))


def calibrated(lab: Any, hosts: int, size: int, rounds: int) -> Topology:
    """The unchanged network, from a ring of two sizes: T = 2(n-1) (latency + size/n/bandwidth)."""
    base = Case("unchanged", ())
    small = size // 8
    few, many = (statistics.median(measured(lab, base, each, rounds)) for each in (small, size))
    steps = 2 * (hosts - 1)
    bandwidth = steps / hosts * (size - small) / (many - few)
    latency = max(1e-6, few / steps - small / hosts / bandwidth)
    return machine(hosts, bandwidth, latency)


# ---- the command

app = typer.Typer(add_completion=False)


@app.command("rank", hidden=True)
def rank(task: str) -> None:
    run_rank(json.loads(task))


@app.command("table")
def table(
    hosts: Annotated[int, typer.Option(help="Of the network, in two racks.")] = 8,
    rate: Annotated[str, typer.Option(help="Of every link: 100mbit.")] = "100mbit",
    size: Annotated[str, typer.Option(help="Of the AllReduce.")] = "8MiB",
    rounds: Annotated[int, typer.Option(min=3, help="Of each measurement; the first warms up.")] = 7,
    only: Annotated[str, typer.Option(help="The changes whose names contain this: spine.")] = "",
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--output", "-o", help="Write the table here, as Markdown."),
    ] = None,
) -> None:
    """Predict, change, measure; print the table."""
    spec = importlib.util.spec_from_file_location("netlab", _LAB)
    assert spec is not None
    assert spec.loader is not None
    netlab = importlib.util.module_from_spec(spec)
    sys.modules["netlab"] = netlab
    spec.loader.exec_module(netlab)
    if not any(only in case.name for case in cases(hosts, 1, 0.0)):
        raise SystemExit(f"no change has {only!r} in its name")
    reason = netlab.unavailable()
    if reason:
        raise SystemExit(f"no network can be made here: {reason}")
    bits = netlab.parse_rate(rate)
    bytes_ = parse_size(size)
    delay = 0.5 * bytes_ / (bits / 8 * _TCP)
    rows = []
    with netlab.Lab(hosts=hosts, rate=bits, racks=2, spine_rate=bits, name=f"wi{os.getpid()}") as lab:
        topology = calibrated(lab, hosts, bytes_, rounds)
        made = [case for case in cases(hosts, bits, delay) if only in case.name]
        before = [(case, predicted(topology, case, bytes_)) for case in made]  # before any of them is made
        for case, expected in before:
            case.make(lab)
            found = statistics.median(measured(lab, case, bytes_, rounds))
            for host in range(hosts):
                lab.set_rate(host, bits)
            lab.set_spine_rate(bits)
            rows.append((case.name, case.way, expected, found, expected / found - 1))
            typer.echo(
                f"{case.name}: predicted {format_seconds(expected)}, measured {format_seconds(found)}, "
                f"{expected / found - 1:+.1%}",
                err=True,
            )
    link = topology.links[0]
    errors = sorted(abs(row[-1]) for row in rows)
    summary = (
        f"AllReduce of {format_size(bytes_)} on {hosts} hosts in two racks, links of {rate}: as measured, "
        f"{link.bandwidth / 1e6:.2f} MB/s and {format_seconds(2 * link.latency)} a message. Error of the "
        f"prediction: median {statistics.median(errors):.1%}, worst {errors[-1]:.1%}."
    )
    shown = Table(title=summary, title_justify="left")
    for name in ("change", "algorithm", "predicted", "measured", "error"):
        shown.add_column(name, justify="left" if name in ("change", "algorithm") else "right")
    lines = ["| change | algorithm | predicted | measured | error |", "|---|---|--:|--:|--:|"]
    for name, way, expected, found, error in rows:
        cells = [name, way, format_seconds(expected), format_seconds(found), f"{error:+.1%}"]
        shown.add_row(*cells)
        lines.append(f"| {' | '.join(cells)} |")
    Console(width=120).print(shown)
    if output is not None:
        output.write_text("\n".join([summary, "", *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    # Without a command the table is meant.
    if len(sys.argv) < 2 or sys.argv[1] not in ("rank", "table", "--help"):
        sys.argv.insert(1, "table")
    app()
