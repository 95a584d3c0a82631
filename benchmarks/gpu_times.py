"""Times of AllReduce on the GPU of this machine, for gpu_check.py."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from gpu_found import Found, blocks_of, nccl_version, spawned

#: The first NCCL whose ranks may share a GPU.
NCCL_SHARES = 23000


def copy_bandwidth() -> float:
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
    return 2 * a.numel() / best


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


def measured(found: Found, ranks: int, threads: bool, **options: Any) -> list[dict[str, Any]]:
    """Rows of `pycoll bench --device cuda`, put among what was found."""
    from pycoll.bench.gpu import GpuOptions, run_rank

    rows = []
    for row in spawned(run_rank, ranks, GpuOptions(**options), threads=threads)[0]:
        rows.append({"ranks": ranks, **dataclasses.asdict(row)})
        if row.wrong:
            found.wrong([f"{row.library} {row.algorithm} on {ranks} ranks, {row.bytes} bytes: {row.wrong}"])
    found["rows"] += rows
    found.save()
    return rows


def bandwidth(found: Found) -> None:
    """Large buffers against the bound: bytes moved / copy bandwidth. Ranks are threads."""
    import pycoll

    limit = found["copy_bytes_per_s"] = copy_bandwidth()
    for ranks, blocks in ((2, 64), (4, 32), (8, 16)):
        rows = measured(
            found,
            ranks,
            True,
            sizes=(64 << 20, 256 << 20),
            algorithms=("ring", "direct_two_shot", "double_binary_tree"),
            blocks=blocks_of(ranks, blocks),
            batches=5,
            register=True,
        )
        for row in rows:
            bound = bytes_moved(pycoll.build(row["algorithm"], ranks=ranks), row["bytes"]) / limit
            row.update(bound_s=bound, of_bound=bound / row["median_s"])
        found.save()


def latency(found: Found) -> None:
    """Small buffers, ranks as threads."""
    sizes = tuple(4 << (2 * k) for k in range(10))
    for ranks in (2, 4, 8):
        measured(
            found,
            ranks,
            True,
            sizes=sizes,
            algorithms=("", "direct_two_shot"),
            blocks=blocks_of(ranks, 16),
            batches=5,
        )


def against_nccl(found: Found) -> None:
    """NCCL with several ranks on one GPU, as threads of one process: processes would take turns on the GPU,
    and a call's time be that of the turns."""
    os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"  # before NCCL looks
    version = nccl_version()
    if version < NCCL_SHARES:
        found.note(
            f"NCCL: not compared, there is {version or 'none'}, and ranks may share a GPU from {NCCL_SHARES} "
            "(2.30) on"
        )
        return
    sizes = (4 << 10, 64 << 10, 1 << 20, 64 << 20)
    for over_nccl in ((), ("ring",)):
        options = {"over_nccl": over_nccl, "nccl": not over_nccl, "blocks": blocks_of(2, 16), "batches": 5}
        measured(found, 2, True, sizes=sizes, algorithms=() if over_nccl else ("",), **options)


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
        torch.cuda._sleep(1)  # loaded before any kernel waits
        subjects = {
            name: (pycoll.build(name, ranks=comm.ranks), False) for name in ("direct_two_shot", "ring")
        }
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


def lateness(found: Found) -> None:
    for ranks, blocks in ((4, 32), (8, 16)):
        for size in (16 << 20, 128 << 20):
            times = spawned(late_rank, ranks, size, blocks_of(ranks, blocks), threads=True)[0]
            found.row(ranks=ranks, bytes=size, **times)
