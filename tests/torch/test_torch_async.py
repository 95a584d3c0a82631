"""Work handles and futures: order, results, lifetime, callbacks."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest
import torch
import torch.distributed as dist


def test_many_in_flight_complete_in_any_order_of_waiting(ranks):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        tensors = [torch.full((100 * i + 1,), float(i + me)) for i in range(40)]
        works = [dist.all_reduce(t, async_op=True) for t in tensors]
        for i in [17, 39, 0, *range(40)]:
            works[i].wait()
            assert works[i].is_completed()
            assert tensors[i].tolist() == [world * i + sum(range(world))] * (100 * i + 1)

    ranks(3, body)


def test_futures_yield_the_tensors(ranks):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        strided = torch.zeros(6, 2)[:, 0].fill_(me + 1.0)
        doubled = dist.all_reduce(strided, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
        assert doubled.wait().tolist() == [2.0 * sum(range(1, world + 1))] * 6  # after it was written back
        outs = [torch.zeros(2) for _ in range(world)]
        work = dist.all_gather(outs, torch.full((2,), float(me)), async_op=True)
        assert [t[0].item() for t in work.get_future().wait()] == list(range(world))
        assert [t[0].item() for t in work.result()] == list(range(world))
        work = dist.all_reduce(torch.ones(1), async_op=True)
        work.wait()
        assert work.get_future().done()
        future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
        dist.all_reduce(torch.ones(1))
        assert future.wait()[0].item() == world

    ranks(3, body)


def test_a_callback_may_run_further_collectives(ranks):
    """As the PowerSGD hook does: from within the callback, on whatever thread that runs."""

    def body():
        world = dist.get_world_size()

        def again(future):
            t = future.value()[0]
            dist.all_reduce(t)
            return dist.all_reduce(t, async_op=True).get_future()

        for wait_first in (False, True):
            t = torch.ones(1000)
            work = dist.all_reduce(t, async_op=True)
            future = work.get_future().then(again)
            if wait_first:
                work.wait()
            future.wait().wait()
            assert t.tolist() == [float(world**3)] * 1000

    ranks(2, body)


def test_handles_and_tensors_may_be_dropped(ranks):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        right, left = (me + 1) % world, (me - 1) % world
        kept = [torch.zeros(5000) for _ in range(10)]
        for i in range(10):
            dist.all_reduce(torch.full((5000,), float(i)), async_op=True)
            dist.isend(torch.full((5000,), float(10 * me + i)), right, tag=i)
            dist.irecv(kept[i], left, tag=i)
            dist.all_reduce(torch.ones(50, 2)[:, 1], async_op=True)
        gc.collect()
        dist.barrier()
        deadline = time.monotonic() + 10
        while any(kept[i][-1] != 10 * left + i for i in range(10)) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert [t.unique().tolist() for t in kept] == [[10.0 * left + i] for i in range(10)]
        # What is done keeps nothing alive.
        t = torch.ones(10)
        gone = weakref.ref(t.untyped_storage())
        work = dist.all_reduce(t, async_op=True)
        work.wait()
        del t, work
        gc.collect()
        deadline = time.monotonic() + 5  # the thread that ended it may not have let go yet
        while gone() is not None and time.monotonic() < deadline:
            time.sleep(0.001)
        assert gone() is None

    ranks(3, body)


def test_tags_out_of_order(ranks):
    def body():
        if dist.get_rank() == 0:
            works = [
                dist.isend(torch.full((n,), float(tag)), 1, tag=tag)
                for tag, n in ((7, 3), (8, 100_000), (9, 0))
            ]
        else:
            outs = {9: torch.zeros(0), 8: torch.zeros(100_000), 7: torch.zeros(3)}
            works = [dist.irecv(t, 0, tag=tag) for tag, t in outs.items()]
        for work in works:
            work.wait()
        if dist.get_rank() == 1:
            assert all((t == tag).all() for tag, t in outs.items())

    ranks(2, body)


def test_point_to_point(ranks):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        if me == 0:
            heard = set()
            for _ in range(world - 1):
                t = torch.zeros(4, dtype=torch.int64)
                source = dist.recv(t, tag=5)
                assert t.tolist() == [source] * 4
                heard.add(source)
            assert heard == set(range(1, world))
        else:
            dist.send(torch.full((4,), me), 0, tag=5)
        ops = []
        outs = [torch.zeros(3) for _ in range(world)]
        for peer in range(world):
            if peer != me:
                ops.append(dist.P2POp(dist.isend, torch.full((3,), float(me)), peer))
                ops.append(dist.P2POp(dist.irecv, outs[peer], peer))
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert all(outs[peer].tolist() == [peer] * 3 for peer in range(world) if peer != me)
        with pytest.raises(ValueError, match="rank"):
            dist.group.WORLD.send([torch.ones(1)], world, 0)
        with pytest.raises(ValueError, match="rank"):
            dist.group.WORLD.recv([torch.ones(1)], world, 0)
        objects = [None] * world
        dist.all_gather_object(objects, {"rank": me, "pad": "x" * (100 * me)})
        assert [o["rank"] for o in objects] == list(range(world))

    ranks(3, body)


def test_coalesced(ranks):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        total = sum(range(world))
        for async_op in (False, True):
            for device in (None, torch.device("cpu")):  # torch's fast path; start- and endCoalescing
                tensors = [torch.full((3 + i,), float(me * (i + 1))) for i in range(5)]
                with dist._coalescing_manager(device=device, async_ops=async_op) as manager:
                    for t in tensors:
                        dist.all_reduce(t, async_op=async_op)
                if async_op:
                    manager.wait()
                assert [t[0].item() for t in tensors] == [float(total * (i + 1)) for i in range(5)]
                outs = [torch.zeros(world * 2) for _ in range(3)]
                with dist._coalescing_manager(device=device, async_ops=async_op) as manager:
                    for i, out in enumerate(outs):
                        dist.all_gather_into_tensor(out, torch.full((2,), float(me + i)), async_op=async_op)
                if async_op:
                    manager.wait()
                assert outs[2].view(world, 2)[:, 0].tolist() == [2.0 + r for r in range(world)]
                outs = [torch.zeros(2) for _ in range(3)]
                with dist._coalescing_manager(device=device, async_ops=async_op) as manager:
                    for out in outs:
                        dist.reduce_scatter_tensor(out, torch.arange(2.0 * world), async_op=async_op)
                if async_op:
                    manager.wait()
                assert outs[1].tolist() == [world * (2.0 * me), world * (2.0 * me + 1)]
        pg = dist.group.WORLD
        for numel in (10, 100_000):  # one buffer; a collective each
            tensors = [
                torch.full((numel,), float(me)),
                torch.full((2, numel), float(me))[:, ::2],
                torch.ones(1),
            ]
            pg.allreduce_coalesced(tensors, dist.AllreduceCoalescedOptions()).wait()
            assert [t.unique().tolist() for t in tensors] == [[total], [total], [world]]
        mixed = [torch.ones(3), torch.ones(3, dtype=torch.int64)]
        pg.allreduce_coalesced(mixed, dist.AllreduceCoalescedOptions()).wait()
        assert [t.tolist() for t in mixed] == [[world] * 3] * 2

    ranks(3, body)


def test_threads_share_a_group_of_their_own(ranks):
    """A blocking call releases the GIL: another thread's group makes progress meanwhile."""

    def body():
        me = dist.get_rank()
        other = dist.new_group([0, 1])
        order = []

        def second():
            dist.all_reduce(torch.ones(10), group=other)
            order.append("second")

        thread = threading.Thread(target=second)
        if me == 0:
            thread.start()
            dist.all_reduce(torch.ones(10))  # rank 1 comes here only after the other thread's call
        else:
            thread.start()
            thread.join()
            dist.all_reduce(torch.ones(10))
        thread.join()
        dist.destroy_process_group(other)

    ranks(2, body)


def test_synchronous_and_asynchronous_ranks_meet(ranks):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        for i in range(20):
            t = torch.full((1000,), float(me))
            work = dist.all_reduce(t, async_op=(me + i) % 2 == 0)
            if work is not None:
                work.wait()
            assert t[-1].item() == sum(range(world))

    ranks(3, body)


def test_profiler_sees_collectives(ranks):
    def body():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            dist.all_reduce(torch.ones(10))
            dist.all_reduce(torch.ones(10), async_op=True).wait()
        names = {event.name for event in profile.events()}
        assert "c10d::allreduce_" in names
        assert "pycoll:all_reduce" in names

    ranks(2, body)
