"""Sizes and durations: parsing, formatting, and what is refused."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.settings.units import (
    format_duration,
    format_size,
    milliseconds,
    parse_duration,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("9Gi", 9 * 1024**3),
        ("512MiB", 512 * 1024**2),
        ("512 mib", 512 * 1024**2),
        ("1.5GB", 1_500_000_000),
        ("1.1GB", 1_100_000_000),
        ("1.5Gi", 1_610_612_736),
        ("2k", 2000),
        ("100B", 100),
        ("1e+06", 1_000_000),
        ("1e6", 1_000_000),
        ("6.8719476736e+10", 64 * 1024**3),
        (6.8719476736e10, 64 * 1024**3),
        (1e06, 1_000_000),
        (1048576, 1048576),
        ("0", 0),
    ],
    ids=repr,
)
def test_sizes(text: str | float, size: int) -> None:
    """Binary and decimal units, their fractions, and large floats are exact."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["-1", -1, "-5Gi", "", "x", "5i", "5iB", "1.5", 1.5, "1e999", "1e-3", "nan", "inf", True, None,
     [1], "1 000", "5Gib/s"],
    ids=repr,
)  # fmt: skip
def test_invalid_sizes_are_refused(text: Any) -> None:
    """The message for an invalid size shows a valid one."""
    with pytest.raises(ValueError, match=r"^invalid size .*; expected"):
        parse_size(text)


@pytest.mark.parametrize("text", ["1us", "1001us", "1d1us", "1h2us", "1.5s", "0s"])
def test_formatted_microseconds_parse(text: str) -> None:
    """Every formatted duration parses to the same duration, also microseconds."""
    duration = parse_duration(text)
    assert parse_duration(format_duration(duration)) == duration


@given(st.integers(0, 2**60))
def test_formatted_sizes_parse(size: int) -> None:
    """Every formatted size parses to the same size."""
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("30s", 30),
        ("30 s", 30),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("7d", 7 * 86400),
        ("1.5h", 5400),
        ("90", 90),
        (90, 90),
        (0.25, 0.25),
        ("1e3", 1000),
        (dt.timedelta(seconds=3), 3),
    ],
    ids=repr,
)
def test_durations(text: Any, seconds: float) -> None:
    """Units may be combined; a number without a unit is seconds."""
    assert parse_duration(text) == dt.timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    ["", "x", "5 parsecs", "nan", "inf", 1e99, float("inf"), "1e99", True, None, [1]],
    ids=repr,
)
def test_invalid_durations_are_refused(text: Any) -> None:
    """The message for an invalid duration shows a valid one; no other error escapes."""
    with pytest.raises(ValueError, match=r"^invalid duration .*; expected"):
        parse_duration(text)


@given(st.integers(0, 10**7) | st.integers(0, 36_500 * 86_400_000))
def test_formatted_durations_parse(milliseconds: int) -> None:
    """Every formatted duration parses to the same duration."""
    duration = dt.timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize("text", ["1d", "7d", "30d", "365d", "400d12h", "1d500ms", "90m", "24h"])
def test_durations_are_formatted_in_days_at_most(text: str) -> None:
    """The largest unit is the day; months and years have no fixed length."""
    written = {"90m": "1h30m", "24h": "1d"}.get(text, text)
    assert format_duration(parse_duration(text)) == written


def test_milliseconds_are_whole() -> None:
    """The rest is dropped."""
    found = milliseconds(dt.timedelta(milliseconds=7, microseconds=999))
    assert (found, type(found)) == (7, int)
