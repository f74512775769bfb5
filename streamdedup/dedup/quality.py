"""*Pure.* Recall and precision, estimated; docs/internals/quality.md has the formulas.

Rule 1: figures tell of the latest one to two generations of documents. Everything is in memory.
Rule 2: a figure without data is NaN, never 1.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamdedup.batches import JudgementCounts
from streamdedup.columns import F64
from streamdedup.dedup.weights import Assumption, Weighing, Weights, missed_variances
from streamdedup.settings.dedup import DedupSettings

GENERATION = 500_000
"""Documents after which the older half of what was counted is forgotten."""

_MOST_TEXTS = 65_536  # texts of duplicates that are remembered
_NEGLIGIBLE = 1e-3
"""A duplicate that stands for fewer missed ones than this needs not be remembered."""
_MOST_RATIO = 4.0
"""Largest ratio of the shared bands to the expected ones, and of the expected ones to these."""
_LEVELS = 4  # levels of similarity from the threshold to 1


class Figure(NamedTuple):
    """An estimate and its standard error; both are NaN without data."""

    value: float
    error: float

    def with_doubts(self, *differences: float) -> Figure:
        """Add to the error what assumptions change."""
        return Figure(self.value, math.hypot(self.error, *differences))


UNKNOWN = Figure(math.nan, math.nan)
"""The figure of no data."""


class EstimateLevel(NamedTuple):
    """The pairs with an estimate from ``low`` to ``high``."""

    low: float
    high: float
    pairs: int  # those that were found
    recall: Figure  # the share of all such pairs that they are


class Sums(NamedTuple):
    """Estimated numbers of documents."""

    found: float = 0.0  # duplicates that truly repeat a kept document
    missed: float = 0.0  # kept documents that do, and share no bucket with it
    refuted: float = 0.0  # kept documents that do, and whose estimate is below the threshold
    false: float = 0.0  # duplicates that do not
    found_variance: float = 0.0  # of found
    missed_variance: float = 0.0  # of the sum of missed and refuted

    def recall(self) -> Figure:
        """Return the share of the repeats that is found."""
        kept = self.missed + self.refuted
        total = self.found + kept
        if not total > 0:
            return UNKNOWN
        variance = kept**2 * self.found_variance + self.found**2 * self.missed_variance
        return Figure(min(1.0, self.found / total), math.sqrt(variance) / total**2)

    def precision(self) -> Figure:
        """Return the share of the duplicates that is right."""
        dropped = self.found + self.false
        if not dropped > 0:
            return UNKNOWN
        return Figure(self.found / dropped, math.sqrt(self.found_variance) / dropped)


def interval(successes: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's interval of a share, ``z`` standard errors to each side; NaN for no data.

    ``(p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)`` (Wilson 1927; Brown,
    Cai and DasGupta 2001). Its width is honest also if no failure was seen.
    """
    if not count:
        return math.nan, math.nan
    share, square = successes / count, z**2 / count
    half = math.sqrt(square * (share * (1.0 - share) + square / 4.0))
    low, high = ((share + square / 2.0 + sign * half) / (1.0 + square) for sign in (-1.0, 1.0))
    return max(0.0, low), min(1.0, high)


class Figures(NamedTuple):
    """How good the verdicts are."""

    documents: int  # judged documents that the figures are about
    sums: Sums  # estimated numbers of documents
    recall: Figure  # share of the repeats of kept documents that are duplicates
    precision: Figure  # share of the duplicates that truly repeat a kept document
    pairs: EstimateLevel  # those with an estimate at the threshold or above
    levels: list[EstimateLevel]  # the same by similarity


class _Counts:
    """What was counted of judged documents; ``values`` is ``num_perm + 1``."""

    def __init__(self, values: int, classes: int, bands: int) -> None:
        self.documents = 0
        # Candidates by their number of unequal values, and those at or above the threshold.
        self.near = np.zeros(values, dtype=np.int64)
        self.accepted = np.zeros(values, dtype=np.int64)
        # Documents by the classes of their two most similar candidates.
        self.met = np.zeros((classes + 1, classes + 1), dtype=np.int64)
        # Duplicates with the text of an earlier one, by the class of the most similar candidate.
        self.repeated = np.zeros(classes + 1, dtype=np.int64)
        # Duplicates that share the band with their original, each with the number of missed ones
        # that it stands for; and as many as are expected for a band.
        self.shared = np.zeros(bands)
        self.expected = 0.0

    def add(self, other: _Counts) -> None:
        """Add other counts."""
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)

    def ratio(self) -> Figure:
        """Return how many bands pairs share, relative to the expectation.

        Pairs are not independent: a shingle that many texts have may be the minimum of a value of
        some band, for all of them. Such bands are shared more often by all pairs, or less often.
        """
        if not self.expected > 0:
            return Figure(1.0, 0.0)
        ratios = self.shared / self.expected
        bands = len(ratios)
        error = float(ratios.std(ddof=1)) / math.sqrt(bands) if bands > 1 else 0.0
        return Figure(float(np.clip(ratios.mean(), 1 / _MOST_RATIO, _MOST_RATIO)), error)

    def ratios(self) -> tuple[float, float]:
        """Return the ratio less and plus its standard error."""
        ratio, error = self.ratio()
        return max(ratio - error, 1 / _MOST_RATIO), ratio + error


class Quality:
    """Estimates recall and precision from what judgements count."""

    def __init__(self, settings: DedupSettings) -> None:
        self._weighing = Weighing(settings)
        self._bands = settings.banding().bands
        self._young, self._old = self._new_counts(), self._new_counts()
        self._texts = OrderedDict[int, None]()

    def _new_counts(self) -> _Counts:
        return _Counts(len(self._weighing.estimates), self._weighing.classes, self._bands)

    def _all_counts(self) -> _Counts:
        total = self._new_counts()
        total.add(self._old)
        total.add(self._young)
        return total

    def add(self, counts: JudgementCounts, documents: int) -> Sums:
        """Add a judgement of so many documents; return their sums by what is known until now."""
        if self._young.documents and self._young.documents + documents > GENERATION:
            self._old, self._young = self._young, self._new_counts()
        added = self._new_counts()
        added.documents = documents
        met = counts.met
        if not len(met.nearest):
            self._young.add(added)
            return Sums()
        weighing = self._weighing
        added.near += counts.by_similarity
        added.accepted += counts.accepted
        nearest = weighing.class_of[met.nearest]
        # A match that is certain to be found needs no attention.
        found = np.append(weighing.found(), 1.0)[met.nearest[:, 0]]
        stands_for = np.where(met.is_duplicate, (1.0 - found) / found, 0.0)
        is_repeated = self._repeated(met.texts, stands_for)
        np.add.at(added.met, tuple(nearest[~is_repeated].T), 1)
        added.repeated += np.bincount(nearest[is_repeated, 0], minlength=weighing.classes + 1)
        stands_for[is_repeated] = 0.0
        added.shared += stands_for @ met.shared
        added.expected += float(stands_for @ weighing.expected[nearest[:, 0]])
        self._young.add(added)
        of_all = self._all_counts()
        return self._sums(added, weighing.weights(of_all.near, self._assumed(of_all)))

    def _repeated(self, texts: NDArray[np.uint64], stands_for: F64) -> NDArray[np.bool_]:
        """Return which duplicates have the text of an earlier one that was found by chance.

        If the earlier one had been missed, it would be the original of this one, so this one is
        found in either case.
        """
        is_repeated = np.zeros(len(texts), dtype=np.bool_)
        for row in np.flatnonzero(stands_for > _NEGLIGIBLE).tolist():
            text = int(texts[row])
            is_repeated[row] = text in self._texts
            self._texts[text] = None
            self._texts.move_to_end(text)
        while len(self._texts) > _MOST_TEXTS:
            self._texts.popitem(last=False)
        return is_repeated

    def figures(self) -> Figures:
        """Return the figures over the latest one to two generations."""
        counts, weighing = self._all_counts(), self._weighing
        assumed, (least, _, most) = self._assumed(counts), weighing.scales
        low, high = counts.ratios()
        sums = self._sums(counts, weighing.weights(counts.near, assumed), is_all=True)
        doubts = [
            [self._sums(counts, weighing.weights(counts.near, each)) for each in pair]
            for pair in (
                (assumed._replace(scale=least), assumed._replace(scale=most)),
                (assumed._replace(has_slope=False), assumed),
                (assumed._replace(ratio=low), assumed._replace(ratio=high)),
            )
        ]

        def doubted(of: Callable[[Sums], Figure]) -> Figure:
            changes = ((of(one).value - of(other).value) / 2 for one, other in doubts)
            return of(sums).with_doubts(*changes)

        edges = np.linspace(weighing.threshold, 1.0, _LEVELS + 1).tolist()
        return Figures(
            counts.documents,
            sums,
            doubted(Sums.recall),
            doubted(Sums.precision),
            self._level(counts, weighing.threshold, 1.0),
            [self._level(counts, *each) for each in itertools.pairwise(edges)],
        )

    def _assumed(self, counts: _Counts) -> Assumption:
        return Assumption(self._weighing.scales[1], has_slope=True, ratio=counts.ratio().value)

    def _sums(self, counts: _Counts, weights: Weights, *, is_all: bool = False) -> Sums:
        """Return the sums of some documents, or of all of them.

        A document repeats a kept one if any of its candidates is at the threshold: one minus the
        product of the probabilities that it is not. An unbiased estimate of this product, also for
        candidates that were not found, has ``1 - true / found`` instead of ``1 - true``.
        """
        is_match, met, repeated = self._weighing.is_match, counts.met, counts.repeated
        none_true = np.outer(1.0 - weights.true, 1.0 - weights.true)
        none_expected = np.outer(*(2 * [1.0 - weights.true / weights.found]))
        right = met * (1.0 - none_true)
        found = float(right[is_match].sum() + repeated @ weights.true)
        dropped = int(met[is_match].sum() + repeated.sum())
        first = met.sum(axis=1)
        found_variance = (first + repeated) * weights.true * (1.0 - weights.true)
        missed_variance = float(first @ missed_variances(weights, is_match))
        if is_all and found > 0:
            # As if one more pair at the threshold were found: that none was seen proves little.
            hardest = self._weighing.hardest
            missed_variance += (1.0 - hardest) / hardest**2
        return Sums(
            found=found,
            missed=float((met * (none_true - none_expected)).sum()),
            refuted=float(right[~is_match].sum()),
            false=dropped - found,
            found_variance=float(found_variance[is_match].sum()),
            missed_variance=missed_variance,
        )

    def _level(self, counts: _Counts, low: float, high: float) -> EstimateLevel:
        """Return the recall of the bands among the pairs with an estimate in an interval."""
        estimates, threshold = self._weighing.estimates, self._weighing.threshold
        # The texts may have accepted a pair whose estimate is lower.
        is_in = (estimates >= low) | (low <= threshold)
        if high < 1.0:
            is_in &= estimates < high
        pairs = counts.accepted[is_in]
        count = int(pairs.sum())
        if not count:
            return EstimateLevel(low, high, 0, UNKNOWN)
        found = self._weighing.found(counts.ratio().value)[is_in]
        total = float((pairs / found).sum())
        variance = float((pairs * (1.0 - found) / found**2).sum())
        low_total, high_total = (
            float((pairs / self._weighing.found(each)[is_in]).sum()) for each in counts.ratios()
        )
        recall = Figure(count / total, count * math.sqrt(variance) / total**2)
        by_ratio = (count / low_total - count / high_total) / 2
        return EstimateLevel(low, high, count, recall.with_doubts(by_ratio))
