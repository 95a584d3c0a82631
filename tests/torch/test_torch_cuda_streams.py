"""CUDA tensors through torch.distributed: order on streams, lifetime of tensors, futures, graphs. The
stand-in for the GPU writes rubbish into memory that is let go of, and its streams run on their own."""

from __future__ import annotations

import torch
import torch.distributed as dist


def test_a_call_follows_what_is_on_the_current_stream(gpu_ranks):
    def body():
        import fake_gpu

        for size in (5, 3000):
            x = torch.zeros(size, device="fakegpu")
            fake_gpu.sleep(0.1)
            x.fill_(dist.get_rank() + 1.0)
            dist.all_reduce(x)
            assert x.cpu().tolist() == [6.0] * size

    gpu_ranks(3, body)


def test_what_follows_a_call_waits_for_it(gpu_ranks):
    def body():
        import fake_gpu

        fake_gpu.delay_collectives(0.1)
        for asynchronous in (False, True):
            x = torch.ones(5, device="fakegpu")
            y = torch.empty(5, device="fakegpu")
            work = dist.all_reduce(x, async_op=asynchronous)
            if work is not None:
                work.wait()
            y.copy_(x)  # on the stream: right only if that waits
            assert y.cpu().tolist() == [3.0] * 5
        fake_gpu.delay_collectives(0)

    gpu_ranks(3, body)


def test_nothing_blocks_the_host(gpu_ranks):
    def body():
        import fake_gpu

        x = torch.zeros(5, device="fakegpu")
        y = torch.zeros(5, device="fakegpu")
        dist.all_reduce(x)
        gate = fake_gpu.Gate()  # nothing goes on on this stream before it is opened below
        x.fill_(1)
        y.fill_(2)
        dist.all_reduce(y)
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        future = work.get_future()
        assert not work.is_completed()
        gate.open()
        assert x.cpu().tolist() == [3.0] * 5
        assert y.cpu().tolist() == [6.0] * 5
        assert work.is_completed()
        assert work.is_success()
        assert future.done()

    gpu_ranks(3, body)


def test_the_current_stream_counts_and_no_other(gpu_ranks):
    def body():
        import fake_gpu

        x = torch.zeros(5, device="fakegpu")
        x.cpu()
        gate = fake_gpu.Gate()  # of the default stream
        with torch.Stream(device="fakegpu"):
            x.fill_(2)
            dist.all_reduce(x)
            assert x.cpu().tolist() == [6.0] * 5
        gate.open()
        fake_gpu.synchronize()

    gpu_ranks(3, body)


def test_tensors_may_be_dropped_at_once(gpu_ranks):
    def body():
        import fake_gpu

        me = dist.get_rank()
        for strided in (False, True):
            for waits in (True, False):
                out = torch.empty(3, 8, device="fakegpu")
                fake_gpu.delay_collectives(0.05)
                x = torch.full((2, 4), me + 1.0).to("fakegpu")
                work = dist.all_gather_into_tensor(
                    out.view(6, 4), x.t().contiguous().t() if strided else x, async_op=True
                )
                del x  # its memory is rubbish when the collective comes to it, unless it is held
                fake_gpu.synchronize()
                if waits:
                    work.wait()
                del work
                fake_gpu.delay_collectives(0)
                last = torch.ones(1, device="fakegpu")
                dist.all_reduce(last)  # comes after it
                last.cpu()
                assert out.cpu().tolist() == [[r + 1.0] * 8 for r in range(3)]

    gpu_ranks(3, body)


def test_wait_with_a_timeout_and_barrier_wait_on_the_host(gpu_ranks):
    def body():
        from datetime import timedelta

        import fake_gpu

        fake_gpu.delay_collectives(0.1)
        x = torch.ones(5, device="fakegpu")
        work = dist.all_reduce(x, async_op=True)
        work.wait(timedelta(seconds=20))
        assert work.is_completed()
        work = dist.all_reduce(x, async_op=True)
        dist.barrier()
        assert work.is_completed()
        fake_gpu.delay_collectives(0)

    gpu_ranks(3, body)


def test_futures_know_the_stream(gpu_ranks):
    def body():
        import fake_gpu

        fake_gpu.delay_collectives(0.1)
        x = torch.ones(5, device="fakegpu")
        future = dist.all_reduce(x, async_op=True).get_future()
        doubled = future.then(lambda f: f.value()[0].clone().add_(1))
        assert doubled.wait().cpu().tolist() == [4.0] * 5
        y = torch.empty(5, device="fakegpu")
        value = dist.all_reduce(x, async_op=True).get_future().wait()
        y.copy_(value[0])
        assert y.cpu().tolist() == [9.0] * 5
        fake_gpu.delay_collectives(0)

    gpu_ranks(3, body)


def test_graphs_are_captured_and_replayed(gpu_ranks):
    def body():
        import fake_gpu

        me = dist.get_rank()
        for size in (5, 3000):
            x, y = torch.zeros(size, device="fakegpu"), torch.zeros(size, device="fakegpu")
            gathered = torch.zeros(3 * size, device="fakegpu")
            other = torch.ones(size, device="fakegpu")
            with torch.Stream(device="fakegpu"):
                fake_gpu.synchronize()
                dist.all_reduce(x)
                x.cpu()
                fake_gpu.delay_collectives(0.1)
                under_way = dist.all_reduce(other, async_op=True)  # which the watchdog asks for meanwhile
                fake_gpu.begin_capture()
                dist.all_reduce(x)
                work = dist.all_gather_into_tensor(gathered, x, async_op=True)
                work.wait()
                future = dist.all_reduce(x, async_op=True).get_future()
                future.wait()
                y.copy_(x)
                graph = fake_gpu.end_capture()
                fake_gpu.delay_collectives(0)
                under_way.wait()
                for turn in range(3):
                    x.fill_(me + turn)
                    graph.replay()
                    assert y.cpu().tolist() == [3.0 * (3 * turn + 3)] * size
                    assert gathered.cpu().tolist() == [3.0 * turn + 3] * (3 * size)
                dist.all_reduce(x)  # and without one again
                assert x.cpu().tolist() == [9.0 * (3 * 2 + 3)] * size

    gpu_ranks(3, body)


def test_a_capture_says_what_must_be_called_before(gpu_ranks):
    def body():
        import fake_gpu
        import pytest

        x = torch.zeros(3000, device="fakegpu")
        with torch.Stream(device="fakegpu"):
            fake_gpu.synchronize()
            group = dist.new_group(backend="pycoll_fake")
            fake_gpu.begin_capture()
            with pytest.raises(
                ValueError, match="first call on CUDA tensors comes while a graph is captured"
            ):
                dist.all_reduce(x, group=group)
            fake_gpu.end_capture()
            dist.all_reduce(x, group=group)
            fake_gpu.begin_capture()
            with pytest.raises(ValueError, match=r"first broadcast .* root 1 comes while a graph is"):
                dist.broadcast(x, 1, group=group)
            fake_gpu.end_capture()
            dist.broadcast(x, 1, group=group)
            dist.all_reduce(x, group=group)
            assert x.cpu().tolist() == [0.0] * 3000
            dist.destroy_process_group(group)

    gpu_ranks(3, body, breaks_group=True)
