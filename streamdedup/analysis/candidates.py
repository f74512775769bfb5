"""*Pure.* The candidate pairs of one banding, counted by their true similarity.

Rule 1: texts with the same shingle set are one set while candidates are searched for. Each pair of
sets counts as all of its pairs of documents, so many copies of a text cost nothing.
Rule 2: candidates are processed in portions; memory never holds all pairs of a corpus.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from streamdedup.analysis.clusters import join_clusters
from streamdedup.analysis.estimates import Estimator
from streamdedup.analysis.join import jaccards
from streamdedup.analysis.pairs import (
    F64,
    MOST_PAIRS,
    SetPairs,
    count_by_level,
    count_equal_pairs,
    pairs_of_band,
    share_a_band,
)
from streamdedup.analysis.report import BINS, BandingReport, Example
from streamdedup.analysis.sets import ShingleSets
from streamdedup.analysis.truth import GroundTruth, Progress
from streamdedup.columns import I64, U64
from streamdedup.errors import InputError
from streamdedup.sketch.bands import Banding

_PORTION = 1_000_000
"""Pairs that are processed at a time."""
_EXAMPLES = 5
"""Misses and false alarms that a report shows."""


class CandidateCount:
    """Counts the candidates of one banding into its report.

    Attributes:
        report: the report.
        parents: ``(sets,)`` int64, the clusters that accepted candidates join.

    Args:
        truth: the corpus.
        estimate: estimates the similarity of pairs.
        banding: bands and rows.
        num_perm: values of a signature.
    """

    def __init__(
        self, truth: GroundTruth, estimate: Estimator, banding: Banding, num_perm: int
    ) -> None:
        self._truth = truth
        self._estimate = estimate
        self._alarms: list[tuple[float, float, int, int]] = []
        self.parents: I64 = np.arange(len(truth.sets))
        self.report = BandingReport(banding, num_perm, truth.comparable_pairs(), truth.levels())

    def run(self, keys: U64, on_progress: Progress) -> None:
        """Count all candidates.

        Args:
            keys: ``(sets, bands)`` uint64, the band keys.
            on_progress: receives the number of bands done.

        Raises:
            InputError: there are too many candidates.
        """
        self._add_copies()
        for pairs in candidates(self._truth.sets, keys, self.report.banding, on_progress):
            self._add(pairs)
        self.report.alarms = [
            self._truth.example(first, second, jaccard, estimate)
            for jaccard, estimate, first, second in self._alarms
        ]
        self.report.misses = self._misses(keys)
        self._add_expected()

    def _add_copies(self) -> None:
        """Copies share all bands and have an estimate of 1."""
        copies = self._truth.copies()
        self.report.candidates += copies
        self.report.histogram[-1] += copies
        last = self.report.levels[-1]
        last.found = last.accepted = copies

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
        self._add_alarms(pairs.where(accepted & ~similar), estimates[accepted & ~similar])

    def _add_alarms(self, pairs: SetPairs, estimates: F64) -> None:
        """Keep the false alarms with the smallest true similarities."""
        columns = (pairs.jaccard, estimates, pairs.first, pairs.second)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        self._alarms = heapq.nsmallest(_EXAMPLES, [*self._alarms, *rows])

    def _misses(self, keys: U64) -> list[Example]:
        """Return the most similar pairs that share no band."""
        similar = self._truth.similar()
        missed = similar.where(~share_a_band(keys, similar))
        worst = np.lexsort((missed.second, missed.first, -missed.jaccard))[:_EXAMPLES]
        shown = SetPairs(missed.first[worst], missed.second[worst], missed.jaccard[worst])
        rows = zip(*(column.tolist() for column in (*shown, self._estimate(shown))), strict=True)
        return [self._truth.example(*row) for row in rows]

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
    """Yield the pairs of sets that share a band, each pair once, in portions.

    Args:
        sets: the sets.
        keys: ``(sets, bands)`` uint64, the band keys.
        banding: named in messages.
        on_progress: receives the number of bands done.

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
