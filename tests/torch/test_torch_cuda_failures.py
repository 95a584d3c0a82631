"""CUDA tensors through torch.distributed: late and lost ranks, aborting, leaving. A kernel that waits for a
peer would wait for ever; the watchdog ends it."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist


def error_of(call) -> str:
    """Calls until it fails."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            call()
        except dist.DistBackendError as error:
            return str(error)
        time.sleep(0.02)
    raise AssertionError("no error came")


def backend():
    return dist.distributed_c10d._get_default_group()._get_backend(torch.device("fakegpu"))


def is_over(work) -> None:
    """Returns once the work has failed."""
    deadline = time.monotonic() + 30
    while work.is_success():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_call_that_one_rank_does_not_make_times_out_on_all(gpu_ranks):
    def body():
        x = torch.ones(5, device="fakegpu")
        dist.all_reduce(x)
        x.cpu()
        if dist.get_rank() == 1:
            return error_of(dist.barrier)  # where it is told
        dist.group.WORLD.set_timeout(timedelta(seconds=1))
        dist.broadcast(x, 0)
        work = dist.all_reduce(x, async_op=True)
        x.cpu()  # ends when the watchdog has ended the kernels
        is_over(work)
        assert work.is_completed()
        with pytest.raises(dist.DistBackendError, match="timed out"):
            work.wait()
        return error_of(lambda: dist.all_reduce(x))

    messages = gpu_ranks(3, body, breaks_group=True)
    assert all("broadcast" in message for message in messages), messages
    assert "others have not come: rank 1 called last all_reduce" in messages[0] + messages[2]


def test_a_lost_rank_ends_the_kernels_that_wait_for_it(gpu_ranks):
    def body():
        x = torch.ones(5, device="fakegpu")
        dist.all_reduce(x)
        x.cpu()
        if dist.get_rank() == 1:
            os._exit(3)
        work = dist.all_reduce(x, async_op=True)
        x.cpu()
        is_over(work)
        return error_of(work.wait), error_of(lambda: dist.all_reduce(x))

    for messages in gpu_ranks(3, body, deaths=frozenset({1}), timeout=60.0):
        for message in messages or ():
            assert "rank 1 is gone" in message


def test_abort_ends_the_kernels_of_all_ranks(gpu_ranks):
    def body():
        x = torch.ones(5, device="fakegpu")
        dist.all_reduce(x)
        x.cpu()
        if dist.get_rank() == 1:
            backend().abort()
        else:
            dist.all_reduce(x)
            x.cpu()
        return error_of(lambda: dist.all_reduce(x))

    assert all("rank 1 aborted" in message for message in gpu_ranks(3, body, breaks_group=True))


def test_a_wait_that_runs_out_of_time(gpu_ranks):
    def body():
        x = torch.ones(5, device="fakegpu")
        dist.all_reduce(x)
        if dist.get_rank() == 0:
            work = dist.all_reduce(x, async_op=True)
            return error_of(lambda: work.wait(timedelta(seconds=0.3)))
        return error_of(dist.barrier)

    messages = gpu_ranks(3, body, breaks_group=True)
    assert all("timed out after 300 ms" in message for message in messages), messages


def test_leaving_waits_for_those_who_still_read(gpu_ranks):
    def body():
        import fake_gpu

        me = dist.get_rank()
        group = dist.new_group(backend="pycoll_fake")
        before = fake_gpu.groups_open()
        x = torch.full((5,), me + 1.0, device="fakegpu")
        dist.all_reduce(torch.ones(1, device="fakegpu"), group=group)
        fake_gpu.delay_reading(0.4 if me == 1 else 0)
        dist.all_reduce(x, group=group)
        dist.destroy_process_group(group)  # while rank 1 reads what the others would free
        assert x.cpu().tolist() == [6.0] * 5
        fake_gpu.delay_reading(0)
        assert fake_gpu.groups_open() == before

    gpu_ranks(3, body)


def test_a_rank_that_has_left_is_named(gpu_ranks):
    def body():
        group = dist.new_group(backend="pycoll_fake")
        x = torch.ones(5, device="fakegpu")
        dist.all_reduce(x, group=group)
        x.cpu()
        if dist.get_rank() == 1:
            dist.destroy_process_group(group)
            return ""
        return error_of(lambda: (dist.all_reduce(x, group=group), x.cpu()))

    messages = gpu_ranks(3, body, breaks_group=True)
    assert "rank 1 has left the group" in messages[0]
    assert "rank 1 has left the group" in messages[2]
