"""*Blocking* (computes on all cores, and judges with an index on disk). Evaluates the sketches.

The exact similarity of every pair is computed first, over the same shingles. Each banding is then
compared with it: the pairs that become candidates, their estimates, and the verdicts of a stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from streamdedup.analysis.candidates import (
    CandidateCount,
    Estimator,
    estimate_errors,
    score_clusters,
)
from streamdedup.analysis.corpus import Corpus
from streamdedup.analysis.report import (
    BandingReport,
    DocumentScore,
    EvaluationReport,
    Example,
    Truth,
    UnrelatedPairs,
)
from streamdedup.analysis.sets import NO_SET, SetPairs, jaccards
from streamdedup.analysis.truth import GroundTruth, Progress, measure_truth
from streamdedup.columns import F64, I64
from streamdedup.engine.deduplicator import Deduplicator
from streamdedup.model import Outcome
from streamdedup.settings.dedup import DedupSettings
from streamdedup.settings.sections import Settings
from streamdedup.sketch.bands import Banding, choose_bands
from streamdedup.sketch.codec import SignatureCodec

_EXAMPLES = 5  # pairs on each side of the threshold that a report shows
_STEPS = 20  # bars of the histogram in which a valley is looked for
_ROUNDING = 1e-9  # added before rounding down: 0.29 * 100 is a little less than 29
_RANDOM_PAIRS = 200_000
_QUANTILES = (0.5, 0.9, 0.99, 0.999)
_SMALLEST = 1e-6  # background similarity that is assumed if the measured one is smaller
_ROUNDS = 3  # rounds of choosing rows; the effective similarity depends slightly on the rows
_BATCH = 1000
_KEPT = -1


def evaluate(
    corpus: Corpus,
    settings: Settings,
    bandings: Sequence[Banding],
    floor: float = 0.5,
    on_progress: Progress | None = None,
) -> EvaluationReport:
    """Compare the sketches of a corpus with the exact similarities.

    Pairs with a similarity below ``floor``, which is lowered to the threshold, are not counted.

    Raises:
        InputError: there are too many similar pairs or candidates.
    """
    report_progress = on_progress or (lambda _step, _done, _total: None)
    truth = measure_truth(corpus, settings, floor, report_progress)
    dedup = settings.dedup
    codec = SignatureCodec.of(dedup.sketch_parameters())
    estimate = Estimator(codec, truth.sketch(settings))
    return EvaluationReport(
        documents=len(corpus),
        rejected=corpus.rejected,
        without_shingles=int(np.count_nonzero(truth.sets.set_of == NO_SET)),
        distinct=len(truth.sets),
        pairs=truth.comparable_pairs(),
        floor=truth.floor,
        threshold=truth.threshold,
        profile=dedup.profile if isinstance(dedup.profile, str) else ", ".join(dedup.profile),
        shingles=f"{dedup.shingle_size} {dedup.shingle_unit}s",
        variant=dedup.variant,
        verify=dedup.verify,
        corpus_documents=dedup.corpus_documents,
        valley=find_valley(truth.pairs.jaccard, truth.floor),
        above=_nearest(truth, estimate, truth.pairs.jaccard >= truth.threshold),
        below=_nearest(truth, estimate, truth.pairs.jaccard < truth.threshold),
        truth=[
            Truth(level.low, level.high, level.pairs)
            for level in truth.levels()
            if level.pairs is not None
        ],
        errors=estimate_errors(truth, estimate),
        background=_background(truth, dedup),
        bandings=[_of_banding(truth, settings, one, report_progress) for one in bandings],
        seconds={name: round(value, 3) for name, value in truth.seconds.items()},
    )


def find_valley(similarities: F64, floor: float) -> tuple[float, float] | None:
    """Return the bounds of the valley of a histogram of similarities, or None without a valley.

    The pairs from ``floor`` to 1 are counted in steps of 0.05. A valley has significantly fewer
    pairs than one step below it and one above it: by two standard errors of the difference. Of
    several, the lowest is returned, with equal steps beside it.
    """
    first = round(np.ceil(floor * _STEPS - _ROUNDING))
    steps = np.minimum((similarities * _STEPS + _ROUNDING).astype(np.int64), _STEPS - 1)
    counts = np.bincount(steps, minlength=_STEPS)[first:]
    if len(counts) < 3:  # noqa: PLR2004 - a valley and its two sides
        return None
    left, right = np.maximum.accumulate(counts), np.maximum.accumulate(counts[::-1])[::-1]
    side = np.minimum(left, right)
    is_valley = side - counts > 2 * np.sqrt(side + counts)
    if not is_valley.any():
        return None
    low = high = int(np.where(is_valley, counts, counts.max() + 1).argmin())
    while counts[high + 1] == counts[low]:
        high += 1
    return (first + low) / _STEPS, (first + high + 1) / _STEPS


def _nearest(truth: GroundTruth, estimate: Estimator, side: NDArray[np.bool_]) -> list[Example]:
    """Return the pairs on one side of the threshold that are nearest to it, nearest first."""
    pairs = truth.pairs.where(side)
    distance = np.abs(pairs.jaccard - truth.threshold)
    nearest = np.lexsort((pairs.second, pairs.first, distance))[:_EXAMPLES]
    shown = SetPairs(pairs.first[nearest], pairs.second[nearest], pairs.jaccard[nearest])
    rows = zip(*(column.tolist() for column in (*shown, estimate(shown))), strict=True)
    return [truth.example(*row) for row in rows]


def _of_banding(
    truth: GroundTruth, settings: Settings, banding: Banding, on_progress: Progress
) -> BandingReport:
    started = perf_counter()
    # At least as many values as the banding takes.
    update = {
        "bands": banding.bands,
        "rows": banding.rows,
        "num_perm": max(settings.dedup.num_perm, banding.values),
    }
    dedup = settings.dedup.model_copy(update=update)
    settings = settings.model_copy(update={"dedup": dedup})
    sketches = truth.sketch(settings)
    estimate = Estimator(SignatureCodec.of(settings.dedup.sketch_parameters()), sketches)
    count = CandidateCount(truth, estimate, banding, settings.dedup.num_perm)
    # The last column is the key of exact copies.
    count.run(sketches.band_keys[:, :-1], on_progress)
    report = count.report
    if truth.corpus.labels is not None:
        report.clusters = score_clusters(count.parents, truth.sets.set_of, truth.corpus.labels)
    report.documents = _score(truth, _judge(truth.corpus, settings, on_progress))
    report.seconds = perf_counter() - started
    return report


def _background(truth: GroundTruth, dedup: DedupSettings) -> UnrelatedPairs:
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


def _judge(corpus: Corpus, settings: Settings, on_progress: Progress) -> I64:
    """Judge the documents in order; return the original of each, -1 for a kept one."""
    documents = corpus.documents
    originals = np.full(len(documents), _KEPT, dtype=np.int64)
    with Deduplicator(settings) as deduplicator:
        for start in range(0, len(documents), _BATCH):
            on_progress("judging documents", start, len(documents))
            verdicts = deduplicator.process(documents[start : start + _BATCH])
            for number, verdict in enumerate(verdicts, start):
                if verdict.outcome is Outcome.DUPLICATE and verdict.original is not None:
                    originals[number] = verdict.original.position.offset
    return originals


def _score(truth: GroundTruth, originals: I64) -> DocumentScore:
    set_of = truth.sets.set_of
    dropped = originals != _KEPT
    repeats = _repeats(truth, dropped)
    duplicate, original = set_of[dropped], set_of[originals[dropped]]
    comparable = (duplicate != NO_SET) & (original != NO_SET)
    named = jaccards(truth.sets, duplicate[comparable], original[comparable])
    return DocumentScore(
        len(originals),
        repeats=int(np.count_nonzero(repeats)),
        dropped=int(np.count_nonzero(dropped)),
        right=int(np.count_nonzero(repeats & dropped)),
        named_right=int(np.count_nonzero(named >= truth.threshold)),
    )


def _repeats(truth: GroundTruth, dropped: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which documents truly have an earlier kept document at or above the threshold."""
    set_of = truth.sets.set_of
    has_set = set_of != NO_SET
    kept = np.flatnonzero(~dropped & has_set)
    first_kept = np.full(len(truth.sets), len(dropped), dtype=np.int64)  # never
    np.minimum.at(first_kept, set_of[kept], kept)
    earliest = first_kept.copy()
    similar = truth.similar()
    np.minimum.at(earliest, similar.first, first_kept[similar.second])
    np.minimum.at(earliest, similar.second, first_kept[similar.first])
    repeats = np.zeros(len(dropped), dtype=np.bool_)
    repeats[has_set] = earliest[set_of[has_set]] < np.flatnonzero(has_set)
    return repeats
