"""Every collective over several hosts, one or two ranks on each: every element of every result."""

from __future__ import annotations

import numpy as np
import pytest

import pycoll

from ..python.values import contribution, reduced

COUNTS = (1, 1000, 300_001)  # inside one message; a few KiB; cut into pieces that do not divide evenly


def check_all(comm, counts, dtypes):
    """Runs everything, and returns how many results were compared."""
    rank, ranks, checked = comm.rank, comm.ranks, 0

    def same(found, expected, *what):
        nonlocal checked
        checked += 1
        np.testing.assert_array_equal(found, expected, err_msg=f"{what} on rank {rank} of {ranks}")

    for dtype in dtypes:
        for count in counts:
            everyone = [contribution(r, count, dtype) for r in range(ranks)]
            ops = {"f": ("sum", "max", "avg"), "c": ("sum",)}.get(np.dtype(dtype).kind, ("sum", "max"))
            for op in ops if count <= 1000 else ("sum",):
                same(comm.allreduce(everyone[rank].copy(), op), reduced(op, everyone), "allreduce", op)
            root = count % ranks
            x = everyone[rank].copy()
            same(comm.broadcast(x, root), everyone[root], "broadcast", count)
            found = comm.reduce(everyone[rank].copy(), root=root)
            if rank == root:
                same(found, reduced("sum", everyone), "reduce", count)
            same(comm.all_gather(everyone[rank]), np.concatenate(everyone), "all_gather", count)
            found = comm.gather(everyone[rank], root)
            if rank == root:
                same(found, np.concatenate(everyone), "gather", count)

            wide = [contribution(r, count * ranks, dtype) for r in range(ranks)]
            own = slice(rank * count, (rank + 1) * count)
            same(comm.reduce_scatter(wide[rank]), reduced("sum", wide)[own], "reduce_scatter", count)
            out = np.empty(count, dtype)
            same(
                comm.scatter(wide[rank] if rank == root else None, root, out=out), wide[root][own], "scatter"
            )
            same(comm.all_to_all(wide[rank]), np.concatenate([w[own] for w in wide]), "all_to_all", count)
    comm.barrier()
    return checked


@pytest.mark.parametrize(("hosts", "per_host"), [(2, 2), pytest.param(3, 1, marks=pytest.mark.long)])
def test_every_collective(on_hosts, hosts, per_host):
    counts = on_hosts(hosts, check_all, COUNTS, ["float32", "int64"], per_host=per_host)
    assert all(count >= 2 * 3 * 7 for count in counts)


@pytest.mark.long
@pytest.mark.parametrize(("hosts", "per_host"), [(2, 1), (2, 3), (3, 2), (4, 1), (4, 2)])
def test_every_collective_with_more_of_everything(on_hosts, hosts, per_host):
    dtypes = ["float16", "float32", "float64", "uint8", "int64", "bool", "complex64"]
    counts = (0, 1, 13, 14, 1000, 16_384, 300_001, 2_000_003)
    on_hosts(hosts, check_all, counts, dtypes, per_host=per_host, patience=200)


def every_algorithm(comm, count):
    ran = []
    everyone = [contribution(r, count, "float32") for r in range(comm.ranks)]
    expected = reduced("sum", everyone)
    for name, info in pycoll.algorithms().items():
        if "allreduce" not in info.collectives or not info.accepts(comm.ranks):
            continue
        try:
            found = comm.allreduce(everyone[comm.rank].copy(), algorithm=name)
        except pycoll.Unsupported:  # one that needs to be told the topology
            continue
        np.testing.assert_array_equal(found, expected, err_msg=name)
        ran.append(name)
    return ran


@pytest.mark.parametrize(("hosts", "per_host"), [(2, 2)])
def test_every_algorithm_runs_on_any_placement(on_hosts, hosts, per_host):
    ran = on_hosts(hosts, every_algorithm, 100_003, per_host=per_host)
    assert {"ring", "recursive_doubling", "double_binary_tree"} <= set(ran[0])
    assert all(names == ran[0] for names in ran)


def dealt(comm, hosts):
    """Ranks are dealt to the hosts in turn: neighbours by number are on different hosts."""
    everyone = [contribution(r, 50_001, "float64") for r in range(comm.ranks)]
    np.testing.assert_array_equal(comm.allreduce(everyone[comm.rank].copy()), reduced("sum", everyone))
    np.testing.assert_array_equal(comm.all_gather(everyone[comm.rank]), np.concatenate(everyone))


def test_ranks_dealt_over_the_hosts_in_turn(on_hosts, labs):
    lab = labs.get(2)
    on_hosts(
        lab,
        dealt,
        2,
        per_host=2,
        popen=lambda rank, command, **how: lab.popen(rank % 2, command, **how),
    )


def overlapping(comm):
    """Asynchronous collectives and messages in both directions, all at once."""
    works = [comm.allreduce(np.full(100_000, comm.rank + i, "float64"), async_=True) for i in range(8)]
    peer = comm.rank ^ 1
    sent = comm.send(np.arange(500_000) + comm.rank, peer, tag=7, async_=True)
    got = comm.recv(np.zeros(500_000, int), peer, tag=7)
    sums = [work.result()[0] for work in works]
    sent.result()
    np.testing.assert_array_equal(got, np.arange(500_000) + peer)
    return sums


def test_collectives_and_messages_at_once(on_hosts):
    assert on_hosts(2, overlapping, per_host=2) == [[6 + 4 * i for i in range(8)]] * 4


def two_groups(comm, address):
    with pycoll.init(30, "other", rank=comm.rank, ranks=comm.ranks, address=address) as other:
        works = [
            group.allreduce(np.full(200_000, comm.rank + 1.0), async_=True)
            for _ in range(4)
            for group in (comm, other)
        ]
        return {float(work.result()[-1]) for work in works}


def test_two_groups_share_the_links(on_hosts, labs):
    assert on_hosts(2, two_groups, f"{labs.get(2).ip(0)}:29600") == [{3.0}] * 2


def zero_copy(comm):
    x = comm.empty(300_000)
    x[:] = comm.rank + np.arange(300_000) % 5
    comm.allreduce(x)
    expected = comm.ranks * (np.arange(300_000) % 5) + sum(range(comm.ranks))
    np.testing.assert_array_equal(x, expected)
    return comm.memory().allocated > 0


@pytest.mark.long
def test_buffers_in_shared_memory(on_hosts):
    assert on_hosts(2, zero_copy, per_host=2) == [True] * 4


def bounded_memory(comm, size):
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    x = np.ones(size // 4, np.float32)
    comm.allreduce(x[: 1 << 20])
    before = resident()
    comm.allreduce(x)
    return resident() - before, float(x[-1])


def test_memory_is_bounded_whatever_the_message(on_hosts):
    for grown, value in on_hosts(2, bounded_memory, 256 << 20):
        assert value == 2
        assert grown < 64 << 20


def a_slow_reader(comm):
    """Rank 1 takes its messages late: rank 0 must not buffer them all."""
    if comm.rank == 0:
        works = [comm.send(np.full(1 << 23, i, np.uint8), 1, async_=True) for i in range(16)]
        comm.send(np.zeros(1), 1, tag=9)
        for work in works:
            work.result()
        return True
    comm.recv(np.zeros(1), 0, tag=9)
    got = [comm.recv(np.zeros(1 << 23, np.uint8), 0) for _ in range(16)]
    return all((x == i).all() for i, x in enumerate(got))


def test_messages_out_of_order_and_a_slow_reader(on_hosts):
    assert on_hosts(2, a_slow_reader) == [True, True]


def more_than_2_31(comm):
    x = np.full((1 << 31) + 7, 3 if comm.rank == 0 else 1, np.uint8)
    comm.allreduce(x)
    assert x[0] == x[-1] == 4
    assert (x == 4).all()
    del x
    y = np.full((1 << 32) + 5, 9 if comm.rank == 0 else 0, np.uint8)
    comm.broadcast(y, 0)
    return int(y[0]), int(y[-1])


@pytest.mark.long
def test_counts_above_2_31_and_bytes_above_2_32(on_hosts):
    assert on_hosts(2, more_than_2_31, timeout=200, patience=280) == [(9, 9)] * 2
