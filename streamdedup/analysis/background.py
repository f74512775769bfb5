"""*Pure.* The similarity of unrelated documents, and the bands that follow from it."""

from __future__ import annotations

import numpy as np

from streamdedup.analysis.join import jaccards
from streamdedup.analysis.pairs import F64
from streamdedup.analysis.report import UnrelatedPairs
from streamdedup.analysis.sets import NO_SET
from streamdedup.analysis.truth import GroundTruth
from streamdedup.settings.dedup import DedupSettings
from streamdedup.sketch.bands import choose_bands

_RANDOM_PAIRS = 200_000
_QUANTILES = (0.5, 0.9, 0.99, 0.999)
_SMALLEST = 1e-6
"""Background similarity that is assumed if the measured one is smaller."""
_ROUNDS = 3
"""Rounds of choosing rows; the effective similarity depends slightly on the rows."""


def measure_background(truth: GroundTruth, dedup: DedupSettings) -> UnrelatedPairs:
    """Measure the similarity of random pairs, and choose bands for it."""
    sample = _random_similarities(truth)
    rows = dedup.banding().rows
    for _ in range(_ROUNDS):
        effective = max(_SMALLEST, float(np.mean(sample**rows) ** (1 / rows)))
        proposal = choose_bands(
            dedup.threshold, dedup.recall, dedup.num_perm, dedup.corpus_documents, effective
        )
        rows = proposal.rows
    return UnrelatedPairs(
        pairs=len(sample),
        mean=float(sample.mean()),
        quantiles={f"{q:g}": float(np.quantile(sample, q)) for q in _QUANTILES},
        effective=effective,
        proposal=proposal,
        random_candidates=proposal.random_candidates(dedup.corpus_documents, effective),
    )


def _random_similarities(truth: GroundTruth) -> F64:
    """Return the similarities of random pairs of documents that lie below the floor."""
    documents = np.flatnonzero(truth.sets.set_of != NO_SET)
    if len(documents) < 2:  # noqa: PLR2004 - a pair
        return np.zeros(1)
    random = np.random.default_rng(1)
    first, second = truth.sets.set_of[random.choice(documents, (2, _RANDOM_PAIRS))]
    similarities = jaccards(truth.sets, first, second)
    below: F64 = similarities[similarities < truth.floor]
    return below if len(below) else np.zeros(1)
