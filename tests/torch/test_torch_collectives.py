"""Every collective of torch.distributed gives the right values, at 1 to 4 ranks, called both ways."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip
NUMEL = 37


def values(rank: int, dtype: torch.dtype, numel: int = NUMEL) -> torch.Tensor:
    """Distinct for each rank and neighbour, and small: sums over 4 ranks are exact in every dtype."""
    return (
        (torch.arange(numel) * 3 + rank * 5) % (2 if dtype.is_floating_point and dtype.itemsize == 1 else 7)
    ).to(dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def both_ways(call, make):
    """Runs `call(tensors, async_op=...)` on two makings of its tensors; gives back both for checking."""
    for async_op in (False, True):
        tensors = make()
        work = call(tensors, async_op)
        if async_op:
            work.wait()
            assert work.is_completed()
        else:
            assert work is None
        yield tensors


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_data_movement_in_every_dtype(ranks, n):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        root = world - 1

        def moves(dtype):
            every = [values(r, dtype) for r in range(world)]
            mine = every[me]

            def blank():
                return torch.zeros(NUMEL, dtype=dtype)

            for t in both_ways(lambda t, a: dist.broadcast(t, root, async_op=a), mine.clone):
                assert same(t, every[root]), ("broadcast", dtype)
            for t in both_ways(
                lambda t, a: dist.all_gather(t, mine, async_op=a), lambda: [blank() for _ in every]
            ):
                assert all(map(same, t, every)), ("all_gather", dtype)
            for t in both_ways(
                lambda t, a: dist.all_gather_into_tensor(t, mine, async_op=a),
                lambda: torch.zeros(NUMEL * world, dtype=dtype),
            ):
                assert same(t, torch.cat(every)), ("all_gather_into_tensor", dtype)
            for t in both_ways(
                lambda t, a: dist.gather(mine, t, dst=root, async_op=a),
                lambda: [blank() for _ in every] if me == root else None,
            ):
                assert t is None or all(map(same, t, every)), ("gather", dtype)
            for t in both_ways(
                lambda t, a: dist.scatter(
                    t, [e.roll(1) for e in every] if me == root else None, src=root, async_op=a
                ),
                blank,
            ):
                assert same(t, mine.roll(1)), ("scatter", dtype)
            blocks = [[values(10 * src + dst, dtype) for dst in range(world)] for src in range(world)]
            expected = [blocks[src][me] for src in range(world)]
            for t in both_ways(
                lambda t, a: dist.all_to_all(t, blocks[me], async_op=a), lambda: [blank() for _ in every]
            ):
                assert all(map(same, t, expected)), ("all_to_all", dtype)
            for t in both_ways(
                lambda t, a: dist.all_to_all_single(t, torch.cat(blocks[me]), async_op=a),
                lambda: torch.zeros(NUMEL * world, dtype=dtype),
            ):
                assert same(t, torch.cat(expected)), ("all_to_all_single", dtype)

        for dtype in DTYPES:
            moves(dtype)
        dist.barrier()
        dist.barrier(async_op=True).wait()
        dist.barrier(device_ids=[0])

    ranks(n, body)


OPS = {
    dist.ReduceOp.SUM: lambda s: s.sum(0),
    dist.ReduceOp.PRODUCT: lambda s: s.prod(0),
    dist.ReduceOp.MIN: lambda s: s.amin(0),
    dist.ReduceOp.MAX: lambda s: s.amax(0),
}
BITS = {
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_reductions_in_every_dtype(ranks, n):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        root = world - 1

        def reduces(dtype, op, mine, right):
            for t in both_ways(lambda t, a: dist.all_reduce(t, op, async_op=a), mine.clone):
                assert same(t, right), ("all_reduce", dtype, op)
            for t in both_ways(lambda t, a: dist.reduce(t, root, op, async_op=a), mine.clone):
                assert same(t, right if me == root else mine), ("reduce", dtype, op)
            for t in both_ways(
                lambda t, a: dist.reduce_scatter_tensor(t, mine, op, async_op=a),
                lambda: torch.zeros(NUMEL, dtype=dtype),
            ):
                assert same(t, right.chunk(world)[me]), ("reduce_scatter_tensor", dtype, op)
            for t in both_ways(
                lambda t, a: dist.reduce_scatter(t, [c.clone() for c in mine.chunk(world)], op, async_op=a),
                lambda: torch.zeros(NUMEL, dtype=dtype),
            ):
                assert same(t, right.chunk(world)[me]), ("reduce_scatter", dtype, op)

        for dtype in DTYPES:
            if dtype in (torch.complex64, torch.complex128, torch.bool):
                continue  # have tests of their own
            every = [values(r, dtype, NUMEL * world) for r in range(world)]
            mine = every[me]
            wide = torch.stack([e.to(torch.float64) for e in every])
            expected = {op: reference(wide).to(dtype) for op, reference in OPS.items()}
            if not dtype.is_floating_point and dtype not in (torch.uint16, torch.uint32, torch.uint64):
                for op, reference in BITS.items():
                    expected[op] = every[0]
                    for other in every[1:]:
                        expected[op] = reference(expected[op], other)
            for op, right in expected.items():
                reduces(dtype, op, mine, right)

    ranks(n, body)


def test_large_tensors(ranks):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        for numel in (1, 255, 4096, 65537, 1 << 20, (1 << 22) + 3):
            t = torch.arange(numel) % 1000 + me
            dist.all_reduce(t)
            assert torch.equal(t, (torch.arange(numel) % 1000) * world + sum(range(world))), numel
            out = torch.empty(world * numel)
            dist.all_gather_into_tensor(out, torch.arange(numel, dtype=torch.float32) + me)
            assert torch.equal(
                out.view(world, numel) - torch.arange(world).view(-1, 1),
                torch.arange(numel).expand(world, -1).float(),
            )

    ranks(3, body)


def test_strided_tensors_give_right_values(ranks):
    def layouts(offset):
        base = torch.arange(24.0) + offset
        yield base.view(12, 2)[:, 0]
        yield base.view(4, 6).t()
        yield base.view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)
        yield base.view(2, 3, 4).permute(2, 0, 1)[1:3]
        yield base.flip(0)[::2]
        yield (base + 1j * base.flip(0)).to(torch.complex64).conj()
        yield (base + 1j * base).imag  # a strided view of real numbers

    def blank(like):
        """Of the same layout, so that outputs are strided too."""
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype).fill_(-1)

    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        everyone = [list(layouts(100 * r)) for r in range(world)]
        for case, mine in enumerate(everyone[me]):
            every = [everyone[r][case] for r in range(world)]
            total = torch.stack(list(every)).sum(0)
            if not mine.is_conj():  # torch itself refuses a conjugate view for these
                t = mine.clone(memory_format=torch.preserve_format)
                dist.all_reduce(t)
                assert torch.equal(t, total), ("all_reduce", case)
                t = mine.clone(memory_format=torch.preserve_format)
                dist.broadcast(t, 1)
                assert torch.equal(t, every[1]), ("broadcast", case)
                t = mine.clone(memory_format=torch.preserve_format)
                dist.reduce(t, 0)
                assert torch.equal(t, total if me == 0 else mine), ("reduce", case)
                outs = [blank(mine) for _ in every]
                dist.all_gather(outs, mine)
                assert all(map(torch.equal, outs, every)), ("all_gather", case)
                outs = [blank(mine) for _ in every] if me == 0 else None
                dist.gather(mine, outs, 0)
                assert outs is None or all(map(torch.equal, outs, every)), ("gather", case)
                out = blank(mine)
                dist.scatter(out, every if me == 0 else None, 0)
                assert torch.equal(out, mine), ("scatter", case)
                outs = [blank(mine) for _ in every]
                dist.all_to_all(outs, [mine] * world)
                assert all(map(torch.equal, outs, every)), ("all_to_all", case)
                out = blank(mine)
                dist.reduce_scatter(out, every)
                assert torch.equal(out, mine * world), ("reduce_scatter", case)
                work = dist.isend(mine, (me + 1) % world)
                out = blank(mine)
                dist.recv(out, (me - 1) % world)
                work.wait()
                assert torch.equal(out, every[me - 1]), ("send", case)
            # Straight to the backend, past what torch.distributed does to complex tensors.
            pg = dist.group.WORLD
            t = mine.clone(memory_format=torch.preserve_format)
            pg.allreduce([t], dist.AllreduceOptions()).wait()
            assert torch.equal(t, total), ("allreduce", case)
        squares = [torch.arange(36.0).view(6, 6).t() + 100 * r for r in range(world)]
        out = torch.empty(12 * world, 6)[::2]
        dist.all_gather_into_tensor(out, squares[me])
        assert torch.equal(out, torch.cat(squares))
        out = torch.empty(12 // world, 6)[::2]
        dist.reduce_scatter_tensor(out, squares[me])
        assert torch.equal(out, sum(squares).chunk(world)[me])
        out = torch.empty(12, 6)[::2]
        dist.all_to_all_single(out, squares[me])
        assert torch.equal(out, torch.cat([square.chunk(world)[me] for square in squares]))

    ranks(2, body)


def test_ranks_may_differ_in_layout(ranks):
    def body():
        me = dist.get_rank()
        t = torch.arange(6.0).view(2, 3)
        if me == 1:
            t = t.t().contiguous().t()
        dist.all_reduce(t)
        assert torch.equal(t, torch.arange(6.0).view(2, 3) * 2)
        work = dist.all_reduce(t, async_op=True)
        assert work.get_future().wait()[0] is not None
        assert torch.equal(t, torch.arange(6.0).view(2, 3) * 4)

    ranks(2, body)


def test_expanded_tensors(ranks):
    def body():
        me = dist.get_rank()
        row = torch.arange(3.0) + 10 * me
        expanded = row.expand(4, 3)
        for call in (
            lambda: dist.all_reduce(expanded),
            lambda: dist.all_gather([torch.empty(4, 3), expanded], row.expand(4, 3)),
            lambda: dist.reduce_scatter(expanded, [torch.ones(4, 3)] * 2),
            lambda: dist.all_reduce(torch.arange(8.0).unfold(0, 4, 2)),
        ):
            with pytest.raises(ValueError, match="share one place in memory"):
                call()
        outs = [torch.empty(4, 3) for _ in range(2)]
        dist.all_gather(outs, expanded)  # to read from it is right
        assert torch.equal(outs[1], (torch.arange(3.0) + 10).expand(4, 3))
        t = expanded if me == 0 else torch.empty(4, 3)
        dist.broadcast(t, 0)
        assert torch.equal(t, torch.arange(3.0).expand(4, 3))
        t = expanded if me == 0 else row.repeat(4, 1)
        dist.reduce(t, 1)
        assert torch.equal(t, row.expand(4, 3) if me == 0 else (2 * torch.arange(3.0) + 10).expand(4, 3))

    ranks(2, body)


@pytest.mark.parametrize("shape", [(0,), (1, 0, 2)])
def test_nothing_to_do(ranks, shape):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        t = torch.empty(shape)
        empties = [torch.empty(shape) for _ in range(world)]
        for a in (False, True):
            works = [
                dist.all_reduce(t, async_op=a),
                dist.broadcast(t, 0, async_op=a),
                dist.reduce(t, 1, async_op=a),
                dist.all_gather(empties, t, async_op=a),
                dist.all_gather_into_tensor(torch.empty(0), t, async_op=a),
                dist.reduce_scatter(t, empties, async_op=a),
                dist.reduce_scatter_tensor(t, torch.empty(0), async_op=a),
                dist.gather(t, empties if me == 0 else None, 0, async_op=a),
                dist.scatter(t, empties if me == 0 else None, 0, async_op=a),
                dist.all_to_all([torch.empty(shape) for _ in range(world)], empties, async_op=a),
                dist.all_to_all_single(torch.empty(0), torch.empty(0), async_op=a),
            ]
            assert all(a == (work is not None) for work in works)
            for work in works:
                if work is not None:
                    work.wait()
        pg = dist.group.WORLD
        full = torch.ones(3) * me
        pg.allreduce_coalesced(
            [torch.empty(shape), full, torch.empty(0)], dist.AllreduceCoalescedOptions()
        ).wait()
        assert full.tolist() == [sum(range(world))] * 3
        pg.allreduce_coalesced([torch.empty(shape)], dist.AllreduceCoalescedOptions()).wait()
        for device in (None, torch.device("cpu")):
            out, gathered, scattered = torch.empty(0), torch.zeros(2 * world), torch.zeros(2)
            with dist._coalescing_manager(device=device, async_ops=True) as manager:
                dist.all_gather_into_tensor(out, t, async_op=True)
                dist.all_gather_into_tensor(gathered, torch.full((2,), float(me)), async_op=True)
            manager.wait()
            assert gathered.view(world, 2)[:, 1].tolist() == list(range(world))
            with dist._coalescing_manager(device=device, async_ops=True) as manager:
                dist.reduce_scatter_tensor(t, out, async_op=True)
                dist.reduce_scatter_tensor(scattered, gathered, async_op=True)
            manager.wait()
            assert scattered.tolist() == [float(world * me)] * 2
        if me == 0:
            dist.send(t, 1)
        elif me == 1:
            dist.recv(torch.empty(shape), 0)

    ranks(3, body)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_premul_sum(ranks, dtype):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        base = torch.arange(10) + 4
        for factor in (0.5, 0.25, 3.0, torch.tensor([0.5], dtype=dtype), torch.tensor(3.0)):
            op = dist._make_nccl_premul_sum(factor)
            right = sum((base * (r + 1)).double() * float(factor) for r in range(world)).to(dtype)
            t = (base * (me + 1)).to(dtype)
            dist.all_reduce(t, op)
            assert same(t, right), factor
            out = torch.empty(10, dtype=dtype)
            dist.reduce_scatter_tensor(out, (base * (me + 1)).repeat(world).to(dtype), op)
            assert same(out, right), factor
        t = torch.ones(3, dtype=dtype)  # each rank its own factor
        dist.all_reduce(t, dist._make_nccl_premul_sum(float(2**me)))
        assert t.tolist() == [2.0**world - 1] * 3

    ranks(2, body)


def test_avg(ranks):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        for dtype in (torch.int32, torch.int64, torch.int8, torch.float32, torch.bfloat16):
            t = torch.tensor([-7, 7, -3, 0, 5], dtype=dtype) + me
            dist.all_reduce(t, dist.ReduceOp.AVG)
            total = torch.tensor([-7, 7, -3, 0, 5], dtype=torch.float64) * world + sum(range(world))
            right = total / world
            assert torch.equal(t, (right if dtype.is_floating_point else right.trunc()).to(dtype)), dtype
            # The same where a rank keeps a part, or one rank all.
            values = torch.tensor([-7, 7, -3, 0, 5] * world, dtype=dtype) + me
            wanted = (right if dtype.is_floating_point else right.trunc()).to(dtype)
            out = torch.empty(5, dtype=dtype)
            dist.reduce_scatter_single(out, values, dist.ReduceOp.AVG)
            assert torch.equal(out, wanted), dtype
            dist.reduce_scatter(out, list(values.chunk(world)), dist.ReduceOp.AVG)
            assert torch.equal(out, wanted), dtype
            t = values[:5].clone()
            dist.reduce(t, 1, dist.ReduceOp.AVG)
            assert torch.equal(t, wanted if me == 1 else values[:5]), dtype
            ts = [values[:5].clone(), values[:2].clone()]
            options = dist.AllreduceCoalescedOptions()
            options.reduceOp = dist.ReduceOp.AVG
            dist.group.WORLD.allreduce_coalesced(ts, options).wait()
            assert torch.equal(ts[0], wanted), dtype
            assert torch.equal(ts[1], wanted[:2]), dtype
        t = torch.tensor([200, 255], dtype=torch.uint8)
        dist.all_reduce(t, dist.ReduceOp.AVG)
        assert t.tolist() == [200, 255]
        t = torch.tensor([120 if me % 2 else 100], dtype=torch.int8)
        dist.all_reduce(t)
        assert t.tolist() == [torch.tensor([440], dtype=torch.int64).to(torch.int8).item()]  # wraps
        t = torch.tensor([120 if me % 2 else 100], dtype=torch.int8)
        dist.all_reduce(t, dist.ReduceOp.AVG)
        assert t.tolist() == [110]
        t = torch.full((9,), 20000.0, dtype=torch.float16)
        dist.all_reduce(t, dist.ReduceOp.AVG)
        assert t.tolist() == [20000.0] * 9  # 80000 is no fp16

    ranks(4, body)


def test_bool(ranks):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        mine = torch.tensor([me == 0, me == 1, True, False])
        for op, right in (
            (dist.ReduceOp.SUM, [True, True, True, False]),
            (dist.ReduceOp.MAX, [True, True, True, False]),
            (dist.ReduceOp.PRODUCT, [False, False, True, False]),
            (dist.ReduceOp.MIN, [False, False, True, False]),
        ):
            t = mine.clone()
            dist.all_reduce(t, op)
            assert t.tolist() == right, op
        t = mine.clone()
        dist.broadcast(t, 1)
        assert t.tolist() == [False, True, True, False]
        outs = [torch.zeros(4, dtype=torch.bool) for _ in range(world)]
        dist.all_gather(outs, mine)
        assert outs[0].tolist() == [True, False, True, False]

    ranks(2, body)


def test_complex(ranks):
    def body():
        me = dist.get_rank()
        for dtype in (torch.complex64, torch.complex128):
            t = torch.tensor([1 + 2j, 3 - 1j], dtype=dtype) * (me + 1)
            dist.all_reduce(t)
            assert t.tolist() == [3 + 6j, 9 - 3j]
            pg = dist.group.WORLD
            options = dist.AllreduceOptions()
            for name in ("MAX", "MIN"):
                options.reduceOp = getattr(dist.ReduceOp, name)
                with pytest.raises(dist.DistError, match=f"(?i){name}.*complex|complex.*{name}"):
                    pg.allreduce([t], options)
                with pytest.raises(ValueError, match=name):
                    dist.all_reduce(t, getattr(dist.ReduceOp, name))
            options.reduceOp = dist.ReduceOp.PRODUCT
            t = torch.tensor([1 + 1j], dtype=dtype)
            pg.allreduce([t], options).wait()
            assert t.tolist() == [2j]

    ranks(2, body)


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_complex_numbers_of_16_bit_parts(ranks):
    """torch turns those of all_reduce into real ones itself."""

    def body():
        me, world = dist.get_rank(), dist.get_world_size()

        def tensor(values):
            return torch.tensor(values, dtype=torch.complex64).to(torch.complex32)

        def same(t, values):
            return t.to(torch.complex64).tolist() == values

        mine = [1 + 2j + me, 3 - 1j * me, 4 + 0j, 5 - 8j]
        total = [complex(1.0 * world + 3, 2 * world), 3 * world - 3j, 4.0 * world + 0j, world * (5 - 8j)]
        t = tensor(mine)
        dist.reduce(t, 1)
        assert same(t, total if me == 1 else mine)
        t = tensor([value * 2 for value in mine])
        dist.reduce(t, 2, dist._make_nccl_premul_sum(0.5))
        assert me != 2 or same(t, total)
        out = tensor([0] * 4)
        dist.reduce_scatter(out, [tensor([value * place for value in mine]) for place in range(world)])
        assert same(out, [value * me for value in total])
        dist.reduce_scatter_single(out, tensor(mine * world))
        assert same(out, total)
        outs = [tensor([0] * 4) for _ in range(world)]
        dist.all_gather(outs, tensor(mine))
        assert same(outs[me], mine)
        for op in (dist.ReduceOp.PRODUCT, dist.ReduceOp.MAX, dist.ReduceOp.BAND):
            with pytest.raises(dist.DistError, match="ComplexHalf takes SUM, AVG and PREMUL_SUM only"):
                dist.reduce(tensor(mine), 0, op)

    ranks(3, body)


def test_uneven_shards(ranks):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()

        def shard(r):
            return torch.arange(r + 1.0) + 10 * r

        outs = [torch.zeros(r + 1) for r in range(world)]
        dist.all_gather(outs, shard(me))
        assert all(torch.equal(outs[r], shard(r)) for r in range(world))
        out = torch.zeros(me + 1)
        dist.reduce_scatter(out, [shard(r) * (me + 1) for r in range(world)])
        assert torch.equal(out, shard(me) * sum(range(1, world + 1)))
        # One rank has nothing.
        outs = [torch.zeros(r) for r in range(world)]
        dist.all_gather(outs, shard(me)[1:])
        assert all(torch.equal(outs[r], shard(r)[1:]) for r in range(world))
        out = torch.zeros(me)
        dist.reduce_scatter(out, [shard(r)[1:] for r in range(world)], dist.ReduceOp.MAX)
        assert torch.equal(out, shard(me)[1:])

    ranks(3, body)


def test_uneven_all_to_all(ranks):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()

        def rows(src, dst):
            return (src * 2 + dst) % 3  # with zeros among them

        def block(src, dst):
            return (torch.arange(rows(src, dst) * 2.0) + 100 * src + 10 * dst).view(-1, 2)

        mine = torch.cat([block(me, dst) for dst in range(world)])
        expected = torch.cat([block(src, me) for src in range(world)])
        for async_op in (False, True):
            out = torch.zeros_like(expected)
            work = dist.all_to_all_single(
                out, mine, [rows(src, me) for src in range(world)], [rows(me, dst) for dst in range(world)],
                async_op=async_op,
            )  # fmt: skip
            if work is not None:
                work.wait()
            assert torch.equal(out, expected)
        outs = [torch.zeros(rows(src, me), 2) for src in range(world)]
        dist.all_to_all(outs, [block(me, dst) for dst in range(world)])
        assert torch.equal(torch.cat(outs), expected)
        with pytest.raises(ValueError, match="add up to"):
            dist.all_to_all_single(torch.zeros(4), torch.zeros(4), [1] * world, [2] * world)
        with pytest.raises(ValueError, match="divide equally"):
            dist.all_to_all_single(torch.zeros(world + 1), torch.zeros(world + 1))

    ranks(3, body)


def test_bad_arguments_are_refused_at_once(ranks):
    def body():
        world = dist.get_world_size()
        pg = dist.group.WORLD
        with pytest.raises(TypeError, match=r"sparse|layout|Sparse"):
            pg._get_backend(torch.device("cpu")).broadcast(
                [torch.eye(3).to_sparse()], dist.BroadcastOptions()
            )
        with pytest.raises(TypeError, match="device meta"):
            pg._get_backend(torch.device("cpu")).broadcast(
                [torch.empty(3, device="meta")], dist.BroadcastOptions()
            )
        strange = torch.ones(3).to(torch.float8_e4m3fnuz)
        with pytest.raises(dist.DistError, match="dtype Float8_e4m3fnuz"):
            dist.all_reduce(strange)
        dist.broadcast(strange, 0)  # but bytes are bytes
        with pytest.raises(ValueError, match="elements"):
            dist.all_gather_into_tensor(torch.empty(world * 3 + 1), torch.empty(3))
        with pytest.raises(ValueError, match="elements"):
            dist.reduce_scatter_tensor(torch.empty(3), torch.empty(world * 3 + 1))
        with pytest.raises((TypeError, ValueError), match=r"(?i)dtype"):
            pg.all_gather_single(torch.empty(world * 3, dtype=torch.int64), torch.empty(3))
        with pytest.raises(ValueError, match=r"(?i)rank"):
            dist.broadcast(torch.ones(3), world)
        options = dist.BroadcastOptions()
        options.rootRank = world
        with pytest.raises(ValueError, match=r"(?i)rank"):
            pg.broadcast([torch.ones(3)], options).wait()
        t = torch.ones(3)
        dist.all_reduce(t)  # and the group is as it was
        assert t.tolist() == [world] * 3

    ranks(2, body)


def test_sparse_all_reduce(ranks):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()

        def tensor(rank, dtype=torch.float64):
            """As many entries as the rank, a row of two each; uncoalesced, and with none on rank 0."""
            indices = torch.tensor([[(rank + i) % 3 for i in range(rank)], [i % 2 for i in range(rank)]])
            values = (torch.arange(rank * 2.0).view(rank, 2) + 10 * rank).to(dtype)
            return torch.sparse_coo_tensor(indices.view(2, rank), values, (3, 2, 2))

        expected = sum(tensor(r).to_dense() for r in range(world))
        for async_op in (False, True):
            t = tensor(me)
            work = dist.all_reduce(t, async_op=async_op)
            if work is not None:
                [result] = work.get_future().wait()
                assert result is t or torch.equal(result.to_dense(), expected)
            assert t.is_coalesced()
            assert torch.equal(t.to_dense(), expected)
        t = tensor(me)
        dist.all_reduce(t, dist.ReduceOp.AVG)
        assert torch.equal(t.to_dense(), expected / world)
        t = torch.eye(3, dtype=torch.int32).to_sparse() * (me + 1)  # as many entries on every rank
        dist.all_reduce(t)
        assert torch.equal(t.to_dense(), torch.eye(3, dtype=torch.int32) * sum(range(1, world + 1)))
        empty = torch.sparse_coo_tensor(torch.zeros(1, 0), torch.zeros(0), (5,))
        dist.all_reduce(empty)
        assert torch.equal(empty.to_dense(), torch.zeros(5))
        with pytest.raises(dist.DistError, match="SUM and AVG"):
            dist.all_reduce(tensor(me), dist.ReduceOp.MAX)
        with pytest.raises(dist.DistBackendError, match=r"\[3, 4\].*rank 0.*\[3, 5\].*rank 1"):
            dist.all_reduce(torch.ones(3, 4 + (me > 0)).to_sparse())
        t = torch.ones(1)
        dist.all_reduce(t)  # and the group is as it was
        assert t.item() == world

    ranks(3, body)


def test_all_to_all_onto_its_own_input(ranks):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        size = 50_000  # too large to be sent before it is received

        def row(src, dst):
            return torch.arange(float(size)) + 1000 * src + 10 * dst

        blocks = [row(me, dst) for dst in range(world)]
        dist.all_to_all(blocks, blocks)
        assert all(torch.equal(blocks[src], row(src, me)) for src in range(world))
        t = torch.cat([row(me, dst) for dst in range(world)])
        dist.all_to_all_single(t, t, [size] * world, [size] * world)
        assert torch.equal(t, torch.cat([row(src, me) for src in range(world)]))
        # Shifted: an output begins within an input.
        both = torch.cat([torch.zeros(7), *[row(me, dst) for dst in range(world)]])
        dist.all_to_all_single(both[:-7], both[7:], [size] * world, [size] * world)
        assert torch.equal(both[:-7], torch.cat([row(src, me) for src in range(world)]))
        same = torch.zeros(4)
        with pytest.raises(ValueError, match="share memory"):
            dist.all_to_all([same] * world, [torch.ones(4) for _ in range(world)])

    ranks(3, body)
