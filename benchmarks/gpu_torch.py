"""CUDA tensors through torch.distributed's backend "pycoll": what `gpu_check.py` runs as two processes on one
GPU. Alone, for one rank: python benchmarks/gpu_torch.py RANK RANKS FILE_OF_THE_STORE"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

RANKS = 2
SIZES = (5, 1031, 300_007)  # elements: one-shot, two-shot, a schedule


def torch_right(limit: float = 120) -> dict[str, Any]:
    """What is wrong, by rank, in words. Ranks are processes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__]
        store = str(Path(folder) / "store")
        ranks = [
            subprocess.Popen([*command, str(r), str(RANKS), store], stdout=subprocess.PIPE, text=True)
            for r in range(RANKS)
        ]
        wrong = []
        for number, rank in enumerate(ranks):
            try:
                said = rank.communicate(timeout=limit)[0].splitlines()
                wrong += [f"rank {number}: {text}" for text in json.loads(said[-1])]
            except (subprocess.TimeoutExpired, json.JSONDecodeError, IndexError) as error:
                rank.kill()
                wrong.append(f"rank {number}: {type(error).__name__}, exit code {rank.poll()}")
        return {"wrong": wrong}


def try_this_torch() -> str:
    """Lets the adapter be tried with a torch that is not among those supported, and says that it is none."""
    from pycoll.torch import build

    if text := build.unsupported_torch():
        release = build._torch_release()
        build.TORCH = (min(build.TORCH[0], release), max(build.TORCH[1], release))
        return f"tried nevertheless: {text}"
    return ""


def check(rank: int, ranks: int, store: str) -> list[str]:
    import torch
    import torch.distributed as dist

    import pycoll.torch

    try_this_torch()
    pycoll.torch.register()
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group(
        "cpu:pycoll,cuda:pycoll",
        store=dist.FileStore(store, ranks),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=40),
    )
    wrong: list[str] = []
    for part in (collectives, messages, streams, graphs, ddp):
        try:
            wrong += part(rank, ranks)
        except Exception:
            wrong.append(f"{part.__name__}: {traceback.format_exc()[-600:]}")
            break  # ranks may be out of step
    dist.destroy_process_group()
    return wrong


def collectives(rank: int, ranks: int) -> list[str]:
    import torch
    import torch.distributed as dist

    wrong: list[str] = []

    def compare(name: str, found: Any, right: Any) -> None:
        if not torch.equal(found.cpu().double(), right.double()):
            wrong.append(name)

    for size in SIZES:
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            base = torch.arange(size).remainder(7)
            total = ranks * base + ranks * (ranks - 1) // 2
            each = [(base + r).to(dtype).cuda() for r in range(ranks)]
            name = f"{dtype}, {size} elements"
            calls: dict[str, tuple[Callable[..., Any], Any, Any]] = {}
            x = each[rank].clone()
            calls["all_reduce"] = (lambda x=x, **how: dist.all_reduce(x, **how), x, total)
            x = each[rank].clone()
            calls["broadcast"] = (lambda x=x, **how: dist.broadcast(x, 1, **how), x, base + 1)
            x = each[rank].clone()
            right = total if rank == 1 else base + rank
            calls["reduce"] = (lambda x=x, **how: dist.reduce(x, 1, **how), x, right)
            whole, everyones = torch.cat(each), torch.cat([base + r for r in range(ranks)])
            out = torch.empty_like(whole)
            calls["all_gather"] = (
                lambda out=out, mine=each[rank], **how: dist.all_gather_into_tensor(out, mine, **how),
                out,
                everyones,
            )
            shard = torch.empty_like(each[0])
            calls["reduce_scatter"] = (
                lambda out=shard, x=whole, **how: dist.reduce_scatter_tensor(out, x, **how),
                shard,
                ranks * (base + rank),
            )
            out = torch.empty_like(whole)
            calls["all_to_all"] = (
                lambda out=out, x=whole, **how: dist.all_to_all_single(out, x, **how),
                out,
                (base + rank).repeat(ranks),
            )
            outs = [torch.empty_like(each[0]) for _ in range(ranks)]
            calls["all_gather, a list"] = (
                lambda outs=outs, x=each[rank], **how: dist.all_gather(outs, x, **how),
                outs,
                everyones,
            )
            outs = [torch.empty_like(each[0]) for _ in range(ranks)]
            calls["gather"] = (
                lambda outs=outs, x=each[rank], **how: dist.gather(x, outs if rank == 0 else None, 0, **how),
                outs if rank == 0 else [],
                everyones if rank == 0 else torch.empty(0),
            )
            out = torch.empty_like(each[0])
            calls["scatter"] = (
                lambda out=out, x=each, **how: dist.scatter(out, x if rank == 0 else None, 0, **how),
                out,
                base + rank,
            )
            for turn, (call, (run, found, right)) in enumerate(calls.items()):
                work = run(async_op=turn % 2 == 1)
                if work is not None:
                    work.wait()
                if isinstance(found, list):
                    found = torch.cat(found) if found else torch.empty(0)
                compare(f"{call} {name}", found, right)
    dist.barrier()
    dist.barrier(device_ids=[torch.cuda.current_device()])
    cpu = torch.ones(3)
    dist.all_reduce(cpu)
    compare("all_reduce of a CPU tensor", cpu, torch.full((3,), float(ranks)))
    return wrong


def messages(rank: int, ranks: int) -> list[str]:
    """Messages one by one and at once, of any alignment; all_to_all of uneven parts; a graph of messages."""
    import torch
    import torch.distributed as dist

    wrong: list[str] = []
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    for size in (0, 1, 100_003, 5_000_011):
        base = torch.arange(size, device="cuda").remainder(100).to(torch.uint8)
        for shift in (0, 1, 4):
            mine = torch.empty(size + shift, dtype=torch.uint8, device="cuda")[shift:].copy_(base + rank)
            got = torch.zeros(size + shift, dtype=torch.uint8, device="cuda")[shift:]
            for work in (dist.isend(mine, after), dist.irecv(got, before)):
                work.wait()
            if not torch.equal(got, base + before):
                wrong.append(f"messages of {size} bytes, shifted by {shift}")
            got.zero_()
            ops = [dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, got, before)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            if not torch.equal(got, base + before):
                wrong.append(f"a batch of {size} bytes, shifted by {shift}")
    for scale in (1, 40_000):
        rows = [[(a + 2 * b + 1) % 3 * scale for b in range(ranks)] for a in range(ranks)]
        theirs = [rows[a][rank] for a in range(ranks)]
        mine = torch.cat([torch.full((rows[rank][b], 3), 10.0 * rank + b) for b in range(ranks)]).cuda()
        out = torch.empty(sum(theirs), 3, device="cuda")
        dist.all_to_all_single(out, mine, theirs, rows[rank])
        right = torch.cat([torch.full((n, 3), 10.0 * a + rank) for a, n in enumerate(theirs)])
        if not torch.equal(out.cpu(), right):
            wrong.append(f"all_to_all of uneven parts, {scale}")
    x, y = torch.zeros(300_007, device="cuda"), torch.zeros(300_007, device="cuda")
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for work in [dist.isend(x, after), dist.irecv(y, before)]:
            work.wait()
    for turn in range(3):
        x.fill_(10 * turn + rank)
        graph.replay()
        if not bool((y == 10 * turn + before).all()):
            wrong.append(f"messages of a graph, replay {turn}")
    torch.cuda.synchronize()
    dist.barrier()
    return wrong


def streams(rank: int, ranks: int) -> list[str]:
    """Calls wait for the current stream, what follows waits for them, the host for nothing; memory that is
    let go of is not used again too early."""
    import torch
    import torch.distributed as dist

    wrong: list[str] = []
    x, y = torch.zeros(300_007, device="cuda"), torch.zeros(300_007, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(200_000_000)  # about 0.1 s
        x.fill_(rank + 1)
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        if work.is_completed():
            wrong.append("wait() waited on the host")
        y.copy_(x)
        if not bool((y == ranks * (ranks + 1) / 2).all()):
            wrong.append("order on streams")
        doubled = dist.all_reduce(x, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
        if not bool((doubled.wait() == ranks**2 * (ranks + 1)).all()):
            wrong.append("future")
        for turn in range(50):
            mine = torch.full((100_003,), float(turn + rank), device="cuda")
            out = torch.empty(ranks * 100_003, device="cuda")
            work = dist.all_gather_into_tensor(out, mine, async_op=True)
            del mine
            rubbish = torch.full((100_003,), -1.0, device="cuda")  # where it was, were it free
            work.wait()
            right = torch.arange(float(ranks), device="cuda").add(turn).repeat_interleave(100_003)
            if not torch.equal(out, right):
                wrong.append(f"a tensor that was dropped, turn {turn}")
                break
            del rubbish
    torch.cuda.synchronize()
    return wrong


def graphs(rank: int, ranks: int) -> list[str]:
    import torch
    import torch.distributed as dist

    wrong = []
    for size in SIZES:
        x, y = torch.zeros(size, device="cuda"), torch.zeros(size, device="cuda")
        gathered = torch.zeros(ranks * size, device="cuda")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            dist.all_reduce(x)
            dist.all_gather_into_tensor(gathered, x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            dist.all_reduce(x)
            dist.all_gather_into_tensor(gathered, x, async_op=True).wait()
            y.copy_(x)
        for turn in range(5):
            x.fill_(rank + turn)
            graph.replay()
            right = ranks * turn + ranks * (ranks - 1) / 2
            if not bool((y == right).all()) or not bool((gathered == right).all()):
                wrong.append(f"replay {turn} of a graph, {size} elements")
        torch.cuda.synchronize()
        dist.barrier()
    return wrong


def ddp(rank: int, ranks: int) -> list[str]:
    """Gradients are those of one process with all inputs."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    torch.use_deterministic_algorithms(False)
    inputs = torch.randn(ranks, 32, 64)
    alone, shared = (
        torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Tanh(), torch.nn.Linear(512, 1))
        for _ in range(2)
    )
    shared.load_state_dict(alone.state_dict())
    together = DistributedDataParallel(shared.cuda(), bucket_cap_mb=0.05)
    wrong = []
    for step in range(3):
        alone.zero_grad()
        sum(alone(inputs[r]).square().mean() for r in range(ranks)).div(ranks).backward()
        together.zero_grad()
        together(inputs[rank].cuda()).square().mean().backward()
        for a, b in zip(alone.parameters(), together.parameters(), strict=True):
            if not torch.allclose(a.grad, b.grad.cpu(), rtol=1e-3, atol=1e-5):
                wrong.append(f"DDP's gradients, step {step}")
    return wrong


if __name__ == "__main__":
    print(json.dumps(check(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])), flush=True)
