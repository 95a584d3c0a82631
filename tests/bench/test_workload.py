"""The benchmark's own idea of right and wrong: every case is simulated here in plain Python."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pycoll import InvalidArgument, Unsupported
from pycoll.bench.buffers import Buffers, make_buffers, private_bytes
from pycoll.bench.workload import COLLECTIVES, DTYPES, OPS, REDUCTIONS, Case, Workload

RANKS = (1, 2, 3, 5, 8, 17)


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def prepared(case: Case, ranks: int) -> list[tuple[Workload, Buffers]]:
    made = []
    for rank in range(ranks):
        workload = Workload(case, rank, ranks)
        (buffers,) = make_buffers(workload, 1, private_bytes)
        buffers.poison(workload)
        buffers.fill(workload)
        made.append((workload, buffers))
    return made


def reduced(inputs: list[np.ndarray], case: Case) -> np.ndarray:
    """In the dtype's own arithmetic, as an engine does it; avg divides in a wider one."""
    dtype = inputs[0].dtype
    if case.op == "avg":
        wide = np.complex128 if dtype.kind == "c" else np.float64
        return (sum(x.astype(wide) for x in inputs) / len(inputs)).astype(dtype)
    functions = {
        "sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
        "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
    }  # fmt: skip
    result = inputs[0]
    for x in inputs[1:]:
        result = functions[case.op](result, x)
    return result


def perform(made: list[tuple[Workload, Buffers]], case: Case) -> None:
    """The collective, done by hand."""
    ranks, dtype = len(made), numpy_dtype(case.dtype)
    inputs = [buffers.input.view(dtype).copy() for _, buffers in made]
    for rank, (workload, buffers) in enumerate(made):
        if workload.output_length is None:
            continue
        count, output = workload.count, buffers.output.view(dtype)
        shard = slice(rank * count, (rank + 1) * count)
        if case.collective in ("allreduce", "reduce"):
            output[:] = reduced(inputs, case)
        elif case.collective == "reduce_scatter":
            output[:] = reduced(inputs, case)[shard]
        elif case.collective == "broadcast":
            output[:] = inputs[case.root]
        elif case.collective in ("all_gather", "gather"):
            output[:] = np.concatenate(inputs)
        elif case.collective == "scatter":
            output[:] = inputs[case.root][shard]
        elif case.collective == "all_to_all":
            output[:] = np.concatenate([x[shard] for x in inputs]) if ranks > 1 else inputs[0]


def wrong(made: list[tuple[Workload, Buffers]]) -> int:
    return sum(buffers.count_wrong(workload) for workload, buffers in made)


def supported(dtype: str, op: str) -> bool:
    try:
        Workload(Case("allreduce", 8, dtype, op), 0, 1)
    except Unsupported:
        return False
    return True


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions_of_every_dtype_are_exact(dtype: str, op: str, ranks: int) -> None:
    if not supported(dtype, op):
        with pytest.raises(Unsupported, match=f"{op} has no meaning for {dtype}"):
            prepared(Case("allreduce", 8, dtype, op), ranks)
        return
    case = Case("allreduce", 4500 * DTYPES[dtype].itemsize, dtype, op)
    made = prepared(case, ranks)
    perform(made, case)
    assert wrong(made) == 0


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if name != "barrier"])
def test_every_collective(collective: str, ranks: int, in_place: bool) -> None:
    case = Case(
        collective, 50_000, "int32", root=ranks - 1, in_place=in_place or collective == "broadcast", seed=7
    )
    made = prepared(case, ranks)
    if ranks > 1:
        assert wrong(made) > 0
    perform(made, case)
    assert wrong(made) == 0


@pytest.mark.parametrize("op", ["sum", "avg", "prod", "min", "max", "bxor"])
def test_a_contribution_lost_or_counted_twice_is_seen(op: str) -> None:
    case = Case("allreduce", 4096, "int32", op)
    for lost in range(3):
        made = prepared(case, 3)
        inputs = [buffers.input.view(np.int32).copy() for _, buffers in made]
        twice = [inputs[(lost + 1) % 3] if rank == lost else inputs[rank] for rank in range(3)]
        for _, buffers in made:
            buffers.output.view(np.int32)[:] = reduced(twice, case)
        assert wrong(made) > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2", "complex128"])
def test_one_flipped_bit_is_one_wrong_element(dtype: str) -> None:
    case = Case("allreduce", 5001 * DTYPES[dtype].itemsize, dtype)
    made = prepared(case, 2)
    perform(made, case)
    made[1][1].output.view(np.uint8)[5000 * DTYPES[dtype].itemsize] ^= 1
    assert wrong(made) == 1


def test_pieces_in_each_others_place_are_seen() -> None:
    case = Case("broadcast", 1 << 16, "float32")
    made = prepared(case, 2)
    perform(made, case)
    output = made[1][1].output
    output[: 1 << 12], output[1 << 12 : 1 << 13] = output[1 << 12 : 1 << 13].copy(), output[: 1 << 12].copy()
    assert wrong(made) > 1 << 11


def test_an_input_that_was_written_is_seen() -> None:
    case = Case("reduce", 4096, "int32")
    made = prepared(case, 2)
    perform(made, case)
    made[1][1].input[3] += 1  # rank 1 is not the root: its input must stay as it was
    assert wrong(made) == 1


@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if name != "barrier"])
def test_the_size_is_that_of_the_larger_buffer(collective: str) -> None:
    workload = Workload(Case(collective, 4096, "float32"), 0, 4)
    assert workload.bytes == 4096
    assert max(n for n in (workload.input_length, workload.output_length) if n is not None) == 1024


def test_sizes_are_rounded_to_whole_elements_and_shards() -> None:
    assert Workload(Case("all_gather", 4, "float32"), 0, 3).bytes == 12
    assert Workload(Case("allreduce", 7, "float32"), 0, 3).bytes == 4


@pytest.mark.parametrize("collective", REDUCTIONS)
def test_unknown_words_are_refused(collective: str) -> None:
    with pytest.raises(InvalidArgument, match="float33"):
        Workload(Case(collective, 8, "float33"), 0, 1)
    with pytest.raises(InvalidArgument, match="plus"):
        Workload(Case(collective, 8, op="plus"), 0, 1)
    with pytest.raises(InvalidArgument, match="root 4"):
        Workload(Case(collective, 8, root=4), 0, 4)
