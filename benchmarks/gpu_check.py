"""Builds pycoll's CUDA part, checks it and times it on the GPU of this machine. One command, under 6 minutes:

    python benchmarks/gpu_check.py --json gpu_check.json

Works offline with what a CUDA machine has: nvcc, CMake, ninja, pybind11, scikit-build-core, torch, cupy.
Several ranks share one GPU: as threads of one process (all kernels at once: for checks and times), and as
processes that reach each other by CUDA IPC and by address ranges. Steps that fail are noted and the others
go on; the table comes last.

Exit code: 0 if everything ran and was right, 1 if not, 3 where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 345.0  # seconds for everything
DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float64", "int32", "int64")
OPS = ("sum", "avg", "prod", "min", "max", "premul_sum")
SIZES = (1, 37, 1031, 262147)  # elements
OWN_KERNELS = ("one_shot", "two_shot", "nvls")
SCHEDULES = ("ring", "double_binary_tree", "direct", "direct_two_shot", "recursive_halving_doubling")

Results = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--no-build", action="store_true", help="use the pycoll that is installed")
    parser.add_argument("--only", default="", help="names of steps, separated by commas")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    # A kernel that waits for a peer must not keep the peer's kernel from being loaded.
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    if options.child:
        CHILDREN[options.child]()
        return 0

    begin = time.monotonic()
    results: Results = {"gpu": None, "steps": {}, "failures": []}
    with tempfile.TemporaryDirectory() as folder:
        if not options.no_build:
            step(results, "build", lambda: build(Path(folder)))
        try:
            from pycoll import cuda

            reason = cuda.why_not()
        except ImportError as error:
            reason = f"pycoll is not there: {error}"
        if reason:
            print(f"Nothing was checked: {reason}")
            options.json.write_text(json.dumps(results, indent=1) + "\n")
            return 3
        device = cuda.devices()[0]
        results["gpu"] = device.name
        print(f"{device.name}, {device.multiprocessors} multiprocessors", flush=True)
        for name, function in STEPS.items():
            if options.only and name not in options.only.split(","):
                continue
            if time.monotonic() - begin > LIMIT - 40 and not options.only:
                results["failures"].append(f"{name}: left out, the time is up")
                continue
            step(results, name, function)
    results["seconds"] = round(time.monotonic() - begin, 1)
    options.json.write_text(json.dumps(results, indent=1, default=str) + "\n")
    print_table(results)
    return 1 if results["failures"] else 0


def step(results: Results, name: str, function: Callable[[], Any]) -> None:
    begin = time.monotonic()
    try:
        found = function()
    except Exception as error:
        traceback.print_exc()
        results["failures"].append(f"{name}: {type(error).__name__}: {error}"[:500])
        found = None
    seconds = round(time.monotonic() - begin, 1)
    results["steps"][name] = {"seconds": seconds, "found": found}
    wrong = list(found.get("wrong", [])) if isinstance(found, dict) else []
    results["failures"] += [f"{name}: {text}" for text in wrong[:5]]
    print(f"[{seconds:6.1f} s] {name}: {'failed' if found is None else f'{len(wrong)} wrong'}", flush=True)


def build(folder: Path) -> Results:
    """pycoll with its CUDA part for this GPU alone, into a folder of its own."""
    target = folder / "site"
    environment = {**os.environ, "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 4)}
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
    ]
    command += ["--target", str(target), str(ROOT), "-C", "cmake.define.PYCOLL_CUDA=ON"]
    command += ["-C", "cmake.define.PYCOLL_CUDA_ARCHITECTURES=native"]
    subprocess.run(command, check=True, env=environment, timeout=240)
    sys.path.insert(0, str(target))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(target), os.environ.get("PYTHONPATH", "")])
    return {"library": os.path.getsize(target / "pycoll" / "_cuda.so")}


# Checks: small whole numbers, of which every partial result is exact in every dtype


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


def check_rank(
    comm: Any,
    dtypes: Any,
    ops: Any,
    sizes: Any,
    algorithms: Any,
    blocks: int,
    memory: str = "auto",
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
                        parts, factors, right = inputs(op, dtype, comm.ranks, count)
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


def spawned(function: Any, ranks: int, *args: Any, threads: bool, deadline: float = 90) -> list[Any]:
    import pycoll

    if threads:
        import torch

        torch.zeros(1, device="cuda")  # the context, before ranks are threads
    found: list[Any] = pycoll.spawn(function, ranks=ranks, args=args, threads=threads, deadline=deadline)
    return found


def kernels_right() -> Results:
    """Every kernel, dtype and operator, odd sizes: ranks are threads."""
    wrong = []
    for ranks in (2, 3, 8):
        algorithms = ("one_shot", "two_shot", *SCHEDULES)
        sizes = SIZES if ranks != 8 else SIZES[1:3]
        for found in spawned(check_rank, ranks, DTYPES, OPS, sizes, algorithms, 8, threads=True):
            wrong += found
    return {"wrong": wrong}


def described(comm: Any) -> tuple[str, str, str]:
    from pycoll import cuda

    with cuda.Group(comm, blocks=8) as gpus:
        return gpus.memory_kind, gpus.memory_reason, gpus.nvls_reason


def processes_right() -> Results:
    """A part of it as processes, in each kind of memory that the GPU offers."""
    wrong = []
    kind, why, no_nvls = spawned(described, 2, threads=False)[0]
    arguments = (
        ("float32", "bfloat16"),
        ("sum", "avg"),
        (1031, 262147),
        ("one_shot", "two_shot", "ring", "direct"),
    )
    for memory in {"ipc", kind}:
        for found in spawned(check_rank, 2, *arguments, 8, memory, threads=False):
            wrong += [f"{memory}: {text}" for text in found]
    notes = [f"memory: {kind} ({why})", f"NVLS: {no_nvls or 'there'}"]
    return {"wrong": wrong, "notes": notes}


def pooled_rank(comm: Any, size: int) -> tuple[list[str], dict[str, float]]:
    """Buffers out of a MemPool, at other places on every rank: what is wrong, and seconds an AllReduce takes
    in staging, in the pool, where one rank's is not in it, and registered by hand."""
    import numpy as np
    import torch

    import pycoll
    from pycoll import cuda

    wrong, times = [], {}
    with cuda.Group(comm, blocks=16) as gpus:
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


def pools() -> Results:
    """torch's MemPool over the group's allocator, 2 processes."""
    wrong, rows = [], []
    for size in (1 << 20, 32 << 20):
        by_rank = spawned(pooled_rank, 2, size, threads=False)
        wrong += [text for found, _ in by_rank for text in found]
        rows.append({"bytes": size, **by_rank[0][1]})
    return {"wrong": wrong, "rows": rows}


def nvls() -> Results:
    """Through the switch, where there are several GPUs that it joins; else why not."""
    from pycoll import cuda

    ranks = len(cuda.devices())
    if ranks < 2:
        return {"notes": ["NVLS: not checked, there is one GPU"]}
    _, _, reason = spawned(described, ranks, threads=False)[0]
    if reason:
        return {"notes": [f"NVLS: not checked, {reason}"]}
    wrong, rows = [], []
    for dtypes, ops in (
        (("float32", "float16", "bfloat16"), ("sum", "avg", "premul_sum")),
        (("float16", "bfloat16"), ("min", "max")),
    ):
        for found in spawned(check_rank, ranks, dtypes, ops, SIZES, ("nvls",), 16, threads=False):
            wrong += found
    sizes = (256 << 10, 1 << 20, 16 << 20, 256 << 20)
    names = ("nvls", "two_shot", "direct_two_shot")
    for row in measured(ranks, False, sizes=sizes, algorithms=names, dtype="bfloat16", batches=5):
        rows.append({"ranks": ranks, **row})
        if row["wrong"]:
            wrong.append(f"{row['algorithm']} on {ranks} GPUs, {row['bytes']} bytes")
    return {"wrong": wrong, "rows": rows}


def sanitizer_child() -> None:
    wrong = []
    for found in spawned(
        check_rank, 2, ("bfloat16",), ("sum",), (1031,), ("one_shot", "two_shot", "ring"), 2, threads=True
    ):
        wrong += found
    if wrong:
        raise SystemExit("\n".join(wrong))


def sanitizers() -> Results:
    """compute-sanitizer's memcheck and racecheck on a small case."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    wrong, texts = [], {}
    for kind in ("memcheck", "racecheck"):
        command = [
            tool,
            "--tool",
            kind,
            "--error-exitcode",
            "9",
            sys.executable,
            __file__,
            "--child",
            "sanitizer",
        ]
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            texts[kind] = (run.stdout + run.stderr)[-1500:]
            if run.returncode != 0:
                wrong.append(f"{kind}: exit code {run.returncode}")
        except (OSError, subprocess.TimeoutExpired) as error:
            wrong.append(f"{kind}: {error}")
    return {"wrong": wrong, "output": texts}


# Times


def copy_bandwidth() -> Results:
    """Bytes read and written a second by a device-to-device copy of 1 GiB."""
    import torch

    a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    best = float("inf")
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        b.copy_(a)
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / 1e3)
    return {"bytes_per_s": 2 * a.numel() / best}


def bytes_moved(schedule: Any, size: int) -> float:
    """What all ranks' kernels together read and write, working in the users' buffers, in place."""
    moved = 0.0
    writes: dict[tuple[int, int, int], list[Any]] = {}
    for round_, src, dst, piece, reduce in schedule.transfers.tolist():
        writes.setdefault((round_, dst, piece), []).append((src, reduce))
    for (round_, dst, piece), sources in writes.items():
        other = writes.get((round_, sources[0][0], piece), [])
        is_swap = len(sources) == 1 and sources[0][1] and [src for src, _ in other] == [dst]
        if is_swap:
            moved += 2  # half of two reads and two writes
        else:
            moved += len(sources) + (2 if sources[0][1] else 1)
    return moved * size / schedule.pieces


def measured(ranks: int, threads: bool, **options: Any) -> list[dict[str, Any]]:
    import dataclasses

    from pycoll.bench.gpu import GpuOptions, run_rank

    rows = spawned(run_rank, ranks, GpuOptions(**options), threads=threads)[0]
    return [dataclasses.asdict(row) for row in rows]


def bandwidth() -> Results:
    """Large buffers against the bound: bytes moved / copy bandwidth. Ranks are threads."""
    import pycoll

    limit = copy_bandwidth()["bytes_per_s"]
    rows, wrong = [], []
    for ranks, blocks in ((2, 64), (4, 32), (8, 16)):
        names = ("ring", "direct_two_shot", "double_binary_tree")
        for row in measured(
            ranks,
            True,
            sizes=(64 << 20, 256 << 20),
            algorithms=names,
            blocks=blocks,
            batches=5,
            register=True,
        ):
            schedule = pycoll.build(row["algorithm"], ranks=ranks)
            bound = bytes_moved(schedule, row["bytes"]) / limit
            rows.append({"ranks": ranks, **row, "bound_s": bound, "of_bound": bound / row["median_s"]})
            if row["wrong"]:
                wrong.append(f"{row['algorithm']} on {ranks} ranks, {row['bytes']} bytes")
    return {"wrong": wrong, "rows": rows, "copy_bytes_per_s": limit}


def latency() -> Results:
    """Small buffers, ranks as threads."""
    rows, wrong = [], []
    for ranks in (2, 4, 8):
        sizes = tuple(4 << (2 * k) for k in range(10))
        for row in measured(
            ranks, True, sizes=sizes, algorithms=("", "direct_two_shot"), blocks=16, batches=5
        ):
            rows.append({"ranks": ranks, **row})
            if row["wrong"]:
                wrong.append(f"{row['algorithm']} on {ranks} ranks, {row['bytes']} bytes")
    return {"wrong": wrong, "rows": rows}


def against_nccl() -> Results:
    """The same processes, NCCL with several ranks on one GPU."""
    os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    sizes = (4 << 10, 64 << 10, 1 << 20, 64 << 20)
    rows = measured(
        2, False, sizes=sizes, algorithms=("",), over_nccl=("ring",), nccl=True, blocks=16, batches=5
    )
    return {"wrong": [f"{row['library']} {row['bytes']} bytes" for row in rows if row["wrong"]], "rows": rows}


def late_rank(comm: Any, size: int, blocks: int) -> dict[str, float]:
    """Seconds from the last rank's arrival to the end of all, by algorithm, one rank being late by a spinning
    kernel."""
    import numpy as np
    import torch

    import pycoll
    from pycoll import cuda

    found = {}
    with cuda.Group(comm, blocks=blocks) as gpus:
        torch.cuda.set_device(gpus.device)
        x = torch.zeros(size // 4, device="cuda")
        subjects = {
            name: (pycoll.build(name, ranks=comm.ranks), False) for name in ("direct_two_shot", "ring")
        }
        if "late_rank" in pycoll.algorithms():
            subjects["late_rank"] = (pycoll.build("late_rank", ranks=comm.ranks), True)
        for schedule, finds_late in subjects.values():
            gpus.prepare(schedule, finds_late)
        torch.cuda.synchronize()
        comm.barrier()
        gpus.register(x)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for name, (schedule, finds_late) in subjects.items():
                times = []
                for turn in range(6):
                    stream.synchronize()
                    comm.barrier()
                    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    is_late = comm.rank == turn % comm.ranks
                    if is_late:
                        torch.cuda._sleep(20_000_000)  # about 10 ms
                    begin.record(stream)
                    gpus.run(schedule, x, finds_late=finds_late)
                    end.record(stream)
                    end.synchronize()
                    # The late rank's own call begins when it arrives, and ends when it has everything.
                    after = np.array([begin.elapsed_time(end) / 1e3 if is_late else 0.0])
                    comm.allreduce(after, "max")
                    times.append(float(after[0]))
                found[name] = sorted(times)[len(times) // 2]
        torch.cuda.synchronize()
        comm.barrier()
        gpus.unregister(x)
    return found


def lateness() -> Results:
    rows = []
    for ranks, blocks in ((4, 32), (8, 16)):
        for size in (16 << 20, 128 << 20):
            found = spawned(late_rank, ranks, size, blocks, threads=True)[0]
            rows.append({"ranks": ranks, "bytes": size, **found})
    return {"rows": rows}


def torch_distributed() -> Results:
    """CUDA tensors through the torch backend: collectives, streams, graphs, DDP. Ranks are processes."""
    from gpu_torch import torch_right

    return torch_right()


CHILDREN = {"sanitizer": sanitizer_child}
STEPS: dict[str, Callable[[], Any]] = {
    "kernels right": kernels_right,
    "copy bandwidth": copy_bandwidth,
    "latency": latency,
    "bandwidth": bandwidth,
    "late rank": lateness,
    "processes right": processes_right,
    "torch.distributed": torch_distributed,
    "pools": pools,
    "NVLS": nvls,
    "against NCCL": against_nccl,
    "sanitizers": sanitizers,
}


def print_table(results: Results) -> None:
    def rows(name: str) -> list[dict[str, Any]]:
        found = results["steps"].get(name, {}).get("found") or {}
        return list(found.get("rows", []))

    print(f"\n{results['gpu']}, {results['seconds']} s")
    for name in ("processes right", "NVLS"):
        found = results["steps"].get(name, {}).get("found") or {}
        for note in found.get("notes", []):
            print(f"  {note}")
    for row in rows("latency"):
        what = f"{row['ranks']} ranks {row['bytes']:>9} B  {row['algorithm']:<8}"
        print(f"  {what} {row['median_s'] * 1e6:9.1f} us")
    for row in rows("bandwidth"):
        print(
            f"  {row['ranks']} ranks {row['bytes'] >> 20:>5} MiB  {row['algorithm']:<20} "
            f"{row['median_s'] * 1e3:8.3f} ms  {row['of_bound']:.2f} of the copy bound"
        )
    for row in rows("against NCCL"):
        print(f"  {row['bytes']:>9} B  {row['library']:<17} {row['median_s'] * 1e6:10.1f} us")
    for row in rows("NVLS"):
        what = f"{row['ranks']} GPUs {row['bytes']:>9} B  {row['algorithm']:<15}"
        print(f"  {what} {row['median_s'] * 1e6:9.1f} us")
    for row in rows("pools"):
        times = ", ".join(f"{k} {v * 1e3:.3f} ms" for k, v in row.items() if k != "bytes")
        print(f"  2 ranks {row['bytes'] >> 20} MiB, buffers in: {times}")
    for row in rows("late rank"):
        times = ", ".join(f"{k} {v * 1e3:.3f} ms" for k, v in row.items() if k not in ("ranks", "bytes"))
        print(f"  {row['ranks']} ranks {row['bytes'] >> 20} MiB, one late: {times}")
    print("FAILED:" if results["failures"] else "everything ran and was right")
    for failure in results["failures"]:
        print(f"  {failure}")


if __name__ == "__main__":
    sys.exit(main())
