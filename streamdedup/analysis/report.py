"""*Pure.* The nouns of an evaluation: counts, errors and scores, and the report that holds them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from streamdedup.sketch.bands import Banding

BINS = 50
"""Bars of the histogram of candidates; all have the same width."""


@dataclass(frozen=True, slots=True)
class Example:
    """Two documents near the threshold, or that the sketches got wrong."""

    ids: tuple[str, str]
    texts: tuple[str, str]
    jaccard: float
    estimate: float


@dataclass(slots=True)
class SimilarityLevel:
    """The pairs whose true similarity lies in ``[low, high)``; copies have their own."""

    low: float
    high: float
    pairs: int | None  # None below the floor, where they are not counted
    found: int = 0  # candidates
    expected: float | None = None  # candidates that the S-curve predicts
    accepted: int = 0  # candidates whose estimate reaches the threshold

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
    """The error of the estimate on pairs whose true similarity lies in ``[low, high)``."""

    low: float
    high: float
    pairs: int  # that were measured
    bias: float  # mean of estimate minus truth
    deviation: float  # root mean square of estimate minus truth
    theory: float  # standard error of independent permutations at these similarities


@dataclass(frozen=True, slots=True)
class DocumentScore:
    """The verdicts of a stream, scored by true similarity."""

    documents: int
    repeats: int  # with an earlier kept document at or above the threshold
    dropped: int  # judged duplicates
    right: int  # both
    named_right: int  # dropped ones whose named original is truly that similar

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

    The adjusted Rand index is the agreement of both; 0 is that by chance (Hubert and Arabie 1985).
    """

    labelled: int  # pairs of documents with the same label
    joined: int  # pairs of documents in the same cluster
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
    """The results of one banding."""

    banding: Banding
    num_perm: int
    pairs: int  # of documents that could be compared
    levels: list[SimilarityLevel]
    candidates: int = 0  # pairs that share a band
    refuted: int = 0  # candidates whose estimate is below the threshold
    false_alarms: int = 0  # candidates below the threshold whose estimate reaches it
    lost: int = 0  # candidates at or above the threshold whose estimate is below it
    histogram: list[int] = field(default_factory=lambda: [0] * BINS)  # by true similarity
    misses: list[Example] = field(default_factory=list)  # the most similar without a common band
    alarms: list[Example] = field(default_factory=list)  # the least similar that were accepted
    documents: DocumentScore | None = None  # of the stream
    clusters: ClusterScore | None = None  # if the corpus has labels
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

    If all pairs had the *effective* similarity, they would give as many random candidates as the
    measured pairs, with the rows of the proposal.
    """

    pairs: int
    mean: float
    quantiles: dict[str, float]  # the names are shares such as 0.99
    effective: float
    proposal: Banding
    random_candidates: float  # unrelated documents that a lookup finds on average by the proposal


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """All results of an evaluation."""

    documents: int
    rejected: int  # lines of the input that are not documents
    without_shingles: int  # documents without text
    distinct: int  # shingle sets
    pairs: int  # of documents that could be compared
    floor: float  # smallest similarity of the pairs that are counted
    threshold: float
    profile: str
    shingles: str
    variant: str
    verify: str
    corpus_documents: int
    valley: tuple[float, float] | None  # similarities of few pairs, between others with more
    above: list[Example]  # the least similar pairs at or above the threshold
    below: list[Example]  # the most similar pairs below it
    truth: list[Truth]
    errors: list[Error]
    background: UnrelatedPairs
    bandings: list[BandingReport]
    seconds: dict[str, float]  # by step


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
