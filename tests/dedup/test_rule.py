"""The rule, one condition at a time, and whether kernels notice that it has changed."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest

from streamdedup.dedup import rule
from streamdedup.dedup.rule import NO_LIMIT, limit_ms
from streamdedup.model import NO_TIMESTAMP

FIRST, LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@pytest.mark.parametrize(
    ("one_ms", "other_ms", "window_ms", "expected"),
    [
        (0, 999, 1000, True),
        (0, 1000, 1000, False),
        (1000, 1, 1000, True),
        (1000, 0, 1000, False),
        (5, 5, 0, False),
        (FIRST, LAST, LAST, False),
        (FIRST, LAST, NO_LIMIT, True),
    ],
)
def test_window(one_ms: int, other_ms: int, window_ms: int, expected: bool) -> None:
    """It ends where the difference is the window; all differences of 64 bits are compared."""
    assert rule.which_in_window(one_ms, np.array([other_ms]), window_ms).tolist() == [expected]


@pytest.mark.parametrize(
    ("now_ms", "reach_ms", "expected"),
    [(1009, 10, True), (1010, 10, False), (2**62, NO_LIMIT, True), (NO_TIMESTAMP, 10, True)],
)
def test_reach(now_ms: int, reach_ms: int, expected: bool) -> None:
    """A document is out of reach as soon as the clock has passed it by the reach."""
    assert rule.is_in_reach(1000, now_ms, reach_ms) == expected
    assert rule.which_in_reach(np.array([1000]), now_ms, reach_ms).tolist() == [expected]


@pytest.mark.parametrize(
    ("mine", "other", "expected"),
    [
        ((0.9, 7), (0.8, 1), True),
        ((0.8, 1), (0.9, 7), False),
        ((0.8, 1), (0.8, 7), True),
        ((0.8, 7), (0.8, 1), False),
    ],
)
def test_order_of_matches(
    mine: tuple[float, int], other: tuple[float, int], expected: bool
) -> None:
    """The most similar first, ties to the earliest."""
    assert rule.is_better(*mine, *other) == expected


def test_border() -> None:
    """It includes its ends, on both sides of the threshold."""
    estimates = np.array([0.49, 0.5, 0.75, 1.0])
    assert rule.which_near(estimates, 0.75, 0.25).tolist() == [False, True, True, True]
    assert rule.is_near(0.5, 0.75, 0.25)


def test_limits() -> None:
    """Durations are in milliseconds; the window by number holds so many of the newest."""
    assert limit_ms(dt.timedelta(seconds=2)) == 2000
    assert limit_ms(None) == NO_LIMIT
    assert rule.oldest_in_window(10, 4) == 6
    assert rule.oldest_in_window(3, 4) == 0
