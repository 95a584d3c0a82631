"""Ten thousand collectives of random kind, size, dtype, operator, algorithm and place; each verified."""

from __future__ import annotations

import numpy as np

import pycoll

from .values import contribution, reduced

CALLS = 10_000
DTYPES = [np.float32, np.float64, np.float16, np.int8, np.int32, np.uint64, np.bool_, np.complex64]
KINDS = [
    "allreduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
]
KINDS += ["barrier"]


def one(comm, rng, algorithms):
    """One call, drawn alike on all ranks, and its check."""
    n, rank = comm.ranks, comm.rank
    kind = KINDS[rng.integers(len(KINDS))]
    dtype = DTYPES[rng.integers(len(DTYPES))]
    ops = ["sum", "max"] if np.dtype(dtype).kind != "c" else ["sum"]
    op = ops[rng.integers(len(ops))]
    count = int(rng.choice([0, 1, 3, 17, 100, 2000])) + int(rng.integers(8))
    root = int(rng.integers(n))
    names = [None, None, None, *algorithms[kind]]
    how = {"algorithm": names[rng.integers(len(names))]}
    if rng.integers(4) == 0:
        how["async_"] = True
    into = bool(rng.integers(2))
    shard = [contribution(r, count, dtype) for r in range(n)]
    whole = [contribution(r, n * count, dtype) for r in range(n)]
    mine = slice(rank * count, (rank + 1) * count)
    x = (shard if kind in ("all_gather", "gather") else whole)[rank].copy()
    if rng.integers(5) == 0:
        x = np.repeat(x, 2)[::2]
    expected = {
        "allreduce": lambda: reduced(op, whole),
        "reduce_scatter": lambda: reduced(op, whole)[mine],
        "all_gather": lambda: np.concatenate(shard),
        "broadcast": lambda: whole[root],
        "reduce": lambda: reduced(op, whole) if rank == root else None,
        "gather": lambda: np.concatenate(shard) if rank == root else None,
        "scatter": lambda: whole[root][mine],
        "all_to_all": lambda: np.concatenate([whole[r][mine] for r in range(n)]),
        "barrier": lambda: None,
    }[kind]()
    if kind == "scatter" or (into and expected is not None):
        how["out"] = np.zeros_like(expected)
    arguments = {
        "allreduce": (x, op),
        "reduce_scatter": (x, op),
        "broadcast": (x, root),
        "reduce": (x, op, root),
        "gather": (x, root),
        "scatter": (x, root),
        "barrier": (),
    }.get(kind, (x,))
    result = getattr(comm, kind)(*arguments, **how)
    return result, expected, (kind, dtype, op, count, root, how)


def run(comm):
    algorithms = {
        kind: [
            name
            for name, info in pycoll.algorithms().items()
            if kind in info.collectives and info.accepts(comm.ranks)
        ]
        for kind in KINDS
    }
    rng = np.random.default_rng(12345)
    wrong, pending = [], []

    def check(result, expected, what):
        if isinstance(result, pycoll.Work):
            result = result.result()
        if not (result is None if expected is None else np.array_equal(result, expected)):
            wrong.append(what)

    for _ in range(CALLS):
        result, expected, what = one(comm, rng, algorithms)
        if isinstance(result, pycoll.Work):
            pending.append((result, expected, what))
            if len(pending) < 5:
                continue
            for entry in pending:
                check(*entry)
            pending.clear()
        else:
            check(result, expected, what)
    for entry in pending:
        check(*entry)
    return wrong, comm.sequence


def test_ten_thousand_collectives(on_processes):
    results = on_processes(3, run)
    assert [wrong for wrong, _ in results] == [[], [], []]
    assert all(sequence == CALLS for _, sequence in results)
