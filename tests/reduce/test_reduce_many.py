"""reduce_many against NumPy: every dtype, op and kernel, sizes around every vector, any destinations."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pycoll
from pycoll import _core

from .kernels import (
    DTYPES,
    FLOATS,
    INTEGERS,
    KERNELS,
    OPS,
    SUPPORTED,
    assert_same_bits,
    is_supported,
    reduce_many,
    reference,
    values,
)

# Around a scalar tail, one vector, a block of four vectors, for every width of vector and element.
COUNTS = (0, 1, 2, 7, 16, 31, 64, 127, 256, 259, 1000)


def factors_for(dtype: str, n: int) -> list[float]:
    whole = [3.0, -2.0, 5.0, 1.0, -7.0, 2.0, 11.0, 4.0]
    return (whole if dtype in INTEGERS else [0.5, 0.25, 3.0, -2.0, 1.0, 4.0, -0.5, 2.0])[:n]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("dtype", "op"), SUPPORTED)
def test_equals_numpy(dtype: str, op: str) -> None:
    rng = np.random.default_rng(7)
    for count in COUNTS:
        for n in (1, 2, 3, 8):
            sources = [values(dtype, op, count, rng) for _ in range(n)]
            factors = factors_for(dtype, n) if op == "premul_sum" else None
            want = reference(dtype, op, sources, factors)
            outs = [np.zeros(count, DTYPES[dtype]) for _ in range(1 + n % 3)]
            reduce_many(dtype, op, sources, outs, factors)
            for out in outs:
                assert_same_bits(out, want, dtype)


@settings(max_examples=300, deadline=None)
@given(
    pair=st.sampled_from(SUPPORTED),
    kernels=st.sampled_from(KERNELS),
    count=st.integers(0, 700),
    n=st.integers(1, 8),
    places=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    in_place=st.booleans(),
    non_temporal=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_place(
    pair: tuple[str, str],
    kernels: str,
    count: int,
    n: int,
    places: list[int],
    in_place: bool,
    non_temporal: bool,
    seed: int,
) -> None:
    """Right whatever the alignment and the stores, in place or not, and nothing beside is touched."""
    dtype, op = pair
    rng = np.random.default_rng(seed)
    sources = [values(dtype, op, count, rng) for _ in range(n)]
    factors = factors_for(dtype, n) if op == "premul_sum" else None
    want = reference(dtype, op, sources, factors)
    guarded = [np.full(count + place + 70, 0x5A, np.uint8).repeat(DTYPES[dtype].itemsize) for place in places]
    item = DTYPES[dtype].itemsize
    outs = [
        g[p * item : (p + count) * item].view(DTYPES[dtype]) for g, p in zip(guarded, places, strict=True)
    ]
    if in_place:
        outs[0][:] = sources[-1]
        sources[-1] = outs[0]
    best = _core.kernel_name()
    _core.select_kernels(kernels)
    try:
        reduce_many(dtype, op, sources, outs, factors, non_temporal=non_temporal)
    finally:
        _core.select_kernels(best)
    for out, guard, place in zip(outs, guarded, places, strict=True):
        assert_same_bits(out, want, dtype)
        beside = np.delete(guard, np.s_[place * item : (place + count) * item])
        assert (beside == 0x5A).all()


@pytest.mark.parametrize("op", ["sum", "avg", "prod", "min", "max", "premul_sum"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_kernel_gives_the_same_bits(dtype: str, op: str) -> None:
    """On any bits at all: subnormals, infinities, NaN, sums that round."""
    rng = np.random.default_rng(11)
    itemsize = DTYPES[dtype].itemsize
    sources = [rng.integers(0, 256, 3001 * itemsize, np.uint8).view(DTYPES[dtype]) for _ in range(3)]
    factors = [1 / 3, -0.7, 1e3] if op == "premul_sum" else None
    results = []
    best = _core.kernel_name()
    for kernels in KERNELS:
        _core.select_kernels(kernels)
        out = np.zeros(3001, DTYPES[dtype])
        reduce_many(dtype, op, sources, [out], factors)
        results.append(out)
    _core.select_kernels(best)
    for result in results[1:]:
        assert_same_bits(result, results[0], dtype)
    if op not in ("avg", "min", "max"):  # which divide subnormals, and pick zeros, in a way of their own
        assert_same_bits(results[0], reference(dtype, op, sources, factors), dtype)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["min", "max"])
def test_nan_propagates(dtype: str, op: str) -> None:
    for n in (2, 3):
        for where in range(n):
            sources = [np.arange(70).astype(DTYPES[dtype]) for _ in range(n)]
            sources[where][3::5] = np.nan
            out = np.zeros(70, DTYPES[dtype])
            reduce_many(dtype, op, sources, [out])
            expected = np.zeros(70, bool)
            expected[3::5] = True
            np.testing.assert_array_equal(np.isnan(out), expected)


@pytest.mark.usefixtures("kernels")
def test_any_nonzero_byte_is_true() -> None:
    ones = np.array([0, 2, 0, 255, 128, 1, 0, 4] * 20, np.uint8)
    other = np.array([0, 1, 8, 2, 64, 0, 0, 3] * 20, np.uint8)
    for op, combine in (("sum", np.logical_or), ("prod", np.logical_and), ("bxor", np.logical_xor)):
        out = np.zeros(160, np.uint8)
        _core.reduce_many("bool", op, [ones, other], [out])
        np.testing.assert_array_equal(out, combine(ones, other).astype(np.uint8))
        _core.reduce_many("bool", op, [ones], [out])
        np.testing.assert_array_equal(out, (ones != 0).astype(np.uint8))


@pytest.mark.usefixtures("kernels")
def test_average_does_not_overflow_where_the_mean_fits() -> None:
    def average(dtype: str, *each: float) -> list[float]:
        sources = [np.full(100, value, DTYPES[dtype]) for value in each]
        out = np.zeros(100, DTYPES[dtype])
        reduce_many(dtype, "avg", sources, [out])
        assert (out == out[0]).all()
        return out[:1].tolist()

    assert average("int8", 120, 100) == [110]
    assert average("int8", -120, -101) == [-110]
    assert average("float16", *[20000.0] * 8) == [20000.0]
    assert average("int64", 2**63 - 1, 2**63 - 3) == [2**63 - 2]
    assert average("uint64", 2**64 - 1, 2**64 - 3, 2**64 - 5) == [2**64 - 3]
    assert average("uint32", 2**32 - 1, 2**32 - 3, 2**32 - 5) == [2**32 - 3]
    for dtype in ("float32", "float64", "bfloat16"):
        most = 2.0 ** (ml_dtypes.finfo(DTYPES[dtype]).maxexp - 1)  # its multiples are exact
        for n in (2, 3, 4, 7):
            assert average(dtype, *[most] * n) == [most], (dtype, n)
            assert average(dtype, *[-most] * n) == [-most], (dtype, n)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_average_is_the_sum_divided(dtype: str) -> None:
    """To the last bit, so that who divides herself sees no difference."""
    rng = np.random.default_rng(5)
    for n in (2, 3, 5, 6, 7, 8):
        sources = [rng.standard_normal(333).astype(dtype) for _ in range(n)]
        average, total = np.zeros(333, dtype), np.zeros(333, dtype)
        reduce_many(dtype, "avg", sources, [average])
        reduce_many(dtype, "sum", sources, [total])
        np.testing.assert_array_equal(average, total / DTYPES[dtype].type(n))


def test_divisor_beyond_the_sources() -> None:
    out = np.zeros(40, np.int32)
    reduce_many("int32", "avg", [np.full(40, -7, np.int32)], [out], divisor=2)
    assert (out == -3).all()
    real = np.zeros(40, np.float32)
    reduce_many("float32", "avg", [np.full(40, 9, np.float32)] * 2, [real], divisor=3)
    assert (real == 6).all()
    with pytest.raises(pycoll.InvalidArgument, match="divisor"):
        reduce_many("float32", "avg", [real] * 3, [real], divisor=2)


def test_pairs_without_a_meaning_are_refused_by_name() -> None:
    refused = [(dtype, op) for dtype in DTYPES for op in OPS if not is_supported(dtype, op)]
    assert len(refused) == 6 * 3 + 2 * 5 + 2
    for dtype, op in refused:
        with pytest.raises(pycoll.Unsupported, match=f"{op} .*{dtype}"):
            _core.require_supported(dtype, op)
        array = np.zeros(4, DTYPES[dtype])
        with pytest.raises(pycoll.Unsupported, match=f"{op} .*{dtype}"):
            reduce_many(dtype, op, [array], [array], factors=[1.0])


def test_factors() -> None:
    array = np.ones(4, np.int32)
    for bad in (0.5, float("nan"), float("inf"), 2.0**64, -(2.0**63) * 1.5):
        with pytest.raises(pycoll.InvalidArgument, match=r"int32.*whole factors"):
            reduce_many("int32", "premul_sum", [array, array], [array], factors=[1.0, bad])
    with pytest.raises(pycoll.InvalidArgument, match="one factor a source"):
        reduce_many("float32", "premul_sum", [array.view(np.float32)], [array.view(np.float32)])


def test_no_sources_or_destinations() -> None:
    array = np.ones(4, np.float32)
    for sources, destinations in (([], [array]), ([array], [])):
        with pytest.raises(pycoll.InvalidArgument, match="at least one"):
            reduce_many("float32", "sum", sources, destinations)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("non_temporal", [False, True])
def test_copy(non_temporal: bool) -> None:
    source = np.random.default_rng(3).integers(0, 255, 100_000, np.uint8)
    for bytes_ in (0, 1, 63, 64, 65, 300, 1000, 1024, 1087, 1300, 4096, 99_000):
        for place in (0, 1, 8, 63):
            guarded = np.full(100_000, 255, np.uint8)
            _core.copy_bytes(
                guarded[place : place + bytes_], source[place // 2 :][:bytes_], non_temporal=non_temporal
            )
            np.testing.assert_array_equal(guarded[place : place + bytes_], source[place // 2 :][:bytes_])
            assert (guarded[:place] == 255).all()
            assert (guarded[place + bytes_ :] == 255).all()


def test_kernels_by_name() -> None:
    assert _core.kernel_name() == KERNELS[-1]
    with pytest.raises(pycoll.InvalidArgument, match=KERNELS[0]):
        _core.select_kernels("mmx")
