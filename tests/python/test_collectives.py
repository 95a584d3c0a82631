"""Every collective, with values: dtypes, shapes, in place and not; each algorithm; threads and processes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import pycoll

from .values import contribution, reduced

FLOATS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
DTYPES = [*FLOATS, np.int8, np.uint16, np.int64, np.bool_, np.complex64]
OPS = {"real": ("sum", "max", "min"), "b": ("sum", "max", "prod"), "c": ("sum", "prod")}


def every_collective(comm, dtype, count, algorithm=None, pieces=0, kinds=None):
    """All collectives on `count` elements a shard, against NumPy."""
    n, rank, root = comm.ranks, comm.rank, comm.ranks - 1
    how = {"algorithm": algorithm, "pieces": pieces}
    whole = [contribution(r, n * count, dtype) for r in range(n)]
    shard = [contribution(r, count, dtype) for r in range(n)]
    same = np.testing.assert_array_equal
    mine = slice(rank * count, (rank + 1) * count)

    def wanted(kind):
        return kinds is None or kind in kinds

    if wanted("allreduce"):
        for op in OPS[np.dtype(dtype).kind if np.dtype(dtype).kind in "bc" else "real"]:
            x = whole[rank].copy()
            assert comm.allreduce(x, op, **how) is x
            same(x, reduced(op, whole))
            x, out = whole[rank].copy(), np.empty_like(whole[rank])
            assert comm.allreduce(x, op, out=out, **how) is out
            same(out, reduced(op, whole))
            same(x, whole[rank])
    if wanted("reduce_scatter"):
        x = whole[rank].copy()
        same(comm.reduce_scatter(x, **how), reduced("sum", whole)[mine])
        same(x, whole[rank])
        comm.reduce_scatter(x, out=x[mine], **how)  # in place: the result in this rank's own shard
        same(x[mine], reduced("sum", whole)[mine])
    if wanted("all_gather"):
        same(comm.all_gather(shard[rank], **how), np.concatenate(shard))
        out = np.zeros(n * count, dtype)
        out[mine] = shard[rank]
        comm.all_gather(out[mine], out=out, **how)
        same(out, np.concatenate(shard))
    if wanted("broadcast"):
        x = whole[rank].copy()
        assert comm.broadcast(x, root, **how) is x
        same(x, whole[root])
        x, out = whole[rank].copy(), np.empty_like(whole[rank])
        comm.broadcast(x if rank == root else None, root, out=out, **how)
        same(out, whole[root])
        same(x, whole[rank])
    if wanted("reduce"):
        x = whole[rank].copy()
        result = comm.reduce(x, "sum", root, **how)
        assert (result is x) == (rank == root)
        same(x, reduced("sum", whole) if rank == root else whole[rank])
        out = np.empty_like(whole[rank])
        comm.reduce(whole[rank], "sum", root, out=out if rank == root else None, **how)
        if rank == root:
            same(out, reduced("sum", whole))
    if wanted("gather"):
        result = comm.gather(shard[rank], root, **how)
        if rank == root:
            same(result, np.concatenate(shard))
        else:
            assert result is None
    if wanted("scatter"):
        out = np.empty(count, dtype)
        comm.scatter(whole[root] if rank == root else None, root, out=out, **how)
        same(out, whole[root][mine])
    if wanted("all_to_all"):
        expected = np.concatenate([whole[r][mine] for r in range(n)])
        x = whole[rank].copy()
        same(comm.all_to_all(x, **how), expected)
        same(x, whole[rank])
        comm.all_to_all(x, out=x, **how)
        same(x, expected)
    if wanted("barrier"):
        comm.barrier(algorithm=algorithm)


def over_sizes(comm, dtype):
    for count in (0, 1, 5, 1021, 40_000 if np.dtype(dtype).itemsize == 4 else 300):
        every_collective(comm, dtype, count)
    return comm.sequence


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_collective(on_threads, ranks, dtype):
    sequences = on_threads(ranks, over_sizes, dtype)
    assert len(set(sequences)) == 1
    assert sequences[0] > 80


def test_between_processes(on_processes):
    def both(comm):
        over_sizes(comm, np.float32)
        over_sizes(comm, np.int8)

    on_processes(3, both)


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_algorithm(on_threads, ranks):
    def run(comm):
        for name, info in pycoll.algorithms().items():
            assert info.accepts(comm.ranks)
            for count in (0, 7, 5000):
                every_collective(comm, np.float32, count, name, kinds=info.collectives)

    on_threads(ranks, run)


def test_schedule_as_algorithm_and_pieces(on_threads):
    schedule = pycoll.build("ring", collective="allreduce", ranks=3, pieces=12)

    def run(comm):
        for count in (1, 6, 5000):
            every_collective(comm, np.float64, count, schedule, kinds=("allreduce",))
            every_collective(comm, np.float64, count, "ring", pieces=6, kinds=("allreduce",))
        with pytest.raises(pycoll.InvalidArgument, match="allreduce"):
            comm.broadcast(np.zeros(3), algorithm=schedule)
        with pytest.raises(pycoll.InvalidArgument, match="pieces"):
            comm.allreduce(np.zeros(3), pieces=4)
        with pytest.raises(pycoll.InvalidArgument, match="int"):
            comm.allreduce(np.zeros(3), algorithm=3)
        with pytest.raises(pycoll.InvalidArgument, match="ring"):  # lists what there is
            comm.allreduce(np.zeros(3), algorithm="rign")
        every_collective(comm, np.float64, 4)

    on_threads(3, run)


def test_schedule_of_another_number_of_ranks_is_refused(alone):
    with pytest.raises(pycoll.InvalidArgument, match="4 ranks"):
        alone.allreduce(np.zeros(3), algorithm=pycoll.build("ring", ranks=4))


def test_schedule_that_does_not_do_its_work_is_refused(alone):
    broken = pycoll.Schedule.from_transfers([(0, 0, 1, 0, True)], collective="allreduce", ranks=2)
    with pytest.raises((pycoll.ScheduleError, pycoll.InvalidArgument)):
        alone.allreduce(np.zeros(3), algorithm=broken)


def test_a_users_algorithm(on_threads):
    @pycoll.algorithm(collectives=["allreduce"], name="all_to_root_and_back")
    def _star(ranks, pieces):
        for piece in range(pieces):
            for rank in range(1, ranks):
                yield 0, rank, 0, piece, True
                yield 1, 0, rank, piece, False

    def run(comm):
        every_collective(comm, np.float32, 100, "all_to_root_and_back", kinds=("allreduce",))
        with pytest.raises(pycoll.Unsupported, match="does not do broadcast"):
            comm.broadcast(np.zeros(3), algorithm="all_to_root_and_back")

    on_threads(3, run)


def test_shapes_of_results(on_threads):
    def run(comm):
        x = np.zeros((6, 2, 5))
        assert comm.reduce_scatter(x).shape == (2, 2, 5)
        assert comm.all_gather(x).shape == (18, 2, 5)
        assert comm.all_gather(np.array(1.0)).shape == (3,)
        assert comm.all_to_all(x).shape == x.shape
        gathered = comm.gather(x)
        assert gathered.shape == (18, 2, 5) if comm.rank == 0 else gathered is None
        out = np.empty((3, 6, 2, 5))
        assert comm.all_gather(x, out=out) is out
        with pytest.raises(pycoll.InvalidArgument, match=r"\(4, 3\).*3 equal"):
            comm.reduce_scatter(np.zeros((4, 3)))
        assert comm.reduce_scatter(np.ones((4, 3)), out=np.empty(4)).tolist() == [3.0] * 4
        with pytest.raises(pycoll.InvalidArgument, match="equal blocks"):
            comm.all_to_all(np.zeros(4))
        with pytest.raises(pycoll.InvalidArgument, match="root is 3"):
            comm.reduce(np.zeros(4), root=3)
        if comm.rank == 1:
            with pytest.raises(pycoll.InvalidArgument, match="out is missing"):
                comm.scatter(None)
        for shape in ((0,), (1, 0, 2), (0, 3)):  # nothing to do
            comm.allreduce(np.zeros(shape))
            assert comm.all_gather(np.zeros(shape)).shape == (3 * shape[0], *shape[1:])

    on_threads(3, run)


def test_operators(on_threads):
    def run(comm):
        n, rank = comm.ranks, comm.rank
        x = np.array([120, 100, -7], np.int8)
        assert comm.allreduce(x.copy(), "avg").tolist() == [120, 100, -7]  # must not wrap before it divides
        assert comm.allreduce(x.copy(), "sum").tolist() == (x.astype(int) * n).astype(np.int8).tolist()
        half = np.full(5, 20000, np.float16)
        assert (comm.allreduce(half, "avg") == 20000).all()  # the sum would overflow
        bits = np.array([1 << rank, 7], np.uint8)
        assert comm.allreduce(bits.copy(), "bor").tolist() == [(1 << n) - 1, 7]
        assert comm.allreduce(bits.copy(), "band").tolist() == [0, 7]
        assert comm.allreduce(bits.copy(), "bxor").tolist() == [(1 << n) - 1, 7 * (n % 2)]
        for factor in (0.5, 0.25, 3.0):
            for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64):
                scaled = comm.allreduce(np.array([4, 8], dtype), pycoll.premul_sum(np.array([factor])))
                assert scaled.astype(float).tolist() == [4 * n * factor, 8 * n * factor]
        assert comm.allreduce(np.ones(2), ("premul_sum", 2)).tolist() == [2 * n, 2 * n]
        with pytest.raises(pycoll.Unsupported, match="complex64"):
            comm.allreduce(np.zeros(2, np.complex64), "max")
        with pytest.raises(NotImplementedError, match="float32"):
            comm.allreduce(np.zeros(2, np.float32), "band")
        with pytest.raises(pycoll.InvalidArgument, match="prod"):
            comm.allreduce(np.zeros(2), "mul")
        with pytest.raises(pycoll.InvalidArgument, match="factor"):
            comm.allreduce(np.zeros(2), "premul_sum")
        assert comm.allreduce(np.array([rank, np.nan]), "max").tolist()[0] == n - 1

    on_threads(3, run)
