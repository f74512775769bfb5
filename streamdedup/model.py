"""*Pure.* The nouns of the project, frozen: what passes from one room to the next.

Documents travel as Python values up to the sketch and as columns of arrays from there on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]

NO_TIMESTAMP = -1
"""Event time of a document that has none; Kafka's own value for a missing timestamp."""


class Position(NamedTuple):
    """A record's identity, for ever: where the source holds it."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Record:
    """What Kafka (or a file) delivers, undecoded."""

    position: Position
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class Document:
    """A decoded record.

    Attributes:
        text: what is compared.
        id: the user's name for it; an empty one is replaced by its position.
        event_time_ms: milliseconds since the epoch, or ``NO_TIMESTAMP``.
        namespace: documents of different namespaces never match.
    """

    text: str
    id: str = ""
    event_time_ms: int = NO_TIMESTAMP
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a record gets no place in clean or dupes.

    Attributes:
        stage: the step that refused it: ``decode``, ``sketch`` or ``produce``.
        reason: a stable, short class name for metrics and headers.
        message: one sentence for the person who looks at the dead letter.
    """

    stage: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Sketches:
    """The sketches of ``n`` documents.

    Attributes:
        signatures: ``(n, num_bytes)`` uint8, a few bits of each MinHash value; see
            :class:`streamdedup.sketch.codec.SignatureCodec`.
        band_keys: ``(n, bands + 1)`` uint64; the last column is the key of the whole normalised
            text, so that exact copies meet in a bucket of their own.
    """

    signatures: U8
    band_keys: U64


class SourceRange(NamedTuple):
    """A run of records of one partition, in order: ``start <= offset < next_offset``."""

    topic: str
    partition: int
    start: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class DocumentColumns:
    """``n`` sketched documents as columns, in order of judgement.

    Attributes:
        texts: the normalised texts as :mod:`streamdedup.sketch.texts` packs them, ``n`` of them;
            none at all where texts are not stored.
    """

    ids: list[str]
    positions: list[Position]
    event_times_ms: I64
    namespaces: U64
    sketches: Sketches
    texts: Sequence[bytes] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: list[int]) -> DocumentColumns:
        """Return the given rows, in the given order."""
        return DocumentColumns(
            ids=[self.ids[row] for row in rows],
            positions=[self.positions[row] for row in rows],
            event_times_ms=self.event_times_ms[rows],
            namespaces=self.namespaces[rows],
            sketches=Sketches(self.sketches.signatures[rows], self.sketches.band_keys[rows]),
            texts=[self.texts[row] for row in rows] if self.texts else (),
        )


@dataclass(frozen=True, slots=True)
class SketchedBatch:
    """A batch of records after decoding and sketching.

    Attributes:
        positions: of all records, in order of judgement.
        documents: the sketched documents, in the order of their records.
        rows: for each document, the place of its record in the batch.
        blank: the documents (by their place among ``documents``) without text after
            normalisation: kept, and not indexed.
        rejections: for each refused record, its place and the reason.
        ranges: the source ranges that the batch covers, in order of judgement.
    """

    positions: list[Position]
    documents: DocumentColumns
    rows: list[int]
    blank: frozenset[int]
    rejections: dict[int, Rejection]
    ranges: tuple[SourceRange, ...]


@dataclass(frozen=True, slots=True)
class Candidates:
    """What the index holds for a batch of ``n`` documents.

    Attributes:
        hit_rows: document of each hit, ``(h,)`` int64, ascending.
        hit_columns: column of ``band_keys`` in which it hit, ``(h,)`` int64.
        hit_numbers: number of the kept document found, ``(h,)`` int64; ascending in each bucket.
        numbers: the distinct numbers found, ``(m,)`` int64, ascending.
        effective_times_ms: of the documents of those numbers, ``(m,)`` int64; what the window by
            time goes by, see :mod:`streamdedup.dedup.clock`.
        documents: the kept documents of those numbers; their ``band_keys`` are left out.
        already_kept: documents of the batch whose position is in the index: replays.
        already_judged: ``(n,)`` bool: whether the position was judged before.
    """

    hit_rows: I64
    hit_columns: I64
    hit_numbers: I64
    numbers: I64
    effective_times_ms: I64
    documents: DocumentColumns
    already_kept: frozenset[int]
    already_judged: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class IndexUpdate:
    """What the index gains by one batch: the content of a changelog entry.

    Attributes:
        first_number: number of the first of ``documents``; the others follow on.
        documents: the newly kept documents, in order.
        ranges: the source ranges that were judged, in order of judgement.
        effective_times_ms: of the documents, ``(n,)`` int64; see :mod:`streamdedup.dedup.clock`.
        clock_ms: what the clock said before the first of the documents; ``NO_TIMESTAMP`` where it
            said nothing, and in all but the first part of an update that was cut in parts.
        deleted: numbers of documents that are erased; taken in after ``documents``.
    """

    first_number: int
    documents: DocumentColumns
    ranges: tuple[SourceRange, ...]
    effective_times_ms: I64
    clock_ms: int = NO_TIMESTAMP
    deleted: tuple[int, ...] = ()

    @classmethod
    def without_documents(cls, next_number: int, deleted: tuple[int, ...] = ()) -> IndexUpdate:
        """Return an update that adds no document."""
        none = np.empty(0, dtype=np.int64)
        no_sketches = Sketches(np.empty((0, 0), np.uint8), np.empty((0, 0), np.uint64))
        documents = DocumentColumns([], [], none, np.empty(0, np.uint64), no_sketches)
        return cls(next_number, documents, (), none, deleted=deleted)


@dataclass(frozen=True, slots=True)
class Match:
    """A kept document that a duplicate repeats.

    Attributes:
        jaccard_estimate: similarity by the signatures.
        age_s: how much older the kept document is, in seconds; None where a time is not known.
        jaccard: similarity by the texts, where it was computed.
    """

    id: str
    position: Position
    jaccard_estimate: float
    age_s: float | None
    jaccard: float | None = None


class Outcome(StrEnum):
    """The three ways a record can end."""

    KEPT = "kept"
    DUPLICATE = "duplicate"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one record.

    Attributes:
        matches: for a duplicate, its kept matches: best first, ties to the earliest, as many as
            the settings allow. Empty otherwise.
        rejection: for a rejected record, why.
    """

    outcome: Outcome
    id: str
    position: Position
    event_time_ms: int = NO_TIMESTAMP
    matches: tuple[Match, ...] = ()
    rejection: Rejection | None = None

    @property
    def kept(self) -> bool:
        """Whether the document goes on to the clean side."""
        return self.outcome is Outcome.KEPT

    @property
    def original(self) -> Match | None:
        """The kept document that this one repeats: the best match, ties to the earliest."""
        return self.matches[0] if self.matches else None


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdicts on a batch, in the order of its records, and what follows from them."""

    verdicts: list[Verdict]
    update: IndexUpdate
    counts: JudgementCounts


@dataclass(slots=True)
class JudgementCounts:
    """What one judgement counted, for the metrics.

    Attributes:
        candidates: kept documents that shared a bucket with a judged one.
        verified: candidates at or above the threshold.
        refuted: candidates below it: the collisions.
        buckets_truncated: lookups that met a full bucket, so that older documents were not seen.
        similarities: the estimate of every candidate.
        exact_confirmed: candidates near the threshold whose texts are at or above it.
        exact_refuted: candidates near the threshold whose texts are below it.
        exact_without_text: candidates near the threshold that the estimate decides on, since one of
            the texts is too long to be stored.
    """

    candidates: int = 0
    verified: int = 0
    refuted: int = 0
    buckets_truncated: int = 0
    similarities: list[float] = field(default_factory=list)
    exact_confirmed: int = 0
    exact_refuted: int = 0
    exact_without_text: int = 0


@dataclass(frozen=True, slots=True)
class IndexStats:
    """What an index holds and does.

    Attributes:
        documents: kept documents on the disk and in memory.
        postings: entries of their buckets on the disk, and those in memory.
        segments: immutable parts on the disk.
        bytes_used: bytes on the disk.
        memory_bytes: deltas and filters.
        delta_documents: documents that are only in memory.
        applied: changelog offset that the index stands for.
        durable: changelog offset that it would begin from after a crash.
        next_number: number of the next kept document.
        clock_ms: what the clock of the stream says; -1 for nothing.
        oldest_ms: earliest effective time of a document on the disk; -1 where there is none.
        flushes: deltas that became segments since the index was opened.
        merges: merges since then.
        expired: segments that left the window since then.
        stalls: times that an update had to wait for a flush since then.
        lookups: look-ups in segments that the filters let through since then.
        lookups_found: those of them that found a document.
        reserve_bytes: bytes that the next merge may take beside what there is.
    """

    documents: int
    postings: int
    segments: int
    bytes_used: int
    memory_bytes: int
    delta_documents: int
    applied: int
    durable: int
    next_number: int
    clock_ms: int
    oldest_ms: int
    flushes: int
    merges: int
    expired: int
    stalls: int
    lookups: int
    lookups_found: int
    reserve_bytes: int


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """What the disk of an index has left.

    Attributes:
        free_bytes: free bytes of the file system.
        bytes_left: what the index may still take of it.
    """

    free_bytes: int
    bytes_left: int
