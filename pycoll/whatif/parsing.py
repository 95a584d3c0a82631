"""Changes as the command line writes them: ``tor0-spine1=0.5``, ``wan=+20ms``, ``3:5ms``, ``2*rack0``,
``4:1``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from pycoll.errors import InvalidArgument
from pycoll.topology.units import parse_time
from pycoll.whatif.changes import (
    Add,
    Busy,
    Change,
    Ecmp,
    Fail,
    Flows,
    Late,
    LateDist,
    Latency,
    Oversubscribe,
    Place,
    Remove,
    Slow,
    Spread,
)
from pycoll.whatif.scenario import Lateness

__all__ = [
    "FLAGS",
    "add",
    "busy",
    "changes",
    "ecmp",
    "factor",
    "flows",
    "late",
    "late_dist",
    "latency",
    "oversubscribe",
    "place",
    "slow",
]


def factor(text: str, where: str) -> float:
    """``0.5``, ``50%``, ``1/2``."""
    match = re.fullmatch(r"\s*(\d*\.?\d+(?:[eE][+-]?\d+)?)\s*(%|/\s*(\d*\.?\d+))?\s*", text)
    if match is None:
        sort = "is negative" if re.match(r"\s*-\s*\.?\d", text) else "is no number"
        raise InvalidArgument(f"{where}: {text.strip()!r} {sort}; write 0.5, 50% or 1/2")
    value = float(match[1])
    if match[2] == "%":
        return value / 100
    if match[3]:
        if float(match[3]) == 0:
            raise InvalidArgument(f"{where}: {text.strip()!r} divides by 0")
        return value / float(match[3])
    return value


def _sides(text: str, where: str, form: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")
    if not (equals and name.strip() and value.strip()):
        raise InvalidArgument(f"{where} {text}: write {form}")
    return name.strip(), value.strip()


def slow(text: str) -> Change:
    """``LINKS=FACTOR``"""
    name, value = _sides(text, "--slow", "LINKS=FACTOR, such as tor0-tor1=0.5")
    return Slow(name, factor(value, f"--slow {text}"))


def busy(text: str) -> Change:
    """``LINKS=SHARE``"""
    name, value = _sides(text, "--busy", "LINKS=SHARE, such as h0-tor0=0.3")
    return Busy(name, factor(value, f"--busy {text}"))


def latency(text: str) -> Change:
    """``LINKS=+20ms`` or ``LINKS=20ms``"""
    name, value = _sides(text, "--latency", "LINKS=+TIME or LINKS=TIME, such as wan=+20ms")
    sign = value[0] if value[0] in "+-" else ""
    seconds = _time(value[len(sign) :], f"--latency {text}")
    return Latency(name, -seconds if sign == "-" else seconds, more=bool(sign))


def late(text: str) -> Change:
    """``RANK:TIME``; the rank is a number or its device's name"""
    who, colon, value = text.rpartition(":")
    if not (colon and who.strip()):
        raise InvalidArgument(f"--late {text}: write RANK:TIME, such as 3:5ms or h3:5ms")
    return Late(who.strip(), _time(value, f"--late {text}"))


def late_dist(text: str) -> Change:
    """``SHAPE:TIME`` or ``SHAPE:TIME:SEED``"""
    shape, *rest = text.split(":")
    shapes = {
        name[:length]: name
        for name in ("exponential", "uniform", "normal")
        for length in range(3, len(name) + 1)
    }
    if shape not in shapes or len(rest) not in (1, 2) or (len(rest) == 2 and not rest[1].isdecimal()):
        raise InvalidArgument(
            f"--late-dist {text}: write exponential:MEAN, uniform:MOST or normal:DEVIATION, such as "
            "exponential:2ms; :SEED may follow"
        )
    seconds = _time(rest[0], f"--late-dist {text}")
    return LateDist(Lateness(shapes[shape], seconds, int(rest[1]) if len(rest) == 2 else 0))


def add(text: str) -> Change:
    """``PART`` or ``COUNT*PART``"""
    count, star, what = text.partition("*")
    if star and count.strip().isdecimal() and what.strip():
        return Add(what.strip(), int(count))
    if not text.strip() or (star and not count.strip().isdecimal()):
        raise InvalidArgument(f"--add {text}: write COUNT*PART, such as 2*rack0")
    return Add(text.strip())


def oversubscribe(text: str) -> Change:
    """``4:1`` or ``SWITCHES=4:1``"""
    switches, _, ratio = text.rpartition("=")
    down, colon, up = ratio.partition(":")
    try:
        return Oversubscribe(float(down) / float(up if colon else 1), switches.strip())
    except (ValueError, ZeroDivisionError):
        raise InvalidArgument(
            f"--oversubscribe {text}: write DOWN:UP, such as 4:1, or SWITCHES=DOWN:UP"
        ) from None


def place(text: str) -> Change:
    """``interleaved``, ``packed`` or a file"""
    return Place(text) if text in ("interleaved", "packed") else Place.from_file(text)


def ecmp(text: str) -> Change:
    """``seed=3`` or ``3``"""
    number = text.removeprefix("seed=").strip()
    if not number.isdecimal():
        raise InvalidArgument(f"--ecmp {text}: write seed=NUMBER")
    return Ecmp(int(number))


def _time(text: str, where: str) -> float:
    try:
        return parse_time(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}: {error}") from None


def flows(text: str) -> Change:
    """``4``"""
    if not text.strip().isdecimal():
        raise InvalidArgument(f"--flows {text}: write a number")
    return Flows(int(text))


#: What each flag's text means, in the order in which changes are made. Those in _LISTS take several,
#: between commas.
FLAGS: dict[str, Callable[[str], Change]] = {
    "--remove": Remove,
    "--add": add,
    "--fail": Fail,
    "--oversubscribe": oversubscribe,
    "--slow": slow,
    "--latency": latency,
    "--busy": busy,
    "--place": place,
    "--late": late,
    "--late-dist": late_dist,
    "--ecmp": ecmp,
    "--spread": lambda text: Spread(),
    "--flows": flows,
}
_LISTS = ("--remove", "--add", "--fail", "--late")


def changes(given: Mapping[str, Sequence[str]]) -> list[Change]:
    """The changes of flags and their texts, in the order in which they are made.

    Raises InvalidArgument for a flag that is none, and for two that exclude each other.
    """
    unknown = [flag for flag in given if flag not in FLAGS]
    if unknown:
        raise InvalidArgument(f"there is no change {unknown[0]!r}; there are {', '.join(FLAGS)}")
    found: list[Change] = []
    for flag, read in FLAGS.items():
        for text in given.get(flag, ()):
            if not text.strip():
                raise InvalidArgument(f"{flag} '' says nothing to change: leave it out, or name something")
            # Not at commas within a range, as in h[0,2].
            parts = re.split(r",(?![^\[]*\])", text) if flag in _LISTS else [text]
            found += [read(part.strip()) for part in parts if part.strip() or flag not in _LISTS]
    return found
