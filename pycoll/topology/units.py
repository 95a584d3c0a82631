"""Bandwidths and times as a topology file writes them: a number, a space if you like, and always a unit.

Everything is exact: text is read as a fraction and rounded to a float once, and what is printed reads back
as the same float.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal, localcontext
from fractions import Fraction

from pycoll.errors import InvalidArgument

__all__ = ["format_bandwidth", "format_time", "parse_bandwidth", "parse_time"]

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

_BANDWIDTHS: dict[str, Fraction] = {
    **{f"{prefix}bit/s": Fraction(scale, 8) for prefix, scale in _DECIMAL.items()},
    **{f"{prefix}B/s": Fraction(scale) for prefix, scale in (_DECIMAL | _BINARY).items()},
}
_TIMES: dict[str, Fraction] = {
    "s": Fraction(1),
    "ms": Fraction(1, 10**3),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "μs": Fraction(1, 10**6),  # the Greek letter, where the other is the micro sign
    "ns": Fraction(1, 10**9),
}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*(\S*)\s*")

_BANDWIDTH_REMEDY = "write a number and bit/s or B/s with k, M, G, T, Ki, Mi, Gi or Ti: 25 GB/s, 100 Gbit/s"
_TIME_REMEDY = "write a number and s, ms, us or ns: 1.5 us, 20 ms"


def parse_bandwidth(text: str) -> float:
    """Bytes per second of ``"100 Gbit/s"``, ``"25 GB/s"``, ``"25GiB/s"`` or ``"unlimited"``.

    Raises InvalidArgument, with what to write instead, for a missing or ambiguous unit (``Gb/s``, ``Gbps``
    are read both ways by people) and for zero.
    """
    if text.strip() == "unlimited":
        return math.inf
    value = _parse(text, "bandwidth", _BANDWIDTHS, _BANDWIDTH_REMEDY)
    if value <= 0:
        raise InvalidArgument(f"bandwidth {text.strip()!r} is not positive; leave out a link that is down")
    return value


def parse_time(text: str) -> float:
    """Seconds of ``"30 us"``, ``"1.5ms"``, ``"800 ns"`` or ``"0 s"``; raises InvalidArgument otherwise."""
    return _parse(text, "time", _TIMES, _TIME_REMEDY)


def _parse(text: str, what: str, units: dict[str, Fraction], remedy: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise InvalidArgument(f"{what} {text.strip()!r} is not understood: {remedy}")
    number, unit = match.groups()
    if not unit:
        raise InvalidArgument(f"{what} {text.strip()!r} has no unit: {remedy}")
    scale = units.get(unit)
    if scale is None:
        advice = remedy
        if ambiguous := re.fullmatch(r"([kKMGT]?)(i?)b(/s|ps)", unit):
            prefix, binary = ambiguous[1], ambiguous[2]
            if not binary:
                prefix = prefix.replace("K", "k")
            bits = prefix.replace("K", "k")
            advice = f"write {number} {bits}bit/s for bits, {number} {prefix}{binary}B/s for bytes"
        elif close := next((known for known in units if known.lower() == unit.lower()), None):
            advice = f"did you mean {number} {close}?"
        raise InvalidArgument(f"{what} {text.strip()!r} has an unknown unit {unit!r}: {advice}")
    try:
        value = float(Fraction(number) * scale)
    except OverflowError:
        value = math.inf
    if math.isinf(value):
        raise InvalidArgument(f"{what} {text.strip()!r} is too large")
    return value


def format_bandwidth(value: float) -> str:
    """Bytes per second in the unit that writes them shortest: ``"450 GB/s"``, ``"1 Gbit/s"``."""
    if math.isinf(value):
        return "unlimited"
    names = [f"{prefix}{unit}" for unit in ("B/s", "bit/s") for prefix in _DECIMAL]
    return _format(value, {name: _BANDWIDTHS[name] for name in names})


def format_time(value: float) -> str:
    """Seconds in the unit that writes them shortest: ``"30 us"``, ``"1.5 ms"``."""
    return _format(value, {name: _TIMES[name] for name in ("s", "ms", "us", "ns")})


def _format(value: float, units: dict[str, Fraction]) -> str:
    """Every unit here is 10^k or 10^k/8, so that the shortest decimal of the float stays finite in all."""
    if value == 0:
        return f"0 {next(iter(units))}"
    with localcontext() as context:
        context.prec = 400  # the smallest float has no more digits than that
        exact = Decimal(repr(value))
        texts = []
        for name, scale in units.items():
            number = exact * scale.denominator / scale.numerator
            digits = f"{number.normalize():f}"
            readable = 1 <= number < 1000
            texts.append((not readable, len(digits), f"{digits} {name}"))
    return min(texts, key=lambda entry: entry[:2])[2]
