"""*Pure.* Similarity estimates of pairs of sets, and their error against the truth."""

from __future__ import annotations

import itertools
import math

import numpy as np

from streamdedup.analysis.pairs import F64, SetPairs
from streamdedup.analysis.report import Error
from streamdedup.analysis.truth import GroundTruth
from streamdedup.batches import Sketches
from streamdedup.sketch.codec import SignatureCodec

_MEASURED_PAIRS = 500_000
"""Pairs whose estimate is compared with the truth; about as many are drawn if there are more."""


class Estimator:
    """Estimates the similarity of pairs of sets from their stored signatures."""

    def __init__(self, codec: SignatureCodec, sketches: Sketches) -> None:
        self._codec = codec
        self._signatures = sketches.signatures

    def __call__(self, pairs: SetPairs) -> F64:
        """Return the estimate of each pair: ``(pairs,)`` float64."""
        estimates = np.empty(len(pairs))
        order = np.argsort(pairs.first, kind="stable")
        first = pairs.first[order]
        starts = np.flatnonzero(np.diff(first, prepend=-1)).tolist()
        for start, stop in itertools.pairwise([*starts, len(first)]):
            rows = order[start:stop]
            estimates[rows] = self._codec.estimate_jaccard(
                self._signatures[first[start]], self._signatures[pairs.second[rows]]
            )
        return estimates

    def standard_error(self, jaccard: float) -> float:
        """Return the theoretical standard error of an estimate."""
        return self._codec.standard_error(jaccard)


def estimate_errors(truth: GroundTruth, estimate: Estimator) -> list[Error]:
    """Measure the error of the estimate on each level, over all pairs, candidates or not."""
    pairs = truth.pairs
    if len(pairs) > _MEASURED_PAIRS:
        random = np.random.default_rng(1)
        pairs = pairs.where(random.random(len(pairs)) < _MEASURED_PAIRS / len(pairs))
    difference = estimate(pairs) - pairs.jaccard
    errors = []
    for low, high in itertools.pairwise(truth.edges()):
        within = (pairs.jaccard >= low) & (pairs.jaccard < high)
        if not within.any():
            continue
        variance = np.mean([estimate.standard_error(j) ** 2 for j in pairs.jaccard[within]])
        errors.append(
            Error(
                low=low,
                high=high,
                pairs=int(np.count_nonzero(within)),
                bias=float(difference[within].mean()),
                deviation=math.sqrt(float((difference[within] ** 2).mean())),
                theory=math.sqrt(float(variance)),
            )
        )
    return errors
