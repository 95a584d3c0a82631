"""AllReduce on GPUs: pycoll's kernels, schedules over NCCL, and NCCL's own, in the same processes.

Calls are timed by the GPU's clock, several one after another on a stream, so a call's time is that of the
collective and not of the host's launch, where the GPU is the slower.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from pycoll.bench.results import bus_factor
from pycoll.errors import InvalidArgument, Unsupported

if TYPE_CHECKING:
    from pycoll import cuda
    from pycoll.communicator import Communicator

#: Bytes that the calls of one timed batch move together, about, and the most calls of one.
BATCH_BYTES, MOST_CALLS = 64 << 20, 50


@dataclass(frozen=True)
class GpuRow:
    """One measurement: seconds a call of the slowest rank, over batches; GB/s are 1e9 bytes."""

    bytes: int
    dtype: str
    op: str
    library: str  # "pycoll", "pycoll over nccl" or "nccl"
    algorithm: str
    batches: int
    calls: int  # of a batch
    min_s: float
    median_s: float
    algbw_gb_s: float
    busbw_gb_s: float
    wrong: int


@dataclass(frozen=True)
class GpuOptions:
    """What to measure. ``algorithms``: what pycoll.cuda.Group.allreduce takes; "" is its own choice."""

    sizes: tuple[int, ...]
    dtype: str = "float32"
    op: str = "sum"
    algorithms: tuple[str, ...] = ("",)
    over_nccl: tuple[str, ...] = ()  # schedules to run over NCCL's point-to-point
    nccl: bool = False
    batches: int = 10
    blocks: int = 0
    register: bool = False  # the buffers: schedules then work in them


Call = Callable[[Any], object]


def _torch() -> Any:
    return import_module("torch")


def run_rank(comm: Communicator, options: GpuOptions) -> list[GpuRow]:
    """Measures as one rank of a group; every rank returns the same rows.

    Ranks may be threads of one process: whatever may wait for the GPU comes before any kernel waits for
    another rank's.
    """
    from pycoll import cuda

    torch = _torch()

    rows: list[GpuRow] = []
    with cuda.Group(comm, blocks=options.blocks) as gpus:
        torch.cuda.set_device(gpus.device)
        subjects: list[tuple[str, str, Call]] = [
            ("pycoll", name or "auto", _kernels_call(gpus, name, options.op)) for name in options.algorithms
        ]
        comm.barrier()
        if options.nccl or options.over_nccl:
            subjects += _nccl_subjects(comm, options)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for size in options.sizes:
                dtype = getattr(torch, options.dtype)
                count = max(size // dtype.itemsize, 1)
                mine, right = _data(comm, count, dtype, options.op)
                x = mine.clone()
                if options.register:
                    torch.cuda.synchronize()
                    gpus.register(x)
                for library, algorithm, call in subjects:
                    try:
                        rows.append(_measure(comm, stream, library, algorithm, call, x, mine, right, options))
                    except (Unsupported, InvalidArgument):
                        continue  # decided from the arguments alone, so by all ranks alike
                torch.cuda.synchronize()
                comm.barrier()
                if options.register:
                    gpus.unregister(x)
    return rows


def _kernels_call(gpus: cuda.Group, name: str, op: str) -> Call:
    from pycoll.schedule import build

    if name in ("one_shot", "two_shot", "nvls"):
        return partial(gpus.allreduce, op=op, algorithm=name)
    schedule = build(name or "direct_two_shot", ranks=gpus.ranks)
    gpus.prepare(schedule)
    return partial(gpus.allreduce, op=op, algorithm=schedule if name else None)


def _nccl_subjects(comm: Communicator, options: GpuOptions) -> list[tuple[str, str, Call]]:
    from pycoll.nccl import Group
    from pycoll.schedule import build

    group = Group.of(comm)
    subjects: list[tuple[str, str, Call]] = []
    for name in options.over_nccl:
        call = partial(group.run, build(name, ranks=comm.ranks), op=options.op)
        subjects.append(("pycoll over nccl", name, call))
    if options.nccl:
        subjects.append(("nccl", "", partial(group.nccl_allreduce, op=options.op)))
    return subjects


def _data(comm: Communicator, count: int, dtype: Any, op: str) -> tuple[Any, Any]:
    """This rank's summands and the right result, of small whole numbers that repeat every third element."""
    torch = _torch()
    thirds = np.array([[(i + rank) % 3 == 0 for i in range(3)] for rank in range(comm.ranks)], np.float64)
    totals = {"sum": thirds.sum(0), "avg": thirds.mean(0), "max": thirds.max(0), "min": thirds.min(0)}
    if op not in totals:
        raise Unsupported(f"--device cuda measures {', '.join(totals)}, not {op}")
    index = torch.arange(count, device="cuda") % 3

    def spread(three: Any) -> Any:
        return torch.from_numpy(three.astype(np.float32)).cuda()[index].to(dtype)

    return spread(thirds[comm.rank]), spread(totals[op])


def _count_wrong(x: Any, right: Any) -> int:
    """Elements that differ in any bit: torch compares not every dtype."""
    uint8 = _torch().uint8
    differs = x.view(uint8) != right.view(uint8)
    return int(differs.reshape(x.numel(), -1).any(1).sum())


def _measure(
    comm: Communicator,
    stream: Any,
    library: str,
    algorithm: str,
    call: Call,
    x: Any,
    mine: Any,
    right: Any,
    options: GpuOptions,
) -> GpuRow:
    torch = _torch()
    x.copy_(mine)
    torch.cuda.synchronize()
    comm.barrier()
    call(x)
    torch.cuda.synchronize()
    wrong = np.array([_count_wrong(x, right)])
    comm.allreduce(wrong, "sum")
    # Contents do not matter from here on; zeros stay zeros, however often they are summed.
    x.zero_()
    size = x.numel() * x.element_size()
    calls = max(1, min(MOST_CALLS, BATCH_BYTES // size))
    times = []
    for _ in range(options.batches):
        torch.cuda.synchronize()
        comm.barrier()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        call(x)  # the ranks meet on the GPU: none is timed while it waits for another's host
        begin.record(stream)
        for _ in range(calls):
            call(x)
        end.record(stream)
        end.synchronize()
        slowest = np.array([begin.elapsed_time(end) / 1e3 / calls])
        comm.allreduce(slowest, "max")
        times.append(float(slowest[0]))
    median = statistics.median(times)
    return GpuRow(
        bytes=size,
        dtype=options.dtype,
        op=options.op,
        library=library,
        algorithm=algorithm,
        batches=options.batches,
        calls=calls,
        min_s=min(times),
        median_s=median,
        algbw_gb_s=size / median / 1e9,
        busbw_gb_s=size / median / 1e9 * bus_factor("allreduce", comm.ranks),
        wrong=int(wrong[0]),
    )


def run(ranks: int | None, options: GpuOptions, timeout: float) -> list[GpuRow]:
    """Starts a process a rank, by default one a GPU, and measures.

    Raises Unsupported where the CUDA part, a GPU or torch is missing.
    """
    import pycoll
    from pycoll import cuda

    if reason := cuda.why_not():
        raise Unsupported(f"--device cuda: {reason}")
    rows: list[GpuRow] = pycoll.spawn(
        run_rank, ranks=ranks or len(cuda.devices()), args=(options,), timeout=timeout
    )[0]
    return rows


def to_json(rows: Sequence[GpuRow]) -> str:
    return json.dumps({"rows": [dataclasses.asdict(row) for row in rows]}, indent=1) + "\n"


def print_rows(rows: Sequence[GpuRow]) -> None:
    from rich.console import Console
    from rich.table import Table

    from pycoll.bench.units import format_seconds, format_size

    table = Table("size", "what", "algorithm", "min", "median", "algbw GB/s", "busbw GB/s", "#wrong")
    for row in rows:
        table.add_row(
            format_size(row.bytes),
            row.library,
            row.algorithm,
            format_seconds(row.min_s),
            format_seconds(row.median_s),
            f"{row.algbw_gb_s:.3g}",
            f"{row.busbw_gb_s:.3g}",
            str(row.wrong),
        )
    Console().print(table)


__all__ = ["GpuOptions", "GpuRow", "print_rows", "run", "run_rank", "to_json"]
