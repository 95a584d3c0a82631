"""Messages between processes of one host, also when a process dies, stops, or has left."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

import pycoll

SIZES = [0, 1, 32, 33, 100_003, (1 << 20) + 1, 5 << 20]  # bytes, around what the engine treats alike


def pattern(size, seed):
    """No two messages are equal, nor two parts of one."""
    return (np.arange(size, dtype=np.uint32) * 2654435761 + seed * 97).view(np.uint8)[::4].copy()


def caught_after(call):
    """(class, text, seconds) of the error that the call raises."""
    begin = time.monotonic()
    with pytest.raises(pycoll.Error) as raised:
        call()
    return type(raised.value).__name__, str(raised.value), time.monotonic() - begin


def test_sizes_between_processes(start_job):
    def run(comm):
        peer = 1 - comm.rank
        for number, size in enumerate(SIZES):
            if comm.rank == 0:
                comm.send(pattern(size, number), peer, tag=number)
                got = comm.recv(np.empty(size, np.uint8), peer, tag=number)
            else:
                got = comm.recv(np.empty(size, np.uint8), peer, tag=number)
                comm.send(pattern(size, number), peer, tag=number)
            assert (got == pattern(size, number)).all()
        return len(SIZES)

    outcomes = start_job(2, run).outcomes()
    assert [outcomes[rank].value for rank in range(2)] == [len(SIZES)] * 2, outcomes


def test_many_outstanding_in_reverse(start_job):
    def run(comm):
        tags = range(300)
        peer = 1 - comm.rank
        data = [pattern(1 + 3000 * tag % 70_000, tag + 1000 * comm.rank) for tag in tags]
        sends = [comm.send(data[tag], peer, tag=tag, async_=True) for tag in tags]
        wrong = 0
        for tag in reversed(tags):
            expected = pattern(1 + 3000 * tag % 70_000, tag + 1000 * peer)
            got = comm.recv(np.empty_like(expected), peer, tag=tag)
            wrong += int((got != expected).sum())
        for work in sends:
            work.wait()
        return wrong

    outcomes = start_job(2, run).outcomes()
    assert [outcomes[rank].value for rank in range(2)] == [0, 0], outcomes


@pytest.mark.parametrize("call", ["recv", "send", "recv from any"])
def test_killed_peer(start_job, call):
    def run(comm):
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if call == "send":
            return caught_after(lambda: comm.send(np.ones(8 << 20, np.uint8), 1, tag=7))
        return caught_after(lambda: comm.recv(np.empty(100), None if "any" in call else 1, tag=7))

    outcomes = start_job(2, run).outcomes()
    kind, text, seconds = outcomes[0].value
    assert kind == "PeerLost", text
    assert "tag 7" in text
    if call == "recv from any":
        assert "all other ranks" in text
    else:
        assert "rank 1 (pid" in text
        assert "killed" in text
    assert seconds < 1
    assert outcomes[1].code == -signal.SIGKILL


def test_messages_of_a_killed_rank_arrive_first(start_job):
    def run(comm):
        if comm.rank == 1:
            comm.send(pattern(500_000, 3), 0, tag=1)
            comm.send(np.array([42]), 0, tag=2)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.3)
        short = comm.recv(np.empty(1, np.int64), 1, tag=2)
        long = comm.recv(np.empty(500_000, np.uint8), 1, tag=1)
        return short.tolist(), bool((long == pattern(500_000, 3)).all())

    assert start_job(2, run).outcomes()[0].value == ([42], True)


def test_killed_in_the_middle_of_a_message(start_job):
    """A message longer than what shared memory holds of it cannot be completed; nobody waits for the rest."""

    def run(comm):
        if comm.rank == 1:
            comm.send(np.ones(16 << 20, np.uint8), 0, tag=1, async_=True)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.3)
        return caught_after(lambda: comm.recv(np.empty(16 << 20, np.uint8), 1, tag=1))

    kind, text, seconds = start_job(2, run).outcomes()[0].value
    assert kind == "PeerLost", text
    assert "rank 1" in text
    assert seconds < 1


def test_stopped_peer_and_the_operations_own_timeout(start_job):
    def run(comm):
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return caught_after(lambda: comm.recv(np.empty(3), 1, tag=5, timeout=0.5))

    job = start_job(2, run)
    kind, text, seconds = job.outcome(0).value
    job.signal(1, signal.SIGKILL)
    assert kind == "Timeout"
    assert "recv of 24 bytes from rank 1, tag 5 timed out after 0.5" in text
    assert 0.45 < seconds < 2


def test_deadline_holds_when_nobody_waits(start_job):
    def run(comm):
        if comm.rank == 1:
            return caught_after(comm.barrier)
        work = comm.recv(np.empty(3), 1, timeout=0.3, async_=True)
        time.sleep(1.0)
        return caught_after(comm.barrier), work.done()

    outcomes = start_job(2, run).outcomes()
    ((kind, text, _), done), (other, told, seconds) = outcomes[0].value, outcomes[1].value
    assert (kind, done, other) == ("Timeout", True, "Timeout")
    assert "recv of 24 bytes from rank 1" in text
    assert "recv of 24 bytes from rank 1" in told
    assert seconds < 3


def test_shared_buffers_are_sent_in_place(start_job):
    def run(comm):
        x = comm.empty((6 << 20,), np.uint8)
        if comm.rank == 0:
            x[:] = pattern(x.size, 1)
            comm.send(x, 1)
            x[:] = 0
            return True
        return bool((comm.recv(x, 0) == pattern(x.size, 1)).all())

    outcomes = start_job(2, run).outcomes()
    assert [outcomes[rank].value for rank in range(2)] == [True, True], outcomes


def test_group_of_one_has_nobody_to_hear(start_job):
    def run(comm):
        return caught_after(lambda: comm.recv(np.empty(1)))

    kind, text, _ = start_job(1, run).outcomes()[0].value
    assert kind == pycoll.InvalidArgument.__name__
    assert "alone" in text
