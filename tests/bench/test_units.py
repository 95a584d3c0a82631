from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycoll import InvalidArgument
from pycoll.bench.units import format_seconds, format_size, parse_size, parse_sizes

UNITS = {
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "K": 2**10,
    "M": 2**20,
    "kB": 1000,
    "GB": 10**9,
}


@given(st.integers(0, 4096), st.sampled_from(sorted(UNITS)), st.sampled_from(["", " "]))
def test_a_number_and_a_unit(number: int, unit: str, space: str) -> None:
    assert parse_size(f"{number}{space}{unit}") == number * UNITS[unit]
    assert parse_size(f"{number}{space}{unit.lower()}") == number * UNITS[unit]


@given(st.integers(0, 2**63 - 1))
def test_a_plain_number_is_bytes(number: int) -> None:
    assert parse_size(str(number)) == number


@given(st.integers(1, 1023), st.integers(0, 4))
def test_sizes_are_written_as_they_are_read(number: int, power: int) -> None:
    size = number * 1024**power
    assert parse_size(format_size(size)) == size


@given(st.integers(1, 2**50))
def test_any_size_is_written_to_four_digits(size: int) -> None:
    number, unit = format_size(size).split()
    assert float(number) * UNITS[unit] == pytest.approx(size, rel=6e-4)
    assert len(number) <= 7


def test_fractions_of_a_unit() -> None:
    assert parse_size("1.5 MiB") == 3 * 2**19
    assert format_size(3 * 2**19) == "1.5 MiB"


@pytest.mark.parametrize(
    "text", ["", "B", "four", "4X", "-4", "4 B B", "1.3B", "1e3", "1.B", "9223372036854775808"]
)
def test_other_text_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidArgument, match="size"):
        parse_size(text)


def test_ranges_and_lists() -> None:
    assert parse_sizes("4B:256B:x4") == [4, 16, 64, 256]
    assert parse_sizes("4B:255B:x4") == [4, 16, 64]
    assert parse_sizes("1KiB:4KiB") == [1024, 2048, 4096]
    assert parse_sizes("1MiB:3MiB:+1MiB") == [2**20, 2**21, 3 * 2**20]
    assert parse_sizes("1KiB, 4B,4 B ,8:8") == [4, 8, 1024]


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(2, 100))
def test_ranges_stay_within_their_ends(first: int, more: int, factor: int) -> None:
    sizes = parse_sizes(f"{first}:{first + more}:x{factor}")
    assert sizes[0] == first
    assert sizes[-1] <= first + more < sizes[-1] * factor
    assert all(b == a * factor for a, b in itertools.pairwise(sizes))


@pytest.mark.parametrize(
    "text",
    ["8:4", "4:8:x1", "4:8:x", "4:8:2", "4:8:+0", "4:8:x2:x2", "0:8:x2", "4:8:x-2", "1:2GiB:+1", ",", "4:"],
)
def test_ranges_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_sizes(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.1e-7, "0.11 us"),
        (54e-6, "54 us"),
        (8.2e-3, "8.2 ms"),
        (1.5, "1.5 s"),
        (0.9994e-3, "999 us"),
        (1200.0, "1200 s"),
    ],
)
def test_times_keep_three_digits(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
