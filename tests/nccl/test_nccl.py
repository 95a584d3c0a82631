"""Schedules over NCCL's interface: every algorithm and collective, exact results, on threads."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import pycoll
from pycoll import InvalidArgument, Unsupported, _core
from pycoll.nccl import Group
from tests.nccl.fake import FakeNccl

REDUCTIONS = ("allreduce", "reduce_scatter", "reduce")


def on_ranks(ranks: int, body: Any) -> list[Any]:
    """body(group) on a thread a rank; what they return, in order of rank."""
    nccl = FakeNccl(ranks)
    results: list[Any] = [None] * ranks
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = body(Group(nccl.communicator(rank), nccl, rank, ranks))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def layout(schedule: pycoll.Schedule, rank: int) -> list[tuple[int, int]]:
    """By block of the logical buffer, its index in the rank's input and output."""
    blocks = _core.pieces_multiple(schedule.collective, schedule.ranks)
    return _core.piece_layout(schedule.collective, schedule.ranks, blocks, schedule.root, rank)


def buffers(schedule: pycoll.Schedule, count: int, dtype: Any, total: Any) -> tuple[list[Any], list[Any]]:
    """Every rank's input and its right output; ``total`` makes the whole out of all contributions."""
    blocks = _core.pieces_multiple(schedule.collective, schedule.ranks)
    shape = (schedule.ranks, blocks, count)
    contributions = np.random.default_rng(5).integers(-9, 9, shape).astype(dtype)
    whole = total(contributions) if schedule.collective in REDUCTIONS else contributions
    inputs, outputs = [], []
    for rank in range(schedule.ranks):
        places = layout(schedule, rank)
        mine = [contributions[rank, block] for block, (index, _) in enumerate(places) if index >= 0]
        owed: dict[int, Any] = {}
        for block, (_, index) in enumerate(places):
            if index < 0:
                continue
            if schedule.collective in REDUCTIONS:
                owed[index] = whole[block]
            else:
                owner = next(r for r in range(schedule.ranks) if layout(schedule, r)[block][0] >= 0)
                owed[index] = contributions[owner, block]
        inputs.append(np.concatenate(mine) if mine else None)
        outputs.append(np.concatenate([owed[i] for i in sorted(owed)]) if owed else None)
    return inputs, outputs


def check(schedule: pycoll.Schedule, count: int, dtype: Any, op: str, total: Any) -> None:
    inputs, expected = buffers(schedule, count, dtype, total)

    def body(group: Group) -> Any:
        x, right = inputs[group.rank], expected[group.rank]
        out = np.full_like(right, 77) if right is not None else (x if x is not None else np.empty(0, dtype))
        x = out if x is None else x.copy()
        group.run(schedule, x, out, op)
        return out

    for rank, (got, right) in enumerate(zip(on_ranks(schedule.ranks, body), expected, strict=True)):
        if right is not None:
            np.testing.assert_array_equal(got, right, err_msg=f"{schedule!r}, rank {rank}")


@pytest.mark.parametrize("ranks", range(2, 9))
@pytest.mark.parametrize("algorithm", [name for name, info in pycoll.algorithms().items() if info.builtin])
def test_every_algorithm_and_collective(algorithm: str, ranks: int) -> None:
    info = pycoll.algorithms()[algorithm]
    if not info.accepts(ranks):
        pytest.skip(f"{algorithm} does not run on {ranks} ranks")
    for collective in info.collectives:
        if collective == "barrier":
            continue
        root = ranks - 1 if collective in ("broadcast", "reduce", "gather", "scatter") else 0
        schedule = pycoll.build(algorithm, collective=collective, ranks=ranks, root=root)
        for count in (1, 37):  # less than one element a piece, and pieces that differ
            check(schedule, count, np.int32, "sum", lambda all_of_them: all_of_them.sum(0, dtype=np.int32))


@pytest.mark.parametrize(
    ("op", "total"),
    [
        ("sum", lambda x: x.sum(0, dtype=x.dtype)),
        ("prod", lambda x: x.prod(0, dtype=x.dtype)),
        ("max", lambda x: x.max(0)),
        ("min", lambda x: x.min(0)),
        ("avg", lambda x: np.trunc(x.sum(0) / len(x)).astype(x.dtype)),
    ],
)
@pytest.mark.parametrize("ranks", [3, 4])
def test_ops(op: str, total: Any, ranks: int) -> None:
    for collective in REDUCTIONS:
        schedule = pycoll.build("direct", collective=collective, ranks=ranks)
        check(schedule, 23, np.int32, op, total)


def test_avg_of_floats_is_summed_wider_and_rounded_once() -> None:
    values = [np.float16(60000), np.float16(50000), np.float16(40001)]
    schedule = pycoll.build("ring", ranks=3)

    def body(group: Group) -> Any:
        return group.run(schedule, np.full(5, values[group.rank]), op="avg")

    right = np.float16(np.float32(sum(float(v) for v in values)) / np.float32(3))
    for got in on_ranks(3, body):
        assert (got == right).all()


@pytest.mark.parametrize("algorithm", ["direct", "direct_two_shot", "ring", "recursive_doubling"])
def test_all_ranks_get_the_same_bits(algorithm: str) -> None:
    schedule = pycoll.build(algorithm, ranks=4)

    def body(group: Group) -> Any:
        x = np.random.default_rng(group.rank).standard_normal(1000, np.float32) * 1e4
        return group.run(schedule, x)

    first, *others = on_ranks(4, body)
    for other in others:
        np.testing.assert_array_equal(other, first)


def test_premul_sum_takes_each_ranks_factor() -> None:
    schedule = pycoll.build("ring", ranks=4)

    def body(group: Group) -> Any:
        return group.run(schedule, np.full(9, 2.0, np.float32), op="premul_sum", factor=group.rank + 0.5)

    for got in on_ranks(4, body):
        assert (got == 2 * (0.5 + 1.5 + 2.5 + 3.5)).all()


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    schedule = pycoll.build("double_binary_tree", ranks=5, pieces=4)

    def body(group: Group) -> Any:
        x = torch.arange(50, dtype=torch.bfloat16) % 7 + group.rank
        return group.run(schedule, x, op="max")

    for got in on_ranks(5, body):
        assert torch.equal(got, torch.arange(50, dtype=torch.bfloat16) % 7 + 4)


def test_the_stream_given_is_the_one_used() -> None:
    nccl = FakeNccl(2)
    communicators = [nccl.communicator(rank) for rank in range(2)]
    schedule = pycoll.build("ring", ranks=2)

    def run(rank: int) -> None:
        Group(communicators[rank], nccl, rank, 2).run(schedule, np.ones(4, np.float32), stream=1234)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(communicators[0].streams) == set(communicators[1].streams) == {1234}


def test_calls_on_two_streams_share_no_scratch() -> None:
    """Nothing orders them: each must have memory of its own, and keep it."""
    nccl = FakeNccl(2)
    received: list[dict[int, set[int]]] = [{1: set(), 2: set()} for _ in range(2)]
    results: list[Any] = [None, None]
    schedule = pycoll.build("ring", ranks=2)

    def run(rank: int) -> None:
        communicator = nccl.communicator(rank)
        kept = communicator.recv

        def recv(recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
            received[rank][stream].add(recvbuf)
            kept(recvbuf, count, datatype, peer, stream)

        communicator.recv = recv  # type: ignore[method-assign]
        group = Group(communicator, nccl, rank, 2)
        buffers = [np.ones(4, np.float16) for _ in range(2)]
        for stream in (1, 2, 1, 2):
            group.run(schedule, buffers[stream - 1], op="avg", stream=stream)
        results[rank] = [buffer.tolist() for buffer in buffers]

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[[1.0] * 4] * 2] * 2
    for of_rank in received:
        assert of_rank[1]
        assert of_rank[2]
        assert not of_rank[1] & of_rank[2]
        assert len(of_rank[1]) == len(of_rank[2]) == 2  # of the reduction, and of the copy back


def test_what_does_not_fit_is_refused() -> None:
    nccl = FakeNccl(2)
    group = Group(nccl.communicator(0), nccl, 0, 2)
    ring = pycoll.build("ring", ranks=2)
    with pytest.raises(InvalidArgument, match="3 ranks"):
        group.run(pycoll.build("ring", ranks=3), np.ones(4))
    four = FakeNccl(4)
    with pytest.raises(Unsupported, match="part"):
        Group(four.communicator(0), four, 0, 4).run(
            pycoll.build("late_rank", ranks=4, phase="after"), np.ones(4)
        )
    with pytest.raises(InvalidArgument, match="no op"):
        group.run(ring, np.ones(4), op="median")
    with pytest.raises(InvalidArgument, match="contiguous"):
        group.run(ring, np.ones((4, 4))[:, 0])
    with pytest.raises(InvalidArgument, match="dtype"):
        group.run(ring, np.ones(4), np.ones(4, np.float32))
    with pytest.raises(InvalidArgument, match="8 elements"):
        group.run(pycoll.build("ring", collective="all_gather", ranks=2), np.ones(4), np.ones(4))
    with pytest.raises(Unsupported, match="int64"):
        group.run(ring, np.ones(4, np.int64), op="avg")
    with pytest.raises(InvalidArgument, match="whole"):
        group.run(ring, np.ones(4, np.int32), op="premul_sum", factor=0.5)
    with pytest.raises(InvalidArgument, match="cupy"):
        group.run(ring, [1.0, 2.0])


def test_without_cupy_every_rank_says_so() -> None:
    def rank(comm: pycoll.Communicator) -> str:
        try:
            Group.of(comm)
        except Unsupported as error:
            return str(error)
        return "no error"

    try:
        import cupy

        cupy.cuda.runtime.getDevice()
    except Exception:
        for text in pycoll.spawn(rank, ranks=2):
            assert "cupy" in text
            assert "rank 0" in text
