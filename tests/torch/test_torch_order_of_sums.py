"""The bits of a sum do not depend on where the data lies; with a fixed order not on the size, the call or the
bucket either. On all ranks they are always the same."""

from __future__ import annotations

import itertools
import os

import pytest
import torch
import torch.distributed as dist

# The algorithm changes at each of these sizes, in bytes; each of them adds in an order of its own.
CHANGES = [1 << 10, 16 << 10, 128 << 10, 512 << 10]
PINS = ",".join(
    f"allreduce:{begin}-{end}={way}"
    for begin, end, way in zip(
        [0, *CHANGES],
        [*CHANGES, ""],
        ["direct", "recursive_doubling", "ring", "double_binary_tree", "direct"],
        strict=True,
    )
)
# Where the engine itself goes other ways: what fits into a line, a slot, a chunk, several.
OWN = [40, 64, 4 << 10, 64 << 10, 256 << 10, 1 << 20]


def numbers(count, dtype, generator):
    """Of magnitudes so different that every order of adding gives another sum."""
    scale = torch.randint(-12, 12, (count,), generator=generator).double()
    return (torch.randn(count, generator=generator).double() * 2**scale).to(dtype)


def bits(tensor):
    return tensor.contiguous().view(torch.int32 if tensor.dtype.itemsize == 4 else torch.int16)


def same_on_all_ranks(tensor):
    everyones = [torch.empty_like(bits(tensor)) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, bits(tensor))
    return all(torch.equal(everyones[0], other) for other in everyones)


def summed(tensor, group, asynchronous=False):
    """Its bits after an all_reduce in place."""
    work = dist.all_reduce(tensor, group=group, async_op=asynchronous)
    if work is not None:
        work.wait()
    assert same_on_all_ranks(tensor), f"{tensor.numel()} elements: ranks have other bits"
    return bits(tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_alone_and_as_a_slice(ranks, dtype):
    def body():
        from pycoll.torch import Options

        everyone = list(range(dist.get_world_size()))
        os.environ["PYCOLL_ALGO"] = PINS
        try:
            changing = dist.new_group(everyone)
        finally:
            del os.environ["PYCOLL_ALGO"]
        fixed = dist.new_group(everyone, pg_options=Options(deterministic=True))
        generator = torch.Generator().manual_seed(dist.get_rank())
        sizes = {bytes // dtype.itemsize + more for bytes in CHANGES + OWN for more in (-1, 0, 1)} | {1, 2}
        other_orders = []  # sizes at which the algorithms' order was not that of the ranks
        for size in sorted(sizes):
            mine = numbers(size, dtype, generator)
            before, after = numbers(3, dtype, generator), numbers(size + 5, dtype, generator)
            around = torch.cat([before, mine, after])  # the slice is aligned to nothing
            part = slice(3, 3 + size)
            alone = {group: summed(mine.clone(), group) for group in (fixed, changing, None)}
            for group, right in alone.items():
                larger = around.clone()
                assert torch.equal(summed(larger[part], group, asynchronous=True), right), size
                assert torch.equal(larger[part.stop :], around[part.stop :]), "what lies around is left alone"
                assert torch.equal(larger[: part.start], around[: part.start])
            # With a fixed order the slice may also go along in the larger call.
            assert torch.equal(summed(around.clone(), fixed)[part], alone[fixed]), size
            if not torch.equal(alone[fixed], alone[changing]):
                other_orders.append(size * dtype.itemsize)
        # The algorithms do add in other orders, each, so that the above says something.
        for begin, end in itertools.pairwise(CHANGES):
            assert any(begin <= size < end for size in other_orders), (begin, other_orders)
        dist.destroy_process_group(fixed)
        dist.destroy_process_group(changing)

    ranks(4, body, limit=120)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fixed_order_is_that_of_every_call(ranks, dtype):
    """Alone, in a bucket with others, coalesced, scattered or reduced to one rank: the same bits."""

    def body():
        from pycoll.torch import Options

        me, world = dist.get_rank(), dist.get_world_size()
        fixed = dist.new_group(list(range(world)), pg_options=Options(deterministic=True))
        generator = torch.Generator().manual_seed(me)
        for size in (world, 300 * world, 50_000 * world):
            mine, other = numbers(size, dtype, generator), numbers(size // 2 + 1, dtype, generator)
            right = summed(mine.clone(), fixed)
            for tensors in ([mine.clone(), other.clone()], [other.clone(), mine.clone(), other.clone()]):
                fixed.allreduce_coalesced(tensors, dist.AllreduceCoalescedOptions()).wait()
                [found] = [t for t in tensors if t.numel() == size]
                assert torch.equal(bits(found), right), ("coalesced", size)
            for root in range(world):
                t = mine.clone()
                dist.reduce(t, root, group=fixed)
                assert torch.equal(bits(t), right if me == root else bits(mine)), ("reduce", size, root)
            out = torch.empty(size // world, dtype=dtype)
            dist.reduce_scatter_single(out, mine, group=fixed)
            assert torch.equal(bits(out), right.chunk(world)[me]), ("reduce_scatter", size)
            parts = [size - world + 1, *[1] * (world - 1)]  # uneven
            out = torch.empty(parts[me], dtype=dtype)
            dist.reduce_scatter(out, list(mine.split(parts)), group=fixed)
            assert torch.equal(bits(out), right.split(parts)[me]), ("uneven reduce_scatter", size)
            t = torch.stack([mine, mine], 1)[:, 0]  # strided
            assert torch.equal(summed(t, fixed), right), ("strided", size)
        dist.destroy_process_group(fixed)

    ranks(4, body)
