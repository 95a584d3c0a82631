"""A training step out of torch.profiler's traces: when each bucket was ready, and what was computed
meanwhile.

    with torch.profiler.profile(record_shapes=True) as profiler: ...  # a few steps under DDP, every rank
    profiler.export_chrome_trace(f"trace{rank}.json")
    trace = read_traces(["trace0.json", "trace1.json"]); iterate(machine, trace.workload)
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike, fspath
from statistics import median
from typing import Any

from pycoll.errors import InvalidArgument, Unsupported
from pycoll.whatif.kineto_gpu import Step, gpu_steps
from pycoll.whatif.workload import NO_EXECUTION_TRACES, Layer, Workload

__all__ = ["Trace", "read_traces"]

_ELEMENT = {"float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "int": 4, "long int": 8}


@dataclass(frozen=True)
class Trace:
    """A step of a job: what it computes and sends, and the seconds (median) that it really took."""

    workload: Workload
    measured: float
    steps: int
    ranks: int


def read_traces(paths: Sequence[str | PathLike[str]]) -> Trace:
    """The step that the traces of one or several ranks of a job show: a bucket goes when the last rank has
    it. The traces of several ranks are of the same steps.

    Steps are told by DistributedDataParallel's forward, buckets by the allreduce calls that follow it; on
    GPUs steps by the profiler's step(), buckets by NCCL's kernels. The first step, after which DDP makes its
    buckets anew, and steps with other buckets than the last are left out. Raises InvalidArgument for what is
    no such trace, Unsupported for one with other collectives and for execution traces.
    """
    if not paths:
        raise InvalidArgument("give the trace of one rank or more")
    ranks = [_steps(fspath(path)) for path in paths]
    sizes = ranks[0][-1].sizes
    for path, steps in zip(paths, ranks, strict=True):
        if steps[-1].sizes != sizes:
            raise InvalidArgument(f"{fspath(path)}: its buckets are not those of {fspath(paths[0])}")
    least = min(len(steps) for steps in ranks)
    together = [
        across
        for across in zip(*(steps[-least:] for steps in ranks), strict=True)
        if all(step.sizes == sizes for step in across)
    ]
    each = [step for across in together for step in across]
    forward, rest = (median(getattr(step, name) for step in each) for name in ("forward", "rest"))
    # Ranks have the last sum together, and then each its own way to the next bucket: who is last with the
    # whole way counts, not who is last with each part of it.
    ready = [
        median(max(step.rest + step.forward + step.ready[index] for step in across) for across in together)
        - (rest + forward)
        for index in range(len(sizes))
    ]
    backward = median(
        max(step.rest + step.forward + step.backward for step in across) for across in together
    ) - (rest + forward)
    layers = []
    before = 0.0
    for number, (at, size) in enumerate(zip(ready, sizes, strict=True)):
        layers.append(Layer(f"bucket{number}", 0.0, max(0.0, at - before), (size,)))
        before = max(before, at)
    layers.append(Layer("the rest", forward, max(0.0, backward - before), ()))
    # A tensor a bucket, each closing at once: they are DDP's own already.
    workload = Workload("trace", tuple(reversed(layers)), bucket=1, first_bucket=1, step=rest)
    return Trace(workload, median(step.period for step in each), len(together), len(ranks))


def _steps(path: str) -> list[Step]:
    events = _events(path)
    if any(event.get("cat") == "kernel" for event in events):
        return gpu_steps(path, events)
    forwards = [event for event in events if event["name"] == "DistributedDataParallel.forward"]
    if len(forwards) < 3:
        raise InvalidArgument(
            f"{path}: {len(forwards)} forward passes of DistributedDataParallel; trace three steps or more"
        )
    elements = {
        _count(event): _ELEMENT.get(str(event["args"].get("Input type", [""])[0]), 4)
        for event in events
        if event["name"].endswith(":all_reduce") and event.get("args", {}).get("Input Dims")
    }
    steps = []
    for here, following in list(pairwise(forwards))[1:]:
        end, until = here["ts"] + here["dur"], following["ts"]
        inside = [event for event in events if end <= event["ts"] < until]
        sent = [event for event in inside if event["name"] == "c10d::allreduce_"]
        over = [
            event["ts"] + event["dur"]
            for event in inside
            if event["name"].startswith("autograd::engine::evaluate_function")
        ]
        if not sent or not over:
            raise InvalidArgument(
                f"{path}: a step without a backward pass or allreduce (record_shapes=True?)"
            )
        arrived = [event["ts"] + event["dur"] for event in inside if event["name"].endswith(":all_reduce")]
        quiet = min(until, max([*over, *arrived]))
        counts = [_count(event) for event in sent]
        steps.append(
            Step(
                here["dur"] / 1e6,
                tuple((event["ts"] - end) / 1e6 for event in sent),
                tuple(count * elements.get(count, 4) for count in counts),
                (max(over) - end) / 1e6,
                (until - quiet) / 1e6,
                (until - here["ts"]) / 1e6,
            )
        )
    return steps


def _events(path: str) -> list[dict[str, Any]]:
    try:
        with gzip.open(path, "rt") if path.endswith(".gz") else open(path, encoding="utf-8") as file:
            document = json.load(file)
        if isinstance(document, dict) and "nodes" in document and "traceEvents" not in document:
            raise Unsupported(f"{path}: {NO_EXECUTION_TRACES}")
        found = document["traceEvents"]
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(f"{path} is no trace of torch.profiler: {error}") from error
    return sorted((event for event in found if event.get("ph") == "X"), key=lambda event: float(event["ts"]))


def _count(event: dict[str, Any]) -> int:
    """Elements of a call's tensors."""
    dims = event.get("args", {}).get("Input Dims") or [[]]
    tensors = dims[0] if dims[0] and isinstance(dims[0][0], list) else [dims[0]]
    total = 0
    for shape in tensors:
        count = 1
        for side in shape:
            count *= int(side)
        total += count
    return total
