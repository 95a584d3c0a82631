"""Asynchronous collectives, and messages between two ranks."""

from __future__ import annotations

import gc
import time
from datetime import timedelta

import numpy as np
import pytest

import pycoll


def test_results_and_order(on_threads):
    def run(comm):
        n = comm.ranks
        works = []
        for i in range(20):
            x = np.full(i * 50, comm.rank + i, np.float64)
            works.append((i, x, comm.allreduce(x, async_=True)))
        for i, x, work in reversed(works):
            assert work.result() is x
            assert (x == sum(r + i for r in range(n))).all()
            assert work.done()
            assert work.exception() is None
        # One of each, then a synchronous one after all that were submitted before.
        x = np.arange(6.0)
        gathered = comm.all_gather(x, async_=True)
        scattered = comm.reduce_scatter(np.ones(6), async_=True)
        barrier = comm.barrier(async_=True)
        rooted = comm.reduce(x.copy(), root=1, async_=True)
        comm.barrier()
        assert all(work.done() for work in (gathered, scattered, barrier, rooted))
        assert gathered.result().shape == (6 * n,)
        assert scattered.result().tolist() == [n] * (6 // n)
        assert barrier.result() is None
        assert (rooted.result() is None) == (comm.rank != 1)

    on_threads(2, run)
    on_threads(3, run)


def test_strided_outputs_are_there_when_done(on_threads):
    def run(comm):
        base = np.zeros(8)
        x = base[::2]
        x[:] = comm.rank + 1
        comm.allreduce(x, async_=True).wait(5)
        assert base.tolist() == [3, 0] * 4
        work = comm.allreduce(x, async_=True)
        while not work.done():
            time.sleep(0.001)
        assert base.tolist() == [6, 0] * 4
        work.wait()  # again, harmless, copies nothing a second time
        base[:] = 1
        work.wait(timedelta(seconds=1))
        assert base.tolist() == [1] * 8

    on_threads(2, run)


def test_dropped_work_keeps_its_buffers(on_threads):
    def run(comm):
        for i in range(30):
            comm.allreduce(np.full(20_000, 1.0), async_=True)
            comm.all_gather(np.full(5_000, i), async_=True)
        gc.collect()
        assert comm.allreduce(np.ones(3)).tolist() == [comm.ranks] * 3

    on_threads(2, run)


def test_work_fails_with_the_calls_error(on_threads):
    def run(comm):
        x = np.ones(3)
        work = comm.allreduce(x, "max" if comm.rank else "sum", async_=True)
        with pytest.raises(pycoll.Mismatch, match="max"):
            work.wait()
        assert work.done()
        assert isinstance(work.exception(), pycoll.Mismatch)
        with pytest.raises(pycoll.Mismatch):
            work.result()
        assert x.tolist() == [1, 1, 1]
        with pytest.raises(pycoll.InvalidArgument):  # known before anything is sent: at once
            comm.broadcast(x, root=9, async_=True)
        with pytest.raises(pycoll.InvalidArgument, match="timeout"):
            comm.allreduce(x, timeout=0)
        with pytest.raises(pycoll.InvalidArgument, match="timeout"):
            comm.allreduce(x, timeout="soon")
        assert comm.allreduce(x).tolist() == [2, 2, 2]

    on_threads(2, run)


def test_messages_out_of_order(on_threads):
    def run(comm):
        if comm.rank == 0:
            handles = [comm.send(np.full(9, 10.0 * tag), 1, tag, async_=True) for tag in (1, 2, 3)]
            comm.send(np.arange(10.0)[::2], 1, tag=4)
            comm.send(np.full(9, 99.0), 1, tag=4)
            for handle in handles:
                handle.wait()
            big = np.arange(300_000.0)
            assert comm.recv(np.empty_like(big), 1, tag=5).tolist() == (big * 2).tolist()
        else:
            for tag in (3, 1, 2):
                assert (comm.recv(np.empty(9), 0, tag) == 10.0 * tag).all()
            hole = np.full(10, -1.0)
            comm.recv(hole[::2], 0, tag=4)
            assert hole.tolist() == [0, -1, 2, -1, 4, -1, 6, -1, 8, -1]
            longer = np.zeros(12)
            comm.recv(longer, 0, tag=4)  # a message may be shorter than the buffer
            assert longer.tolist() == [99] * 9 + [0] * 3
            comm.send(np.arange(300_000.0) * 2, 0, tag=5)

    on_threads(2, run)


def test_message_from_any_rank(on_threads):
    def run(comm):
        if comm.rank:
            comm.send(np.array([comm.rank], np.int32), 0)
            return None
        sources = []
        for _ in range(2):
            x = np.zeros(1, np.int32)
            work = comm.recv(x, async_=True)
            assert work.result() is x
            assert work.source == x[0]
            sources.append(work.source)
        return sorted(sources)

    assert on_threads(3, run)[0] == [1, 2]


def test_message_that_does_not_fit_and_wrong_ranks(on_threads):
    def run(comm):
        if comm.rank == 0:
            comm.send(np.zeros(8), 1)
        else:
            with pytest.raises(pycoll.InvalidArgument):
                comm.recv(np.zeros(4), 0)
        for call in (comm.send, comm.recv):
            for other in (7, comm.rank):
                with pytest.raises(pycoll.InvalidArgument, match=str(other)):
                    call(np.zeros(1), other)
        comm.barrier()

    on_threads(2, run)


def test_dropped_messages(on_threads):
    def run(comm):
        other = 1 - comm.rank
        for tag in range(10):
            comm.send(np.full(3000, float(tag)), other, tag, async_=True)
            comm.recv(np.zeros(3000), other, tag, async_=True)
        gc.collect()
        comm.send(np.array([comm.rank]), other, 99, async_=True)
        assert comm.recv(np.array([0]), other, 99)[0] == other
        assert comm.allreduce(np.ones(2)).tolist() == [2, 2]

    on_threads(2, run)
