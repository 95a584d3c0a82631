"""Train a small transformer, character by character, in the ways that torch has to use several processes.

    torchrun --nproc-per-node 2 examples/transformer/train.py --parallel ddp --backend pycoll
    torchrun --nproc-per-node 2 examples/transformer/train.py --parallel fsdp2 --compare
    torchrun --nproc-per-node 2 examples/transformer/train.py --parallel all --compare --dtype float64
    python examples/transformer/train.py

The text is Python's own reference, which comes with Python: nothing is downloaded. `--compare` trains over
pycoll and over gloo, step by step in turn, and by one process alone. It says how long steps take, and fails
where a loss is further from the lone process's than rounding explains.
"""

import argparse
import os
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from communication import Recorded
from model import Config
from parallel import DataParallel, FullyShardedDataParallel, Group, Pipeline, Single, TensorParallel
from text import Batch, Text

Training = Single | Pipeline
WAYS: dict[str, Callable[[Config, Group], Training]] = {
    "ddp": DataParallel,
    "ddp-hook": partial(DataParallel, hook=True),
    "fsdp2": FullyShardedDataParallel,
    "tp": TensorParallel,
    "pp": Pipeline,
    "pp-interleaved": partial(Pipeline, interleaved=True),
}

# How far, relatively, a loss may be from that of one process, in the first tens of steps. Sums in another
# order differ in their last bits; Adam, which divides a gradient by its size, lets that grow step by step.
TOLERANCE = {"float32": 1e-3, "float64": 1e-9}


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)  # a rank a core
    torch.set_default_dtype(getattr(torch, arguments.dtype))
    text = Text()
    config = Config(
        len(text.alphabet), arguments.width, arguments.heads, arguments.layers, 3 * arguments.width
    )
    batches = [text.batch(step, arguments.batch, arguments.length) for step in range(arguments.steps)]
    if arguments.parallel == "none":
        alone = Run("one process", Single(config))
        alone.train_on(batches)
        print(alone.report())
        return

    dist.init_process_group("pycoll" if arguments.compare else arguments.backend)
    check_ranks(arguments)
    speaks = dist.get_rank() == 0
    losses_alone = None
    if arguments.compare:
        losses_alone = torch.empty(arguments.steps)
        if speaks:
            alone = Run("one process", Single(config))
            alone.train_on(batches)
            losses_alone = alone.losses
            size = f"{arguments.steps} steps of {arguments.batch} x {arguments.length} characters"
            print(f"{size}, {arguments.dtype}\n{alone.report()}", flush=True)
        dist.broadcast(losses_alone, 0)

    for trainings in plan(arguments):
        runs = [
            Run(f"{way} over {backend}", WAYS[way](config, dist.new_group(backend=backend)))
            for way, backend in trainings
        ]
        train_in_turn(runs, batches)
        for run in runs:
            run.measure_communication(batches[-1])
            if speaks:
                print(run.report(losses_alone), flush=True)
            if losses_alone is not None:
                run.check(losses_alone, TOLERANCE[arguments.dtype])
    dist.destroy_process_group()


def plan(arguments: argparse.Namespace) -> list[list[tuple[str, str]]]:
    """Ways and backends; those of an inner list are trained in turn, step by step."""
    if not arguments.compare:
        return [[(arguments.parallel, arguments.backend)]]
    plans = {way: [(way, "pycoll"), (way, "gloo")] for way in WAYS}
    plans["ddp-hook"] = [("ddp", "pycoll"), ("ddp-hook", "pycoll"), ("ddp", "gloo")]
    if arguments.parallel == "all":
        return [runs for way, runs in plans.items() if way != "ddp"]  # it goes with ddp-hook
    return [plans[arguments.parallel]]


def train_in_turn(runs: list["Run"], batches: list[Batch]) -> None:
    for step, batch in enumerate(batches):
        for run in runs if step % 2 == 0 else runs[::-1]:  # neither always first
            dist.barrier()
            run.train_on([batch])
    for run in runs:
        run.collect()


class Run:
    """A training with its clock."""

    WARM_UP = 2  # steps that count for no time
    REPEATS = 15

    def __init__(self, name: str, training: Training) -> None:
        self.name = name
        self.training = training
        self.losses = torch.empty(0)  # of all steps so far
        self.seconds = torch.empty(0, dtype=torch.float64)
        self.communication: float | None = None  # seconds a step

    def train_on(self, batches: list[Batch]) -> None:
        for inputs, targets in batches:
            start = time.perf_counter()
            loss = self.training.step(inputs, targets)
            seconds = time.perf_counter() - start
            self.losses = torch.cat([self.losses, loss.view(1)])
            self.seconds = torch.cat([self.seconds, self.seconds.new_tensor([seconds])])

    def collect(self) -> None:
        """Losses of whole batches, and of each step the time of the slowest rank, on all ranks."""
        self.losses = self.training.losses(self.losses)
        dist.all_reduce(self.seconds, dist.ReduceOp.MAX)

    def measure_communication(self, batch: Batch) -> None:
        with Recorded() as recorded:
            self.training.step(*batch)
        seconds = torch.empty(self.REPEATS, dtype=torch.float64)
        for repeat in range(self.REPEATS):
            dist.barrier()
            start = time.perf_counter()
            recorded.again()
            seconds[repeat] = time.perf_counter() - start
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        self.communication = seconds.median().item()

    def report(self, losses_alone: torch.Tensor | None = None) -> str:
        steps = len(self.losses)
        shown = sorted({0, *(steps * i // 4 - 1 for i in range(1, 5) if steps * i // 4 > 0)})
        curve = " ".join(f"{self.losses[i].item():.4f}" for i in shown)
        step_ms = 1000 * self.seconds[min(self.WARM_UP, steps - 1) :].median().item()
        text = f"{self.name:26} loss {curve}   {step_ms:7.1f} ms a step"
        if self.communication is not None:
            text += f", {1000 * self.communication:6.2f} ms of it communication"
        if losses_alone is not None:
            text += f", losses within {self.difference(losses_alone):.0e}"
        return text

    def difference(self, losses_alone: torch.Tensor) -> float:
        return ((self.losses - losses_alone).abs() / losses_alone).max().item()

    def check(self, losses_alone: torch.Tensor, tolerance: float) -> None:
        difference = self.difference(losses_alone)
        if not difference <= tolerance:
            raise SystemExit(
                f"{self.name}: losses differ from those of one process by {difference:.1e} relatively, "
                f"more than the {tolerance:.0e} that rounding explains"
            )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parallel", choices=["none", *WAYS, "all"], default="none")
    parser.add_argument("--backend", choices=["pycoll", "gloo"], default="pycoll")
    parser.add_argument("--compare", action="store_true", help="pycoll, gloo and one process")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8, help="sequences a step, over all ranks")
    parser.add_argument("--length", type=int, default=64, help="characters a sequence")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--dtype", choices=[*TOLERANCE], default="float32")
    arguments = parser.parse_args()
    for name in ["steps", "batch", "length", "layers", "width", "heads"]:
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if arguments.width % (2 * arguments.heads):
        parser.error(
            "--width must be a multiple of twice --heads: rotary positions turn pairs of a head's numbers"
        )
    if arguments.parallel == "none" and arguments.compare:
        parser.error("--compare needs a way to be parallel: --parallel " + "|".join([*WAYS, "all"]))
    if arguments.parallel == "ddp-hook" and arguments.backend == "gloo":
        parser.error("ddp-hook is pycoll's; with --backend gloo take --parallel ddp")
    if arguments.parallel == "all" and not arguments.compare:
        parser.error("--parallel all goes with --compare")
    if arguments.parallel != "none" and "RANK" not in os.environ:
        parser.error("start it with torchrun: torchrun --nproc-per-node 2 examples/transformer/train.py ...")
    return arguments


def check_ranks(arguments: argparse.Namespace) -> None:
    """Raise SystemExit, on all ranks, where the work does not divide among them."""
    ranks, way = dist.get_world_size(), arguments.parallel
    stages = ranks * (2 if way in ("pp-interleaved", "all") else 1)
    for name, needed, ways in [
        ("batch", ranks, ("ddp", "ddp-hook", "fsdp2", "all")),
        ("heads", ranks, ("tp", "all")),
        ("length", ranks, ("tp", "all")),
        ("batch", Pipeline.MICROBATCHES, ("pp", "pp-interleaved", "all")),
        ("layers", stages, ("pp", "pp-interleaved", "all")),
    ]:
        if way in ways and getattr(arguments, name) % needed:
            raise SystemExit(
                f"--parallel {way} on {ranks} ranks needs --{name} to be a multiple of {needed}, "
                f"not {getattr(arguments, name)}"
            )


if __name__ == "__main__":
    main()
