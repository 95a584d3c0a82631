"""Threads that use several, overlapping groups at once; every result is checked.

python tests/torch/test_torch_threads.py     # 8 threads x 4 groups x 500 operations, all checked
"""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist

RANKS = 3
MEMBERS = [[0, 1], [1, 2], [0, 2], [0, 1, 2]]  # of each thread's four groups


def value(rank, step, size):
    return torch.arange(float(size)) + 1000 * rank + step


def operate(group, members, kind, step, size, asynchronous):
    """One operation whose result tells every rank's contribution apart."""
    me, place = dist.get_rank(), members.index(dist.get_rank())
    mine = value(me, step, size)
    everyones = [value(rank, step, size) for rank in members]
    if kind == "all_reduce":
        work = dist.all_reduce(mine, group=group, async_op=asynchronous)
        return work, lambda: torch.equal(mine, sum(everyones))
    if kind == "broadcast":
        root = members[step % len(members)]
        work = dist.broadcast(mine, root, group=group, async_op=asynchronous)
        return work, lambda: torch.equal(mine, value(root, step, size))
    if kind == "all_gather":
        outs = [torch.empty(size) for _ in members]
        work = dist.all_gather(outs, mine, group=group, async_op=asynchronous)
        return work, lambda: all(
            torch.equal(out, expected) for out, expected in zip(outs, everyones, strict=True)
        )
    if kind == "reduce_scatter":
        out = torch.empty(size)
        inputs = torch.cat([mine + 7 * place_of for place_of in range(len(members))])
        work = dist.reduce_scatter_single(out, inputs, group=group, async_op=asynchronous)
        return work, lambda: torch.equal(out, sum(everyones) + 7 * place * len(members))
    if kind == "all_to_all":
        splits = [(a + step) % 3 for a in range(len(members))]  # a rank sends each as many as its place says
        out = torch.empty(splits[place] * len(members))
        sent = torch.cat([mine[:n] + 7 * to for to, n in enumerate(splits)])
        work = dist.all_to_all_single(
            out, sent, [splits[place]] * len(members), splits, group=group, async_op=asynchronous
        )
        return work, lambda: torch.equal(out, torch.cat([x[: splits[place]] + 7 * place for x in everyones]))
    assert kind == "ring"
    out = torch.empty(size)
    before, after = members[place - 1], members[(place + 1) % len(members)]
    works = [
        dist.isend(mine, after, group=group, tag=step),
        dist.irecv(out, before, group=group, tag=step),
    ]
    works[0].wait()
    return works[1], lambda: torch.equal(out, value(before, step, size))


def body(threads, operations):
    """`threads` threads, each with four groups of its own, `operations` operations on each group."""
    import random
    from datetime import timedelta

    limit = timedelta(seconds=30)
    groups = [[dist.new_group(members, timeout=limit) for members in MEMBERS] for _ in range(threads)]
    failures = []

    def thread(number):
        choice = random.Random(number)  # the same on all ranks
        pending = []

        def finish():
            for work, check, name in pending:
                if work is not None:
                    work.wait()
                if not check():
                    failures.append(f"thread {number}: wrong result of {name}")
            pending.clear()

        try:
            for step in range(operations * len(MEMBERS)):
                which = choice.randrange(len(MEMBERS))
                kind = choice.choice(
                    ["all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "ring"]
                )
                size = choice.choice([2, 3, 100, 5_000])
                asynchronous = choice.random() < 0.5
                flush = choice.random() < 0.3
                if dist.get_rank() not in MEMBERS[which]:
                    continue
                work, check = operate(groups[number][which], MEMBERS[which], kind, step, size, asynchronous)
                pending.append((work, check, f"{kind} of {size}, step {step}, group {which}"))
                if flush:
                    finish()
            finish()
        except BaseException as error:
            failures.append(f"thread {number}: {type(error).__name__}: {error}")

    running = [threading.Thread(target=thread, args=(number,), daemon=True) for number in range(threads)]
    for one in running:
        one.start()
    for one in running:
        one.join(240)
    assert not failures, "\n".join(failures[:5])
    assert not any(one.is_alive() for one in running), "a thread has not come to its end"
    for of_thread in groups:
        for group in of_thread:
            if dist.get_rank() in dist.get_process_group_ranks(group):
                dist.destroy_process_group(group)


def test_threads_and_overlapping_groups(ranks):
    ranks(RANKS, body, 8, 60, limit=120)


if __name__ == "__main__":
    import sys
    import time

    from gang import Gang

    with Gang(RANKS) as gang:
        start = time.monotonic()
        threads, operations = (int(word) for word in (sys.argv[1:] or ["8", "500"]))
        gang.run(RANKS, body, threads, operations, timeout=60.0, limit=280)
        took = time.monotonic() - start
        print(f"{threads} threads x {len(MEMBERS)} groups x {operations} operations: all right, {took:.0f} s")
