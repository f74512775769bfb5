"""*Blocking* (one thread per core). Computes the ground truth: the exact join of a corpus."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import numpy as np

from streamdedup.analysis.corpus import Corpus
from streamdedup.analysis.join import join
from streamdedup.analysis.pairs import MOST_PAIRS, SetPairs
from streamdedup.analysis.sets import I32, NO_SET, ShingleSets, collect
from streamdedup.analysis.truth import GroundTruth, Progress
from streamdedup.columns import I64
from streamdedup.errors import InputError
from streamdedup.settings.sections import Settings
from streamdedup.sketch.sketcher import Sketcher, namespace_hash

_SETS_PER_CALL = 256
"""Sets that one call of the kernel finds the partners of."""


class TooManyPairs(Exception):  # noqa: N818 - names the condition
    """There are more similar pairs than the caller accepts."""


def measure_truth(
    corpus: Corpus, settings: Settings, floor: float, on_progress: Progress
) -> GroundTruth:
    """Collect the shingle sets of a corpus and join them exactly.

    Args:
        corpus: the documents.
        settings: how texts are normalised and cut into shingles, and the threshold.
        floor: smallest similarity of a counted pair; lowered to the threshold.
        on_progress: receives the progress of the join.

    Raises:
        InputError: there are more than :data:`MOST_PAIRS` similar pairs.
    """
    started = perf_counter()
    parameters = settings.dedup.sketch_parameters()
    floor = min(floor, settings.dedup.threshold)
    normalised = Sketcher(parameters).normalise([document.text for document in corpus.documents])
    namespaces = np.array(
        [namespace_hash(document.namespace) for document in corpus.documents], dtype=np.uint64
    )
    sets = collect(normalised, namespaces, parameters.shingling())
    collected = perf_counter()
    first_document = _first_documents(sets)
    namespaces = namespaces[first_document]
    pairs = _join(sets, floor, on_progress)
    pairs = pairs.where(namespaces[pairs.first] == namespaces[pairs.second])
    return GroundTruth(
        corpus=corpus,
        sets=sets,
        texts=[normalised[document] for document in first_document.tolist()],
        namespaces=namespaces,
        first_document=first_document,
        counts=np.bincount(sets.set_of[sets.set_of != NO_SET], minlength=len(sets)),
        pairs=pairs,
        threshold=settings.dedup.threshold,
        floor=floor,
        seconds={"shingles": collected - started, "join": perf_counter() - collected},
    )


def _join(sets: ShingleSets, floor: float, on_progress: Progress) -> SetPairs:
    def report(done: int, total: int) -> None:
        on_progress("exact similarities", done, total)

    try:
        return similar_pairs(sets, floor, MOST_PAIRS, report)
    except TooManyPairs:
        raise InputError(
            f"more than {MOST_PAIRS:,} pairs have a similarity of {floor:g} or more; "
            "raise --floor or lower --limit"
        ) from None


def _first_documents(sets: ShingleSets) -> I64:
    """Return the first document of each set: ``(sets,)`` int64."""
    documents = np.flatnonzero(sets.set_of != NO_SET)
    _, first = np.unique(sets.set_of[documents], return_index=True)
    return documents[first]


def similar_pairs(
    sets: ShingleSets,
    floor: float,
    most: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> SetPairs:
    """Find every pair of different sets with at least this Jaccard similarity.

    Args:
        sets: the indexed sets.
        floor: smallest similarity, in (0, 1].
        most: number of pairs that the caller accepts.
        on_progress: called with the number of sets done and the number of all sets.

    Raises:
        TooManyPairs: there are more pairs than ``most``.
    """
    ends = range(_SETS_PER_CALL, len(sets) + _SETS_PER_CALL, _SETS_PER_CALL)
    parts = [np.empty((0, 3), dtype=np.int32)]
    count = 0

    def join_until(end: int) -> I32:
        return join(sets, floor, end - _SETS_PER_CALL, min(end, len(sets)))

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        for end, part in zip(ends, threads.map(join_until, ends), strict=True):
            count += len(part)
            if count > most:
                threads.shutdown(wait=True, cancel_futures=True)
                raise TooManyPairs
            parts.append(part)
            if on_progress is not None:
                on_progress(min(end, len(sets)), len(sets))
    larger, smaller, overlap = np.concatenate(parts).astype(np.int64).T
    return SetPairs(smaller, larger, overlap / (sets.sizes[smaller] + sets.sizes[larger] - overlap))
