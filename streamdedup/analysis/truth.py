"""*Blocking* (one thread per core). The ground truth: every similar pair of a corpus."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from streamdedup.analysis.corpus import Corpus
from streamdedup.analysis.report import Example, SimilarityLevel
from streamdedup.analysis.sets import (
    I32,
    MOST_PAIRS,
    NO_SET,
    SetPairs,
    ShingleSets,
    collect,
    count_by_level,
    join,
)
from streamdedup.batches import Sketches
from streamdedup.columns import I64, U64
from streamdedup.errors import InputError
from streamdedup.settings.sections import Settings
from streamdedup.sketch.sketcher import Sketcher, namespace_hash

Progress = Callable[[str, int, int], None]
"""Receives the name of a step, the work done in it, and all of its work."""
_SETS_PER_CALL = 256  # sets that one call of the kernel finds the partners of


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """A corpus and the exact similarities of its shingle sets."""

    corpus: Corpus
    sets: ShingleSets
    texts: list[str]  # normalised, of each set
    namespaces: U64  # (sets,), hashes
    first_document: I64  # (sets,), the first document that has the set
    counts: I64  # (sets,), the number of documents that have the set
    pairs: SetPairs  # different sets of one namespace with a similarity of floor or more
    threshold: float
    floor: float  # smallest similarity of a counted pair; at most the threshold
    seconds: dict[str, float]  # by step

    def similar(self) -> SetPairs:
        """Return the pairs of different sets at or above the threshold."""
        return self.pairs.where(self.pairs.jaccard >= self.threshold)

    def weights(self, pairs: SetPairs) -> I64:
        """Return the number of document pairs behind each pair of sets: ``(pairs,)`` int64."""
        return np.asarray(self.counts[pairs.first] * self.counts[pairs.second], dtype=np.int64)

    def comparable_pairs(self) -> int:
        """Count the pairs of documents of one namespace that have shingles to compare."""
        _, namespace = np.unique(self.namespaces, return_inverse=True)
        sizes = np.bincount(namespace, weights=self.counts).astype(np.int64)
        return int((sizes * (sizes - 1) // 2).sum())

    def copies(self) -> int:
        """Count the pairs of documents with the same shingle set."""
        return int((self.counts * (self.counts - 1) // 2).sum())

    def edges(self) -> list[float]:
        """Return the bounds of the levels: tenths, the floor and the threshold."""
        tenths = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
        return sorted({*tenths, self.floor, self.threshold})

    def levels(self) -> list[SimilarityLevel]:
        """Return the levels with their numbers of pairs; the last level is that of copies."""
        edges = self.edges()
        counts = count_by_level(self.pairs.jaccard, self.weights(self.pairs), edges)
        levels = [
            SimilarityLevel(low, high, count if low >= self.floor else None)
            for low, high, count in zip(edges, edges[1:], counts, strict=False)
        ]
        return [*levels, SimilarityLevel(1.0, 1.0, self.copies())]

    def sketch(self, settings: Settings) -> Sketches:
        """Sketch the text of each set."""
        return Sketcher(settings.dedup.sketch_parameters()).sketch(self.texts, self.namespaces)

    def example(self, first: int, second: int, jaccard: float, estimate: float) -> Example:
        """Return the first documents of two sets, in the order of the stream."""
        numbers = sorted((int(self.first_document[first]), int(self.first_document[second])))
        one, two = (self.corpus.documents[number] for number in numbers)
        return Example((one.id, two.id), (one.text, two.text), jaccard, estimate)


def measure_truth(
    corpus: Corpus, settings: Settings, floor: float, on_progress: Progress
) -> GroundTruth:
    """Collect the shingle sets of a corpus and join them exactly.

    Pairs below ``floor`` are not counted; it is lowered to the threshold.

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
    documents = np.flatnonzero(sets.set_of != NO_SET)
    _, first = np.unique(sets.set_of[documents], return_index=True)
    first_document = documents[first]
    namespaces = namespaces[first_document]
    pairs = similar_pairs(sets, floor, MOST_PAIRS, on_progress)
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


def similar_pairs(
    sets: ShingleSets, floor: float, most: int, on_progress: Progress | None = None
) -> SetPairs:
    """Find every pair of different sets with at least this Jaccard similarity, in (0, 1].

    An InputError says that there are more than ``most``.
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
                raise InputError(
                    f"more than {most:,} pairs have a similarity of {floor:g} or more; "
                    "raise --floor or lower --limit"
                )
            parts.append(part)
            if on_progress is not None:
                on_progress("exact similarities", min(end, len(sets)), len(sets))
    larger, smaller, overlap = np.concatenate(parts).astype(np.int64).T
    return SetPairs(smaller, larger, overlap / (sets.sizes[smaller] + sets.sizes[larger] - overlap))
