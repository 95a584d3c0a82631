"""Name patterns: one text for many equal nodes.

``h[0-7]``            h0, h1, ... h7
``h[00-07]``          h00, h01, ... h07: as wide as written
``h[0-3,8]``          h0, h1, h2, h3, h8
``s[0-1].gpu[0-3]``   every combination, the last range running fastest
``gpu[i=0-7]``        a range with a name; ``nic[i]`` beside it takes the same value
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from pycoll.errors import TopologyError

__all__ = ["Pattern", "assignments", "parse_pattern"]

MOST_NAMES = 1_000_000

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_CONTENT = re.compile(
    r"\s*(?:(?P<variable>[A-Za-z_]\w*)\s*)?(?:(?P<equals>=)?\s*(?P<values>\d[\d\s,-]*))?\s*"
)
_SPAN = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")
_LITERAL = re.compile(r"[A-Za-z0-9._:/-]*")


@dataclass(frozen=True)
class _Range:
    variable: str | None
    values: tuple[str, ...]  # empty: the variable has its values elsewhere


@dataclass(frozen=True)
class Pattern:
    """A parsed pattern: literal text and ranges in turn."""

    text: str
    parts: tuple[str | _Range, ...]

    @property
    def bound(self) -> dict[str, tuple[str, ...]]:
        """The ranges that have a name and values here, in the order in which they stand."""
        ranges = (part for part in self.parts if isinstance(part, _Range))
        return {part.variable: part.values for part in ranges if part.variable and part.values}

    @property
    def variables(self) -> set[str]:
        """Names of all ranges that have one."""
        return {part.variable for part in self.parts if isinstance(part, _Range) and part.variable}

    def names(self, assignment: Mapping[str, str]) -> list[str]:
        """The names for these values of the named ranges: every combination of the others."""
        choices: list[tuple[str, ...]] = []
        for part in self.parts:
            if isinstance(part, str):
                choices.append((part,))
            elif part.variable:
                choices.append((assignment[part.variable],))
            else:
                choices.append(part.values)
        return ["".join(chosen) for chosen in itertools.product(*choices)]

    def all_names(self) -> list[str]:
        """Every name of a pattern that stands alone; ranges with a name run slowest."""
        return [name for assignment in assignments(self) for name in self.names(assignment)]


def assignments(*patterns: Pattern) -> Iterator[dict[str, str]]:
    """Every combination of values of the named ranges of patterns that belong together.

    Raises TopologyError for a name that has values twice, or nowhere.
    """
    bound: dict[str, tuple[str, ...]] = {}
    for pattern in patterns:
        for variable, values in pattern.bound.items():
            if variable in bound:
                raise TopologyError(
                    f"[{variable}=...] has its values twice; give them once, and write [{variable}] elsewhere"
                )
            bound[variable] = values
    for pattern in patterns:
        for variable in sorted(pattern.variables - set(bound)):
            raise TopologyError(
                f"[{variable}] in {pattern.text!r} has no values: write [{variable}=0-7] in one place"
            )
    for chosen in itertools.product(*bound.values()):
        yield dict(zip(bound, chosen, strict=True))


@lru_cache(maxsize=4096)
def parse_pattern(text: str) -> Pattern:
    """Reads a pattern; TopologyError says what is wrong with it and how to write it."""
    parts: list[str | _Range] = []
    at = count = 0
    for match in _BRACKETS.finditer(text):
        parts.append(_literal(text, text[at : match.start()]))
        part = _range(text, match[1])
        parts.append(part)
        count = (count or 1) * max(1, len(part.values))
        at = match.end()
    parts.append(_literal(text, text[at:]))
    if count > MOST_NAMES:
        raise TopologyError(f"{text!r} stands for {count} names, more than {MOST_NAMES}")
    bound = [part.variable for part in parts if isinstance(part, _Range) and part.variable and part.values]
    if len(set(bound)) < len(bound):
        raise TopologyError(f"{text!r} gives a named range its values twice")
    return Pattern(text, tuple(part for part in parts if part))


def _literal(text: str, literal: str) -> str:
    if not _LITERAL.fullmatch(literal):
        wrong = next(character for character in literal if not _LITERAL.fullmatch(character))
        advice = "brackets come in pairs: h[0-7]" if wrong in "[]" else "letters, digits and . _ - : / only"
        raise TopologyError(f"{text!r} cannot name a node because of {wrong!r}: {advice}")
    return literal


def _range(text: str, content: str) -> _Range:
    match = _CONTENT.fullmatch(content)
    if match is None or not (match["variable"] or match["values"]) or _half_named(match):
        raise TopologyError(f"[{content}] in {text!r} is no range: write [0-7], [0,2,5], [i=0-7] or [i]")
    values: list[str] = []
    for span in match["values"].split(",") if match["values"] else []:
        ends = _SPAN.fullmatch(span)
        if ends is None:
            raise TopologyError(f"[{content}] in {text!r} is no range: write [0-7] or [0,2,5]")
        first, last = ends[1], ends[2] or ends[1]
        if int(last) < int(first):
            raise TopologyError(f"[{content}] in {text!r} runs backwards: write [{last}-{first}]")
        if int(last) - int(first) >= MOST_NAMES:
            raise TopologyError(f"[{content}] in {text!r} stands for more than {MOST_NAMES} names")
        width = len(first) if first.startswith("0") and len(first) == len(last) else 0
        values += [f"{number:0{width}d}" for number in range(int(first), int(last) + 1)]
    if len(set(values)) < len(values):
        raise TopologyError(f"[{content}] in {text!r} names a number twice")
    return _Range(match["variable"], tuple(values))


def _half_named(match: re.Match[str]) -> bool:
    """[i 0-7] and [=0-7]: a name and values need the sign, and the sign needs both."""
    return bool(match["values"]) and bool(match["variable"]) != bool(match["equals"])
