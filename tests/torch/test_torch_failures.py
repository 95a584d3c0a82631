"""Ranks that disagree, die, stop, or are late: an error that names them, soon, on every rank that lives."""

from __future__ import annotations

import os
import re
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from .gang import Gang


def error_of(call):
    """The text of the DistBackendError that `call` raises, and after how many seconds."""
    start = time.monotonic()
    with pytest.raises(dist.DistBackendError) as caught:
        call()
    return str(caught.value), time.monotonic() - start


def names(text, rank):
    return re.search(rf"rank(\(s\))? {rank}\b", text) is not None


def bits(numel):
    return torch.ones(numel, dtype=torch.int32)


def coalesced(tensors):
    dist.group.WORLD.allreduce_coalesced(tensors, dist.AllreduceCoalescedOptions()).wait()


DISAGREEMENTS = {
    "numel": (
        lambda: dist.all_reduce(torch.ones(100)),
        lambda: dist.all_reduce(torch.ones(200)),
        "100",
        "200",
    ),
    "numel of 1 and 2": (
        lambda: dist.all_reduce(torch.ones(1)),
        lambda: dist.all_reduce(torch.ones(2)),
        "1",
        "2",
    ),
    "dtype": (
        lambda: dist.all_reduce(torch.ones(8)),
        lambda: dist.all_reduce(torch.ones(8, dtype=torch.int32)),
        "float32",
        "int32",
    ),
    "op": (
        lambda: dist.all_reduce(torch.ones(8)),
        lambda: dist.all_reduce(torch.ones(8), dist.ReduceOp.MAX),
        "sum",
        "max",
    ),
    "kind": (
        lambda: dist.all_reduce(torch.ones(8)),
        lambda: dist.broadcast(torch.ones(8), 0),
        "allreduce",
        "broadcast",
    ),
    "root": (
        lambda: dist.broadcast(torch.ones(8), 0),
        lambda: dist.broadcast(torch.ones(8), 1),
        "root 0",
        "root 1",
    ),
    "large numel": (
        lambda: dist.all_reduce(torch.ones(1_000_000)),
        lambda: dist.all_reduce(torch.ones(2_000_000)),
        "1000000",
        "2000000",
    ),
    "asynchronous": (
        lambda: dist.all_reduce(torch.ones(100), async_op=True).wait(),
        lambda: dist.barrier(async_op=True).wait(),
        "allreduce",
        "barrier",
    ),
    "all_gather": (
        lambda: dist.all_gather_into_tensor(torch.ones(20), torch.ones(10)),
        lambda: dist.all_gather_into_tensor(torch.ones(22), torch.ones(11)),
        "10",
        "11",
    ),
    "all_to_all": (
        lambda: dist.all_to_all([torch.ones(1), torch.ones(2)], [torch.ones(1), torch.ones(3)]),
        lambda: dist.all_to_all([torch.ones(2), torch.ones(4)], [torch.ones(2), torch.ones(4)]),
        "rank 0 sent rank 1 12 bytes",
        "rank 1 expected 8 bytes",
    ),
    "all_to_all's dtype": (
        lambda: dist.all_to_all([torch.ones(1), torch.ones(1)], [torch.ones(1)] * 2),
        lambda: dist.all_to_all([bits(1), bits(1)], [bits(1)] * 2),
        "float32",
        "int32",
    ),
    # Where one rank's call is one collective and another's are several, or collectives and messages.
    "split sizes given by one rank only": (
        lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4)),
        lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [2, 2], [2, 2]),
        "all_to_all(2 x float32",
        "for all_to_all_single",
    ),
    "all_reduce and all_to_all": (
        lambda: dist.all_reduce(torch.ones(3)),
        lambda: dist.all_to_all([torch.ones(1), torch.ones(1)], [torch.ones(1)] * 2),
        "allreduce(3 x float32",
        "for all_to_all",
    ),
    "uneven sizes on one rank only": (
        lambda: dist.all_gather([torch.ones(2), torch.ones(2)], torch.ones(2)),
        lambda: dist.all_gather([torch.ones(1), torch.ones(2)], torch.ones(2)),
        "all_gather(2 x float32",
        "for all_gather",
    ),
    "asynchronous uneven sizes on one rank only": (
        lambda: dist.all_gather([torch.ones(2), torch.ones(2)], torch.ones(2), async_op=True).wait(),
        lambda: dist.all_gather([torch.ones(1), torch.ones(2)], torch.ones(2), async_op=True).wait(),
        "all_gather(2 x float32",
        "for all_gather",
    ),
    "sizes of uneven shards": (
        lambda: dist.reduce_scatter(torch.ones(1), [torch.ones(1), torch.ones(2)]),
        lambda: dist.reduce_scatter(torch.ones(3), [torch.ones(1), torch.ones(3)]),
        "of 2 tensors of 1, 2 elements",
        "of 2 tensors of 1, 3 elements",
    ),
    "tensors of a coalesced call": (
        lambda: coalesced([torch.ones(3), torch.ones(5)]),
        lambda: coalesced([torch.ones(5), torch.ones(3)]),
        "of 2 tensors of 3, 5 elements",
        "of 2 tensors of 5, 3 elements",
    ),
    "number of tensors of a coalesced call": (
        lambda: coalesced([torch.ones(50_000), torch.ones(50_000)]),
        lambda: coalesced([torch.ones(50_000)]),
        "of 2 tensors of 50000, 50000 elements",
        "for all_reduce_coalesced. no data",
    ),
    "dtypes that only travel": (
        lambda: dist.broadcast(torch.ones(4).to(torch.float8_e4m3fnuz), 0),
        lambda: dist.broadcast(torch.ones(4, dtype=torch.uint8), 0),
        "of float8_e4m3fnuz elements",
        "broadcast(4 x uint8",
    ),
    "premul_sum": (
        lambda: dist.all_reduce(torch.ones(8), dist._make_nccl_premul_sum(2.0)),
        lambda: dist.all_reduce(torch.ones(8)),
        "premul_sum",
        ", sum",
    ),
    "gather": (
        lambda: dist.gather(torch.ones(2), [torch.ones(2), torch.ones(2)]),
        lambda: dist.gather(torch.ones(3)),
        "gather(2 x float32",
        "gather(3 x float32",
    ),
    "scatter": (
        lambda: dist.scatter(torch.ones(2), [torch.ones(2), torch.ones(2)]),
        lambda: dist.scatter(torch.ones(3)),
        "scatter(2 x float32",
        "scatter(3 x float32",
    ),
    "sparse and dense": (
        lambda: dist.all_reduce(torch.eye(3).to_sparse()),
        lambda: dist.all_reduce(torch.eye(3)),
        "for all_reduce_sparse",
        "allreduce(9 x float32",
    ),
}


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_disagreement(ranks, name):
    zero, one, of_zero, of_one = DISAGREEMENTS[name]

    def body():
        error = error_of(zero if dist.get_rank() == 0 else one)
        # The ranks are in step, and messages of the next call are not taken for those of this one.
        t = torch.ones(3)
        dist.all_reduce(t)
        assert t.tolist() == [2.0] * 3
        out = torch.empty(3)
        me = dist.get_rank()
        splits = [[1, 2], [2, 1]][me]
        dist.all_to_all_single(out, torch.arange(3.0) + 10 * me, splits, splits)
        assert out.tolist() == [[0.0, 10.0, 11.0], [1.0, 2.0, 12.0]][me]
        return error

    for text, seconds in ranks(2, body):
        assert names(text, 0)
        assert names(text, 1)
        assert of_zero in text.lower()
        assert of_one in text.lower()
        assert seconds < 2


def test_a_disagreement_leaves_the_group_usable_and_data_alone(ranks):
    def body():
        me = dist.get_rank()
        t = torch.full((100 + me,), 7.0)
        error_of(lambda: dist.all_reduce(t))
        assert t.unique().tolist() == [7.0]
        inputs, outputs = [torch.ones(me + 1) for _ in range(3)], [torch.full((3,), 7.0) for _ in range(3)]
        for exchange in (
            lambda: dist.all_to_all(outputs, inputs),
            lambda: dist.all_to_all(outputs, inputs, async_op=True).wait(),
        ):
            error_of(exchange)
            assert torch.cat(outputs).unique().tolist() == [7.0]
        t = torch.ones(5)
        dist.all_reduce(t)
        assert t.tolist() == [3.0] * 5

    ranks(3, body)


def test_a_failure_while_the_group_is_made_reaches_all(ranks, tmp_path):
    def body():
        me = int(os.environ["RANK"])
        dist.destroy_process_group()
        if me == 1:
            from pycoll.torch import build

            def broken(timeout):
                raise RuntimeError("no compiler on this host")

            load, build.load = build.load, broken
        start = time.monotonic()
        try:
            with pytest.raises(RuntimeError, match="no compiler on this host") as caught:
                dist.init_process_group(
                    "pycoll", store=dist.FileStore(str(tmp_path / "store"), 3), rank=me, world_size=3
                )
        finally:
            if me == 1:
                build.load = load
        if me != 1:
            assert isinstance(caught.value, dist.DistBackendError)
            assert "rank 1" in str(caught.value)
        assert time.monotonic() - start < 5
        # The same store, names and processes, with nothing wrong this time.
        dist.init_process_group(
            "pycoll", store=dist.FileStore(str(tmp_path / "store"), 3), rank=me, world_size=3
        )
        t = torch.ones(2)
        dist.all_reduce(t)
        assert t.tolist() == [3.0, 3.0]

    ranks(3, body, breaks_group=True)


def test_a_rank_that_never_comes_is_named_in_time(ranks, tmp_path):
    def body():
        me = int(os.environ["RANK"])
        dist.destroy_process_group()
        if me == 1:
            return None
        store = dist.FileStore(str(tmp_path / "store"), 3)
        return error_of(
            lambda: dist.init_process_group(
                "pycoll", store=store, rank=me, world_size=3, timeout=timedelta(seconds=1.5)
            )
        )

    zero, _, two = ranks(3, body, breaks_group=True)
    for text, seconds in (zero, two):
        assert 1.4 < seconds < 4
        assert "timed out" in text or "because of rank" in text
        assert names(text, 1)


def test_pg_options_are_refused(ranks, tmp_path):
    def body():
        dist.destroy_process_group()
        store = dist.FileStore(str(tmp_path / "store"), 1)
        with pytest.raises(ValueError, match="pg_options"):
            dist.init_process_group("pycoll", store=store, rank=0, world_size=1, pg_options=object())

    ranks(1, body, breaks_group=True)


@pytest.mark.parametrize("async_op", [False, True])
def test_timeouts_shorter_and_longer_than_the_groups(ranks, async_op):
    def body(group_seconds, own_seconds, late_by):
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=own_seconds)
        options.asyncOp = async_op
        t = torch.ones(1000)
        if dist.get_rank() == 1:
            time.sleep(late_by)

        def call():
            work = dist.group.WORLD.allreduce([t], options)
            if work is not None:
                work.wait()

        if late_by > own_seconds:
            return error_of(call)
        call()
        assert t[0].item() == 2
        return None

    for text, seconds in ranks(2, body, 10, 0.5, 2, timeout=10, breaks_group=True)[:1]:
        assert "timed out" in text
        assert names(text, 1)
        assert 0.4 < seconds < 1.9
    ranks(2, body, 1, 10, 2, timeout=1, breaks_group=True)  # waits beyond the group's second


def test_the_groups_timeout(ranks):
    def body():
        if dist.get_rank() == 1:
            time.sleep(2)
            return None
        first = error_of(lambda: dist.all_reduce(torch.ones(4)))
        again = error_of(lambda: dist.all_reduce(torch.ones(4)))  # the group has ended: at once
        assert again[1] < 0.5
        return first

    text, seconds = ranks(2, body, timeout=1, breaks_group=True)[0]
    assert "timed out" in text
    assert names(text, 1)
    assert 0.9 < seconds < 1.9


def test_set_timeout(ranks):
    def body():
        dist.group.WORLD.set_timeout(timedelta(seconds=0.5))
        if dist.get_rank() == 1:
            time.sleep(8)
            return None
        return error_of(dist.barrier)

    text, seconds = ranks(2, body, breaks_group=True)[0]
    assert "timed out" in text
    assert 0.4 < seconds < 7


def test_wait_with_a_timeout_then_a_new_group(ranks, tmp_path):
    def body():
        me = dist.get_rank()
        if me == 1:
            time.sleep(0.6)
        else:
            work = dist.all_reduce(torch.ones(10), async_op=True)
            text, seconds = error_of(lambda: work.wait(timedelta(milliseconds=50)))
            assert "timed out" in text
            assert seconds < 0.5
        dist.destroy_process_group()
        dist.init_process_group("pycoll", store=dist.FileStore(str(tmp_path / "s"), 2), rank=me, world_size=2)
        t = torch.ones(10)
        dist.all_reduce(t)
        assert t.tolist() == [2.0] * 10

    ranks(2, body, breaks_group=True)


def test_abort(ranks):
    def body():
        if dist.get_rank() == 1:
            time.sleep(0.3)
            dist.distributed_c10d._abort_process_group()
            return None
        return error_of(lambda: dist.all_reduce(torch.ones(4)))

    text, seconds = ranks(2, body, breaks_group=True)[0]
    assert "abort" in text
    assert names(text, 1)
    assert seconds < 2


@pytest.mark.parametrize("async_op", [False, True])
def test_abort_from_another_thread(ranks, async_op, tmp_path):
    def body(store):
        import threading

        me = dist.get_rank()
        if me == 1:  # never calls what the others wait for
            text, seconds = error_of(lambda: dist.barrier())
        else:
            backend = dist.group.WORLD._get_backend(torch.device("cpu"))
            timer = threading.Timer(0.3, backend.abort)
            if me == 0:
                timer.start()

            def call():
                work = dist.all_reduce(torch.ones(4), async_op=async_op)
                if work is not None:
                    work.wait()

            text, seconds = error_of(call)
        assert "abort" in text
        assert names(text, 0)
        assert seconds < 5
        dist.destroy_process_group()
        dist.init_process_group("pycoll", store=dist.FileStore(store, 3), rank=me, world_size=3)
        t = torch.ones(4)
        dist.all_reduce(t)
        assert t.tolist() == [3.0] * 4

    def late_body(store):
        if dist.get_rank() == 1:
            time.sleep(0.6)
        return body(store)

    ranks(3, late_body, str(tmp_path / "store"), breaks_group=True)


def test_use_after_destroy_is_a_clear_error(ranks):
    def body():
        group = dist.new_group([0, 1])
        work = dist.all_reduce(torch.ones(4), group=group, async_op=True)
        work.wait()
        dist.destroy_process_group(group)
        with pytest.raises(ValueError, match=r"not initialized|[Ii]nvalid|not registered"):  # torch's own
            dist.all_reduce(torch.ones(4), group=group)
        backend = group._get_backend(torch.device("cpu"))
        start = time.monotonic()
        for call in (
            lambda: backend.allreduce([torch.ones(4)], dist.AllreduceOptions()),
            lambda: backend.barrier(dist.BarrierOptions()),
            lambda: backend.send([torch.ones(4)], 1 - dist.get_rank(), 0),
        ):
            with pytest.raises(ValueError, match="this communicator is closed; make a new one"):
                call()
        assert time.monotonic() - start < 5
        assert work.is_completed()
        t = torch.ones(4)
        dist.all_reduce(t)
        assert t.tolist() == [2.0] * 4

    ranks(2, body)


def test_a_rank_that_leaves_is_named(ranks):
    def body():
        if dist.get_rank() == 1:
            dist.destroy_process_group()
            return None
        return error_of(lambda: dist.all_reduce(torch.ones(4)))

    text, seconds = ranks(2, body, breaks_group=True)[0]
    assert names(text, 1)
    assert seconds < 2


def test_killed_and_stopped_ranks():
    """SIGKILL is noticed at once, SIGSTOP at the deadline; both name the rank."""

    def train(victim_signal):
        def body():
            me = dist.get_rank()
            t = torch.ones(16 << 20)  # 64 MiB

            def loop():
                for i in range(1000):
                    if me == 1 and i == 3:
                        os.kill(os.getpid(), victim_signal)
                    dist.all_reduce(t)

            return error_of(loop)

        return body

    with Gang(3) as gang:
        for text, seconds in gang.run(2, train(signal.SIGSTOP), timeout=2.0, deaths={1})[:1]:
            assert "timed out" in text
            assert names(text, 1)
            assert 1.9 < seconds < 8
        os.kill(gang.processes[1].pid, signal.SIGCONT)
        assert gang.pipes[1].poll(20)  # it wakes to a group that has ended
        gang.pipes[1].recv_bytes()
        for rank, answer in enumerate(gang.run(3, train(signal.SIGKILL), deaths={1})):
            if rank != 1:
                text, seconds = answer
                assert names(text, 1)
                assert seconds < 8


def test_a_peer_that_exits_before_a_subgroups_first_collective():
    def body():
        group = dist.new_group([0, 1])
        if dist.get_rank() == 1:
            os._exit(3)
        if dist.get_rank() == 0:
            text, seconds = error_of(lambda: dist.all_reduce(torch.ones(3), group=group))
            assert names(text, 1)
            assert seconds < 3

    with Gang(2) as gang:
        gang.run(2, body, deaths={1})


@pytest.mark.parametrize("victim", [0, 1])
def test_a_peer_that_dies_while_a_subgroup_is_made(victim):
    def body():
        dist.all_reduce(torch.ones(1))
        if dist.get_rank() == victim:
            time.sleep(0.3)  # the others are waiting for this rank
            os._exit(3)
        start = time.monotonic()
        with pytest.raises(dist.DistBackendError) as caught:
            dist.new_group([0, 1, 2])
        assert names(str(caught.value), victim)
        assert "gone" in str(caught.value)
        assert time.monotonic() - start < 5

    with Gang(3) as gang:
        gang.run(3, body, deaths={victim})
        # A world made anew knows nothing of the old one's processes.
        survivors = [rank for rank in range(3) if rank != victim]
        assert all(gang.processes[rank].is_alive() for rank in survivors)
