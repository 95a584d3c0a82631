"""The conversions between dtypes, and what travels where a schedule reduces hop by hop."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import pycoll
from pycoll import _core

from .kernels import DTYPES, FLOATS, INTEGERS, OPS, SUPPORTED, assert_same_bits, raw, reduce_many

SMALL_FLOATS = [name for name, dtype in FLOATS.items() if dtype.itemsize <= 2]
WIRE_BYTES = {"int128": 16}


def wire_array(dtype: str, op: str, count: int) -> np.ndarray:
    wire = _core.wire_dtype(dtype, op)
    return np.zeros(count * (WIRE_BYTES.get(wire) or DTYPES[wire].itemsize), np.uint8)


def to_float32(dtype: str, array: np.ndarray) -> np.ndarray:
    wide = np.zeros(array.size, np.float32)
    _core.widen(dtype, "premul_sum", raw(array), raw(wide), factor=1.0)
    return wide


def from_float32(dtype: str, wide: np.ndarray) -> np.ndarray:
    array = np.zeros(wide.size, DTYPES[dtype])
    _core.narrow(dtype, "premul_sum", raw(wide), raw(array))
    return array


def all_codes(dtype: str) -> np.ndarray:
    bits = np.dtype(f"uint{8 * DTYPES[dtype].itemsize}")
    return np.arange(1 << (8 * bits.itemsize), dtype=bits).view(DTYPES[dtype])


def telling_float32() -> np.ndarray:
    """Every sign, exponent and seven leading bits; after them bits that round down, tie, round up."""
    tails = [0, 1, 0x0FFF, 0x1000, 0x1001, 0x2000, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    return np.concatenate([upper | np.uint32(tail) for tail in tails]).view(np.float32)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", SMALL_FLOATS)
def test_every_code_widens_exactly(dtype: str) -> None:
    codes = all_codes(dtype)
    assert_same_bits(to_float32(dtype, codes), codes.astype(np.float32), "float32")
    assert_same_bits(from_float32(dtype, to_float32(dtype, codes)), codes, dtype)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", SMALL_FLOATS)
def test_rounding_is_to_nearest_even(dtype: str) -> None:
    wide = telling_float32()
    within = (
        np.clip(wide, -448, 448) if dtype == "float8_e4m3fn" else wide
    )  # that has no infinity: it saturates
    with np.errstate(all="ignore"):
        assert_same_bits(from_float32(dtype, wide), within.astype(DTYPES[dtype]), dtype)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", SMALL_FLOATS)
def test_conversions_equal_torch(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    wide = telling_float32()
    cast = torch.from_numpy(wide).to(getattr(torch, dtype))
    want = cast.view(torch.uint8).numpy().view(DTYPES[dtype])
    assert_same_bits(from_float32(dtype, wide), want, dtype)


def test_tails_and_vectors_make_the_same_nan(kernels: str) -> None:
    """One at a time, so by the scalar code, and many at once: the codes agree, NaN's included."""
    wide = np.array([np.nan, -np.nan, np.inf, -np.inf, 1e30, -1e30, 1e-9, 0.1], np.float32).repeat(64)
    wide.view(np.uint32)[1::8] |= 0x00012345 & np.where(np.isnan(wide[1::8]), 0xFFFFFFFF, 0).astype(np.uint32)
    for dtype in SMALL_FLOATS:
        many = raw(from_float32(dtype, wide))
        singly = np.concatenate([raw(from_float32(dtype, wide[i : i + 1])) for i in range(wide.size)])
        np.testing.assert_array_equal(many, singly, err_msg=f"{dtype} by {kernels}")


def test_wire_dtypes() -> None:
    expected = {
        ("float16", "avg"): "float32",
        ("bfloat16", "premul_sum"): "float32",
        ("float8_e5m2", "avg"): "float32",
        ("float32", "avg"): "float32",
        ("complex128", "avg"): "complex128",
        ("int8", "avg"): "int64",
        ("uint32", "avg"): "int64",
        ("int64", "avg"): "int128",
        ("uint64", "avg"): "int128",
        ("int64", "premul_sum"): "int64",
        ("float16", "sum"): "float16",
        ("bool", "prod"): "bool",
    }
    assert {pair: _core.wire_dtype(*pair) for pair in expected} == expected
    for dtype, op in SUPPORTED:
        if op not in ("avg", "premul_sum"):
            assert _core.wire_dtype(dtype, op) == dtype
    with pytest.raises(pycoll.Unsupported, match=r"avg .*bool"):
        _core.wire_dtype("bool", "avg")


def hop_by_hop(
    dtype: str, op: str, sources: list[np.ndarray], factors: list[float] | None = None
) -> np.ndarray:
    wire_op = "sum" if op in ("avg", "premul_sum") else op
    n, count = len(sources), sources[0].size
    wire = _core.wire_dtype(dtype, op)
    total = wire_array(dtype, op, count)
    for k, source in enumerate(sources):
        factor = factors[k] if factors else 1.0
        term = total if k == 0 else wire_array(dtype, op, count)
        _core.widen(dtype, op, raw(source), term, factor=factor, ranks=n)
        if k > 0:
            _core.reduce_many(wire, wire_op, [total, term], [total])
    out = np.zeros(count, DTYPES[dtype])
    _core.narrow(dtype, op, total, raw(out), ranks=n)
    return out


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("dtype", "op"), SUPPORTED)
def test_hop_by_hop_equals_one_pass(dtype: str, op: str) -> None:
    rng = np.random.default_rng(19)
    for n in (1, 2, 3, 4, 6, 7):
        if dtype in INTEGERS:
            info = np.iinfo(DTYPES[dtype])
            sources = [rng.integers(info.min, info.max, 201, DTYPES[dtype], endpoint=True) for _ in range(n)]
        else:
            most = {"float8_e5m2": 1, "float8_e4m3fn": 2}.get(dtype, 4)  # so that each hop's sum is exact
            sources = [rng.integers(-most, most + 1, 201).astype(DTYPES[dtype]) for _ in range(n)]
        if op == "prod" and dtype not in INTEGERS:
            sources = [np.sign(s.astype(np.complex64).real).astype(DTYPES[dtype]) for s in sources]
        factors = [2.0, 3.0, -1.0, 4.0, 1.0, 5.0, 2.0][:n] if op == "premul_sum" else None
        once = np.zeros(201, DTYPES[dtype])
        reduce_many(dtype, op, sources, [once], factors)
        assert_same_bits(hop_by_hop(dtype, op, sources, factors), once, dtype)


@pytest.mark.usefixtures("kernels")
def test_average_over_any_number_of_ranks_is_exact_where_it_divides() -> None:
    for dtype in ("float32", "float64", "bfloat16", "complex64"):
        for n in (1, 2, 3, 5, 6, 7, 9, 12, 33, 100, 1000):
            sources = [np.full(5, 3 * (k % 2) * n / 4, DTYPES[dtype]) for k in range(n)]
            exact = sum(Fraction(float(s.real.astype(np.float64)[0])) for s in sources) / n
            got = hop_by_hop(dtype, "avg", sources)
            assert Fraction(float(got.real.astype(np.float64)[0])) == Fraction(
                float(np.float64(exact).astype(DTYPES[dtype]).real)
            ), (dtype, n)


@pytest.mark.usefixtures("kernels")
def test_no_partial_sum_overflows() -> None:
    for dtype in ("float32", "float64", "bfloat16", "float16", "int8", "int64", "uint64"):
        kind = DTYPES[dtype]
        # Of floats the greatest power of two: its multiples are exact.
        most = np.iinfo(kind).max if dtype in INTEGERS else 2.0 ** (ml_dtypes.finfo(kind).maxexp - 1)
        for n in (2, 3, 5, 8):
            sources = [np.full(37, most, kind) for _ in range(n)]
            np.testing.assert_array_equal(
                hop_by_hop(dtype, "avg", sources), sources[0], err_msg=f"{dtype} {n}"
            )


def test_bad_ranks() -> None:
    array = np.zeros(4, np.float32)
    for ranks in (0, -1):
        with pytest.raises(pycoll.InvalidArgument, match="ranks"):
            _core.widen("float32", "avg", raw(array), raw(array), ranks=ranks)
        with pytest.raises(pycoll.InvalidArgument, match="ranks"):
            _core.narrow("float32", "avg", raw(array), raw(array), ranks=ranks)


def test_every_op_has_a_row() -> None:
    assert {op for _, op in SUPPORTED} == set(OPS)
