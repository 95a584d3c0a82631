"""Checks of the kernels, of memory and of the switch, for gpu_check.py.

Inputs are small whole numbers, of which every partial result is exact in every dtype.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from gpu_found import Found, blocks_of, spawned

DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float64", "int32", "int64")
OPS = ("sum", "avg", "prod", "min", "max", "premul_sum")
SIZES = (1, 37, 1031, 262147)  # elements
OWN_KERNELS = ("one_shot", "two_shot", "nvls")
SCHEDULES = ("ring", "double_binary_tree", "direct", "direct_two_shot", "recursive_halving_doubling")


def inputs(op: str, dtype: Any, ranks: int, count: int) -> tuple[list[Any], list[float], Any]:
    """Every rank's summands on the CPU, every rank's factor, and the right result."""
    import torch

    generator = torch.Generator().manual_seed(count)
    hits = torch.randint(0, ranks, (2, count), generator=generator)
    parts = [((hits[0] == r).int() + (hits[1] == r).int()).double() for r in range(ranks)]
    whole_factors = not dtype.is_floating_point
    factors = [1.0 + r % 2 if whole_factors else (2.0, 0.5)[r % 2] for r in range(ranks)]
    if op == "prod":
        parts = [part.clamp(max=1) + 1 for part in parts]
    stacked = torch.stack(parts)
    whole = {
        "sum": lambda: stacked.sum(0),
        "avg": lambda: stacked.sum(0) / ranks,
        "prod": lambda: stacked.prod(0),
        "min": lambda: stacked.amin(0),
        "max": lambda: stacked.amax(0),
        "premul_sum": lambda: (stacked * torch.tensor(factors).double()[:, None]).sum(0),
    }[op]()
    # Divided in float32 where the kernels do so: a double would be rounded twice.
    if op == "avg" and dtype.is_floating_point and dtype != torch.float64:
        whole = (stacked.sum(0).float() / ranks).double()
    right = whole.trunc() if whole_factors else whole
    through = right.float() if dtype.itemsize < 4 else right
    return [part.to(dtype) for part in parts], factors, through.to(dtype)


class SharedInputs:
    """For ranks that are threads: the first to need them makes them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._key: Any = None
        self._made: Any = None

    def __call__(self, *key: Any) -> tuple[list[Any], list[float], Any]:
        with self._lock:
            if self._key != key:
                self._key, self._made = key, inputs(*key)
            made: tuple[list[Any], list[float], Any] = self._made
            return made


def check_rank(
    comm: Any,
    dtypes: Any,
    ops: Any,
    sizes: Any,
    algorithms: Any,
    blocks: int,
    memory: str = "auto",
    made: Callable[..., Any] = inputs,
) -> list[str]:
    """As one rank: what is wrong, in words. Ranks that are threads prepare before any kernel waits."""
    import torch

    import pycoll
    from pycoll import cuda

    wrong: list[str] = []
    with cuda.Group(comm, blocks=blocks, memory=memory) as gpus:
        torch.cuda.set_device(gpus.device)
        schedules = {}
        for name in algorithms:
            if name not in OWN_KERNELS and pycoll.algorithms()[name].accepts(comm.ranks):
                schedules[name] = pycoll.build(name, ranks=comm.ranks)
                gpus.prepare(schedules[name])
        with torch.cuda.stream(torch.cuda.Stream()):
            for count in sizes:
                for dtype_name in dtypes:
                    for op in ops:
                        dtype = getattr(torch, dtype_name)
                        parts, factors, right = made(op, dtype, comm.ranks, count)
                        for name in algorithms:
                            if name not in OWN_KERNELS and name not in schedules:
                                continue
                            x = parts[comm.rank].cuda()
                            out = torch.empty_like(x)
                            torch.cuda.current_stream().synchronize()
                            comm.barrier()
                            try:
                                gpus.allreduce(
                                    x,
                                    op,
                                    out=out,
                                    algorithm=schedules.get(name, name),
                                    factor=factors[comm.rank],
                                )
                            except pycoll.InvalidArgument:
                                continue  # more than the small kernels take
                            torch.cuda.current_stream().synchronize()
                            if not torch.equal(out.cpu().double(), right.double()):
                                bad = int((out.cpu().double() != right.double()).sum())
                                wrong.append(
                                    f"{name} {dtype_name} {op}, {count} elements, rank {comm.rank}: {bad}"
                                )
            torch.cuda.synchronize()
        comm.barrier()
    return wrong


def huge_rank(comm: Any, count: int, blocks: int, registered: bool) -> list[str]:
    """A buffer of more elements than 32 bits count: ones, but for some places where ranks differ."""
    import torch

    import pycoll
    from pycoll import cuda

    one, two, three, four = (
        torch.tensor(float(x)).to(torch.float8_e4m3fn).view(torch.uint8).item() for x in (1, 2, 3, 4)
    )
    places = sorted({at % count for k in (0, 31, 32) for at in ((1 << k) - 1, (1 << k) + 5)} | {count - 1})
    wrong = []
    with cuda.Group(comm, blocks=blocks) as gpus:
        torch.cuda.set_device(gpus.device)
        schedule = pycoll.build("ring", ranks=comm.ranks)
        gpus.prepare(schedule)
        codes = torch.full((count,), one, dtype=torch.uint8, device="cuda")
        for place in places:
            codes[place] = one if comm.rank else three
        x = codes.view(torch.float8_e4m3fn)
        if registered:
            gpus.register(x)
        torch.cuda.synchronize()
        comm.barrier()
        with torch.cuda.stream(torch.cuda.Stream()):
            gpus.run(schedule, x)
            torch.cuda.current_stream().synchronize()
        for place in places:
            if (code := int(codes[place])) != four:
                wrong.append(f"rank {comm.rank}: {count} elements, at {place}: {code}")
            codes[place] = two
        for begin in range(0, count, 1 << 28):
            if not bool((codes[begin : begin + (1 << 28)] == two).all()):
                wrong.append(f"rank {comm.rank}: {count} elements, after {begin}")
                break
        torch.cuda.synchronize()
        comm.barrier()
        if registered:
            gpus.unregister(x)
    return wrong


def kernels_right(found: Found) -> None:
    """Every kernel, dtype and operator, odd sizes: ranks are threads."""
    import torch

    torch.set_num_threads(2)  # on the CPU, of each rank
    for ranks in (2, 3, 8):
        algorithms = ("one_shot", "two_shot", *SCHEDULES)
        sizes = SIZES if ranks != 8 else SIZES[1:3]
        arguments = (DTYPES, OPS, sizes, algorithms, blocks_of(ranks, 8), "auto", SharedInputs())
        for wrong in spawned(check_rank, ranks, *arguments, threads=True):
            found.wrong(wrong)
        found.note(f"kernels right: {ranks} ranks, {len(found['wrong'])} wrong so far")
    free = torch.cuda.mem_get_info()[0]
    count = (1 << 32) + 11
    if free < 5 * count:
        found.note(f"kernels right: no buffers of {count} elements, the GPU has {free} bytes free")
        return
    for registered in (False, True):
        for wrong in spawned(huge_rank, 2, count, blocks_of(2, 64), registered, threads=True):
            found.wrong(wrong)
    found.note(f"kernels right: also buffers of {count} elements, staged and registered")


def described(comm: Any) -> tuple[str, str, str]:
    from pycoll import cuda

    with cuda.Group(comm, blocks=1) as gpus:
        return gpus.memory_kind, gpus.memory_reason, gpus.nvls_reason


def processes_right(found: Found) -> None:
    """A part of it as processes, in each kind of memory that the GPU offers."""
    kind, why, no_nvls = spawned(described, 2, threads=False)[0]
    found.note(f"memory: {kind} ({why})")
    found.note(f"NVLS: {no_nvls or 'there'}")
    arguments = (
        ("float32", "bfloat16"),
        ("sum", "avg"),
        (1031, 262147),
        ("one_shot", "two_shot", "ring", "direct"),
        blocks_of(2, 8),
    )
    for memory in dict.fromkeys(("ipc", kind)):
        for wrong in spawned(check_rank, 2, *arguments, memory, threads=False, deadline=40):
            found.wrong([f"{memory}: {text}" for text in wrong])
        found.note(f"memory: checked as processes by {memory}")


def pooled_rank(comm: Any, size: int, blocks: int) -> tuple[list[str], dict[str, float]]:
    """Buffers out of a MemPool, at other places on every rank: what is wrong, and seconds an AllReduce takes
    in staging, in the pool, where one rank's is not in it, and registered by hand."""
    import numpy as np
    import torch

    import pycoll
    from pycoll import cuda

    wrong, times = [], {}
    with cuda.Group(comm, blocks=blocks) as gpus:
        torch.cuda.set_device(gpus.device)
        pool = gpus.mem_pool()
        with torch.cuda.use_mem_pool(pool):
            before = torch.empty(1000 + 5000 * comm.rank, device="cuda")
            pooled = torch.zeros(size // 4, device="cuda")
        plain = torch.zeros(size // 4, device="cuda")
        schedule = pycoll.build("direct_two_shot", ranks=comm.ranks)
        gpus.prepare(schedule)

        def timed(x: Any) -> float:
            x.fill_(comm.rank + 1)
            torch.cuda.synchronize()
            comm.barrier()
            gpus.run(schedule, x)
            torch.cuda.synchronize()
            total = comm.ranks * (comm.ranks + 1) // 2
            if not bool((x == total).all()):
                wrong.append(f"rank {comm.rank}: {int((x != total).sum())} of {x.numel()}")
            x.zero_()
            torch.cuda.synchronize()
            comm.barrier()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            gpus.run(schedule, x)
            begin.record()
            for _ in range(3):
                gpus.run(schedule, x)
            end.record()
            end.synchronize()
            slowest = np.array([begin.elapsed_time(end) / 3e3])
            comm.allreduce(slowest, "max")
            return float(slowest[0])

        times["staging"] = timed(plain)
        gpus.share_pool()
        if not gpus.is_shared(pooled) or gpus.is_shared(plain):
            wrong.append(f"rank {comm.rank}: the pool's buffer is not the one that is shared")
        times["pool"] = timed(pooled)
        times["one rank without"] = timed(plain if comm.rank == 0 else pooled)
        gpus.register(plain)
        times["registered"] = timed(plain)
        gpus.unregister(plain)
        torch.cuda.synchronize()
        comm.barrier()
        del before, pooled
    return wrong, times


def pools(found: Found) -> None:
    """torch's MemPool over the group's allocator, 2 processes."""
    for size in (1 << 20, 32 << 20):
        by_rank = spawned(pooled_rank, 2, size, blocks_of(2, 16), threads=False, deadline=35)
        found.wrong([text for wrong, _ in by_rank for text in wrong])
        found.row(bytes=size, **by_rank[0][1])


def nvls(found: Found) -> None:
    """Through the switch, where there are several GPUs that it joins; else why not."""
    from pycoll import cuda

    ranks = len(cuda.devices())
    if ranks < 2:
        found.note("NVLS: not checked, there is one GPU")
        return
    _, _, reason = spawned(described, ranks, threads=False)[0]
    if reason:
        found.note(f"NVLS: not checked, {reason}")
        return
    for dtypes, ops in (
        (("float32", "float16", "bfloat16"), ("sum", "avg", "premul_sum")),
        (("float16", "bfloat16"), ("min", "max")),
    ):
        for wrong in spawned(check_rank, ranks, dtypes, ops, SIZES, ("nvls",), 16, threads=False):
            found.wrong(wrong)
    sizes = (256 << 10, 1 << 20, 16 << 20, 256 << 20)
    names = ("nvls", "two_shot", "direct_two_shot")
    from gpu_times import measured

    measured(found, ranks, False, sizes=sizes, algorithms=names, dtype="bfloat16", batches=5)
