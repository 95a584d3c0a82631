"""CUDA tensors through torch.distributed: every collective's results, on a stand-in for the GPU."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

SIZES = (5, 3000)  # elements: for the kernels of small buffers, and beyond


def test_whole_buffers(gpu_ranks):
    def body(sizes):
        me, world = dist.get_rank(), dist.get_world_size()
        for size in sizes:
            for asynchronous in (False, True):

                def finish(work, asynchronous=asynchronous):
                    assert (work is not None) == asynchronous
                    if work is not None:
                        work.wait()

                base = torch.arange(float(size))
                for op, right in [
                    (dist.ReduceOp.SUM, world * base + 3),
                    (dist.ReduceOp.AVG, base + 1),
                    (dist.ReduceOp.MAX, base + 2),
                    (dist.ReduceOp.MIN, base),
                    (dist._make_nccl_premul_sum(2.0), 2 * (world * base + 3)),
                ]:
                    x = (base + me).to("fakegpu")
                    finish(dist.all_reduce(x, op, async_op=asynchronous))
                    assert torch.equal(x.cpu(), right), (size, op)
                ints = torch.full((size,), me + 1, dtype=torch.int64).to("fakegpu")
                halves = torch.full((size,), me + 1.0, dtype=torch.bfloat16).to("fakegpu")
                finish(dist.all_reduce(ints, async_op=asynchronous))
                finish(dist.all_reduce(halves, async_op=asynchronous))
                assert ints.cpu().tolist() == [6] * size
                assert halves.cpu().tolist() == [6.0] * size
                several = [(base[: size // k] + me).to("fakegpu") for k in (1, 2, 3)]
                finish(dist.all_reduce_coalesced(several, async_op=asynchronous))
                for k, x in zip((1, 2, 3), several, strict=True):
                    assert torch.equal(x.cpu(), world * base[: size // k] + 3)
                for root in range(world):
                    x = (base + me).to("fakegpu")
                    finish(dist.broadcast(x, root, async_op=asynchronous))
                    assert torch.equal(x.cpu(), base + root)
                    x = (base + me).to("fakegpu")
                    finish(dist.reduce(x, root, async_op=asynchronous))
                    assert torch.equal(x.cpu(), world * base + 3 if me == root else base + me)

    gpu_ranks(3, body, SIZES)


def test_shards(gpu_ranks):
    def body(sizes):
        me, world = dist.get_rank(), dist.get_world_size()
        for size in sizes:
            for asynchronous in (False, True):

                def finish(work, asynchronous=asynchronous):
                    assert (work is not None) == asynchronous
                    if work is not None:
                        work.wait()

                base = torch.arange(float(size))
                mine = (base + 10 * me).to("fakegpu")
                everyones = [base + 10 * r for r in range(world)]
                outs = [torch.empty(size, device="fakegpu") for _ in range(world)]
                finish(dist.all_gather(outs, mine, async_op=asynchronous))
                for out, right in zip(outs, everyones, strict=True):
                    assert torch.equal(out.cpu(), right)
                out = torch.empty(world * size, device="fakegpu")
                finish(dist.all_gather_into_tensor(out, mine, async_op=asynchronous))
                assert torch.equal(out.cpu(), torch.cat(everyones))
                uneven = [torch.empty(size + r, device="fakegpu") for r in range(world)]
                finish(
                    dist.all_gather(
                        uneven, torch.full((size + me,), me + 1.0).to("fakegpu"), async_op=asynchronous
                    )
                )
                assert [x.cpu().tolist() for x in uneven] == [[r + 1.0] * (size + r) for r in range(world)]

                blocks = [(base + 100 * r + me).to("fakegpu") for r in range(world)]
                summed = world * (base + 100 * me) + 3
                out = torch.empty(size, device="fakegpu")
                finish(dist.reduce_scatter(out, blocks, async_op=asynchronous))
                assert torch.equal(out.cpu(), summed)
                finish(dist.reduce_scatter_tensor(out, torch.cat(blocks), async_op=asynchronous))
                assert torch.equal(out.cpu(), summed)

                for root in range(world):
                    outs = [torch.empty(size, device="fakegpu") for _ in range(world)] if me == root else None
                    finish(dist.gather(mine, outs, root, async_op=asynchronous))
                    for out, right in zip(outs or [], everyones, strict=False):
                        assert torch.equal(out.cpu(), right)
                    out = torch.empty(size, device="fakegpu")
                    finish(dist.scatter(out, blocks if me == root else None, root, async_op=asynchronous))
                    assert torch.equal(out.cpu(), base + 100 * me + root)

                out = torch.empty(world * size, device="fakegpu")
                right = torch.cat([base + 100 * me + r for r in range(world)])
                finish(dist.all_to_all_single(out, torch.cat(blocks), async_op=asynchronous))
                assert torch.equal(out.cpu(), right)
                finish(
                    dist.all_to_all_single(
                        out, torch.cat(blocks), [size] * 3, [size] * 3, async_op=asynchronous
                    )
                )
                assert torch.equal(out.cpu(), right)
                outs = [torch.empty(size, device="fakegpu") for _ in range(world)]
                finish(dist.all_to_all(outs, blocks, async_op=asynchronous))
                assert torch.equal(torch.cat(outs).cpu(), right)
        dist.barrier()
        dist.barrier(device_ids=[0])

    gpu_ranks(3, body, SIZES)


def test_tensors_of_other_layouts_and_of_the_cpu(gpu_ranks):
    def body():
        me = dist.get_rank()
        x = torch.zeros(6, 4, device="fakegpu")
        column = x[:, 1]
        column.fill_(me + 1.0)
        work = dist.all_reduce(column, async_op=True)
        work.wait()
        right = torch.zeros(6, 4)
        right[:, 1] = 6
        assert torch.equal(x.cpu(), right)
        rows = torch.empty(3, 2, 4, device="fakegpu")
        dist.all_gather(list(rows.transpose(1, 2).unbind()), torch.full((4, 2), me + 1.0).to("fakegpu"))
        assert torch.equal(rows.cpu(), torch.arange(1.0, 4)[:, None, None].expand(3, 2, 4))
        empty = torch.empty(0, device="fakegpu")
        dist.all_reduce(empty)
        cpu = torch.ones(3)
        dist.all_reduce(cpu)
        assert cpu.tolist() == [3.0] * 3

    gpu_ranks(3, body)


def test_what_is_not_there_is_refused_by_name(gpu_ranks):
    def body():
        world = dist.get_world_size()
        x = torch.ones(6, device="fakegpu")
        with pytest.raises(dist.DistError, match="do not reduce dtype bool"):
            dist.all_reduce(torch.ones(3, device="fakegpu") > 0)
        with pytest.raises(TypeError, match="on one device"):
            dist.all_gather_into_tensor(torch.empty(6 * world), x)
        backend = dist.distributed_c10d._get_default_group()._get_backend(x.device)
        with pytest.raises(TypeError, match=r"of the CPU and of \w+, got one on device meta"):
            backend.broadcast([x.to("meta")], dist.BroadcastOptions())
        dist.all_reduce(x)
        assert x.cpu().tolist() == [float(world)] * 6

    gpu_ranks(3, body)


def test_coalescing(gpu_ranks):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        inputs = [torch.full((k,), float(me), device="fakegpu") for k in (3, 500)]
        outputs = [torch.empty(k * world, device="fakegpu") for k in (3, 500)]
        with dist._coalescing_manager(device=torch.device("fakegpu", 0), async_ops=True) as manager:
            for out, x in zip(outputs, inputs, strict=True):
                dist.all_gather_into_tensor(out, x)
        manager.wait()
        for k, out in zip((3, 500), outputs, strict=True):
            assert out.cpu().tolist() == [float(r) for r in range(world) for _ in range(k)]

    gpu_ranks(3, body)


def test_without_the_cuda_part_the_error_says_so_on_every_rank(gpu_ranks):
    def body():
        import fake_gpu

        group = dist.new_group(backend="pycoll_fake")
        x = torch.ones(3, device="fakegpu")
        fake_gpu.missing = "pycoll was installed without its CUDA part" if dist.get_rank() == 1 else ""
        try:
            for _ in range(2):
                with pytest.raises(dist.DistError, match="rank 1: pycoll was installed without"):
                    dist.all_reduce(x, group=group)
            cpu = torch.ones(3)
            dist.all_reduce(cpu, group=group)
            assert cpu.tolist() == [3.0] * 3
        finally:
            fake_gpu.missing = ""
        dist.all_reduce(x, group=group)  # now that it is there
        assert x.cpu().tolist() == [3.0] * 3
        dist.destroy_process_group(group)

    gpu_ranks(3, body)


def test_a_group_made_ready_beforehand(gpu_ranks):
    def body():
        import fake_gpu

        group = dist.new_group(backend="pycoll_fake")
        before = fake_gpu.groups_open()
        group._get_backend(torch.device("fakegpu")).eager_connect_single_device(torch.device("fakegpu", 0))
        assert fake_gpu.groups_open() == before + 1
        x = torch.ones(3, device="fakegpu")
        dist.all_reduce(x, group=group)
        assert x.cpu().tolist() == [3.0] * 3
        dist.destroy_process_group(group)
        assert fake_gpu.groups_open() == before

    gpu_ranks(3, body)


def test_ddp(gpu_ranks):
    def body():
        from torch.nn.parallel import DistributedDataParallel

        me, world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        inputs = torch.randn(world, 8, 6)
        models = [torch.nn.Sequential(torch.nn.Linear(6, 50), torch.nn.Tanh(), torch.nn.Linear(50, 1))]
        models.append(torch.nn.Sequential(torch.nn.Linear(6, 50), torch.nn.Tanh(), torch.nn.Linear(50, 1)))
        models[1].load_state_dict(models[0].state_dict())
        ddp = DistributedDataParallel(models[1].to("fakegpu"), bucket_cap_mb=0.0005)
        for _ in range(3):
            models[0].zero_grad()
            sum(models[0](inputs[r]).square().mean() for r in range(world)).div(world).backward()
            ddp.zero_grad()
            ddp(inputs[me].to("fakegpu")).square().mean().backward()
            for a, b in zip(models[0].parameters(), ddp.parameters(), strict=True):
                torch.testing.assert_close(a.grad, b.grad.cpu(), rtol=1e-5, atol=1e-6)
            with torch.no_grad():
                for a, b in zip(models[0].parameters(), ddp.parameters(), strict=True):
                    a -= 0.1 * a.grad
                    b.copy_(a)

    gpu_ranks(3, body)
