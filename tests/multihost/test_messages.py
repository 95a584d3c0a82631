"""Send and receive between hosts, and ranks that disagree."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import pycoll


def exchange(comm):
    rank = comm.rank
    others = [peer for peer in range(comm.ranks) if peer != rank]
    for size in (1, 1000, 1_000_003):
        works = [comm.send(np.arange(size) * (rank + 1), peer, tag=rank, async_=True) for peer in others]
        for peer in others:
            got = comm.recv(np.zeros(size, int), peer, tag=peer)
            np.testing.assert_array_equal(got, np.arange(size) * (peer + 1))
        for work in works:
            work.result()
    return True


@pytest.mark.parametrize(("hosts", "per_host"), [pytest.param(3, 1, marks=pytest.mark.long), (2, 2)])
def test_everyone_to_everyone(on_hosts, hosts, per_host):
    assert all(on_hosts(hosts, exchange, per_host=per_host))


def tags_out_of_order(comm):
    if comm.rank == 0:
        for tag in (1, 2, 3):
            comm.send(np.full(10, tag), 1, tag=tag, async_=True)  # the handle is dropped
        gc.collect()
        comm.barrier()
        return None
    got = [int(comm.recv(np.zeros(10, int), 0, tag=tag)[0]) for tag in (3, 1, 2)]
    comm.barrier()
    return got


def test_three_tags_out_of_order_with_dropped_handles(on_hosts):
    assert on_hosts(2, tags_out_of_order) == [None, [3, 1, 2]]


def from_any(comm):
    if comm.rank:
        comm.send(np.full(3, comm.rank), 0)
        return None
    seen = []
    for _ in range(comm.ranks - 1):
        work = comm.recv(x := np.zeros(3, int), None, async_=True)
        work.result()
        seen.append((work.source, int(x[0])))
    return sorted(seen)


def test_from_any_rank(on_hosts):
    assert on_hosts(2, from_any, per_host=2)[0] == [(1, 1), (2, 2), (3, 3)]


def sent_then_left(comm):
    if comm.rank == 0:
        comm.send(np.arange(100_000), 1)
        comm.close()  # delivered all the same
        return None
    import time

    time.sleep(0.5)
    return int(comm.recv(np.zeros(100_000, int), 0)[-1])


def test_what_was_sent_arrives_though_its_sender_left(on_hosts):
    assert on_hosts(2, sent_then_left) == [None, 99_999]


def disagree(comm, hows):
    """The error's text of each disagreement, and what a call gives that comes after it."""
    calls = {
        "numel": lambda r: comm.allreduce(np.ones(100 if r == 0 else 200)),
        "small numel": lambda r: comm.allreduce(np.ones(1 if r == 0 else 2)),
        "dtype": lambda r: comm.allreduce(np.ones(100, "f4" if r == 0 else "i4")),
        "op": lambda r: comm.allreduce(np.ones(100), "sum" if r == 0 else "max"),
        "kind": lambda r: comm.allreduce(np.ones(100)) if r == 0 else comm.broadcast(np.ones(100), 0),
        "root": lambda r: comm.broadcast(np.ones(100_000), 0 if r == 0 else 1),
        "large": lambda r: comm.allreduce(np.ones(1_000_000 if r == 0 else 2_000_000)),
    }
    said = {}
    for how in hows or calls:
        text = "no error"
        try:
            calls[how](comm.rank)
        except pycoll.Mismatch as error:
            text = str(error)
        after = comm.allreduce(np.full(1000, comm.rank + 1))  # the group is still of use
        said[how] = (text, int(after[0]))
    return said


@pytest.mark.parametrize(("hosts", "per_host"), [(2, 1), pytest.param(3, 1, marks=pytest.mark.long), (2, 2)])
def test_ranks_that_disagree(on_hosts, hosts, per_host):
    ranks = hosts * per_host
    for said in on_hosts(hosts, disagree, None, per_host=per_host):
        for how, (text, after) in said.items():
            assert "rank 0" in text, (how, text)
            assert "rank 1" in text, (how, text)
            assert after == ranks * (ranks + 1) // 2, how
