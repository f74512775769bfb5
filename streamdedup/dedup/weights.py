"""*Pure.* What a candidate counts: how probably it is at the threshold, and was found.

A pair with ``e`` of ``m`` equal values is found with the probability of
:func:`found_probability`, so that it stands for the reciprocal of that number of pairs
(Horvitz and Thompson 1952). Its similarity is an estimate with a known error. If the logarithm of
the density of similarities has the slope ``s`` near the threshold, the true similarity is
distributed around ``estimate + s * error^2`` (Tweedie's formula, Efron 2011).
docs/internals/quality.md explains both.

The S-curve needs the true similarity of a pair. The number of equal values is known instead, and it
is all that a signature tells about the bands: every choice of as many equal positions is equally
probable, whatever the similarity. So the probability is a matter of counting, and exact also for
the pairs whose estimate is far from the truth.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamdedup.columns import F64, I64
from streamdedup.dedup.resolve import BORDERLINE
from streamdedup.dedup.rule import which_near
from streamdedup.settings.dedup import DedupSettings
from streamdedup.sketch.bands import Banding
from streamdedup.sketch.codec import SignatureCodec

SCALES = {"fast": (0.6, 0.78, 1.0), "classic": (0.8, 1.0, 1.0)}
"""Least, assumed and greatest error of the estimate, relative to that of independent values. That
of ``fast`` is 0.71 to 0.96 (docs/adr/0005-fast-similarity-sketching.md). The least is smaller,
because the similarities of short texts have few values, which acts like a smaller error."""
LEAST_PROBABILITY = 0.02
"""A candidate stands for at most fifty pairs."""
_REACH = 5.0  # most standard errors of a candidate below the threshold
_NEAR = 3.0  # standard errors around the threshold in which the slope of the density is measured
_MOST_CLASSES = 255
_STEEPEST = 0.9
"""Largest relative distance of a mean from the middle of an interval that gives a slope."""


class Weights(NamedTuple):
    """What a candidate counts, by its class: ``(classes + 1,)`` float64, the last for none."""

    true: F64  # the probability that its similarity is at or above the threshold
    found: F64  # the probability with which such a pair is found


class Assumption(NamedTuple):
    """What weights depend on, apart from what was counted."""

    scale: float  # error of the estimate, relative to that of independent values
    has_slope: bool  # whether the density of similarities has a slope at the threshold
    ratio: float  # how many bands pairs share, relative to what their equal values let expect


class Weighing:
    """Weighs candidates by their number of unequal values, which is divided into classes.

    The last class is followed by that of no candidate.
    """

    def __init__(self, settings: DedupSettings) -> None:
        codec = SignatureCodec.of(settings.sketch_parameters())
        banding, num_perm = settings.banding(), codec.num_perm
        self.threshold = settings.threshold
        self.scales = SCALES[settings.variant]
        self.estimates = codec.estimates()  # (num_perm + 1,), by the number of unequal values
        # The probability with which a pair exactly at the threshold is found.
        self.hardest = max(banding.candidate_probability(self.threshold), LEAST_PROBABILITY)
        self._has_texts = settings.keeps_texts
        # At threshold 1 the estimate has no error; then a value decides.
        self._error = max(codec.standard_error(self.threshold), 0.5 / num_perm)
        lowest = self.threshold - _REACH * self._error
        relevant = int(np.count_nonzero(self.estimates >= lowest))
        step = -(-relevant // _MOST_CLASSES)
        self.classes = -(-relevant // step)
        numbers = np.arange(num_perm + 2)
        # (num_perm + 2,), by the number of unequal values.
        self.class_of: I64 = np.where(numbers < relevant, numbers // step, self.classes)
        middles = np.minimum(np.arange(self.classes) * step + (step - 1) // 2, relevant - 1)
        self._offsets = self.estimates[middles] - self.threshold
        self._is_equal = middles == 0
        # (classes + 1,): whether a candidate makes a duplicate. If texts decide, only matches are
        # counted.
        is_match = (self._offsets >= 0.0) | self._has_texts
        self.is_match: NDArray[np.bool_] = np.append(is_match, np.False_)
        found = given_stored_bits(found_probability(banding, num_perm), codec.bits)
        found = np.maximum(found, LEAST_PROBABILITY)
        in_band = given_stored_bits(band_probability(banding, num_perm), codec.bits)
        self._missed = np.maximum(1.0 - found, 0.0)
        # (classes + 1,): the probability that a found pair shares a given band.
        self.expected: F64 = np.append((in_band / found)[middles], 0.0)
        self._middles = middles

    def found(self, ratio: float = 1.0) -> F64:
        """Return the probability that a pair is found, ``(num_perm + 1,)``, by unequal values.

        The number of shared bands is nearly distributed as Poisson's: if pairs share ``ratio``
        times as many as expected, the probability of none is raised to that power.
        """
        return np.maximum(1.0 - self._missed**ratio, LEAST_PROBABILITY)

    def weights(self, near: I64, assumption: Assumption) -> Weights:
        """Return what candidates count; ``near``, ``(num_perm + 1,)``, are by unequal values."""
        found = np.append(self.found(assumption.ratio)[self._middles], 1.0)
        error = self._error * assumption.scale
        shift = self._slope(near, error) * error**2 if assumption.has_slope else 0.0
        distances = ((self._offsets + shift) / error).tolist()
        true = np.array([0.5 * math.erfc(-each / math.sqrt(2.0)) for each in distances])
        true[self._is_equal] = 1.0
        if self._has_texts:
            true[which_near(self._offsets, 0.0, BORDERLINE * self._error)] = 1.0
        return Weights(np.append(true, 0.0), found)

    def _slope(self, near: I64, error: float) -> float:
        """Return the slope of the logarithm of the density of similarities at the threshold.

        In an interval of half-width ``w``, a density proportional to ``exp(slope * x)`` has its
        mean at ``w * L(slope * w)``, with Langevin's function ``L``. Its inverse is about
        ``x (3 - x^2) / (1 - x^2)`` (Cohen 1991).
        """
        half = min(_NEAR * error, 1.0 - self.threshold)
        offsets = self.estimates - self.threshold
        pairs = np.where(np.abs(offsets) <= half, near / self.found(), 0.0)
        if half <= 0.0 or not pairs.any():
            return 0.0
        mean = float(np.clip(pairs @ offsets / (pairs.sum() * half), -_STEEPEST, _STEEPEST))
        return mean * (3.0 - mean**2) / ((1.0 - mean**2) * half)


def missed_variances(weights: Weights, is_match: NDArray[np.bool_]) -> F64:
    """Return the variance of the missed documents that a candidate adds: ``(classes + 1,)``.

    A pair is at the threshold with probability ``p``, and found with probability ``h``. For a
    found one, ``p (1 - h) / h`` others are expected to be missed, or ``p / h`` if the estimate
    refutes it. The variance of the error is a sum over all pairs, so each that is found adds
    ``1 / h`` of its own.
    """
    p, h = weights.true, weights.found
    matching = (p * (1.0 - h)) ** 2 / h + p * (1.0 - h)
    refuted = p**2 * (1.0 / h - 1.0) + p * (1.0 - p)
    return np.where(is_match, matching, refuted) / h


def found_probability(banding: Banding, num_perm: int) -> F64:
    """Return the probability that a pair shares a band, by its number of equal values.

    ``1 - [x^e] ((1 + x)^rows - x^rows)^bands (1 + x)^rest / C(num_perm, e)``, band after band: the
    equal values of the bands so far are spread over them hypergeometrically. ``(num_perm + 1,)``
    float64, ascending from 0 to 1.
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
    """Return the probability that a pair agrees in a given band, like :func:`found_probability`."""
    equal = np.arange(num_perm + 1)
    result = np.ones(num_perm + 1)
    for row in range(banding.rows):
        result *= np.maximum(equal - row, 0) / (num_perm - row)
    return result


def given_stored_bits(probabilities: F64, bits: int) -> F64:
    """Return probabilities by the number of unequal stored values, ``(num_perm + 1,)``, descending.

    The given ones are by the number of equal values, of which ``bits`` each are stored.

    Unequal values agree in their stored bits with probability ``2^-bits``. Every number of equal
    values is taken to be equally probable beforehand; the stored bits leave a few.
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
