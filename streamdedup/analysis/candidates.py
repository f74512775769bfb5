"""*Pure.* Candidate pairs by their true similarity, their estimates, and the clusters they join.

Rule 1: texts with the same shingle set are one set while candidates are searched for. Each pair of
sets counts as all of its pairs of documents, so many copies of a text cost nothing.
Rule 2: candidates are processed in portions; memory never holds all pairs of a corpus.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from streamdedup.analysis.report import BINS, BandingReport, ClusterScore, Error
from streamdedup.analysis.sets import (
    MOST_PAIRS,
    NO_SET,
    SetPairs,
    ShingleSets,
    count_by_level,
    count_equal_pairs,
    jaccards,
    pairs_of_band,
    share_a_band,
)
from streamdedup.analysis.truth import GroundTruth, Progress
from streamdedup.batches import Sketches
from streamdedup.columns import F64, I64, U64
from streamdedup.errors import InputError
from streamdedup.kernels import kernel
from streamdedup.sketch.bands import Banding
from streamdedup.sketch.codec import SignatureCodec

_PORTION = 1_000_000  # pairs that are processed at a time
_EXAMPLES = 5  # misses and false alarms that a report shows
_MEASURED_PAIRS = 500_000
"""Pairs whose estimate is compared with the truth; about as many are drawn if there are more."""


class CandidateCount:
    """Counts the candidates of one banding into its report."""

    def __init__(
        self, truth: GroundTruth, estimate: Estimator, banding: Banding, num_perm: int
    ) -> None:
        self._truth = truth
        self._estimate = estimate
        self._alarms: list[tuple[float, float, int, int]] = []
        self.parents: I64 = np.arange(len(truth.sets))  # the clusters that accepted ones join
        self.report = BandingReport(banding, num_perm, truth.comparable_pairs(), truth.levels())

    def run(self, keys: U64, on_progress: Progress) -> None:
        """Count all candidates by the band keys, ``(sets, bands)``; see :func:`candidates`."""
        # Copies share all bands and have an estimate of 1.
        copies = self._truth.copies()
        self.report.candidates += copies
        self.report.histogram[-1] += copies
        last = self.report.levels[-1]
        last.found = last.accepted = copies
        for pairs in candidates(self._truth.sets, keys, self.report.banding, on_progress):
            self._add(pairs)
        self.report.alarms = [
            self._truth.example(first, second, jaccard, estimate)
            for jaccard, estimate, first, second in self._alarms
        ]
        # The most similar pairs that share no band.
        similar = self._truth.similar()
        missed = similar.where(~share_a_band(keys, similar))
        worst = np.lexsort((missed.second, missed.first, -missed.jaccard))[:_EXAMPLES]
        shown = SetPairs(missed.first[worst], missed.second[worst], missed.jaccard[worst])
        rows = zip(*(column.tolist() for column in (*shown, self._estimate(shown))), strict=True)
        self.report.misses = [self._truth.example(*row) for row in rows]
        self._add_expected()

    def _add(self, pairs: SetPairs) -> None:
        truth, report = self._truth, self.report
        estimates = self._estimate(pairs)
        weights = truth.weights(pairs)
        accepted = estimates >= truth.threshold
        similar = pairs.jaccard >= truth.threshold
        join_clusters(self.parents, pairs.first[accepted], pairs.second[accepted])
        report.candidates += int(weights.sum())
        report.refuted += int(weights[~accepted].sum())
        report.false_alarms += int(weights[accepted & ~similar].sum())
        report.lost += int(weights[similar & ~accepted].sum())
        edges = truth.edges()
        found = count_by_level(pairs.jaccard, weights, edges)
        passed = count_by_level(pairs.jaccard[accepted], weights[accepted], edges)
        for level, more, more_accepted in zip(report.levels[:-1], found, passed, strict=True):
            level.found += more
            level.accepted += more_accepted
        bars = np.minimum((pairs.jaccard * BINS).astype(np.int64), BINS - 1)
        for bar, count in enumerate(np.bincount(bars, weights=weights, minlength=BINS).tolist()):
            report.histogram[bar] += int(count)
        # The false alarms with the smallest true similarities are kept.
        columns = (pairs.jaccard, estimates, pairs.first, pairs.second)
        rows = zip(*(column[accepted & ~similar].tolist() for column in columns), strict=True)
        self._alarms = heapq.nsmallest(_EXAMPLES, [*self._alarms, *rows])

    def _add_expected(self) -> None:
        """Add to each level the number of candidates that the S-curve predicts.

        With ``b`` bands of ``r`` rows a pair of similarity ``s`` is a candidate with probability
        ``1 - (1 - s^r)^b`` (Leskovec, Rajaraman and Ullman, section 3.4.2).
        """
        truth, banding = self._truth, self.report.banding
        agreement = truth.pairs.jaccard**banding.rows
        with np.errstate(divide="ignore"):
            probability = -np.expm1(banding.bands * np.log1p(-agreement))
        weighted = probability * truth.weights(truth.pairs)
        edges = np.array(truth.edges())
        index = np.searchsorted(edges, truth.pairs.jaccard, side="right") - 1
        sums = np.bincount(index, weights=weighted, minlength=len(edges) - 1).tolist()
        for level, expected in zip(self.report.levels[:-1], sums, strict=True):
            level.expected = expected if level.pairs is not None else None
        self.report.levels[-1].expected = float(truth.copies())


def candidates(
    sets: ShingleSets, keys: U64, banding: Banding, on_progress: Progress
) -> Iterator[SetPairs]:
    """Yield the pairs of sets that share one of the band keys, ``(sets, bands)``, in portions.

    Each pair comes once; ``banding`` is named in messages.

    Raises:
        InputError: the bands would make more than :data:`MOST_PAIRS` pairs.
    """
    bands = keys.shape[1]
    total = sum(count_equal_pairs(keys[:, band]) for band in range(bands))
    if total > MOST_PAIRS:
        raise InputError(
            f"{banding} would make up to {total:,} candidate pairs; give --banding more rows, "
            "or lower --limit"
        )
    capacity = max(_PORTION, len(keys))
    for band in range(bands):
        on_progress(f"candidates of {banding}", band + 1, bands)
        order = np.argsort(keys[:, band], kind="stable")
        position = 0
        while position < len(order):
            first, second, position = pairs_of_band(keys, order, band, position, capacity)
            if len(first):
                yield SetPairs(first, second, jaccards(sets, first, second))


class Estimator:
    """Estimates the similarity of pairs of sets from their stored signatures."""

    def __init__(self, codec: SignatureCodec, sketches: Sketches) -> None:
        self.codec = codec
        self._signatures = sketches.signatures

    def __call__(self, pairs: SetPairs) -> F64:
        """Return the estimate of each pair: ``(pairs,)`` float64."""
        estimates = np.empty(len(pairs))
        order = np.argsort(pairs.first, kind="stable")
        first = pairs.first[order]
        starts = np.flatnonzero(np.diff(first, prepend=-1)).tolist()
        for start, stop in itertools.pairwise([*starts, len(first)]):
            rows = order[start:stop]
            estimates[rows] = self.codec.estimate_jaccard(
                self._signatures[first[start]], self._signatures[pairs.second[rows]]
            )
        return estimates


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
        variance = np.mean([estimate.codec.standard_error(j) ** 2 for j in pairs.jaccard[within]])
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


@kernel
def find_root(parents: I64, member: int) -> int:
    """Return the smallest member of a cluster, and shorten the path to it (union-find).

    In ``parents``, ``(sets,)``, each set leads to a smaller one, the smallest to itself.
    """
    while parents[member] != member:
        parents[member] = parents[parents[member]]
        member = parents[member]
    return member


@kernel
def join_clusters(parents: I64, first: I64, second: I64) -> None:
    """Join the clusters of each pair of sets; ``parents`` is changed in place."""
    for i in range(len(first)):
        one, two = find_root(parents, first[i]), find_root(parents, second[i])
        parents[max(one, two)] = min(one, two)


def score_clusters(parents: I64, set_of: I64, labels: Sequence[str]) -> ClusterScore:
    """Compare the clusters of sets with the labels of documents, which have the sets ``set_of``."""
    roots = np.array([find_root(parents, i) for i in range(len(parents))], dtype=np.int64)
    # Each document without text is a cluster of its own.
    clusters = len(roots) + np.arange(len(set_of))
    has_set = set_of != NO_SET
    clusters[has_set] = roots[set_of[has_set]]
    _, groups = np.unique(np.array(labels), return_inverse=True)
    labelled, joined = count_equal_pairs(groups), count_equal_pairs(clusters)
    both = count_equal_pairs(groups * (len(roots) + len(set_of)) + clusters)
    by_chance = labelled * joined / max(1, len(groups) * (len(groups) - 1) // 2)
    most = (labelled + joined) / 2
    index = (both - by_chance) / (most - by_chance) if most > by_chance else 1.0
    return ClusterScore(labelled, joined, both, index)
