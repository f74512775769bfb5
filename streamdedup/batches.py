"""*Pure.* What a batch is on its way from the sketch to the index: columns of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from streamdedup.columns import (
    F64,
    I64,
    NO_BLOBS,
    U8,
    U64,
    Blobs,
    Column,
    Columns,
    Positions,
    Strings,
)
from streamdedup.model import Match, Outcome, Rejection, SourceRange, Verdict


@dataclass(frozen=True, slots=True)
class Sketches(Columns):
    """The sketches of ``n`` documents."""

    signatures: U8  # (n, num_bytes), a few bits of each MinHash value; see SignatureCodec
    # (n, bands + 1). The last column is the key of the whole normalised text, which files exact
    # copies in one bucket.
    band_keys: U64


@dataclass(frozen=True, slots=True)
class DocumentColumns(Columns):
    """``n`` sketched documents as columns, in order of judgement."""

    ids: Strings
    positions: Positions
    # (n,), milliseconds since the epoch or NO_TIMESTAMP. An event time that is not believed is
    # replaced, see dedup.clock.
    event_times_ms: I64
    namespaces: U64  # (n,), a hash of each namespace
    sketches: Sketches
    # The n normalised texts as sketch.texts packs them; empty if texts are not stored.
    texts: Blobs = field(default_factory=lambda: NO_BLOBS)

    @classmethod
    def empty(cls) -> DocumentColumns:
        """Return the columns of no document."""
        return cls(
            ids=Strings.of([]),
            positions=Positions.of([]),
            event_times_ms=np.empty(0, dtype=np.int64),
            namespaces=np.empty(0, dtype=np.uint64),
            sketches=Sketches(np.empty((0, 0), dtype=np.uint8), np.empty((0, 0), dtype=np.uint64)),
        )


@dataclass(frozen=True, slots=True)
class SketchedBatch:
    """A batch of records after decoding and sketching."""

    positions: Positions  # of all records, in order of judgement
    documents: DocumentColumns  # in the order of their records
    rows: I64  # (n,), for each document the row of its record in positions
    blank: frozenset[int]  # rows of documents without text, which are kept and not indexed
    rejections: dict[int, Rejection]  # the reason for each refused record, by its row in positions
    ranges: tuple[SourceRange, ...]  # that the batch covers, in order of judgement


@dataclass(frozen=True, slots=True)
class SketchedRange:
    """The records of one source range after decoding and sketching."""

    source: SourceRange
    documents: DocumentColumns  # the sketched documents, in order of offset
    blank: frozenset[int]  # rows of documents without text after normalisation
    rejections: Mapping[int, Rejection]  # the reason for each refused record, by its offset

    def __len__(self) -> int:
        return len(self.documents) + len(self.rejections)

    def halves(self) -> tuple[SketchedRange, ...]:
        """Return two parts with half of the records each; none if there is one record."""
        offsets = sorted([*self.documents.positions.offsets.tolist(), *self.rejections])
        if len(offsets) <= 1:
            return ()
        _, _, start, stop = self.source
        middle = offsets[len(offsets) // 2]
        return self.part(start, middle), self.part(middle, stop)

    def part(self, start: int, stop: int) -> SketchedRange:
        """Return the part with the offsets from ``start`` on, and below ``stop``."""
        offsets = self.documents.positions.offsets
        first, last = np.searchsorted(offsets, [start, stop]).tolist()
        return SketchedRange(
            self.source._replace(start=start, next_offset=stop),
            self.documents.take(slice(first, last)),
            frozenset(row - first for row in self.blank if first <= row < last),
            {
                offset: rejection
                for offset, rejection in self.rejections.items()
                if start <= offset < stop
            },
        )


@dataclass(frozen=True, slots=True)
class Candidates:
    """The kept documents that share a bucket with the ``n`` documents of a batch.

    A hit is a pair of a document of the batch and a kept document, in one bucket. Of the documents
    of the batch that share a bucket, only the first has its hits.
    """

    # (n, columns), the bucket of each band key that occurs several times; see dedup.judge.group.
    buckets: NDArray[np.int32]
    leaders: NDArray[np.int32]  # (n, columns), the first row with each band key
    shared: int  # the number of these buckets
    hit_rows: I64  # row of the document in the batch, (h,), ascending
    hit_columns: I64  # column of band_keys that both share, (h,)
    hit_numbers: I64  # number of the kept document, (h,); ascending in each bucket
    erased: frozenset[int]  # numbers of erased hits, which only hold their places in the buckets
    numbers: I64  # the distinct numbers of the other hits, (m,), ascending
    effective_times_ms: I64  # (m,), the time from which each stay counts; see dedup.clock
    documents: DocumentColumns  # the m kept documents; their band_keys are left out
    already_kept: frozenset[int]  # rows of the batch whose position is in the index: replays
    already_judged: NDArray[np.bool_]  # (n,), whether the position was judged before


@dataclass(frozen=True, slots=True)
class IndexUpdate:
    """The change to the index by one batch: the content of a changelog entry."""

    first_number: int  # number of the first of documents; the others have the next numbers
    documents: DocumentColumns  # the newly kept documents, in order
    ranges: tuple[SourceRange, ...]  # the source ranges that were judged, in order of judgement
    effective_times_ms: I64  # (n,), the time from which each stay counts; see dedup.clock
    # State of the clock of the stream after the batch. Empty if it stays as it is, and in every
    # part but the last of an update that was cut in parts.
    clock: bytes = b""
    deleted: tuple[int, ...] = ()  # numbers of the documents to erase, after documents are added
    is_ahead: bool = False  # whether the outputs on ranges are written later, by edges

    @classmethod
    def empty(cls, next_number: int, deleted: tuple[int, ...] = ()) -> IndexUpdate:
        """Return an update without new documents, which only erases the ``deleted`` ones."""
        none = DocumentColumns.empty()
        return cls(next_number, none, (), none.event_times_ms, deleted=deleted)


OUTCOMES = (Outcome.KEPT, Outcome.DUPLICATE, Outcome.REJECTED)
"""Outcomes by their code in arrays."""
KEPT, DUPLICATE, REJECTED = range(3)


@dataclass(frozen=True, slots=True)
class MatchColumns:
    """The ``m`` matches of the ``n`` documents of a batch, document by document, best first."""

    ends: I64  # (n,), where the matches of each document end; the first begin at 0
    ids: Strings  # of the m kept documents
    positions: Positions  # of the same
    estimates: F64  # (m,): the estimated similarities
    jaccards: F64  # (m,): the similarities of the texts; NaN if not computed
    ages_s: F64  # (m,): by how many seconds the kept document is older; NaN if unknown

    def of(self, row: int) -> tuple[Match, ...]:
        """Return the matches of a document."""
        return tuple(
            Match(
                self.ids[place],
                self.positions[place],
                float(self.estimates[place]),
                _known(self.ages_s[place]),
                _known(self.jaccards[place]),
            )
            for place in range(self.ends[row - 1] if row else 0, self.ends[row])
        )

    def take(self, rows: I64) -> MatchColumns:
        """Return the matches of some documents, given by their ascending rows."""
        counts = np.diff(self.ends, prepend=0)[rows]
        ends = np.cumsum(counts)
        chosen = np.repeat(self.ends[rows] - ends, counts) + np.arange(ends[-1] if len(rows) else 0)
        return MatchColumns(
            ends=ends,
            ids=self.ids.take(chosen),
            positions=self.positions.take(chosen),
            estimates=self.estimates[chosen],
            jaccards=self.jaccards[chosen],
            ages_s=self.ages_s[chosen],
        )


def _known(value: np.float64) -> float | None:
    return None if np.isnan(value) else float(value)


class Verdicts(Column[Verdict]):
    """The verdicts on the ``n`` records of a batch, in their order.

    ``outcomes`` are ``(n,)`` uint8: ``KEPT``, ``DUPLICATE`` or ``REJECTED``; rejections are by row.
    """

    def __init__(self, outcomes: U8, rejections: Mapping[int, Rejection]) -> None:
        self.outcomes = outcomes
        self.rejections = rejections

    def __len__(self) -> int:
        return len(self.outcomes)

    def tally(self) -> dict[Outcome, int]:
        """Return the number of records with each outcome."""
        counts = np.bincount(self.outcomes, minlength=len(OUTCOMES)).tolist()
        return dict(zip(OUTCOMES, counts, strict=True))

    def rows_with(self, outcome: int) -> list[int]:
        """Return the rows with an outcome, given by its code."""
        return np.flatnonzero(self.outcomes == outcome).tolist()


class JudgedVerdicts(Verdicts):
    """The verdicts on a batch that was judged in this process.

    ``refuted`` are, of each document without matches, the best candidate below the threshold, if
    any.
    """

    def __init__(self, batch: SketchedBatch, matches: MatchColumns, refuted: MatchColumns) -> None:
        self._batch = batch
        self.documents = batch.documents
        self.matches = matches
        self._refuted = refuted
        self.positions = batch.positions
        count = len(batch.positions)
        # ``(n,)``: the row of each record in ``documents``; -1 if it is rejected.
        self.document_rows = np.full(count, -1, dtype=np.int64)
        self.document_rows[batch.rows] = np.arange(len(batch.rows))
        outcomes = np.full(count, REJECTED, dtype=np.uint8)
        outcomes[batch.rows] = np.where(np.diff(matches.ends, prepend=0), DUPLICATE, KEPT)
        super().__init__(outcomes, batch.rejections)

    def rows_refuted(self, low: float) -> list[int]:
        """Return the rows of kept records with a refuted candidate whose estimate is >= ``low``."""
        documents = np.flatnonzero(np.diff(self._refuted.ends, prepend=0))
        rows: list[int] = self._batch.rows[documents[self._refuted.estimates >= low]].tolist()
        return rows

    def refuted(self, row: int) -> tuple[Match, ...]:
        """Return the best candidate below the threshold of a kept record, if there is one."""
        return self._refuted.of(int(self.document_rows[row]))

    def _element(self, row: int) -> Verdict:
        batch = self._batch
        position = batch.positions[row]
        if row in self.rejections:
            return Verdict(Outcome.REJECTED, "", position, rejection=self.rejections[row])
        document = int(self.document_rows[row])
        documents = batch.documents
        return Verdict(
            OUTCOMES[self.outcomes[row]],
            documents.ids[document],
            position,
            int(documents.event_times_ms[document]),
            self.matches.of(document),
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdicts on a batch, in the order of its records, and the update that follows."""

    verdicts: JudgedVerdicts
    update: IndexUpdate
    counts: JudgementCounts


@dataclass(frozen=True, slots=True)
class Met:
    """What ``n`` documents have met: those with a candidate that may reach the threshold."""

    # (n, 2): the numbers of unequal values of the two most similar candidates, num_perm + 1 for
    # none; see dedup.judge.JudgingState.
    nearest: I64
    is_duplicate: NDArray[np.bool_]  # (n,): whether the document has a match
    shared: NDArray[np.bool_]  # (n, bands): the bands that it shares with the best match
    texts: U64  # (n,): equal for documents with the same text

    @classmethod
    def nothing(cls) -> Met:
        """Return what no document has met."""
        none = np.empty((0, 0), dtype=np.bool_)
        nearest, texts = np.empty((0, 2), dtype=np.int64), np.empty(0, dtype=np.uint64)
        return cls(nearest, none.ravel(), none, texts)


@dataclass(slots=True)
class JudgementCounts:
    """The counts of one judgement, for the metrics."""

    candidates: int = 0  # kept documents that share a bucket with a judged document
    verified: int = 0  # candidates at or above the threshold
    refuted: int = 0  # candidates below the threshold
    buckets_truncated: int = 0  # look-ups in a full bucket, which has dropped its oldest documents
    # (k,), the similarities that an estimate can have, and the number of candidates with each.
    similarities: F64 = field(default_factory=lambda: np.empty(0))
    by_similarity: I64 = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    exact_confirmed: int = 0  # candidates near the threshold whose texts are at or above it
    exact_refuted: int = 0  # candidates near the threshold whose texts are below it
    # Candidates near the threshold that the estimate decides, because:
    exact_without_text: int = 0  # one of the texts is too long to be stored
    exact_over_budget: int = 0  # the texts of better ones used up what may be compared for it
    # (k,), like by_similarity, only candidates at or above the threshold.
    accepted: I64 = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    met: Met = field(default_factory=Met.nothing)  # of documents judged for the first time
