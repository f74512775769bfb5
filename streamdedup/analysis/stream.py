"""*Blocking* (uses an index on disk). The verdicts of a stream, scored by true similarity."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamdedup.analysis.corpus import Corpus
from streamdedup.analysis.join import jaccards
from streamdedup.analysis.report import DocumentScore
from streamdedup.analysis.sets import NO_SET
from streamdedup.analysis.truth import GroundTruth, Progress
from streamdedup.columns import I64
from streamdedup.engine.deduplicator import Deduplicator
from streamdedup.model import Outcome
from streamdedup.settings.sections import Settings

_BATCH = 1000
_KEPT = -1


def judge(corpus: Corpus, settings: Settings, on_progress: Progress) -> I64:
    """Judge the documents in order.

    Returns:
        ``(documents,)`` int64: the original of each dropped document, -1 for the others.
    """
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


def score(truth: GroundTruth, originals: I64) -> DocumentScore:
    """Score the verdicts.

    Args:
        truth: the corpus.
        originals: ``(documents,)`` int64, see :func:`judge`.
    """
    set_of = truth.sets.set_of
    dropped = originals != _KEPT
    repeats = _repeats(truth, dropped)
    duplicate, original = set_of[dropped], set_of[originals[dropped]]
    comparable = (duplicate != NO_SET) & (original != NO_SET)
    named = jaccards(truth.sets, duplicate[comparable], original[comparable])
    return DocumentScore(
        documents=len(originals),
        repeats=int(np.count_nonzero(repeats)),
        dropped=int(np.count_nonzero(dropped)),
        right=int(np.count_nonzero(repeats & dropped)),
        named_right=int(np.count_nonzero(named >= truth.threshold)),
    )


def _repeats(truth: GroundTruth, dropped: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which documents truly have an earlier kept document at or above the threshold."""
    set_of = truth.sets.set_of
    has_set = set_of != NO_SET
    never = len(dropped)
    kept = np.flatnonzero(~dropped & has_set)
    first_kept = np.full(len(truth.sets), never, dtype=np.int64)
    np.minimum.at(first_kept, set_of[kept], kept)
    earliest = first_kept.copy()
    similar = truth.similar()
    np.minimum.at(earliest, similar.first, first_kept[similar.second])
    np.minimum.at(earliest, similar.second, first_kept[similar.first])
    repeats = np.zeros(len(dropped), dtype=np.bool_)
    repeats[has_set] = earliest[set_of[has_set]] < np.flatnonzero(has_set)
    return repeats
