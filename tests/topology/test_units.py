"""Bandwidths and times with units: exact both ways, and refused where people read them differently."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pycoll import InvalidArgument
from pycoll.topology.units import format_bandwidth, format_time, parse_bandwidth, parse_time


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 Gbit/s", 1.25e8),
        ("100Gbit/s", 12.5e9),
        ("450 GB/s", 450e9),
        ("25 GiB/s", 25 * 2.0**30),
        ("1.5 TB/s", 1.5e12),
        ("8 bit/s", 1.0),
        ("1e3 kB/s", 1e6),
        (" 64  KiB/s ", 65536.0),
        ("unlimited", math.inf),
    ],
)
def test_bandwidths_are_bytes_per_second(text: str, value: float) -> None:
    assert parse_bandwidth(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("30 us", 30e-6),
        ("30µs", 30e-6),
        ("30 μs", 30e-6),
        ("0.6 us", 6e-7),
        ("20 ms", 0.02),
        ("0 s", 0.0),
        ("5ns", 5e-9),
    ],
)
def test_times_are_seconds(text: str, value: float) -> None:
    assert parse_time(text) == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("10", "no unit"),
        ("10 Gb/s", "10 Gbit/s for bits, 10 GB/s for bytes"),
        ("10 Gbps", "10 Gbit/s for bits, 10 GB/s for bytes"),
        ("10 gbit/s", "did you mean 10 Gbit/s?"),
        ("10 furlongs", "unknown unit"),
        ("-1 GB/s", "not understood"),
        ("fast", "not understood"),
        ("0 GB/s", "not positive"),
        ("1e999 GB/s", "too large"),
    ],
)
def test_what_is_no_bandwidth_says_what_to_write(text: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says.replace("?", r"\?")):
        parse_bandwidth(text)


def test_a_time_without_a_unit_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no unit: write a number and s, ms, us or ns"):
        parse_time("30")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.25e8, "1 Gbit/s"),
        (12.5e9, "100 Gbit/s"),
        (450e9, "450 GB/s"),
        (370.8e9, "370.8 GB/s"),
        (math.inf, "unlimited"),
    ],
)
def test_bandwidths_are_printed_short(value: float, text: str) -> None:
    assert format_bandwidth(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(3e-5, "30 us"), (0.0, "0 s"), (1.5e-3, "1.5 ms"), (6e-7, "600 ns")]
)
def test_times_are_printed_short(value: float, text: str) -> None:
    assert format_time(value) == text


@given(st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False))
def test_what_is_printed_reads_back_as_the_same_float(value: float) -> None:
    assert parse_bandwidth(format_bandwidth(value)) == value
    assert parse_time(format_time(value)) == value
