"""What helps people who look for an error: monitored_barrier, TORCH_DISTRIBUTED_DEBUG=DETAIL, profiles."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from .gang import Gang


def test_monitored_barrier_lets_all_pass(ranks):
    def body():
        group = dist.new_group([0, 2])
        for _ in range(20):
            dist.monitored_barrier()
            dist.monitored_barrier(timeout=timedelta(seconds=5), wait_all_ranks=True)
            if dist.get_rank() in (0, 2):
                dist.monitored_barrier(group)
        pending = dist.all_reduce(torch.ones(1000), async_op=True)
        dist.monitored_barrier()
        pending.wait()
        dist.destroy_process_group(group)

    ranks(4, body)


@pytest.mark.parametrize("wait_all_ranks", [False, True])
def test_monitored_barrier_names_all_who_did_not_come_and_the_group_goes_on(ranks, wait_all_ranks):
    def body():
        me = dist.get_rank()
        limit = timedelta(seconds=1.5)
        start = time.monotonic()
        if me == 0:
            with pytest.raises(
                dist.DistBackendError, match=r"Ranks 1, 3 failed to pass monitoredBarrier in 15\d\d ms"
            ):
                dist.monitored_barrier(timeout=limit, wait_all_ranks=wait_all_ranks)
            assert 1.5 <= time.monotonic() - start < 6
        elif me == 2:
            with pytest.raises(
                dist.DistBackendError,
                match=r"(?s)Rank 2 successfully reached monitoredBarrier.*Ranks 1, 3 failed",
            ):
                dist.monitored_barrier(timeout=limit, wait_all_ranks=wait_all_ranks)
        elif me == 1:  # late: it is told at once, and counts its barriers as the others do
            time.sleep(2.5)
            start = time.monotonic()
            with pytest.raises(dist.DistBackendError, match="Ranks 1, 3 failed"):
                dist.monitored_barrier(timeout=timedelta(seconds=20))
            assert time.monotonic() - start < 5
        else:
            time.sleep(2.5)
            with pytest.raises(dist.DistBackendError, match="Ranks 1, 3 failed"):
                dist.monitored_barrier()
        t = torch.tensor([float(me)])
        dist.all_reduce(t)
        assert t.item() == 6.0
        dist.monitored_barrier()

    ranks(4, body)


def test_monitored_barrier_sees_the_dead_at_once():
    def body():
        me = dist.get_rank()
        dist.all_reduce(torch.ones(1))
        if me == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(dist.DistBackendError, match=r"(?s)Rank 1 failed.*killed"):
            dist.monitored_barrier(timeout=timedelta(seconds=15))
        assert time.monotonic() - start < 5

    with Gang(3) as gang:
        gang.run(3, body, deaths=frozenset({1}))


def test_the_profiler_names_every_operation_with_its_shapes(ranks):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        t, row = torch.ones(3, 4), torch.ones(4)
        rows = [torch.ones(4) for _ in range(world)]
        calls = {
            "all_reduce": (lambda a: dist.all_reduce(t, async_op=a), [[3, 4]]),
            "broadcast": (lambda a: dist.broadcast(t, 0, async_op=a), [[3, 4]]),
            "reduce": (lambda a: dist.reduce(t, 0, async_op=a), [[3, 4]]),
            "all_gather": (lambda a: dist.all_gather(rows, row, async_op=a), [[4]]),
            "all_gather_into_tensor": (
                lambda a: dist.all_gather_into_tensor(torch.ones(4 * world), row, async_op=a), [[4]],
            ),
            "reduce_scatter_tensor": (
                lambda a: dist.reduce_scatter_tensor(row, torch.ones(4 * world), async_op=a), [[4 * world]],
            ),
            "all_to_all_single": (
                lambda a: dist.all_to_all_single(torch.ones(world, 2), torch.ones(world, 2), async_op=a),
                [[world, 2]],
            ),
            "gather": (lambda a: dist.gather(row, rows if me == 0 else None, async_op=a), [[4]]),
            "scatter": (
                lambda a: dist.scatter(row, rows if me == 0 else None, async_op=a),
                [[4]] * world if me == 0 else [],
            ),
            "reduce_scatter": (lambda a: dist.reduce_scatter(row, rows, async_op=a), [[4]] * world),
            "all_to_all": (
                lambda a: dist.all_to_all([torch.ones(4) for _ in rows], rows, async_op=a), [[4]] * world,
            ),
            "barrier": (lambda a: dist.barrier(async_op=a), []),
        }  # fmt: skip
        for name, (call, shapes) in calls.items():
            for asynchronous in (False, True):
                with torch.profiler.profile(
                    activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
                ) as profile:
                    work = call(asynchronous)
                    if work is not None:
                        work.wait()
                events = [event for event in profile.events() if event.name == f"pycoll:{name}"]
                assert [event.input_shapes for event in events] == [shapes], (name, asynchronous)
                assert events[0].cpu_time >= 0
                assert events[0].is_async
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
        ) as profile:
            if me == 0:
                dist.send(t, 1)
                dist.isend(row, 1).wait()
            else:
                dist.recv(t, 0)
                dist.irecv(row).wait()
        shapes = {event.name: event.input_shapes for event in profile.events() if "pycoll:" in event.name}
        wanted = ["pycoll:send"] if me == 0 else ["pycoll:recv", "pycoll:recvAnySource"]
        assert sorted(shapes) == wanted
        assert shapes[wanted[-1]] == [[4]]

    ranks(2, body)


def test_sequence_numbers(ranks):
    def body():
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        backend._set_sequence_number_for_group()
        before = backend._get_sequence_number_for_group()
        dist.all_reduce(torch.ones(1))
        dist.all_reduce(torch.ones(1), async_op=True).wait()
        assert backend._get_sequence_number_for_group() == before + 2

    ranks(2, body)


def test_every_operation_within_torchs_checks(ranks, tmp_path):
    """TORCH_DISTRIBUTED_DEBUG=DETAIL does the same as without, where torch's wrapper lets gloo do it."""
    import cloudpickle

    from . import support

    cloudpickle.register_pickle_by_value(support)
    probes = support.PROBES

    def body(store):
        import warnings

        me = dist.get_rank()
        dist.destroy_process_group()
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        dist.init_process_group("pycoll", store=dist.FileStore(store, 2), rank=me, world_size=2)
        failures = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of names that torch has renamed
            for name, probe, forms in probes:
                for asynchronous in forms:
                    try:
                        if not probe(asynchronous):
                            failures.append(f"{name}, async {asynchronous}: wrong")
                    except Exception as error:
                        failures.append(f"{name}, async {asynchronous}: {type(error).__name__}: {error}")
        dist.destroy_process_group()
        dist.set_debug_level(dist.DebugLevel.OFF)
        return failures

    for failures in ranks(2, body, str(tmp_path / "store"), breaks_group=True):
        assert not failures, "\n".join(failures)


PROGRAM = """
    import os, sys, time, torch, torch.distributed as dist
    from datetime import timedelta
    torch.set_num_threads(1)
    me = int(os.environ["RANK"])
    dist.init_process_group("pycoll", init_method="file://" + sys.argv[1], rank=me, world_size=2,
                            timeout=timedelta(seconds=30))
    assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    t = torch.tensor([float(me)])
    dist.all_reduce(t)
    assert t.item() == 1.0
    outs = [torch.zeros(2) for _ in range(2)]
    dist.all_gather(outs, torch.full((2,), float(me)))
    assert torch.cat(outs).tolist() == [0.0, 0.0, 1.0, 1.0]
    dist.barrier()
    if me == 0: dist.send(torch.ones(3), 1)
    else: dist.recv(torch.zeros(3), 0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    model(torch.ones(1, 4)).sum().backward()
    group = dist.new_group([0, 1])
    dist.all_reduce(t, group=group)
    try:
        dist.all_reduce(torch.ones(4 + me))  # the ranks disagree: the wrapper says how
    except RuntimeError as error:
        assert "Detected mismatch between collectives" in str(error), error
    else:
        raise AssertionError("the mismatch went unnoticed")
    dist.destroy_process_group()
"""


def test_debug_detail(tmp_path):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path / "store")],
            env={**os.environ, "RANK": str(rank), "TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=100)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
    assert not any(re.search("Traceback|rror:", text) for text in said), said
