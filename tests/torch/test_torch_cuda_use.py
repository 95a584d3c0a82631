"""CUDA tensors through torch.distributed, as programs use them: several devices, groups made of groups,
objects, coalescing gone wrong, the flight recorder; on the stand-in for the GPU."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist

from .gang import Gang


def test_devices_other_than_the_current_one(gpu_ranks):
    def body():
        import time

        import fake_gpu

        assert fake_gpu.current_device() == 0
        group = dist.new_group(backend="pycoll_fake")
        x, y = torch.empty(3000, device="fakegpu:1"), torch.empty(9000, device="fakegpu:1")
        fake_gpu.synchronize()
        fake_gpu.forget_contexts()
        for asynchronous in (False, True):
            x.fill_(dist.get_rank())
            for work in (
                dist.all_reduce(x, group=group, async_op=asynchronous),
                dist.all_gather_into_tensor(y, x, group=group, async_op=asynchronous),
            ):
                if work is not None:
                    work.wait()
            dist.barrier(group=group)
        time.sleep(0.1)  # the watchdog looks as well
        assert y.cpu().tolist() == [3.0] * 9000
        with pytest.raises(ValueError, match=r"is on fakegpu:0, but this rank's part .* is fakegpu:1"):
            dist.all_reduce(torch.ones(3, device="fakegpu:0"), group=group)
        with pytest.raises(TypeError, match="on one device, got fakegpu:1 and fakegpu:0"):
            dist.all_gather_into_tensor(torch.empty(9, device="fakegpu:0"), x[:3], group=group)
        fake_gpu.forget_contexts()
        x.fill_(1)
        dist.all_reduce(x, group=group)
        dist.destroy_process_group(group)
        assert fake_gpu.current_device() == 0
        assert fake_gpu.contexts() in (0, 0b10)
        assert x.cpu().tolist() == [3.0] * 3000

    gpu_ranks(3, body)


def test_opening_a_group_leaves_other_devices_alone(gpu_ranks):
    def body():
        import fake_gpu

        group = dist.new_group(backend="pycoll_fake")
        fake_gpu.forget_contexts()
        group._get_backend(torch.device("fakegpu")).eager_connect_single_device(torch.device("fakegpu", 1))
        assert fake_gpu.contexts() == 0b10
        dist.destroy_process_group(group)
        assert fake_gpu.contexts() == 0b10

    gpu_ranks(3, body)


def test_device_id_and_groups_of_some_ranks(fake_gpu_library, tmp_path):
    from . import fake_gpu

    def body(store):
        import fake_gpu

        me = int(os.environ["RANK"])
        device = torch.device("fakegpu", 1)
        before = fake_gpu.groups_open()
        dist.init_process_group(
            "pycoll_fake", store=dist.FileStore(store, 3), rank=me, world_size=3, device_id=device
        )
        assert fake_gpu.groups_open() == before + 1
        pair = dist.new_group([0, 2])  # which rank 1 is told of as well
        alone = [dist.new_group([r]) for r in range(3)][me]
        x = torch.ones(3000, device=device)
        dist.all_reduce(x, group=alone)
        assert x.cpu().tolist() == [1.0] * 3000
        if me != 1:
            dist.all_reduce(x, group=pair)
            assert x.cpu().tolist() == [2.0] * 3000
        halves = dist.split_group(split_ranks=[[0, 1], [2]])
        x.fill_(1)
        dist.all_reduce(x, group=halves)
        assert x.cpu().tolist() == [1.0 if me == 2 else 2.0] * 3000
        dist.barrier()
        dist.destroy_process_group()
        assert fake_gpu.groups_open() == before

    with Gang(3, "pycoll_fake") as gang:
        gang.call(3, fake_gpu.set_up, fake_gpu_library)
        gang.call(3, body, str(tmp_path / "store"))


def test_objects_on_the_device(gpu_ranks):
    def body():
        me = dist.get_rank()
        device = torch.device("fakegpu", 0)
        told = [{"from": me}, None]
        dist.broadcast_object_list(told, 1, device=device)
        assert told == [{"from": 1}, None]
        torch.set_default_device("fakegpu")
        try:
            everyones = [None] * 3
            dist.all_gather_object(everyones, "x" * (me + 1))
            assert everyones == ["x", "xx", "xxx"]
            mine = [None]
            dist.scatter_object_list(mine, [10, 20, 30] if me == 0 else None, 0)
            assert mine == [10 * (me + 1)]
        finally:
            torch.set_default_device(None)

    gpu_ranks(3, body)


def test_a_failed_call_ends_coalescing(gpu_ranks):
    def body():
        x, cpu = torch.ones(5, device="fakegpu"), torch.ones(5)
        device = torch.device("fakegpu", 0)
        options = dist.BroadcastOptions()
        options.rootRank = 7

        def coalesced():
            with dist._coalescing_manager(device=device):
                dist.broadcast(x, 0)
                dist.group.WORLD._get_backend(device).broadcast([x], options)

        with pytest.raises(ValueError, match="must be a rank"):
            coalesced()
        dist.distributed_c10d._world.pg_coalesce_state.clear()  # torch's own, which it leaves behind
        dist.all_reduce(cpu)  # for itself again
        dist.all_reduce(x)
        assert cpu.tolist() == [3.0] * 5
        assert x.cpu().tolist() == [3.0] * 5
        with dist._coalescing_manager(device=device, async_ops=True) as manager:
            dist.all_reduce(x)
        manager.wait()
        assert x.cpu().tolist() == [9.0] * 5

    gpu_ranks(3, body)


def test_coalescing_of_tensors_of_two_devices_is_refused(gpu_ranks):
    def body():
        device = torch.device("fakegpu", 0)
        x, cpu = torch.ones(5, device="fakegpu"), torch.ones(5)

        def coalesced(*tensors):
            with dist._coalescing_manager(device=device, async_ops=True):
                for tensor in tensors:
                    dist.broadcast(tensor, 0)

        for both in ((x, cpu), (cpu, x)):
            with pytest.raises(ValueError, match=r"tensors of one device, .* a coalescing manager each"):
                coalesced(*both)
            dist.distributed_c10d._world.pg_coalesce_state.clear()
        dist.all_reduce(x)
        dist.all_reduce(cpu)
        assert x.cpu().tolist() == cpu.tolist() == [3.0] * 5

    gpu_ranks(3, body)


def test_a_work_that_still_collects_cannot_be_waited_for(gpu_ranks):
    def body():
        device = torch.device("fakegpu", 0)
        x = torch.ones(5, device="fakegpu")
        with dist._coalescing_manager(device=device, async_ops=True) as manager:
            work = dist.broadcast(x, 0, async_op=True)
            assert not work.is_completed()
            for call in (work.wait, work.get_future):
                with pytest.raises(RuntimeError, match="coalescing manager"):
                    call()
        manager.wait()
        work.wait()
        x.cpu()
        assert work.is_completed()

    gpu_ranks(3, body)


def test_leaving_with_calls_that_do_not_end_says_so(gpu_ranks):
    def body():
        import fake_gpu

        group = dist.new_group(backend="pycoll_fake")
        x = torch.ones(5, device="fakegpu")
        dist.all_reduce(x, group=group)
        gate = fake_gpu.Gate()  # longer than leaving waits
        work = dist.all_reduce(x, group=group, async_op=True)
        import threading

        threading.Timer(6.5, gate.open).start()
        dist.destroy_process_group(group)
        with pytest.raises(dist.DistBackendError, match="left the group while all_reduce was under way"):
            work.wait()

    gpu_ranks(3, body, breaks_group=True)


def test_the_flight_recorder_has_them(fake_gpu_library):
    from . import fake_gpu

    def switch_on():
        os.environ["TORCH_FR_BUFFER_SIZE"] = "100"

    def body():
        import time

        from pycoll.torch import flight_recorder

        x = torch.ones(3, 4, device="fakegpu")
        dist.all_reduce(x)
        dist.all_gather_into_tensor(torch.empty(6, 4, device="fakegpu"), x, async_op=True).wait()
        x.cpu()
        dist.barrier()
        time.sleep(0.2)
        entries = flight_recorder()["entries"]
        return [(e["profiling_name"], e["state"], e["input_sizes"]) for e in entries]

    with Gang(2, "pycoll_fake") as gang:
        gang.call(2, switch_on)
        gang.call(2, fake_gpu.set_up, fake_gpu_library)
        for told in gang.run(2, body):
            assert ("pycoll:all_reduce", "completed", [[3, 4]]) in told
            assert ("pycoll:all_gather_into_tensor", "completed", [[3, 4]]) in told


def test_pools_are_shared_by_all_ranks(gpu_ranks):
    def body():
        import fake_gpu

        from pycoll.torch import share_pool

        me = dist.get_rank()
        device = torch.device("fakegpu", 0)
        group = dist.new_group(backend="pycoll_fake")
        fake_gpu.take_pool_segments(me + 1)  # not alike on all ranks
        share_pool(group, device)
        assert fake_gpu.pool_mapped() == 6
        share_pool(group, device)  # nothing new
        assert fake_gpu.pool_mapped() == 6
        fake_gpu.take_pool_segments(-1 if me == 1 else 4)
        with pytest.raises(dist.DistError, match="rank 1: the fake GPU is told to share no pool"):
            share_pool(group, device)
        x = torch.ones(5, device=device)
        dist.all_reduce(x, group=group)
        assert x.cpu().tolist() == [3.0] * 5
        dist.destroy_process_group(group)
        fake_gpu.take_pool_segments(0)

    gpu_ranks(3, body)


def test_without_the_cuda_part_a_pool_says_so():
    import pycoll
    import pycoll.torch

    with pytest.raises(pycoll.Unsupported, match="CUDA"):
        pycoll.torch.mem_pool()
