"""*Blocking* (computes on all cores, and judges with an index on disk). Evaluates the sketches.

The exact similarity of every pair is computed first, over the same shingles. Each banding is then
compared with it: the pairs that become candidates, their estimates, and the verdicts of a stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from streamdedup.analysis import stream
from streamdedup.analysis.background import measure_background
from streamdedup.analysis.candidates import CandidateCount
from streamdedup.analysis.clusters import score_clusters
from streamdedup.analysis.corpus import Corpus
from streamdedup.analysis.estimates import Estimator, estimate_errors
from streamdedup.analysis.exact import measure_truth
from streamdedup.analysis.report import BandingReport, EvaluationReport, Truth
from streamdedup.analysis.sets import NO_SET
from streamdedup.analysis.truth import GroundTruth, Progress
from streamdedup.settings.sections import Settings
from streamdedup.sketch.bands import Banding
from streamdedup.sketch.codec import SignatureCodec


def evaluate(
    corpus: Corpus,
    settings: Settings,
    bandings: Sequence[Banding],
    floor: float = 0.5,
    on_progress: Progress | None = None,
) -> EvaluationReport:
    """Compare the sketches of a corpus with the exact similarities.

    Args:
        corpus: the documents, in the order of the stream.
        settings: how documents are compared.
        bandings: the bandings to evaluate.
        floor: pairs below this similarity are not counted; lowered to the threshold.
        on_progress: receives the name of the current step and its progress.

    Raises:
        InputError: there are too many similar pairs or candidates.
    """
    report_progress = on_progress or (lambda _step, _done, _total: None)
    truth = measure_truth(corpus, settings, floor, report_progress)
    dedup = settings.dedup
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
        truth=[
            Truth(level.low, level.high, level.pairs)
            for level in truth.levels()
            if level.pairs is not None
        ],
        errors=estimate_errors(truth, _estimator(truth, settings)),
        background=measure_background(truth, dedup),
        bandings=[_of_banding(truth, settings, one, report_progress) for one in bandings],
        seconds={name: round(value, 3) for name, value in truth.seconds.items()},
    )


def _of_banding(
    truth: GroundTruth, settings: Settings, banding: Banding, on_progress: Progress
) -> BandingReport:
    started = perf_counter()
    settings = _with_banding(settings, banding)
    sketches = truth.sketch(settings)
    estimate = Estimator(SignatureCodec.of(settings.dedup.sketch_parameters()), sketches)
    count = CandidateCount(truth, estimate, banding, settings.dedup.num_perm)
    # The last column is the key of exact copies.
    count.run(sketches.band_keys[:, :-1], on_progress)
    report = count.report
    if truth.corpus.labels is not None:
        report.clusters = score_clusters(count.parents, truth.sets.set_of, truth.corpus.labels)
    report.documents = stream.score(truth, stream.judge(truth.corpus, settings, on_progress))
    report.seconds = perf_counter() - started
    return report


def _estimator(truth: GroundTruth, settings: Settings) -> Estimator:
    codec = SignatureCodec.of(settings.dedup.sketch_parameters())
    return Estimator(codec, truth.sketch(settings))


def _with_banding(settings: Settings, banding: Banding) -> Settings:
    """Return the settings with this banding, and with at least as many values as it takes."""
    update = {
        "bands": banding.bands,
        "rows": banding.rows,
        "num_perm": max(settings.dedup.num_perm, banding.values),
    }
    return settings.model_copy(update={"dedup": settings.dedup.model_copy(update=update)})
