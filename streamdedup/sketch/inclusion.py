"""*Pure.* How probable it is that a pair was found, given how many of its values agree.

The S-curve needs the true similarity of a pair. The number of equal values is known instead, and it
is all that a signature tells about the bands: every choice of as many equal positions is equally
probable, whatever the similarity. So a pair with ``e`` of ``m`` equal values is found with a
probability that is a matter of counting, and that is exact also for the pairs whose estimate is far
from the truth.
"""

from __future__ import annotations

import math

import numpy as np

from streamdedup.columns import F64, I64
from streamdedup.sketch.bands import Banding


def found_probability(banding: Banding, num_perm: int) -> F64:
    """Return the probability that a pair shares a band, by its number of equal values.

    ``1 - [x^e] ((1 + x)^rows - x^rows)^bands (1 + x)^rest / C(num_perm, e)``, band after band: the
    equal values of the bands so far are spread over them hypergeometrically.

    Returns:
        ``(num_perm + 1,)`` float64, ascending from 0 to 1.
    """
    logs = _log_factorials(num_perm)
    rows, rest = banding.rows, num_perm - banding.values
    # By the number of equal values in the bands so far: the probability that none of them is full.
    none_full = np.ones(1)
    for _ in range(banding.bands):
        none_full = _with_positions(none_full, rows, rows - 1, logs)
    return np.clip(1.0 - _with_positions(none_full, rest, rest, logs), 0.0, 1.0)


def _with_positions(before: F64, count: int, most: int, logs: F64) -> F64:
    """Add ``count`` positions, of which at most ``most`` may hold equal values."""
    size = len(before) - 1
    after = np.zeros(size + count + 1)
    for equal in range(most + 1):
        total = np.arange(equal, size + equal + 1)
        weight = (
            _log_choose(logs, count, equal)
            + _log_choose(logs, size, total - equal)
            - _log_choose(logs, size + count, total)
        )
        after[total] += np.exp(weight) * before
    return after


def band_probability(banding: Banding, num_perm: int) -> F64:
    """Return the probability that a pair agrees in a given band, by its number of equal values.

    Returns:
        ``(num_perm + 1,)`` float64, ascending from 0 to 1.
    """
    equal = np.arange(num_perm + 1)
    result = np.ones(num_perm + 1)
    for row in range(banding.rows):
        result *= np.maximum(equal - row, 0) / (num_perm - row)
    return result


def given_stored_bits(probabilities: F64, bits: int) -> F64:
    """Return the same by the number of unequal stored values, of so many bits each.

    Unequal values agree in their stored bits with probability ``2^-bits``. Every number of equal
    values is taken to be equally probable beforehand; the stored bits leave a few.

    Args:
        probabilities: ``(num_perm + 1,)``, by the number of equal values.
        bits: bits that are stored of each value.

    Returns:
        ``(num_perm + 1,)`` float64, descending from 1 to 0.
    """
    num_perm = len(probabilities) - 1
    logs = _log_factorials(num_perm)
    chance = -bits * math.log(2.0)
    result = np.empty(num_perm + 1)
    for unequal in range(num_perm + 1):
        agreeing = num_perm - unequal
        equal = np.arange(agreeing + 1)
        weights = _log_choose(logs, num_perm - equal, unequal) + (agreeing - equal) * chance
        weights = np.exp(weights - weights.max())
        result[unequal] = weights @ probabilities[: agreeing + 1] / weights.sum()
    return result


def _log_factorials(most: int) -> F64:
    return np.array([math.lgamma(number + 1) for number in range(most + 1)])


def _log_choose(logs: F64, count: int | I64, chosen: int | I64) -> F64:
    """Return the logarithm of a binomial coefficient."""
    return np.asarray(logs[count] - logs[chosen] - logs[count - chosen])
