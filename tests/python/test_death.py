"""Ranks that die, stop, leave or are late: who is left gets an error that names the rank, in time."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

import pycoll

from .job import free_address


def caught_after(call):
    """(class, text, seconds) of the error that the call raises."""
    begin = time.monotonic()
    try:
        call()
    except pycoll.Error as error:
        return type(error).__name__, str(error), time.monotonic() - begin
    return "nothing", "", time.monotonic() - begin


def test_killed_in_a_large_allreduce(start_job):
    def run(comm):
        comm.barrier()
        if comm.rank == 1:
            x = np.ones(1 << 24, np.float32)
            comm.allreduce(x)
            os.kill(os.getpid(), signal.SIGKILL)
        x = np.ones(1 << 24, np.float32)  # 64 MiB
        comm.allreduce(x)
        first = caught_after(lambda: comm.allreduce(x))
        return first, caught_after(comm.barrier)

    outcomes = start_job(3, run).outcomes()
    for rank in (0, 2):
        (kind, text, seconds), (again, _, at_once) = outcomes[rank].value
        assert kind == "PeerLost", text
        assert "rank 1" in text
        assert "allreduce" in text
        assert seconds < 5
        assert (again, at_once < 1) == ("PeerLost", True)  # the group is over
    assert outcomes[1].code == -signal.SIGKILL


def test_stopped_process_is_named_at_the_deadline(start_job):
    def run(comm):
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return caught_after(lambda: comm.allreduce(np.ones(1 << 20), timeout=1.0))

    job = start_job(2, run)
    kind, text, seconds = job.outcome(0).value
    job.signal(1, signal.SIGKILL)
    assert kind == "Timeout"
    assert "1" in text
    assert 0.9 < seconds < 6


def test_peer_that_left_before_the_first_collective(start_job):
    def run(comm):
        if comm.rank == 1:
            return None  # and exits, without a word
        return caught_after(lambda: comm.allreduce(np.ones(3)))

    outcome = start_job(2, run).outcomes()[0].value
    assert outcome[0] == "PeerLost"
    assert "rank 1" in outcome[1]
    assert outcome[2] < 5


def test_timeout_of_one_operation(on_threads):
    def run(comm):
        if comm.rank == 1:
            time.sleep(1.5)
            return caught_after(comm.barrier)
        return caught_after(lambda: comm.allreduce(np.ones(3), timeout=0.2))

    (kind, text, seconds), (late_kind, _, _) = on_threads(2, run)
    assert kind == "Timeout"
    assert "allreduce" in text
    assert 0.15 < seconds < 1.4
    assert late_kind == "Timeout"  # the group is over for the late rank too


def test_longer_timeout_of_one_operation_than_the_groups(on_threads):
    def run(comm):
        comm.timeout = 0.3
        assert comm.timeout == 0.3
        if comm.rank == 1:
            time.sleep(1.0)
        return comm.allreduce(np.ones(1), timeout=20).tolist()

    assert on_threads(2, run) == [[2], [2]]


def test_wait_timeout_then_a_new_group(on_threads):
    def run(comm):
        if comm.rank == 0:
            work = comm.allreduce(np.ones(1000), async_=True)
            with pytest.raises(pycoll.Timeout):
                work.wait(0.05)
        else:
            time.sleep(0.5)
            with pytest.raises(pycoll.Timeout):
                comm.allreduce(np.ones(1000))
        comm.close()

    on_threads(2, run)
    assert on_threads(2, lambda comm: comm.allreduce(np.ones(1)).tolist()) == [[2], [2]]


def test_abort(on_threads):
    def run(comm):
        if comm.rank == 0:
            time.sleep(0.2)
            comm.abort("the data is bad")
            return caught_after(comm.barrier)
        return caught_after(lambda: comm.allreduce(np.ones(3)))

    for kind, text, seconds in on_threads(3, run):
        assert kind == "Aborted"
        assert "the data is bad" in text
        assert "rank 0" in text
        assert seconds < 5


def test_leaving_a_group_by_an_exception_tells_the_others(on_threads):
    def run(comm):
        if comm.rank == 1:
            with pytest.raises(ValueError, match="own"), comm:
                raise ValueError("its own")
            return None
        return caught_after(lambda: comm.allreduce(np.ones(3)))

    kind, text, seconds = on_threads(2, run)[0]
    assert kind == "Aborted"
    assert "ValueError: its own" in text
    assert seconds < 5


def test_arrivals_tell_who_is_late(on_threads):
    def run(comm):
        for _ in range(3):
            if comm.rank == 1:
                time.sleep(0.1)
            comm.allreduce(np.ones(1))
        comm.barrier()
        return comm.arrivals()

    for arrivals in on_threads(3, run):
        assert [record.sequence for record in arrivals][:3] == [1, 2, 3]
        for record in arrivals[:3]:
            assert len(record.lateness) == 3
            assert record.lateness[1] > 0.05
            assert min(record.lateness) == 0


def test_a_forked_child_neither_uses_nor_ends_the_group(start_job):
    def run(comm):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                comm.allreduce(np.ones(1))
            except pycoll.InvalidArgument as error:
                code = 0 if "forked" in str(error) else 2
            comm.close()
            del comm
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        return comm.allreduce(np.ones(1)).tolist()

    assert [o.value for o in start_job(2, run).outcomes().values()] == [[2], [2]]


def test_fifty_groups_leak_nothing(start_job):
    def run(rank, address):
        def usage():
            with open("/proc/self/statm") as file:
                resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            mapped = sum(1 for line in open("/proc/self/maps") if "memfd" in line)  # noqa: SIM115
            return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), mapped, resident

        def round_():
            comm = pycoll.init(30, rank=rank, ranks=2, address=address)
            x = comm.empty(100_000)
            x[:] = 1
            comm.allreduce(x)
            comm.allreduce(np.ones(100_000), async_=True).wait()
            assert x[0] == 2
            comm.allreduce(np.ones(30), algorithm="ring")
            comm.send(np.ones(10), 1 - rank, async_=True)
            comm.recv(np.ones(10), 1 - rank)
            comm.barrier()
            comm.close()

        def settled_usage():
            # A thread of the last group may be on its way out yet: the least that is seen for a while counts.
            least = usage()
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                time.sleep(0.01)
                least = min(least, usage(), key=lambda seen: seen[:3])
            return least

        for _ in range(5):
            round_()
        before = settled_usage()
        for _ in range(50):
            round_()
        return before, settled_usage()

    for outcome in start_job(2, run, free_address(), init=False).outcomes(90).values():
        assert outcome.value is not None, outcome
        (files, threads, mapped, resident), (files2, threads2, mapped2, resident2) = outcome.value
        assert (files2, threads2, mapped2) == (files, threads, mapped)
        assert resident2 - resident < 4 << 20
