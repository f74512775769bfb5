"""*Pure.* The ground truth that sketches are compared with: every similar pair of a corpus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from streamdedup.analysis.corpus import Corpus
from streamdedup.analysis.pairs import SetPairs, count_by_level
from streamdedup.analysis.report import Example, SimilarityLevel
from streamdedup.analysis.sets import ShingleSets
from streamdedup.batches import Sketches
from streamdedup.columns import I64, U64
from streamdedup.settings.sections import Settings
from streamdedup.sketch.sketcher import Sketcher

Progress = Callable[[str, int, int], None]
"""Receives the name of a step, the work done in it, and all of its work."""


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """A corpus and the exact similarities of its shingle sets.

    Attributes:
        corpus: the documents, in the order of the stream.
        sets: the distinct shingle sets.
        texts: the normalised text of each set.
        namespaces: ``(sets,)`` uint64, hashes.
        first_document: ``(sets,)`` int64, the first document that has the set.
        counts: ``(sets,)`` int64, the number of documents that have the set.
        pairs: all pairs of different sets of one namespace with a similarity of ``floor`` or more.
        threshold: similarity of a duplicate.
        floor: smallest similarity of a counted pair; at most the threshold.
        seconds: time by step.
    """

    corpus: Corpus
    sets: ShingleSets
    texts: list[str]
    namespaces: U64
    first_document: I64
    counts: I64
    pairs: SetPairs
    threshold: float
    floor: float
    seconds: dict[str, float]

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
        sketcher = Sketcher(settings.dedup.sketch_parameters())
        return sketcher.sketch(self.texts, self.namespaces)

    def example(self, first: int, second: int, jaccard: float, estimate: float) -> Example:
        """Return the first documents of two sets, in the order of the stream."""
        numbers = sorted((int(self.first_document[first]), int(self.first_document[second])))
        one, two = (self.corpus.documents[number] for number in numbers)
        return Example((one.id, two.id), (one.text, two.text), jaccard, estimate)
