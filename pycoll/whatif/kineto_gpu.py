"""Steps out of torch.profiler's traces of jobs on GPUs: what NCCL's kernels send, and when it was ready.

A kernel of NCCL waits on its own stream for what was launched before it, so its bucket was ready when the
last other kernel that the host had launched earlier was over: that is told by the launches, which traces
join to kernels by a correlation number.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pycoll.errors import InvalidArgument, Unsupported

__all__ = ["Step", "gpu_steps"]

#: Bytes of an element, by the names in NCCL's records (torch's ScalarType).
_ELEMENT = {
    "Float": 4,
    "Double": 8,
    "Half": 2,
    "BFloat16": 2,
    "Int": 4,
    "Long": 8,
    "Short": 2,
    "Byte": 1,
    "Char": 1,
}
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")

Event = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """Seconds: forward's; after its end, those at which buckets are ready and backward is over; the rest."""

    forward: float
    ready: tuple[float, ...]
    sizes: tuple[int, ...]
    backward: float
    rest: float
    period: float


def gpu_steps(path: str, events: list[Event]) -> list[Step]:
    """The steps between the profiler's marks, but for the first; forward counts as part of backward.

    ``events`` are in the order of time. Raises InvalidArgument where marks or NCCL's records are missing,
    Unsupported for collectives that are not DDP's.
    """
    marks = _marks(events)
    if len(marks) < 3:
        raise InvalidArgument(
            f"{path}: {len(marks)} steps of the profiler on the GPU; trace three or more, and call "
            "profiler.step() after each"
        )
    device = [event for event in events if event.get("cat") in _ON_DEVICE]
    launched = {
        event["args"]["correlation"]: float(event["ts"])
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    known = _over_by_launch([event for event in device if not _is_nccl(event)], launched)
    return [_step(path, begin, end, device, launched, known) for begin, end in list(pairwise(marks))[1:]]


def _marks(events: list[Event]) -> list[float]:
    """When each step begins on the GPU, or, in traces without that, on the host."""
    for sort in ("gpu_user_annotation", "user_annotation"):
        found = [
            float(event["ts"])
            for event in events
            if event.get("cat") == sort and str(event["name"]).startswith("ProfilerStep#")
        ]
        if found:
            return found
    return []


def _is_nccl(event: Event) -> bool:
    return event.get("cat") == "kernel" and str(event["name"]).startswith(("ncclDevKernel", "ncclKernel"))


def _over_by_launch(kernels: list[Event], launched: dict[int, float]) -> tuple[list[float], list[float]]:
    """Launches in the order of time, and when all kernels launched up to each are over."""
    rows = sorted(
        (launched[event["args"]["correlation"]], float(event["ts"]) + float(event["dur"]))
        for event in kernels
        if event.get("args", {}).get("correlation") in launched
    )
    over: list[float] = []
    for _, end in rows:
        over.append(max(end, over[-1]) if over else end)
    return [at for at, _ in rows], over


def _step(
    path: str,
    begin: float,
    end: float,
    device: list[Event],
    launched: dict[int, float],
    known: tuple[list[float], list[float]],
) -> Step:
    inside = [event for event in device if begin <= float(event["ts"]) < end]
    sent = [event for event in inside if _is_nccl(event) and _is_allreduce(path, event)]
    computed = [event for event in inside if not _is_nccl(event)]
    if not sent or not computed:
        raise InvalidArgument(f"{path}: a step without NCCL's allreduce or without other kernels")
    arrived = max(float(event["ts"]) + float(event["dur"]) for event in sent)
    # What starts later is the optimizer, which waits for all gradients.
    over = max(
        (float(event["ts"]) + float(event["dur"]) for event in computed if float(event["ts"]) < arrived),
        default=begin,
    )
    ready = [_ready(event, launched, known) for event in sent]
    return Step(
        0.0,
        tuple(max(0.0, at - begin) / 1e6 for at in ready),
        tuple(_bytes(path, event) for event in sent),
        (over - begin) / 1e6,
        max(0.0, end - max(over, arrived)) / 1e6,
        (end - begin) / 1e6,
    )


def _ready(event: Event, launched: dict[int, float], known: tuple[list[float], list[float]]) -> float:
    start = float(event["ts"])
    at = launched.get(event.get("args", {}).get("correlation"))
    if at is None:
        return start
    place = bisect.bisect_left(known[0], at)
    return min(start, known[1][place - 1]) if place else start


def _is_allreduce(path: str, event: Event) -> bool:
    """Broadcasts of buffers, which are small, are passed over."""
    name = str(event["name"])
    if "AllReduce" in name:
        return True
    if "Broadcast" in name:
        return False
    raise Unsupported(f"{path}: {name.partition('(')[0]}: of traces from GPUs, those of DDP are read only")


def _bytes(path: str, event: Event) -> int:
    about = event.get("args", {})
    count, dtype = about.get("In msg nelems"), about.get("dtype")
    if count is None or dtype not in _ELEMENT:
        raise InvalidArgument(
            f"{path}: NCCL's kernels have no record of what they send (In msg nelems, dtype): torch 2.2 or "
            "newer writes it"
        )
    return int(count) * _ELEMENT[dtype]
