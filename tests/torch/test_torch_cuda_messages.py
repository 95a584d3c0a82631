"""Messages of CUDA tensors through torch.distributed: send and recv, batches, all_to_all of any sizes; on the
stand-in for the GPU, where the kernel of messages is the real one's code."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist


def test_rings(gpu_ranks):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        after, before = (me + 1) % world, (me - 1) % world
        for size in (0, 1, 3000, 200_000):
            for dtype in (torch.float32, torch.bool, torch.int64):
                mine = torch.full((size,), me + 1).to(dtype).to("fakegpu")
                got = torch.empty(size, dtype=dtype, device="fakegpu")
                works = [dist.isend(mine, after), dist.irecv(got, before)]
                if me == 1:  # whatever the order
                    works.reverse()
                for work in works:
                    work.wait()
                assert torch.equal(got.cpu(), torch.full((size,), before + 1).to(dtype))

    gpu_ranks(3, body)


def test_pairs_block_as_they_should(gpu_ranks):
    def body():
        import fake_gpu

        me = dist.get_rank()
        x, y = torch.zeros(50_000, device="fakegpu"), torch.zeros(50_000, device="fakegpu")
        if me == 0:
            fake_gpu.sleep(0.1)
            x.fill_(7)  # on the stream: sent as it is then
            dist.send(x, 1, tag=3)
            x.fill_(-1)
            dist.recv(y, 2)
            assert y.cpu().tolist() == [9.0] * 50_000
        elif me == 1:
            dist.recv(x, 0, tag=3)
            y.copy_(x)  # right only if the stream waits
            y.add_(1)
            dist.send(y, 2)
        else:
            dist.recv(x, 1)
            x.add_(1)
            dist.send(x, 0)

    gpu_ranks(3, body)


def test_nothing_blocks_the_host_and_tensors_may_be_dropped(gpu_ranks):
    def body():
        import fake_gpu

        me, world = dist.get_rank(), dist.get_world_size()
        gate = fake_gpu.Gate()
        got = [torch.empty(2, 70_000, device="fakegpu") for _ in range(4)]
        works = []
        for turn in range(4):
            mine = torch.full((70_000, 2), 10.0 * me + turn).to("fakegpu").t()  # of other strides
            works.append(dist.isend(mine, (me + 1) % world))
            works.append(dist.irecv(got[turn].t().t(), (me - 1) % world))
            del mine
        assert not any(work.is_completed() for work in works)
        gate.open()
        for work in works:
            work.wait()
        del works
        for turn in range(4):
            assert got[turn].cpu().unique().tolist() == [10.0 * ((me - 1) % world) + turn]

    gpu_ranks(3, body)


def test_strided_receives(gpu_ranks):
    def body():
        me = dist.get_rank()
        x = torch.zeros(6, 4, device="fakegpu")
        if me == 0:
            for to in (1, 2):
                dist.send(torch.arange(6.0).to("fakegpu"), to)
        else:
            dist.recv(x[:, 1], 0)
            right = torch.zeros(6, 4)
            right[:, 1] = torch.arange(6.0)
            assert torch.equal(x.cpu(), right)

    gpu_ranks(3, body)


def test_batches_go_at_once(gpu_ranks):
    def body():
        import fake_gpu

        me, world = dist.get_rank(), dist.get_world_size()
        others = [r for r in range(world) if r != me]
        for each in (1, 3, 20):  # 20 for each of two peers both ways: more than one kernel takes
            before = fake_gpu.message_kernels()
            sizes = [20_000 * (1 + i % 3) for i in range(each)]
            outs = {r: [torch.empty(n, device="fakegpu") for n in sizes] for r in others}
            ops = []
            for r in others:
                ops += [
                    dist.P2POp(dist.isend, torch.full((n,), 100.0 * me + 10 * r + i).to("fakegpu"), r)
                    for i, n in enumerate(sizes)
                ]
            for r in others:
                ops += [dist.P2POp(dist.irecv, out, r) for out in outs[r]]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            for r in others:
                for i, out in enumerate(outs[r]):
                    assert out.cpu().unique().tolist() == [100.0 * r + 10 * me + i]
            assert fake_gpu.message_kernels() - before == (4 if each == 20 else 1)

    gpu_ranks(3, body)


def test_one_by_one_and_batches_of_one_pair_keep_their_order(gpu_ranks):
    def body():
        me = dist.get_rank()
        if me == 2:
            return
        values = [torch.full((30_000,), float(i), device="fakegpu") for i in range(3)]
        outs = [torch.empty(30_000, device="fakegpu") for _ in range(3)]
        if me == 0:
            first = dist.isend(values[0], 1)
            works = dist.batch_isend_irecv([dist.P2POp(dist.isend, values[1], 1)])
            last = dist.isend(values[2], 1)
        else:
            works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, outs[0], 0)])
            first = dist.irecv(outs[1], 0)
            last = dist.irecv(outs[2], 0)
        for work in [first, *works, last]:
            work.wait()
        if me == 1:
            assert [out.cpu().unique().tolist() for out in outs] == [[0.0], [1.0], [2.0]]

    gpu_ranks(3, body)


def test_all_to_all_of_any_sizes(gpu_ranks):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        for scale in (1, 5000):
            for asynchronous in (False, True):
                # Rank a sends rank b (a + 2 b) % 4 rows, some of them none; rank 1's happen to look even.
                rows = [[(a + 2 * b) % 4 * scale if a != 1 else scale for b in range(3)] for a in range(3)]
                mine = torch.cat([torch.full((rows[me][b], 2), 10.0 * me + b) for b in range(world)]).to(
                    "fakegpu"
                )
                out = torch.empty(sum(rows[a][me] for a in range(world)), 2, device="fakegpu")
                work = dist.all_to_all_single(
                    out, mine, [rows[a][me] for a in range(world)], rows[me], async_op=asynchronous
                )
                assert (work is not None) == asynchronous
                if work is not None:
                    work.wait()
                right = torch.cat([torch.full((rows[a][me], 2), 10.0 * a + me) for a in range(world)])
                assert torch.equal(out.cpu(), right)

                ins = [torch.full((rows[me][b],), 10.0 * me + b).to("fakegpu") for b in range(world)]
                outs = [torch.empty(rows[a][me], device="fakegpu") for a in range(world)]
                work = dist.all_to_all(outs, ins, async_op=asynchronous)
                if work is not None:
                    work.wait()
                for a, out in enumerate(outs):
                    assert out.cpu().tolist() == [10.0 * a + me] * rows[a][me]
        same = torch.arange(3.0).to("fakegpu").add_(10.0 * me)  # in place
        dist.all_to_all_single(same, same, [1] * 3, [1] * 3)
        assert same.cpu().tolist() == [10.0 * a + me for a in range(world)]

    gpu_ranks(3, body)


def test_uneven_reduce_scatter(gpu_ranks):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        for size in (5, 3000):
            ins = [torch.full((size + r,), float(me + r), device="fakegpu") for r in range(world)]
            out = torch.empty(size + me, device="fakegpu")
            dist.reduce_scatter(out, ins)
            assert out.cpu().tolist() == [3.0 + 3 * me] * (size + me)

    gpu_ranks(3, body)


def test_graphs(gpu_ranks):
    def body():
        import fake_gpu

        me, world = dist.get_rank(), dist.get_world_size()
        x, y = torch.zeros(30_000, device="fakegpu"), torch.zeros(30_000, device="fakegpu")
        z = torch.zeros(30_000, device="fakegpu")
        swapped = torch.zeros(3, device="fakegpu")
        with torch.Stream(device="fakegpu"):
            fake_gpu.synchronize()
            dist.all_reduce(swapped)
            dist.isend(x, (me + 1) % world)
            dist.irecv(y, (me - 1) % world).wait()
            fake_gpu.synchronize()
            fake_gpu.begin_capture()
            works = [dist.isend(x, (me + 1) % world), dist.irecv(y, (me - 1) % world)]
            for work in works:
                work.wait()
            ops = [dist.P2POp(dist.isend, y, (me + 1) % world), dist.P2POp(dist.irecv, z, (me - 1) % world)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            dist.all_to_all_single(swapped, x[:3], [1] * 3, [1] * 3)
            graph = fake_gpu.end_capture()
            for turn in range(3):
                x.fill_(10.0 * me + turn)
                graph.replay()
                assert y.cpu().unique().tolist() == [10.0 * ((me - 1) % world) + turn]
                assert z.cpu().unique().tolist() == [10.0 * ((me - 2) % world) + turn]
                assert swapped.cpu().tolist() == [10.0 * r + turn for r in range(world)]
            dist.irecv(y, (me - 1) % world)  # and without one again
            dist.send(x, (me + 1) % world)

    gpu_ranks(3, body)


def test_a_pipeline_needs_no_turns(gpu_ranks):
    """Every rank posts its receives first: messages in one direction do not wait for those of another."""

    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        x = torch.full((100_000,), float(me), device="fakegpu")
        others = [r for r in range(world) if r != me]
        gots = {r: torch.empty(100_000, device="fakegpu") for r in others}
        receives = [dist.irecv(gots[r], r) for r in others]
        dist.all_reduce(torch.ones(5, device="fakegpu"))  # which they do not hold up either
        dist.barrier()
        for r in reversed(others):
            dist.send(x, r)
        for work in receives:
            work.wait()
        assert [gots[r].cpu().unique().tolist() for r in others] == [[float(r)] for r in others]

    gpu_ranks(3, body)


def test_what_cannot_be_is_refused(gpu_ranks):
    def body():
        import fake_gpu

        me = dist.get_rank()
        x = torch.ones(6, device="fakegpu")
        dist.all_reduce(x)
        with pytest.raises(dist.DistError, match=r"from a rank that is named"):
            dist.recv(x)
        backend = dist.group.WORLD._get_backend(torch.device("fakegpu"))
        with pytest.raises(ValueError, match=f"to and come from other ranks of this group, 0 to 2, not {me}"):
            backend.send([x], me, 0)
        fake_gpu.leave_out_messages(me == 1)
        group = dist.new_group(backend="pycoll_fake")
        x.fill_(1)
        dist.all_reduce(x, group=group)
        assert x.cpu().tolist() == [3.0] * 6
        with pytest.raises(dist.DistError, match="no messages of CUDA tensors: rank 1: the fake GPU is told"):
            dist.all_to_all_single(x, x.clone(), [1, 2, 3], [1, 2, 3], group=group)
        fake_gpu.leave_out_messages(False)
        dist.destroy_process_group(group)

    gpu_ranks(3, body)


def _error_of(call) -> str:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            call()
        except dist.DistBackendError as error:
            return str(error)
        time.sleep(0.02)
    raise AssertionError("no error came")


def test_sides_that_do_not_agree(gpu_ranks):
    for first, second, match in [
        ((10, 0), (12, 0), "sent is not what was received: 48 bytes, and 40 were expected"),
        ((10, 4), (10, 5), "it has tag 5, and tag 4 was expected"),
    ]:

        def body(here, there):
            x = torch.ones(12, device="fakegpu")
            dist.all_reduce(x)
            x.cpu()
            if dist.get_rank() == 0:
                dist.recv(x[: here[0]], 1, tag=here[1])
            elif dist.get_rank() == 1:
                dist.send(x[: there[0]], 0, tag=there[1])
            return _error_of(lambda: dist.barrier())

        for message in gpu_ranks(3, body, first, second, breaks_group=True):
            assert match in message


def test_a_message_that_nobody_sends_times_out(gpu_ranks):
    def body():
        x = torch.ones(12, device="fakegpu")
        dist.all_reduce(x)
        x.cpu()
        if dist.get_rank() != 0:
            return _error_of(dist.barrier)
        dist.group.WORLD.set_timeout(timedelta(seconds=1))
        work = dist.irecv(x, 2)
        return _error_of(work.wait)

    for message in gpu_ranks(3, body, breaks_group=True):
        assert "recv of CUDA tensors timed out" in message
        assert "is there a call of rank 2 for it?" in message


def test_a_lost_rank_ends_messages_with_it_and_no_others(gpu_ranks):
    def body():
        x = torch.ones(12, device="fakegpu")
        dist.all_reduce(x)
        x.cpu()
        me = dist.get_rank()
        if me == 1:
            os._exit(3)
        time.sleep(1)
        if me == 0:
            dist.send(x.fill_(5), 2)
        else:
            dist.recv(x, 0)
        assert x.cpu().tolist() == [5.0] * 12
        return _error_of(lambda: dist.recv(x, 1))

    for message in gpu_ranks(3, body, deaths=frozenset({1}), timeout=60.0):
        assert message is None or "rank 1 is gone" in message


def test_leaving_waits_for_those_who_still_receive(gpu_ranks):
    def body():
        import fake_gpu

        me = dist.get_rank()
        group = dist.new_group(backend="pycoll_fake")
        before = fake_gpu.groups_open()
        x = torch.full((3000,), me + 1.0, device="fakegpu")
        dist.all_reduce(torch.ones(1, device="fakegpu"), group=group)
        if me == 0:
            dist.send(x, 1, group=group)
        elif me == 1:
            time.sleep(0.5)
            dist.recv(x, 0, group=group)
        dist.destroy_process_group(group)
        assert x.cpu().unique().tolist() == [3.0 if me == 2 else 1.0]
        assert fake_gpu.groups_open() == before

    gpu_ranks(3, body)
