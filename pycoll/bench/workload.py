"""What each rank puts in and must get out, with values whose sums every dtype holds exactly.

Values are small integers (powers of two for products), so no order of additions rounds and the check is
equality of bits. They differ from rank to rank and from element to element with a prime period, so that a
contribution lost, added twice or taken from the wrong place shows. Only one period is ever computed; buffers
are filled from it and compared with it, which costs little more than touching the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pycoll import InvalidArgument, Unsupported

Bits = npt.NDArray[Any]  # what lies in memory: unsigned integers as wide as the dtype (16 bytes: complex128)
Values = npt.NDArray[np.int64]

COLLECTIVES = (
    "allreduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "barrier",
)
REDUCTIONS = ("allreduce", "reduce_scatter", "reduce")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
OPS = ("sum", "avg", "prod", "min", "max", "band", "bor", "bxor")
#: Collectives whose output is (part of) the input buffer when they run in place.
HAVE_IN_PLACE = ("allreduce", "reduce_scatter", "all_gather", "broadcast", "reduce")

#: A prime: no piece or shard that an algorithm cuts is a multiple of it, so data in a wrong place differs.
PERIOD = 4093


@dataclass(frozen=True)
class DTypeInfo:
    """A dtype's name, and the integers it holds exactly."""

    name: str
    itemsize: int
    kind: str  # "float", "int", "uint", "bool", "complex"
    exact_up_to: int  # every integer from 0 to here has an exact value, and so has every sum that ends here
    most_doublings: int  # 2 to this power is exact


DTYPES = {
    info.name: info
    for info in (
        DTypeInfo("float32", 4, "float", 2**24, 24),
        DTypeInfo("float64", 8, "float", 2**40, 40),
        DTypeInfo("float16", 2, "float", 2**11, 15),
        DTypeInfo("bfloat16", 2, "float", 2**8, 24),
        DTypeInfo("float8_e4m3fn", 1, "float", 2**4, 8),
        DTypeInfo("float8_e5m2", 1, "float", 2**3, 15),
        DTypeInfo("int8", 1, "int", 2**7 - 1, 6),
        DTypeInfo("int16", 2, "int", 2**15 - 1, 14),
        DTypeInfo("int32", 4, "int", 2**31 - 1, 30),
        DTypeInfo("int64", 8, "int", 2**40, 40),
        DTypeInfo("uint8", 1, "uint", 2**8 - 1, 7),
        DTypeInfo("uint16", 2, "uint", 2**16 - 1, 15),
        DTypeInfo("uint32", 4, "uint", 2**32 - 1, 31),
        DTypeInfo("uint64", 8, "uint", 2**40, 40),
        DTypeInfo("bool", 1, "bool", 1, 0),
        DTypeInfo("complex64", 8, "complex", 2**24, 24),
        DTypeInfo("complex128", 16, "complex", 2**40, 40),
    )
}


def bits_dtype(dtype: DTypeInfo) -> np.dtype[Any]:
    """What buffers are compared as: no NaN, no rounding, no need for NumPy to know the dtype."""
    return np.dtype(np.complex128) if dtype.itemsize == 16 else np.dtype(f"u{dtype.itemsize}")


def encode(values: Values, dtype: DTypeInfo, imaginary: bool = True) -> Bits:
    """The bits of small non-negative integers in `dtype`. complex: v + vi, or v alone without `imaginary`."""
    if dtype.name == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype.name == "float8_e5m2":
        return (values.astype(np.float16).view(np.uint16) >> 8).astype(np.uint8)
    if dtype.name == "float8_e4m3fn":
        fraction, exponent = np.frexp(
            values.astype(np.float64)
        )  # v = fraction * 2^exponent, fraction in [1/2, 1)
        bits = (exponent + 6) * 8 + np.rint(fraction * 16 - 8).astype(np.int64)
        return np.where(values == 0, 0, bits).astype(np.uint8)
    if dtype.kind == "complex":
        return (values * (1 + 1j if imaginary else 1)).astype(np.dtype(dtype.name)).view(bits_dtype(dtype))
    return values.astype(np.dtype(dtype.name)).view(bits_dtype(dtype))


def contribution(rank: int, ranks: int, dtype: DTypeInfo, op: str | None, seed: int) -> Values:
    """One period of what `rank` puts in."""
    index: Values = np.arange(PERIOD, dtype=np.int64) + seed
    values: Values
    if op not in ("sum", "avg", "prod"):  # nothing accumulates: the whole exact range is free
        values = (index * 7 + rank * 3 + (index * index) % 11) % (min(dtype.exact_up_to, 250) + 1)
        return values
    if dtype.kind == "bool":
        lone = (index % ranks == rank) & (index // ranks % 2 == 0)  # one rank of all decides, or none
        values = np.where(lone if op == "sum" else ~lone, 1, 0)
        return values
    if op == "prod":  # twos and ones: as many twos as the dtype's range bears
        twos = index % (min(ranks, dtype.most_doublings) + 1)
        return np.where((index * 5 + rank) % ranks < twos, 2, 1).astype(np.int64)
    if op == "avg":  # what one rank has more than the mean another one has less
        up, down = index % ranks, (index + 1 + index // ranks % max(ranks - 1, 1)) % ranks
        values = 1 + index % 3 + (up == rank).astype(np.int64) - (down == rank).astype(np.int64)
        return values
    # sum: values below a small prime; where even those would not add up exactly, only some of the ranks, in
    # turn
    modulus = next((prime for prime in (17, 7, 5, 3, 2) if ranks * (prime - 1) <= dtype.exact_up_to), 2)
    contributors = min(ranks, dtype.exact_up_to // (modulus - 1))
    values = (index * 3 + rank * 5 + (index * index) % 7 + 1) % modulus
    return np.where((index + rank) % ranks < contributors, values, 0)


def reduction(contributions: Sequence[Values], dtype: DTypeInfo, op: str) -> Values:
    """One period of the right result, computed in 64-bit integers."""
    stacked = np.stack(contributions)
    if dtype.kind == "bool":
        op = {"sum": "max", "prod": "min"}.get(op, op)
    if op in ("sum", "avg"):
        total: Values = stacked.sum(axis=0)
        return total if op == "sum" else total // len(contributions)
    reducers = {
        "prod": np.multiply, "min": np.minimum, "max": np.maximum,
        "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
    }  # fmt: skip
    result: Values = reducers[op].reduce(stacked, axis=0)
    return result


@dataclass(frozen=True)
class Segment:
    """`length` elements of a buffer, from `begin`: element j of it is `pattern[(first + j) % PERIOD]`."""

    begin: int
    length: int
    pattern: Bits
    first: int = 0

    def fill(self, buffer: Bits) -> None:
        for part, pattern in self._parts(buffer):
            part[...] = pattern

    def count_wrong(self, buffer: Bits) -> int:
        return sum(int(np.count_nonzero(part != pattern)) for part, pattern in self._parts(buffer))

    def _parts(self, buffer: Bits) -> list[tuple[Bits, Bits]]:
        """The segment as whole periods (in blocks small enough that their comparison stays in the cache),
        and a rest."""
        view = buffer[self.begin : self.begin + self.length]
        pattern = np.roll(self.pattern, -(self.first % PERIOD))
        whole = len(view) // PERIOD
        rows = view[: whole * PERIOD].reshape(whole, PERIOD)
        blocks = [(rows[row : row + 64], pattern) for row in range(0, whole, 64)]
        return [*blocks, (view[whole * PERIOD :], pattern[: len(view) - whole * PERIOD])]


@dataclass(frozen=True)
class Case:
    """One collective at one size, as every rank agrees on it."""

    collective: str
    size: int  # bytes asked for, in nccl-tests' sense: of the larger of a rank's two buffers
    dtype: str = "float32"
    op: str = "sum"
    root: int = 0
    in_place: bool = True
    seed: int = 0

    @property
    def takes_op(self) -> bool:
        return self.collective in REDUCTIONS


class Workload:
    """What one rank's buffers of a case hold before and after.

    `count` is in elements: of the whole buffer for allreduce, reduce and broadcast, of one rank's shard or
    block for the others. `bytes` is the size really used: that asked for, rounded to whole elements (and
    shards), at least one.
    """

    def __init__(self, case: Case, rank: int, ranks: int) -> None:
        self.case, self.rank, self.ranks = case, rank, ranks
        self.dtype = _known_dtype(case.dtype)
        _check(case, self.dtype, ranks)
        self.bits = bits_dtype(self.dtype)
        sharded = case.collective not in ("allreduce", "reduce", "broadcast")
        shards = ranks if sharded else 1
        self.count = (
            0 if case.collective == "barrier" else max(case.size // (self.dtype.itemsize * shards), 1)
        )
        self.bytes = self.count * shards * self.dtype.itemsize
        self.in_place = case.in_place and case.collective in HAVE_IN_PLACE

        total = self.count * ranks
        at_root = rank == case.root
        #: (input elements, output elements); an output of None: this rank gets none
        self.input_length, self.output_length = {
            "allreduce": (self.count, self.count),
            "broadcast": (self.count, self.count),
            "reduce": (self.count, self.count if at_root else None),
            "reduce_scatter": (total, self.count),
            "all_gather": (self.count, total),
            "gather": (self.count, total if at_root else None),
            "scatter": (total if at_root else None, self.count),
            "all_to_all": (total, total),
            "barrier": (None, None),
        }[case.collective]
        #: In place, but for a rank that gets no output, whose input must stay as it was.
        self.input_is_output = self.in_place and None not in (self.input_length, self.output_length)
        self._make_segments()

    def _make_segments(self) -> None:
        case, count, ranks, rank = self.case, self.count, self.ranks, self.rank
        op = case.op if case.takes_op else None
        values = [contribution(r, ranks, self.dtype, op, case.seed) for r in range(ranks)]
        imaginary = op != "prod"
        patterns = [encode(v, self.dtype, imaginary) for v in values]
        self.before = [Segment(0, self.input_length or 0, patterns[rank])]
        self.after: list[Segment] = []
        if op is not None and self.output_length is not None:
            reduced = encode(reduction(values, self.dtype, op), self.dtype, imaginary)
            first = rank * count if case.collective == "reduce_scatter" else 0
            self.after = [Segment(0, count, reduced, first)]
        elif case.collective == "broadcast":
            self.after = [Segment(0, count, patterns[case.root])]
        elif case.collective in ("all_gather", "gather") and self.output_length is not None:
            self.after = [Segment(r * count, count, patterns[r]) for r in range(ranks)]
        elif case.collective == "scatter":
            self.after = [Segment(0, count, patterns[case.root], rank * count)]
        elif case.collective == "all_to_all":
            self.after = [Segment(r * count, count, patterns[r], rank * count) for r in range(ranks)]

    def fill_input(self, buffer: Bits) -> None:
        """Writes what the collective reads."""
        for segment in self.before:
            segment.fill(buffer)

    def count_wrong(self, input: Bits, output: Bits, input_kept: bool = True) -> int:
        """Elements that differ from what must be there: in the output and, where it must have been kept,
        in an input that is not the output."""
        wrong = 0
        if self.output_length is not None:
            wrong += sum(segment.count_wrong(output) for segment in self.after)
        if input_kept and self.input_length is not None and not self.input_is_output:
            wrong += sum(segment.count_wrong(input) for segment in self.before)
        return wrong


def _known_dtype(name: str) -> DTypeInfo:
    if name not in DTYPES:
        raise InvalidArgument(f"dtype {name!r} is not known; choose among {', '.join(DTYPES)}")
    return DTYPES[name]


def _check(case: Case, dtype: DTypeInfo, ranks: int) -> None:
    if case.collective not in COLLECTIVES:
        raise InvalidArgument(
            f"collective {case.collective!r} is not known; choose among {', '.join(COLLECTIVES)}"
        )
    if not 0 <= case.root < ranks:
        raise InvalidArgument(f"root {case.root} is not among the ranks 0 to {ranks - 1}")
    if not case.takes_op:
        return
    if case.op not in OPS:
        raise InvalidArgument(f"op {case.op!r} is not known; choose among {', '.join(OPS)}")
    meaningless = (
        (dtype.kind == "complex" and case.op not in ("sum", "avg", "prod"))
        or (dtype.kind in ("float", "complex") and case.op in ("band", "bor", "bxor"))
        or (dtype.kind == "bool" and case.op == "avg")
    )
    if meaningless:
        raise Unsupported(f"op {case.op} has no meaning for {dtype.name}")
