"""*Pure.* The nouns of an evaluation: counts, errors and scores, and the report that holds them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from streamdedup.sketch.bands import Banding

BINS = 50
"""Bars of the histogram of candidates; all have the same width."""


@dataclass(frozen=True, slots=True)
class Example:
    """Two documents that the sketches got wrong."""

    ids: tuple[str, str]
    texts: tuple[str, str]
    jaccard: float
    estimate: float


@dataclass(slots=True)
class SimilarityLevel:
    """The pairs whose true similarity lies in ``[low, high)``; copies have a level of their own.

    Attributes:
        pairs: number of such pairs; None below the floor, where they are not counted.
        found: number of them that are candidates.
        expected: number of candidates that the S-curve predicts.
        accepted: candidates whose estimate reaches the threshold.
    """

    low: float
    high: float
    pairs: int | None
    found: int = 0
    expected: float | None = None
    accepted: int = 0

    @property
    def missed(self) -> int | None:
        """Pairs that were never compared."""
        return None if self.pairs is None else self.pairs - self.found


@dataclass(frozen=True, slots=True)
class Truth:
    """Number of pairs whose true similarity lies in ``[low, high)``; copies have their own."""

    low: float
    high: float
    pairs: int


@dataclass(frozen=True, slots=True)
class Error:
    """The error of the estimate on pairs whose true similarity lies in ``[low, high)``.

    Attributes:
        pairs: number of pairs that were measured.
        bias: mean of estimate minus truth.
        deviation: root mean square of estimate minus truth.
        theory: standard error of independent permutations at these similarities.
    """

    low: float
    high: float
    pairs: int
    bias: float
    deviation: float
    theory: float


@dataclass(frozen=True, slots=True)
class DocumentScore:
    """The verdicts of a stream, scored by true similarity.

    Attributes:
        repeats: documents with an earlier kept document at or above the threshold.
        dropped: documents that were judged duplicates.
        right: documents that are both.
        named_right: dropped documents whose named original is truly that similar.
    """

    documents: int
    repeats: int
    dropped: int
    right: int
    named_right: int

    @property
    def precision(self) -> float:
        """Share of the dropped documents that repeat a kept one."""
        return self.right / self.dropped if self.dropped else 1.0

    @property
    def recall(self) -> float:
        """Share of the documents that repeat a kept one that were dropped."""
        return self.right / self.repeats if self.repeats else 1.0


@dataclass(frozen=True, slots=True)
class ClusterScore:
    """Clusters of documents that accepted pairs join, scored by labels.

    Attributes:
        labelled: pairs of documents with the same label.
        joined: pairs of documents in the same cluster.
        both: pairs with the same label and in the same cluster.
        adjusted_rand_index: agreement of labels and clusters; 0 is the agreement by chance
            (Hubert and Arabie 1985).
    """

    labelled: int
    joined: int
    both: int
    adjusted_rand_index: float

    @property
    def precision(self) -> float:
        """Share of the joined pairs that have the same label."""
        return self.both / self.joined if self.joined else 1.0

    @property
    def recall(self) -> float:
        """Share of the pairs with the same label that are joined."""
        return self.both / self.labelled if self.labelled else 1.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return 2 * self.both / max(1, self.joined + self.labelled)


@dataclass(slots=True)
class BandingReport:
    """The results of one banding.

    Attributes:
        pairs: all pairs of documents that could be compared.
        candidates: pairs that share a band.
        refuted: candidates whose estimate is below the threshold.
        false_alarms: candidates below the threshold whose estimate reaches it.
        lost: candidates at or above the threshold whose estimate is below it.
        histogram: candidates by true similarity, in :data:`BINS` bars of equal width.
        misses: the most similar pairs that share no band.
        alarms: the least similar pairs whose estimate reaches the threshold.
        documents: score of the stream.
        clusters: score by labels, if the corpus has labels.
        seconds: time that the measurement took.
    """

    banding: Banding
    num_perm: int
    pairs: int
    levels: list[SimilarityLevel]
    candidates: int = 0
    refuted: int = 0
    false_alarms: int = 0
    lost: int = 0
    histogram: list[int] = field(default_factory=lambda: [0] * BINS)
    misses: list[Example] = field(default_factory=list)
    alarms: list[Example] = field(default_factory=list)
    documents: DocumentScore | None = None
    clusters: ClusterScore | None = None
    seconds: float = 0.0

    @property
    def never_compared(self) -> float:
        """Share of all pairs that are not candidates."""
        return 1.0 - self.candidates / self.pairs if self.pairs else 1.0

    @property
    def refuted_share(self) -> float:
        """Share of the candidates that were refuted."""
        return self.refuted / self.candidates if self.candidates else 0.0


@dataclass(frozen=True, slots=True)
class UnrelatedPairs:
    """The similarity of unrelated documents, measured on random pairs below the floor.

    Attributes:
        pairs: number of random pairs.
        mean: mean similarity.
        quantiles: similarity by quantile; the names are shares such as ``0.99``.
        effective: the similarity that, if all pairs had it, would give as many random candidates as
            the measured pairs, with the rows of the proposal.
        proposal: bands and rows chosen for it.
        random_candidates: unrelated documents that a lookup finds on average with the proposal.
    """

    pairs: int
    mean: float
    quantiles: dict[str, float]
    effective: float
    proposal: Banding
    random_candidates: float


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """All results of an evaluation.

    Attributes:
        rejected: lines of the input that are not documents.
        without_shingles: documents without text.
        distinct: distinct shingle sets.
        pairs: pairs of documents that could be compared.
        floor: smallest similarity of the pairs that are counted.
        seconds: time by step.
    """

    documents: int
    rejected: int
    without_shingles: int
    distinct: int
    pairs: int
    floor: float
    threshold: float
    profile: str
    shingles: str
    variant: str
    verify: str
    corpus_documents: int
    truth: list[Truth]
    errors: list[Error]
    background: UnrelatedPairs
    bandings: list[BandingReport]
    seconds: dict[str, float]


def as_json(value: Any) -> Any:
    """Return a report, or a part of it, as JSON values: fields and properties by name."""
    if isinstance(value, Banding):
        return value._asdict()
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if not is_dataclass(value):
        return value
    properties = [name for name, item in vars(type(value)).items() if isinstance(item, property)]
    names = [*(one.name for one in fields(value)), *properties]
    return {name: as_json(getattr(value, name)) for name in names}
