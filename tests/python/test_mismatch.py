"""Ranks that disagree: an error on all that names both calls, no data delivered, and the group goes on."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import pycoll


def _x(dtype=np.float32, count=12):
    return np.full(count, 7, dtype)


CALLS = {
    "allreduce": lambda comm, x: comm.allreduce(x),
    "reduce_scatter": lambda comm, x: comm.reduce_scatter(x, out=x[:6]),
    "all_gather": lambda comm, x: comm.all_gather(x[:6].copy(), out=x),
    "broadcast": lambda comm, x: comm.broadcast(x),
    "reduce": lambda comm, x: comm.reduce(x),
    "gather": lambda comm, x: comm.gather(x[:6].copy(), out=x),
    "scatter": lambda comm, x: comm.scatter(x.copy(), out=x[:6]),
    "all_to_all": lambda comm, x: comm.all_to_all(x.copy(), out=x),
    "barrier": lambda comm, x: comm.barrier(),
}


def disagree(comm, mine, words):
    """Makes this rank's call; the error must name both ranks and hold `words`; x must be as it was."""
    x = _x()
    with pytest.raises(pycoll.Mismatch) as caught:
        mine(comm, x)
    text = str(caught.value)
    for word in ("0", "1", *words):
        assert word in text, (word, text)
    assert (x == 7).all()
    y = np.arange(5.0) + comm.rank
    comm.allreduce(y)
    assert y.tolist() == [1, 3, 5, 7, 9]


def test_every_pair_of_collectives(on_threads):
    def run(comm):
        for pair in itertools.permutations(CALLS, 2):
            disagree(comm, CALLS[pair[comm.rank]], pair)

    on_threads(2, run)


def test_counts_dtypes_operators_roots_and_algorithms(on_threads):
    def run(comm):
        rank = comm.rank
        for counts in ((100, 200), (1, 2), (0, 1), (1 << 20, 5)):
            disagree(comm, lambda c, _, n=counts[rank]: c.allreduce(_x(count=n)), map(str, counts))
            disagree(comm, lambda c, _, n=counts[rank]: c.all_gather(_x(count=n)), ())
        for dtypes in (("float32", "int32"), ("float64", "int64"), ("bfloat16", "float16")):
            dtype = pycoll._buffers.numpy_dtype(dtypes[rank])
            disagree(comm, lambda c, _, d=dtype: c.allreduce(_x(d)), dtypes)
        for ops in (("sum", "max"), ("avg", "sum"), ("prod", "min")):
            disagree(comm, lambda c, x, op=ops[rank]: c.allreduce(x, op), ops)
        disagree(comm, lambda c, x: c.broadcast(x, root=rank), ("root",))
        disagree(comm, lambda c, x: c.allreduce(x, algorithm=["ring", "binary_tree"][rank]), ("ring",))

    on_threads(2, run)


def test_three_ranks_all_learn_it(on_threads):
    def run(comm):
        x = _x()
        with pytest.raises(pycoll.Mismatch):
            comm.allreduce(x, "max" if comm.rank == 2 else "sum")
        assert (x == 7).all()
        assert comm.allreduce(np.ones(1)).tolist() == [3]

    on_threads(3, run)


def test_between_processes(on_processes):
    def run(comm):
        x = np.full(1 << 20, 7.0)
        with pytest.raises(pycoll.Mismatch):
            comm.allreduce(x if comm.rank == 0 else x[:-1])
        assert (x == 7).all()

    on_processes(2, run)
