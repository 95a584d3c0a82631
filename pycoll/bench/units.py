"""Sizes and times as people write them."""

from __future__ import annotations

import re
from fractions import Fraction

from pycoll import InvalidArgument

_BINARY = {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_NCCL_TESTS = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}  # its single letters are powers of 1024
_DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS = {"": 1, "b": 1, **_BINARY, **_NCCL_TESTS, **_DECIMAL}

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_LARGEST = 2**63 - 1
_MOST_SIZES = 1000


def parse_size(text: str) -> int:
    """Bytes of `"4B"`, `"64KiB"`, `"1.5 MiB"`, `"16M"` (as nccl-tests: 1024s), `"1MB"` (1000s) or
    `"4096"`."""
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in _UNITS:
        raise InvalidArgument(
            f"size {text!r} is not understood; write a number with B, KiB, MiB or GiB, for example 64KiB"
        )
    size = Fraction(match[1]) * _UNITS[match[2].lower()]
    if size.denominator != 1:
        raise InvalidArgument(f"size {text!r} is not a whole number of bytes")
    if size > _LARGEST:
        raise InvalidArgument(f"size {text!r} is larger than any buffer (2^63 bytes)")
    return int(size)


def parse_sizes(text: str) -> list[int]:
    """Bytes of a list of sizes and ranges: `"4B,1KiB"`, `"4B:256MiB:x4"` (times 4), `"1MiB:4MiB:+1MiB"` (plus
    1 MiB).

    A range holds its first size, and its last one where the steps meet it; without a step it goes by `x2`.
    The result is in order, and holds each size once.
    """
    sizes: set[int] = set()
    for part in text.split(","):
        fields = part.split(":")
        if len(fields) == 1:
            sizes.add(parse_size(fields[0]))
        elif len(fields) <= 3:
            sizes.update(_range(part, fields))
        else:
            raise InvalidArgument(
                f"range {part!r} is not understood; write FIRST:LAST:xFACTOR or FIRST:LAST:+STEP"
            )
    return sorted(sizes)


def _range(text: str, fields: list[str]) -> list[int]:
    first, last = parse_size(fields[0]), parse_size(fields[1])
    step = fields[2].strip() if len(fields) == 3 else "x2"
    if first > last:
        raise InvalidArgument(f"range {text!r} ends before it begins")
    factor, increment = 1, 0
    if step[:1] in ("x", "*") and step[1:].isdecimal() and int(step[1:]) >= 2:
        factor = int(step[1:])
        if first == 0:
            raise InvalidArgument(f"range {text!r}: 0 times anything stays 0; begin at 1B or more")
    elif step[:1] == "+" and (increment := parse_size(step[1:])) > 0:
        pass
    else:
        raise InvalidArgument(f"range {text!r}: the step is xFACTOR (2 or more) or +SIZE, not {step!r}")
    sizes = []
    size = first
    while size <= last:
        sizes.append(size)
        if len(sizes) > _MOST_SIZES:
            raise InvalidArgument(f"range {text!r} holds more than {_MOST_SIZES} sizes; take a larger step")
        size = size * factor + increment
    return sizes


def format_size(size: int) -> str:
    """`4 B`, `64 KiB`, `1.5 MiB`: exact where two decimals suffice, else to four digits."""
    unit, scale = "B", 1
    for name, candidate in (("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30), ("TiB", 2**40)):
        if size >= candidate:
            unit, scale = name, candidate
    value = Fraction(size, scale)
    if (value * 100).denominator == 1:
        return f"{float(value):.2f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{float(value):.4g} {unit}"


def format_seconds(seconds: float) -> str:
    """`0.11 us`, `54 us`, `8.2 ms`, `1.3 s`: three digits, in the unit that keeps them readable."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return (
                f"{seconds / scale:.3g} {unit}" if seconds < 1000 * scale else f"{seconds / scale:.0f} {unit}"
            )
    return f"{seconds / 1e-6:.3g} us"
