"""*Pure.* The nouns of an evaluation: truth, scores and the report that holds them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from streamdedup.sketch.bands import Banding

BINS = 50
"""Bars of the histogram of candidates, each as wide as the others."""


@dataclass(frozen=True, slots=True)
class Example:
    """Two documents of which the sketches say something wrong."""

    ids: tuple[str, str]
    texts: tuple[str, str]
    jaccard: float
    estimate: float


@dataclass(slots=True)
class Level:
    """What became of the pairs whose true similarity lies in ``[low, high)``; 1 has its own level.

    Attributes:
        pairs: how many there are; None below the floor, where they are not counted.
        found: how many of them were candidates.
        expected: how many the S-curve lets expect.
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
    """How many pairs have a true similarity in ``[low, high)``; 1 has its own level."""

    low: float
    high: float
    pairs: int


@dataclass(frozen=True, slots=True)
class Error:
    """The error of the estimate on pairs whose true similarity lies in ``[low, high)``.

    Attributes:
        deviation: root mean square of the error.
        theory: what independent permutations would have at these similarities.
    """

    low: float
    high: float
    pairs: int
    bias: float
    deviation: float
    theory: float


@dataclass(frozen=True, slots=True)
class DocumentScore:
    """What the stream did with the documents, held against their true similarity.

    Attributes:
        repeats: documents with an earlier kept one at or above the threshold.
        dropped: documents that were judged duplicates.
        right: documents that are both.
        named_right: dropped documents whose named original really is that similar.
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
    """Documents joined by accepted pairs, held against the groups that people made.

    Attributes:
        labelled: pairs of documents in one group.
        joined: pairs of documents in one cluster.
        both: pairs that are in one group and in one cluster.
        adjusted_rand_index: agreement of groups and clusters; 0 is that of chance (Hubert and
            Arabie 1985).
    """

    labelled: int
    joined: int
    both: int
    adjusted_rand_index: float

    @property
    def precision(self) -> float:
        """Share of the joined pairs that people put together."""
        return self.both / self.joined if self.joined else 1.0

    @property
    def recall(self) -> float:
        """Share of the pairs that people put together that are joined."""
        return self.both / self.labelled if self.labelled else 1.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return 2 * self.both / max(1, self.joined + self.labelled)


@dataclass(slots=True)
class BandingReport:
    """What one way to cut the signatures did.

    Attributes:
        pairs: all pairs of documents that could be compared.
        candidates: pairs that share a band.
        refuted: candidates whose estimate is below the threshold.
        false_alarms: candidates whose estimate reaches the threshold, and that are below it.
        lost: candidates at or above the threshold that the estimate takes for less.
        histogram: candidates by true similarity, in :data:`BINS` equal bars.
        misses: the most similar pairs that share no band.
        alarms: the least similar pairs whose estimate reaches the threshold.
        clusters: where the corpus has labels.
    """

    banding: Banding
    num_perm: int
    pairs: int
    levels: list[Level]
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
        """Share of all pairs that are no candidates."""
        return 1.0 - self.candidates / self.pairs if self.pairs else 1.0

    @property
    def refuted_share(self) -> float:
        """Share of the candidates that were compared in vain."""
        return self.refuted / self.candidates if self.candidates else 0.0


@dataclass(frozen=True, slots=True)
class Background:
    """How similar unrelated documents are, from random pairs below the floor.

    Attributes:
        mean: of their similarity.
        quantiles: the similarity that such a share of them stays below.
        effective: the one similarity that, were all pairs so similar, would give as many random
            candidates as the real ones do, with the rows of the proposal.
        proposal: the bands that follow from it.
        random_candidates: unrelated documents that a lookup would meet with these.
    """

    pairs: int
    mean: float
    quantiles: dict[str, float]
    effective: float
    proposal: Banding
    random_candidates: float


@dataclass(frozen=True, slots=True)
class Report:
    """All that was found out about a corpus."""

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
    background: Background
    bandings: list[BandingReport]
    seconds: dict[str, float]


def as_json(report: Report) -> dict[str, Any]:
    """Return a report as what JSON can say."""
    return _plain(report)  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    """Turn dataclasses into mappings, with their properties."""
    if isinstance(value, Banding):
        return {"bands": value.bands, "rows": value.rows}
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if not hasattr(value, "__dataclass_fields__"):
        return value
    properties = [name for name, one in vars(type(value)).items() if isinstance(one, property)]
    return {
        name: _plain(getattr(value, name)) for name in [*value.__dataclass_fields__, *properties]
    }
