"""What goes wrong in the user's own code, or at the edges of torch's interface, leaves the group intact."""

from __future__ import annotations

import gc
import os
import threading
import time

import pytest
import torch
import torch.distributed as dist


def still_works():
    t = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(t)
    return t.item() == sum(range(dist.get_world_size()))


def test_a_forked_child_is_told_that_the_group_is_its_parents(ranks):
    def body():
        def said_by(call):
            try:
                call()
            except Exception as error:
                return f"{type(error).__name__}: {error}"
            return "nothing"

        me = dist.get_rank()
        dist.all_reduce(torch.ones(3), async_op=True).wait()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            calls = [
                lambda: dist.all_reduce(torch.ones(3)),
                lambda: dist.all_reduce(torch.ones(3), async_op=True).wait(),
                lambda: dist.send(torch.ones(3), 1 - me),
                lambda: dist.recv(torch.ones(3)),
                lambda: dist.all_to_all([torch.ones(1), torch.ones(1)], [torch.ones(1)] * 2),
                dist.monitored_barrier,
            ]
            os.write(write, "\n".join(said_by(call) for call in calls).encode())
            dist.destroy_process_group()
            os._exit(7)
        os.close(write)
        with os.fdopen(read) as pipe:
            lines = pipe.read().split("\n")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert len(lines) == 6
        for line in lines:
            assert "was made before this process was forked" in line, line
        assert still_works()

    ranks(2, body)


def test_what_raises_in_a_callback_is_the_callbacks_own(ranks):
    def body():
        def callback(future):
            raise ValueError("a callback's fault")

        work = dist.all_reduce(torch.ones(3), async_op=True)
        future = work.get_future().then(callback)
        work.wait()
        with pytest.raises(Exception, match="a callback's fault"):
            future.wait()
        assert still_works()

    ranks(2, body)


def test_a_communication_hook_that_raises(ranks):
    def body():
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        calls = []

        def hook(state, bucket):
            calls.append(bucket)
            if len(calls) == 1:
                raise RuntimeError("a hook's fault")
            work = dist.all_reduce(bucket.buffer(), async_op=True)
            return work.get_future().then(lambda future: future.value()[0])

        model.register_comm_hook(None, hook)
        with pytest.raises(RuntimeError, match="a hook's fault"):
            model(torch.ones(1, 4)).sum().backward()
        assert still_works()

    ranks(2, body)


def test_a_failed_work_fails_for_all_who_ask(ranks):
    def body():
        work = dist.all_reduce(torch.ones(3 + dist.get_rank()), async_op=True)
        for ask in (work.wait, work.wait, work.get_future().wait, work.get_future().wait):
            with pytest.raises(dist.DistBackendError, match="calls differ"):
                ask()
        assert work.is_completed()
        assert not work.is_success()
        assert isinstance(work.exception(), dist.DistBackendError)
        assert still_works()

    ranks(2, body)


def test_many_threads_wait_for_one_work(ranks):
    def body():
        t = torch.ones(1_000_000)
        if dist.get_rank() == 1:
            time.sleep(0.2)
        work = dist.all_reduce(t, async_op=True)
        seen = []

        def wait():
            work.wait()
            seen.append(
                (t[0].item(), t[-1].item(), work.is_completed(), work.get_future().wait()[0] is not None)
            )

        threads = [threading.Thread(target=wait) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert seen == [(2.0, 2.0, True, True)] * 6
        assert work.exception() is None

    ranks(2, body)


def test_long_lists(ranks):
    def body():
        me = dist.get_rank()
        tensors = [torch.full((i % 7,), float(i + me)) for i in range(3000)]
        dist.all_reduce_coalesced(tensors)
        assert all(t.tolist() == [2.0 * i + 1] * (i % 7) for i, t in enumerate(tensors))
        outs = [torch.zeros(3) for _ in range(1000)]
        operations = []
        for i, out in enumerate(outs):
            operations.append(dist.P2POp(dist.isend, torch.full((3,), float(i + me)), 1 - me, tag=i))
            operations.append(dist.P2POp(dist.irecv, out, 1 - me, tag=i))
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert all(out.tolist() == [i + 1.0 - me] * 3 for i, out in enumerate(outs))
        works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(3000)]
        for work in works:
            work.wait()

    ranks(2, body)


def test_large_messages_sent_long_before_they_are_received(ranks):
    """Handles and tensors of the sends are gone by then, and the tags in the opposite order."""

    def body():
        if dist.get_rank() == 0:
            for i in range(30):
                dist.isend(torch.full((100_000,), float(i)), 1, tag=i)
            gc.collect()
            dist.barrier()
        else:
            dist.barrier()
            for i in reversed(range(30)):
                t = torch.zeros(100_000)
                dist.recv(t, 0, tag=i)
                assert t.unique().tolist() == [i]
        assert still_works()

    ranks(2, body)


def test_objects_of_every_function(ranks):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        everyones = [None] * world
        dist.all_gather_object(everyones, {"rank": me, "pad": b"x" * (me << 20)})
        assert [(one["rank"], len(one["pad"])) for one in everyones] == [(r, r << 20) for r in range(world)]
        everyones = [None] * world if me == 1 else None
        dist.gather_object(("from", me), everyones, dst=1)
        assert me != 1 or everyones == [("from", r) for r in range(world)]
        mine = [None]
        dist.scatter_object_list(mine, [f"to {r}" for r in range(world)] if me == 2 else None, src=2)
        assert mine == [f"to {me}"]
        objects = [me, {me}]
        dist.broadcast_object_list(objects, 1)
        assert objects == [1, {1}]
        if me == 0:
            dist.send_object_list([1, {"a": 2}], 2)
        elif me == 2:
            received = [None, None]
            dist.recv_object_list(received, 0)
            assert received == [1, {"a": 2}]

    ranks(3, body)


def test_tensors_of_autograd_and_of_numpy(ranks):
    def body():
        import numpy

        world = dist.get_world_size()
        leaf = torch.ones(3, requires_grad=True)
        dist.all_reduce(leaf)
        assert leaf.tolist() == [world] * 3
        parameter = torch.nn.Parameter(torch.full((2, 2), float(dist.get_rank())))
        dist.broadcast(parameter, 1)
        assert parameter.tolist() == [[1.0, 1.0]] * 2
        with torch.inference_mode():
            t = torch.ones(3)
            dist.all_reduce(t)
        assert t.tolist() == [world] * 3
        numbers = numpy.arange(6.0).reshape(2, 3).T  # shares memory, strided
        dist.all_reduce(torch.from_numpy(numbers))
        assert numbers.tolist() == (numpy.arange(6.0).reshape(2, 3).T * world).tolist()
        scalar = torch.tensor(float(dist.get_rank()))
        outs = [torch.tensor(0.0) for _ in range(world)]
        dist.all_gather(outs, scalar)
        assert [out.item() for out in outs] == list(range(world))

    ranks(2, body)
