"""A training step on a changed link: predicted by `pycoll whatif` from a trace, then made and measured.

    sudo python benchmarks/whatif_iteration.py                # about three minutes; writes nothing
    sudo python benchmarks/whatif_iteration.py --factors 2,0.5,0.2 --keep traces --json

Two ranks train the transformer of examples/transformer under DistributedDataParallel over pycoll, each on a
host of its own: network namespaces of this machine, joined by shaped links (tests/multihost/netlab.py). So it
takes root, iproute2 and an otherwise idle machine. Allreduces of two sizes give the two figures of the link
that a topology file needs. Then, in every round: a few steps at the unchanged rate are traced by
torch.profiler, which is all that the predictions have; the steps on each changed link are predicted; and each
change is made and measured, in random order, without the profiler. Shown are medians over rounds.

A profiler's own time is in what it traces, and so in the predictions: about the same for each operation,
however small. The model is so wide that little of a step is of that.
"""

from __future__ import annotations

import json
import os
import queue
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.console import Console
from rich.table import Table

from pycoll import Topology, whatif
from pycoll.bench.units import format_seconds, format_size
from pycoll.whatif.kineto import Trace, read_traces

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "multihost"))
import netlab  # noqa: E402

HOSTS = 2
PORT = 29660
PATIENCE = 120.0  # seconds for any one thing that the ranks are asked to do


# ---- the job


@dataclass(frozen=True)
class Model:
    """The example's transformer, and its batch over both ranks."""

    width: int = 512
    layers: int = 4
    batch: int = 8
    length: int = 64


class Job:
    """The two ranks, which train as many steps as they are asked to."""

    def __init__(self, lab: netlab.Lab, model: Model) -> None:
        self._lab = lab
        command = [sys.executable, str(Path(__file__).resolve()), "rank", json.dumps(asdict(model))]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._ranks = [lab.popen(rank, command, environment(lab, rank), **pipes) for rank in range(HOSTS)]
        self._answers: list[queue.Queue[str]] = [queue.Queue() for _ in self._ranks]
        for process, answers in zip(self._ranks, self._answers, strict=True):
            threading.Thread(target=_read, args=(process.stdout, answers), daemon=True).start()
        self.ask(steps=3)  # DDP makes its buckets anew after the first

    def ask(self, **what: Any) -> list[list[float]]:
        """Each rank's answer: the moments (s, one clock) at which it began and then had done each step."""
        for process in self._ranks:
            process.stdin.write(json.dumps(what) + "\n")
            process.stdin.flush()
        found = []
        for rank, answers in enumerate(self._answers):
            try:
                line = answers.get(timeout=PATIENCE)
            except queue.Empty:
                raise SystemExit(f"rank {rank} did not answer {what} within {PATIENCE:.0f} s") from None
            if not line:
                raise SystemExit(f"rank {rank} ended when it was asked for {what}; its error is above")
            found.append(json.loads(line))
        return found

    def measured(self, steps: int) -> list[float]:
        """Seconds of each step, from the slower rank's end to its next; the first two get used to the
        link."""
        ends = [max(moments) for moments in zip(*self.ask(steps=steps + 2), strict=True)]
        return [after - before for before, after in pairwise(ends[2:])]

    def summed(self, size: int) -> list[float]:
        """Seconds of each allreduce of that many bytes, to the slower rank's end; the first warms up."""
        ends = [max(moments) for moments in zip(*self.ask(steps=8, bytes=size), strict=True)]
        return [after - before for before, after in pairwise(ends[1:])]

    def traced(self, steps: int, folder: Path) -> Trace:
        """The step, from torch.profiler's traces of both ranks."""
        self.ask(steps=steps + 2, trace=str(folder))
        return read_traces([folder / f"trace{rank}.json" for rank in range(HOSTS)])

    def end(self) -> None:
        """The ranks leave."""
        for process in self._ranks:
            process.stdin.close()
        for process in self._ranks:
            process.wait(30)


def _read(lines: Iterable[str], answers: queue.Queue[str]) -> None:
    for line in lines:
        answers.put(line)
    answers.put("")


def environment(lab: netlab.Lab, rank: int) -> dict[str, str]:
    """Of a rank that is alone on its host; without a profile, whose figures are of another machine."""
    return lab.env(rank, port=PORT) | {"OMP_NUM_THREADS": "1", "PYCOLL_PROFILE": "none"}


def run_rank(model: Model) -> None:
    """A rank: trains and answers until its input ends. The training is the example's own."""
    sys.path.insert(0, str(HERE.parent / "examples" / "transformer"))
    import torch
    import torch.distributed as dist
    from model import Config
    from parallel import DataParallel
    from text import Text

    torch.set_num_threads(1)
    dist.init_process_group("pycoll")
    text = Text()
    config = Config(len(text.alphabet), model.width, 8, model.layers, 3 * model.width)
    training = DataParallel(config, dist.group.WORLD)
    batches = [text.batch(number, model.batch, model.length) for number in range(8)]

    def train(step: int) -> None:
        training.step(*batches[step % len(batches)])

    def timed(work: Callable[[int], None], steps: int) -> list[float]:
        dist.barrier()
        moments = [time.monotonic()]
        for step in range(steps):
            work(step)
            moments.append(time.monotonic())
        return moments

    def add(size: int) -> Callable[[int], None]:
        values = torch.zeros(size // 4)
        return lambda _: dist.all_reduce(values)

    for line in sys.stdin:
        task = json.loads(line)
        if "bytes" in task:
            moments = timed(add(task["bytes"]), task["steps"])
        elif "trace" in task:
            with torch.profiler.profile(record_shapes=True) as profiler:
                moments = timed(train, task["steps"])
            profiler.export_chrome_trace(f"{task['trace']}/trace{dist.get_rank()}.json")
        else:
            moments = timed(train, task["steps"])
        print(json.dumps(moments), flush=True)
    dist.destroy_process_group()


# ---- what is done


def calibrated(job: Job) -> Topology:
    """The link, from allreduces of two sizes: of two ranks each takes T = 2 (latency + size/2/bandwidth)."""
    small, large = 1 << 20, 8 << 20
    few, many = (statistics.median(job.summed(size)) for size in (small, large))
    bandwidth = (large - small) / (many - few)
    return Topology.flat(HOSTS, bandwidth, overhead=max(1e-6, few / 2 - small / 2 / bandwidth))


@contextmanager
def link_at(lab: netlab.Lab, rate: int) -> Iterator[None]:
    """Both hosts' links at another rate."""
    before = lab.rate
    for host in range(HOSTS):
        lab.set_rate(host, rate)
    try:
        yield
    finally:
        for host in range(HOSTS):
            lab.set_rate(host, before)


@dataclass(frozen=True)
class Round:
    """Seconds of a step by the factor of the link's rate."""

    traced: float  # with the profiler
    predicted: dict[float, float]
    measured: dict[float, float]


def one_round(
    lab: netlab.Lab, job: Job, topology: Topology, factors: Sequence[float], steps: int, folder: Path
) -> tuple[Round, Trace]:
    trace = job.traced(steps, folder)
    predicted = {
        factor: whatif.iterate(
            topology, trace.workload, [] if factor == 1 else [whatif.Slow("*", factor)]
        ).time
        for factor in factors
    }
    measured = {}
    for factor in random.sample(factors, len(factors)):
        with link_at(lab, int(lab.rate * factor)):
            measured[factor] = statistics.median(job.measured(steps))
    return Round(trace.measured, predicted, measured), trace


def summary(rounds: Sequence[Round], factors: Sequence[float]) -> list[dict[str, float]]:
    """A row a factor: medians over rounds, and the error of the prediction."""
    rows = []
    for factor in factors:
        predicted, measured = (
            statistics.median(getattr(each, name)[factor] for each in rounds)
            for name in ("predicted", "measured")
        )
        rows.append(
            {
                "link": factor,
                "predicted_s": predicted,
                "measured_s": measured,
                "error": predicted / measured - 1,
                "worst_error": max(
                    (each.predicted[factor] / each.measured[factor] - 1 for each in rounds), key=abs
                ),
            }
        )
    return rows


# ---- the command

app = typer.Typer(add_completion=False)


@app.command("rank", hidden=True)
def rank(model: str) -> None:
    run_rank(Model(**json.loads(model)))


@app.command("table")
def table(
    rate: Annotated[str, typer.Option(help="Of the link between the hosts: 1gbit.")] = "1gbit",
    factors: Annotated[str, typer.Option(help="What the link's rate is changed by.")] = "0.5,0.2",
    rounds: Annotated[int, typer.Option(min=1, help="Of trace, prediction and measurement.")] = 3,
    steps: Annotated[int, typer.Option(min=3, help="In each trace and measurement.")] = 5,
    width: Annotated[int, typer.Option(help="Of the transformer: a multiple of 16.")] = Model.width,
    layers: Annotated[int, typer.Option(help="Of the transformer.")] = Model.layers,
    batch: Annotated[int, typer.Option(help="Sequences a step, over both ranks.")] = Model.batch,
    length: Annotated[int, typer.Option(help="Characters a sequence.")] = Model.length,
    keep: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Keep the topology and the last round's traces in this folder."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: every round.")] = False,
) -> None:
    """Trace, predict, change, measure; print the table."""
    if reason := netlab.unavailable():
        raise SystemExit(f"no network can be made here: {reason}")
    every = [1.0, *(float(each) for each in factors.split(","))]
    model = Model(width, layers, batch, length)
    done = []
    with (
        tempfile.TemporaryDirectory() as scratch,
        netlab.Lab(hosts=HOSTS, rate=rate, name=f"it{os.getpid()}") as lab,
    ):
        folder = Path(scratch) if keep is None else keep
        folder.mkdir(parents=True, exist_ok=True)
        job = Job(lab, model)
        topology = calibrated(job)
        (folder / "lab.yaml").write_text(topology.to_yaml(), encoding="utf-8")
        for number in range(rounds):
            found, trace = one_round(lab, job, topology, every, steps, folder)
            done.append(found)
            said = ", ".join(
                f"x{factor:g} {format_seconds(found.predicted[factor])} / "
                f"{format_seconds(found.measured[factor])}"
                for factor in every
            )
            typer.echo(f"round {number + 1}, predicted / measured: {said}", err=True)
        job.end()
    rows = summary(done, every)
    if as_json:
        document = {
            "rate": rate,
            "model": asdict(model),
            "topology": topology.to_yaml(),
            "bytes": trace.workload.bytes,
            "traced_s": statistics.median(each.traced for each in done),
            "rows": rows,
            "rounds": [asdict(each) for each in done],
        }
        typer.echo(json.dumps(document, indent=1))
        return
    shown = Table(
        title=f"Step of a transformer with {format_size(trace.workload.bytes)} of gradients in "
        f"{sum(1 for layer in trace.workload.layers if layer.bytes)} buckets, 2 hosts, a link of {rate}; "
        f"in the traces it takes {format_seconds(statistics.median(each.traced for each in done))}",
        title_justify="left",
    )
    for name in ("link", "predicted", "measured", "error", "worst round"):
        shown.add_column(name, justify="left" if name == "link" else "right")
    for row in rows:
        shown.add_row(
            "as traced" if row["link"] == 1 else f"x {row['link']:g}",
            format_seconds(row["predicted_s"]),
            format_seconds(row["measured_s"]),
            f"{row['error']:+.1%}",
            f"{row['worst_error']:+.1%}",
        )
    Console(width=100).print(shown)


if __name__ == "__main__":
    # Without a command the table is meant.
    if len(sys.argv) < 2 or sys.argv[1] not in ("rank", "table", "--help"):
        sys.argv.insert(1, "table")
    app()
