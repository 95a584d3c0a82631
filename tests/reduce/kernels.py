"""The reference for the kernels: NumPy, one source after the other in the accumulator's dtype."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from pycoll import _core

FLOATS = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
INTEGERS = {
    name: np.dtype(name)
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
}
COMPLEX = {name: np.dtype(name) for name in ("complex64", "complex128")}
DTYPES = {**FLOATS, **INTEGERS, "bool": np.dtype(bool), **COMPLEX}
OPS = ("sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "premul_sum")
KERNELS = tuple(_core.kernel_names())


def is_supported(dtype: str, op: str) -> bool:
    if dtype in FLOATS:
        return op not in ("band", "bor", "bxor")
    if dtype in COMPLEX:
        return op in ("sum", "avg", "prod", "premul_sum")
    return dtype != "bool" or op not in ("avg", "premul_sum")


SUPPORTED = [(dtype, op) for dtype in DTYPES for op in OPS if is_supported(dtype, op)]


def raw(array: np.ndarray) -> np.ndarray:
    """The bytes of a contiguous array, as the bindings take them."""
    return array.reshape(-1).view(np.uint8)


def reduce_many(
    dtype: str,
    op: str,
    sources: list[np.ndarray],
    destinations: list[np.ndarray],
    factors: list[float] | None = None,
    divisor: int = 0,
    non_temporal: bool = False,
) -> None:
    _core.reduce_many(
        dtype,
        op,
        [raw(s) for s in sources],
        [raw(d) for d in destinations],
        factors=factors,
        divisor=divisor,
        non_temporal=non_temporal,
    )


def values(dtype: str, op: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """Values whose exact result the accumulator holds: distinct as far as the dtype allows."""
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if op == "prod":
        powers = np.array([1, 2, -1, 0.5] if dtype not in INTEGERS else [1, 2, 3, 1])
        picked = powers[rng.integers(0, 4, count)]
        if dtype in COMPLEX:
            picked = picked * np.array([1, 1j, -1, -1j])[rng.integers(0, 4, count)]
        return picked.astype(DTYPES[dtype])
    if dtype in INTEGERS:
        info = np.iinfo(DTYPES[dtype])  # sums wrap, averages must not
        return rng.integers(info.min, info.max, count, dtype=DTYPES[dtype], endpoint=True)
    widest = 8 if dtype.startswith("float8") else 100 if dtype in ("float16", "bfloat16") else 1 << 16
    if dtype in COMPLEX:
        real, imaginary = rng.integers(-widest, widest, (2, count)).astype(float)
        return (real + 1j * imaginary).astype(DTYPES[dtype])
    return rng.integers(-widest // 2, widest // 2, count).astype(DTYPES[dtype])


def reference(
    dtype: str, op: str, sources: list[np.ndarray], factors: list[float] | None = None
) -> np.ndarray:
    kind = DTYPES[dtype]
    if dtype in INTEGERS and op == "avg":
        columns = zip(*(s.tolist() for s in sources), strict=True)
        n = len(sources)
        return np.array([abs(sum(c)) // n * (1 if sum(c) >= 0 else -1) for c in columns], kind)
    accumulator = np.dtype(np.float32) if dtype in FLOATS and kind.itemsize <= 2 else kind
    with np.errstate(all="ignore"):
        terms = [s.astype(accumulator) for s in sources]
    if op == "premul_sum":
        assert factors is not None
        if dtype in INTEGERS:
            modulus = 1 << (8 * kind.itemsize)
            bits = np.dtype(f"uint{8 * kind.itemsize}")
            terms = [
                np.array([int(x) * int(f) % modulus for x in t.tolist()], bits).view(kind)
                for t, f in zip(terms, factors, strict=True)
            ]
        else:
            real = accumulator.type(0).real.dtype.type
            with np.errstate(all="ignore"):
                terms = [t * real(f) for t, f in zip(terms, factors, strict=True)]
    combine = {
        "sum": np.logical_or if dtype == "bool" else np.add,
        "avg": np.add,
        "premul_sum": np.add,
        "prod": np.logical_and if dtype == "bool" else np.multiply,
        "min": np.minimum,
        "max": np.maximum,
        "band": np.bitwise_and,
        "bor": np.bitwise_or,
        "bxor": np.bitwise_xor,
    }[op]
    result = terms[0].copy()
    with np.errstate(all="ignore"):
        for term in terms[1:]:
            result = combine(result, term)
        if op == "avg":
            real = accumulator.type(0).real.dtype
            result = (result.view(real) / real.type(len(sources))).view(accumulator)
        if dtype == "float8_e4m3fn":  # has no infinity: it saturates, as torch's does
            result = np.clip(result, -448, 448)
        return result.astype(kind)


def assert_same_bits(got: np.ndarray, want: np.ndarray, dtype: str) -> None:
    """Equal bit for bit; of a NaN, and of the zeros that min and max may pick, only that it is one."""
    if dtype in INTEGERS or dtype == "bool":
        np.testing.assert_array_equal(got, want)
        return
    parts = np.dtype(DTYPES[dtype].type(0).real.dtype) if dtype in COMPLEX else DTYPES[dtype]
    got, want = got.view(parts), want.view(parts)
    code = np.dtype(f"uint{8 * parts.itemsize}")
    with np.errstate(all="ignore"):
        got_nan, want_nan = np.isnan(got), np.isnan(want)
    np.testing.assert_array_equal(got_nan, want_nan)
    np.testing.assert_array_equal(got.view(code)[~got_nan], want.view(code)[~want_nan])
