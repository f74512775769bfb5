"""*Pure.* A threshold from labelled pairs, with its uncertainty.

The model is logistic: a pair of similarity ``x`` is labelled "same" with probability
``1 / (1 + exp(-slope (x - threshold)))``, with a slope that is not negative. At the threshold both
labels are equally likely, so it is the border with the fewest wrong verdicts. The estimate is the
maximum of the likelihood, and the interval contains every threshold whose profile likelihood is not
rejected by a likelihood-ratio test (D. A. Williams, Interval Estimation of the Median Lethal Dose,
Biometrics 42, 1986, 641-645; G. E. Kelly compares it with others in The Statistician 50, 2001,
41-50). Unlike Wald's interval, it exists if one similarity separates the labels, and it is
unbounded if the labels do not determine the threshold.

The labels are modelled given the similarity. They may therefore be taken evenly over the
similarities, as the page does, and need not have the shares of the stream.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamdedup.columns import F64

CONFIDENCE = 0.95
"""Nominal coverage of the interval."""
_CHI_SQUARE = 3.841458820694124
"""The quantile of the chi-square distribution with one degree of freedom at ``CONFIDENCE``."""
_STEPS = 1000  # thresholds that are tried, from 0 to 1, besides the similarities of the pairs
_STEEPEST = 1e5  # the largest slope: the probability then rises from 0 to 1 within 0.0001
_HALVINGS = 35
_BLOCK = 64  # thresholds that are tried at a time, which bounds the memory


class Fit(NamedTuple):
    """A fitted threshold."""

    threshold: float  # the similarity at which both labels are equally likely
    low: float  # lower end of the interval; 0 if the labels do not bound it
    high: float  # upper end of the interval; 1 if the labels do not bound it
    slope: float  # of the curve at the threshold
    separated: bool  # every "different" pair is less similar than every "same" pair
    rising: bool  # a likelihood-ratio test shows that "same" becomes more frequent

    def probability(self, similarities: F64) -> F64:
        """Return the fitted share of "same" at similarities of any shape."""
        return logistic(self.slope * (similarities - self.threshold))


def fit(similarities: F64, same: F64) -> Fit:
    """Fit a threshold to labelled pairs, ``(n,)``: similarities, and shares of the label "same".

    The similarities are from 0 to 1. Both labels occur.
    """
    tried = np.union1d(np.arange(_STEPS + 1) / _STEPS, similarities)
    profile, slopes = _profile(tried, similarities, same)
    best = int(np.argmax(profile))
    threshold, maximum = float(tried[best]), float(profile[best])
    highest_different = similarities[same < 1].max()
    lowest_same = similarities[same > 0].min()
    separated = bool(highest_different < lowest_same)
    if separated:
        # Every threshold between the two is equally likely.
        threshold, maximum = float(highest_different + lowest_same) / 2, 0.0
    accepted = tried[2 * (maximum - profile) <= _CHI_SQUARE]
    share = float(same.mean())
    constant = len(same) * (share * np.log(share) + (1 - share) * np.log(1 - share))
    return Fit(
        threshold=threshold,
        low=float(accepted.min(initial=threshold)),
        high=float(accepted.max(initial=threshold)),
        slope=_STEEPEST if separated else float(slopes[best]),
        separated=separated,
        rising=bool(2 * (maximum - constant) > _CHI_SQUARE and slopes[best] > 0),
    )


def _profile(thresholds: F64, similarities: F64, same: F64) -> tuple[F64, F64]:
    """Return the log-likelihood at each threshold, ``(t,)``, and the slope that maximises it."""
    likelihoods, slopes = np.empty(len(thresholds)), np.empty(len(thresholds))
    for start in range(0, len(thresholds), _BLOCK):
        rows = slice(start, start + _BLOCK)
        distances = similarities - thresholds[rows, np.newaxis]
        slope = _best_slopes(distances, same)
        logits = slope[:, np.newaxis] * distances
        # log(1 + exp(-|x|)) does not overflow.
        terms = same * np.minimum(logits, 0) - (1 - same) * np.maximum(logits, 0)
        likelihoods[rows] = (terms - np.log1p(np.exp(-np.abs(logits)))).sum(axis=1)
        slopes[rows] = slope
    return likelihoods, slopes


def _best_slopes(distances: F64, same: F64) -> F64:
    """Return the slope with the greatest likelihood at each threshold, ``(t,)``.

    The log-likelihood is concave in the slope, so its derivative has one zero, or none. The
    distances are the similarity of each pair minus each threshold, ``(t, n)``.
    """
    # Halving the logarithm finds small and large slopes with the same relative error.
    low = np.full(len(distances), np.log(1e-6))
    high = np.full(len(distances), np.log(_STEEPEST))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        slope = np.exp(middle)[:, np.newaxis]
        derivative = (distances * (same - logistic(slope * distances))).sum(axis=1)
        low = np.where(derivative > 0, middle, low)
        high = np.where(derivative > 0, high, middle)
    falls = (distances * (same - 0.5)).sum(axis=1) <= 0
    return np.where(falls, 0.0, np.exp((low + high) / 2))


def logistic(logits: F64) -> F64:
    """Return 1 / (1 + exp(-x)) of numbers of any shape."""
    # tanh does not overflow.
    probabilities: F64 = 0.5 * (1 + np.tanh(logits / 2))
    return probabilities
