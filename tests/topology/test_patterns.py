"""Patterns: one text for many names."""

from __future__ import annotations

import pytest

from pycoll import TopologyError
from pycoll.topology.patterns import assignments, parse_pattern


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("h0", ["h0"]),
        ("h[0-2]", ["h0", "h1", "h2"]),
        ("h[8-11]", ["h8", "h9", "h10", "h11"]),
        ("h[08-11]", ["h08", "h09", "h10", "h11"]),
        ("h[0,4-5]x", ["h0x", "h4x", "h5x"]),
        ("h[ 1 - 2 , 7 ]", ["h1", "h2", "h7"]),
        ("s[0-1].g[0-1]", ["s0.g0", "s0.g1", "s1.g0", "s1.g1"]),
        ("s[0-1].g[i=0-1]", ["s0.g0", "s1.g0", "s0.g1", "s1.g1"]),  # what has a name runs slowest
        ("s[i=0-1].g[i]", ["s0.g0", "s1.g1"]),
    ],
)
def test_names(text: str, names: list[str]) -> None:
    assert parse_pattern(text).all_names() == names


def test_a_shared_name_takes_the_same_value_on_both_sides() -> None:
    left, right = parse_pattern("s[0-1].nic[rail=0-2]"), parse_pattern("leaf[rail]")
    pairs = [(left.names(values), right.names(values)) for values in assignments(left, right)]
    assert pairs == [([f"s0.nic{k}", f"s1.nic{k}"], [f"leaf{k}"]) for k in range(3)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("h[0-", "brackets come in pairs"),
        ("h]", "brackets come in pairs"),
        ("h[]", "is no range"),
        ("h[a-b]", "is no range"),
        ("h[i 0-3]", "is no range"),
        ("h[=0-3]", "is no range"),
        ("h[1-2-3]", "is no range"),
        ("h[3-0]", r"runs backwards: write \[0-3\]"),
        ("h[0-2,1]", "names a number twice"),
        ("h[0-99999999]", "more than 1000000 names"),
        ("h[0-9999].[0-9999]", "more than 1000000"),
        ("a b", "cannot name a node because of ' '"),
        ("a->b", "cannot name a node because of '>'"),
        ("h[i=0-1].[i=0-1]", "its values twice"),
    ],
)
def test_what_is_no_pattern(text: str, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        parse_pattern(text)


def test_a_name_without_values_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"\[i\] in 'h\[i\]' has no values"):
        parse_pattern("h[i]").all_names()
    with pytest.raises(TopologyError, match="has its values twice"):
        list(assignments(parse_pattern("a[i=0-1]"), parse_pattern("b[i=0-1]")))
