"""The check of the pipeline's outputs finds every kind of loss and repetition."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.pipeline_check import check, place
from tests.testkit.documents import Plan

PLAN = Plan(
    originals=np.array([0, 0, 2, 2, 4, 5]),
    near=np.array([False, False, False, True, False, False]),
)
"""Place 1 is an exact copy of 0, and 3 a near copy of 2."""


def _checked(clean: list[int], duplicates: list[int]) -> dict[str, float]:
    found = check(PLAN, np.array(clean, dtype=np.int64), np.array(duplicates, dtype=np.int64))
    return found._asdict() | {"exactly_once": found.exactly_once}


RIGHT = {
    "missing": 0,
    "repeated": 0,
    "unknown": 0,
    "exact_recall": 1.0,
    "near_recall": 1.0,
    "false_drops": 0,
    "exactly_once": True,
}


@pytest.mark.parametrize(
    ("clean", "duplicates", "different"),
    [
        pytest.param([5, 0, 2, 4], [3, 1], {}, id="right, in any order"),
        pytest.param([0, 2, 5], [1, 3], {"missing": 1, "exactly_once": False}, id="lost"),
        pytest.param(
            [0, 2, 4, 4, 4, 5], [1, 3], {"repeated": 1, "exactly_once": False}, id="written twice"
        ),
        pytest.param(
            [0, 2, 3, 4, 5], [1, 3], {"repeated": 1, "exactly_once": False}, id="in both topics"
        ),
        pytest.param(
            [0, 2, 4, 5, 6], [1, 3, -1], {"unknown": 2, "exactly_once": False}, id="unknown"
        ),
        pytest.param([0, 1, 2, 4, 5], [3], {"exact_recall": 0.0}, id="an exact copy kept"),
        pytest.param([0, 2, 3, 4, 5], [1], {"near_recall": 0.0}, id="a near copy kept"),
        pytest.param([0, 2, 5], [1, 3, 4], {"false_drops": 1}, id="dropped wrongly"),
    ],
)
def test_differences_are_found(
    clean: list[int], duplicates: list[int], different: dict[str, float]
) -> None:
    """Only what differs is reported."""
    assert _checked(clean, duplicates) == RIGHT | different


def test_a_place_is_a_partition_and_an_offset() -> None:
    """Documents go to the partitions in turn."""
    places = [place(number % 3, number // 3, 3) for number in range(10)]
    assert places == list(range(10))
