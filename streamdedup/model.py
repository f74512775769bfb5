"""*Pure.* The nouns of the project: frozen values that one room passes to the next.

Documents are Python values up to the sketch, and columns of arrays after it.
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
"""The event time of a document without one; Kafka's own value for a missing timestamp."""


class Position(NamedTuple):
    """The permanent identity of a record: its partition and offset in the source."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Record:
    """A message of Kafka, or a line of a file, before it is decoded.

    Attributes:
        value: the undecoded document; None for a tombstone.
        timestamp_ms: milliseconds since the epoch, or ``NO_TIMESTAMP``.
    """

    position: Position
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class Document:
    """A decoded record.

    Attributes:
        text: the text that is compared with others.
        id: the user's name for the document; its position replaces an empty id.
        event_time_ms: milliseconds since the epoch, or ``NO_TIMESTAMP``.
        namespace: documents of different namespaces never match.
    """

    text: str
    id: str = ""
    event_time_ms: int = NO_TIMESTAMP
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a record is neither kept nor a duplicate, and becomes a dead letter.

    Attributes:
        stage: the step that refused the record: ``decode``, ``sketch`` or ``produce``.
        reason: a stable, short class name for metrics and headers.
        message: one sentence for the person who reads the dead letter.
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
            text, which files exact copies in one bucket.
    """

    signatures: U8
    band_keys: U64


class SourceRange(NamedTuple):
    """A run of records of one partition, in order of offset: ``start <= offset < next_offset``."""

    topic: str
    partition: int
    start: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class DocumentColumns:
    """``n`` sketched documents as columns, in order of judgement.

    Attributes:
        ids: ``n`` ids.
        positions: ``n`` positions.
        event_times_ms: ``(n,)`` int64, milliseconds since the epoch or ``NO_TIMESTAMP``; an event
            time that is not believed is replaced, see :mod:`streamdedup.dedup.clock`.
        namespaces: ``(n,)`` uint64, a hash of each namespace.
        sketches: signatures and band keys, ``n`` rows each.
        texts: the ``n`` normalised texts as :mod:`streamdedup.sketch.texts` packs them; empty if
            texts are not stored.
    """

    ids: list[str]
    positions: list[Position]
    event_times_ms: I64
    namespaces: U64
    sketches: Sketches
    texts: Sequence[bytes] = ()

    @classmethod
    def empty(cls) -> DocumentColumns:
        """Return the columns of no document."""
        return cls(
            ids=[],
            positions=[],
            event_times_ms=np.empty(0, dtype=np.int64),
            namespaces=np.empty(0, dtype=np.uint64),
            sketches=Sketches(np.empty((0, 0), dtype=np.uint8), np.empty((0, 0), dtype=np.uint64)),
        )

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
        positions: positions of all records, in order of judgement.
        documents: the sketched documents, in the order of their records.
        rows: for each document, the row of its record in ``positions``.
        blank: rows of ``documents`` without text after normalisation; these documents are kept and
            not indexed.
        rejections: the reason for each refused record, by its row in ``positions``.
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
    """The kept documents that share a bucket with the ``n`` documents of a batch.

    A hit is a pair of a document of the batch and a kept document, in one bucket.

    Attributes:
        hit_rows: row of the document in the batch, ``(h,)`` int64, ascending.
        hit_columns: column of ``band_keys`` that both share, ``(h,)`` int64.
        hit_numbers: number of the kept document, ``(h,)`` int64; ascending in each bucket.
        numbers: the distinct numbers of the hits, ``(m,)`` int64, ascending.
        effective_times_ms: ``(m,)`` int64, the time from which each kept document's stay in the
            index counts; see :mod:`streamdedup.dedup.clock`.
        documents: the ``m`` kept documents; their ``band_keys`` are left out.
        already_kept: rows of the batch whose position is in the index: replays.
        already_judged: ``(n,)`` bool, whether the position was judged before.
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
    """The change to the index by one batch: the content of a changelog entry.

    Attributes:
        first_number: number of the first of ``documents``; the others have the next numbers.
        documents: the newly kept documents, in order.
        ranges: the source ranges that were judged, in order of judgement.
        effective_times_ms: ``(n,)`` int64, the time from which each document's stay in the index
            counts; see :mod:`streamdedup.dedup.clock`.
        clock: state of the clock of the stream after the batch. Empty if it stays as it is, and in
            every part but the last of an update that was cut in parts.
        deleted: numbers of the documents to erase, after ``documents`` are added.
    """

    first_number: int
    documents: DocumentColumns
    ranges: tuple[SourceRange, ...]
    effective_times_ms: I64
    clock: bytes = b""
    deleted: tuple[int, ...] = ()

    @classmethod
    def empty(cls, next_number: int, deleted: tuple[int, ...] = ()) -> IndexUpdate:
        """Return an update without new documents, which only erases the ``deleted`` ones."""
        none = DocumentColumns.empty()
        return cls(next_number, none, (), none.event_times_ms, deleted=deleted)


@dataclass(frozen=True, slots=True)
class Match:
    """A kept document that a duplicate repeats.

    Attributes:
        id: id of the kept document.
        position: position of the kept document.
        jaccard_estimate: similarity, estimated from the signatures.
        age_s: by how many seconds the kept document is older; None if a time is unknown.
        jaccard: similarity of the texts; None if it was not computed.
    """

    id: str
    position: Position
    jaccard_estimate: float
    age_s: float | None
    jaccard: float | None = None


class Outcome(StrEnum):
    """The three verdicts on a record."""

    KEPT = "kept"
    DUPLICATE = "duplicate"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one record.

    Attributes:
        outcome: kept, duplicate or rejected.
        id: id of the document; empty for a rejected record of Kafka or a file.
        position: position of the record.
        event_time_ms: event time of the document, or ``NO_TIMESTAMP``.
        matches: the kept documents that a duplicate repeats: best first, ties to the earliest, up
            to ``output.max_matches``. Empty for other outcomes.
        rejection: why the record was rejected; None for other outcomes.
    """

    outcome: Outcome
    id: str
    position: Position
    event_time_ms: int = NO_TIMESTAMP
    matches: tuple[Match, ...] = ()
    rejection: Rejection | None = None

    @property
    def kept(self) -> bool:
        """Whether the document goes to the clean topic or file."""
        return self.outcome is Outcome.KEPT

    @property
    def original(self) -> Match | None:
        """The kept document that a duplicate repeats: the best match, ties to the earliest."""
        return self.matches[0] if self.matches else None


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdicts on a batch, in the order of its records, and the update that follows."""

    verdicts: list[Verdict]
    update: IndexUpdate
    counts: JudgementCounts


@dataclass(slots=True)
class JudgementCounts:
    """The counts of one judgement, for the metrics.

    Attributes:
        candidates: kept documents that share a bucket with a judged document.
        verified: candidates at or above the threshold.
        refuted: candidates below the threshold.
        buckets_truncated: look-ups in a full bucket, which has dropped its oldest documents.
        similarities: estimated similarity of every candidate.
        exact_confirmed: candidates near the threshold whose texts are at or above it.
        exact_refuted: candidates near the threshold whose texts are below it.
        exact_without_text: candidates near the threshold that the estimate decides, because one of
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
    """The content and the activity of an open index.

    Attributes:
        documents: kept documents, on the disk and in memory.
        postings: entries of their buckets, on the disk and in memory.
        segments: immutable parts on the disk.
        bytes_used: bytes on the disk.
        memory_bytes: bytes of deltas and filters.
        delta_documents: documents that are only in memory.
        applied: changelog offset up to which the index has applied updates.
        durable: changelog offset from which the index would start after a crash.
        next_number: number of the next kept document.
        clock_ms: the clock of the stream; -1 if it has no time yet.
        oldest_ms: earliest effective time of a document on the disk; -1 if there is none.
        flushes: deltas that became segments since the index was opened.
        merges: merges since the index was opened.
        expired: segments that left the window since the index was opened.
        stalls: updates that had to wait for a flush since the index was opened.
        lookups: look-ups in segments that the filters let through since the index was opened.
        lookups_found: those look-ups that found a document.
        reserve_bytes: bytes that the next merge may need in addition to ``bytes_used``.
        scrubbed_bytes: bytes that the background has checked since the index was opened.
        damaged_blocks: blocks that it found damaged.
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
    scrubbed_bytes: int
    damaged_blocks: int


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """The space left for an index.

    Attributes:
        free_bytes: free bytes of the file system.
        bytes_left: bytes that the index may still add, within ``index.disk_budget``.
    """

    free_bytes: int
    bytes_left: int
