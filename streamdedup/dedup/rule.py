"""*Pure.* The rule: which kept documents may match, which match is better, and when texts decide.

Rule 1: no other module compares times or numbers with the window, orders matches, or compares an
estimate with the border. The worker, the judge, Spark, the shadow sample, ``explain`` and the index
call these functions.

The functions with one result are copied into the kernels that call them. Those that return arrays
do the same for columns.
"""

from __future__ import annotations

import datetime as dt

import numpy as np
from numpy.typing import NDArray

from streamdedup.columns import F64, I64
from streamdedup.kernels import kernel
from streamdedup.model import NO_TIMESTAMP
from streamdedup.settings.units import milliseconds

NO_LIMIT = -1
"""The length of a window, or the reach, without a limit."""


def limit_ms(duration: dt.timedelta | None) -> int:
    """Return a duration in milliseconds; ``NO_LIMIT`` for None."""
    return NO_LIMIT if duration is None else milliseconds(duration)


@kernel(inline="always")
def oldest_in_window(next_number: int, window_documents: int) -> int:
    """Return the number of the oldest document of the window."""
    return max(0, next_number - window_documents)


@kernel(inline="always")
def is_in_window(one_ms: int | np.int64, other_ms: int | np.int64, window_ms: int) -> bool:
    """Return whether two times differ by less than the window."""
    # The difference of two int64 may need 64 bits without a sign.
    difference = np.uint64(max(one_ms, other_ms)) - np.uint64(min(one_ms, other_ms))
    return window_ms < 0 or bool(difference < np.uint64(window_ms))


@kernel(inline="always")
def is_in_reach(effective_ms: int, now_ms: int, reach_ms: int) -> bool:
    """Return whether the clock has not passed an effective time by as much as a document stays."""
    return reach_ms < 0 or now_ms == NO_TIMESTAMP or effective_ms + reach_ms > now_ms


@kernel(inline="always")
def is_better(similarity: float, ordinal: int, other_similarity: float, other_ordinal: int) -> bool:
    """Return whether a match comes before another one: by similarity, ties by order of judgement.

    An ordinal ascends with the order in which documents were judged.
    """
    return similarity > other_similarity or (
        similarity == other_similarity and ordinal < other_ordinal
    )


@kernel(inline="always")
def is_near(estimate: float, threshold: float, borderline: float) -> bool:
    """Return whether the texts decide about an estimate, not the estimate itself."""
    return abs(estimate - threshold) <= borderline


@kernel
def which_in_window(one_ms: int, others_ms: I64, window_ms: int) -> NDArray[np.bool_]:
    """Return :func:`is_in_window` for each of ``(n,)`` times."""
    found = np.empty(len(others_ms), dtype=np.bool_)
    for row in range(len(others_ms)):
        found[row] = is_in_window(np.int64(one_ms), others_ms[row], window_ms)
    return found


@kernel
def which_in_reach(effective_ms: I64, now_ms: int, reach_ms: int) -> NDArray[np.bool_]:
    """Return :func:`is_in_reach` for each of ``(n,)`` effective times."""
    found = np.empty(len(effective_ms), dtype=np.bool_)
    for row in range(len(effective_ms)):
        found[row] = is_in_reach(effective_ms[row], now_ms, reach_ms)
    return found


@kernel
def which_near(estimates: F64, threshold: float, borderline: float) -> NDArray[np.bool_]:
    """Return :func:`is_near` for each of ``(n,)`` estimates."""
    found = np.empty(len(estimates), dtype=np.bool_)
    for row in range(len(estimates)):
        found[row] = is_near(estimates[row], threshold, borderline)
    return found
