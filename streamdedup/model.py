"""*Pure.* The nouns of the project: frozen values that one room passes to the next.

Up to the sketch and for verdicts there is a value per document; in between there are columns, see
:mod:`streamdedup.columns` and :mod:`streamdedup.batches`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

NO_TIMESTAMP = -1
"""The event time of a document without one; Kafka's own value for a missing timestamp."""
Progress = Callable[[int, int], None]
"""Called with the work done so far and the total, in any unit."""


def no_progress(_done: int, _total: int) -> None:
    """Ignore the progress."""


class Position(NamedTuple):
    """The permanent identity of a record: its partition and offset in the source."""

    topic: str
    partition: int
    offset: int


_POSITION = re.compile(r"([^:\s]+):(\d{1,10}):(\d{1,19})")  # topic names contain no colon


def format_position(position: Position) -> str:
    """Return a position as text: ``TOPIC:PARTITION:OFFSET``."""
    return ":".join(map(str, position))


def parse_position(text: str) -> Position:
    """Parse the text of :func:`format_position`; ValueError if it is not a position."""
    parts = _POSITION.fullmatch(text)
    if parts is None:
        raise ValueError(f"invalid position {text!r}; expected TOPIC:PARTITION:OFFSET")
    topic, partition, offset = parts.groups()
    return Position(topic, int(partition), int(offset))


Headers = tuple[tuple[str, bytes | None], ...]
"""Names and values of a record's headers."""


@dataclass(frozen=True, slots=True)
class Record:
    """A message of Kafka, or a line of a file, before it is decoded."""

    position: Position
    value: bytes | None  # the undecoded document; None for a tombstone
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int = NO_TIMESTAMP  # milliseconds since the epoch


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


class SourceRange(NamedTuple):
    """A run of records of one partition, in order of offset: ``start <= offset < next_offset``."""

    topic: str
    partition: int
    start: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class Match:
    """A kept document that a duplicate repeats.

    Attributes:
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
        id: id of the document; empty for a rejected record of Kafka or a file.
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
class IndexStats:
    """The content and the activity of an open index."""

    documents: int  # kept documents, on the disk and in memory
    postings: int  # entries of their buckets, on the disk and in memory
    segments: int  # immutable parts on the disk
    bytes_used: int  # bytes on the disk
    memory_bytes: int  # bytes of deltas and filters
    delta_documents: int  # documents that are only in memory
    applied: int  # changelog offset up to which the index has applied updates
    durable: int  # changelog offset from which the index would start after a crash
    next_number: int  # number of the next kept document
    clock_ms: int  # the clock of the stream; -1 if it has no time yet
    oldest_ms: int  # earliest effective time of a document on the disk; -1 if there is none
    flushes: int  # deltas that became segments since the index was opened
    merges: int  # merges since the index was opened
    expired: int  # segments that left the window since the index was opened
    stalls: int  # updates that had to wait for a flush since the index was opened
    lookups: int  # look-ups in segments that the filters let through since the index was opened
    lookups_found: int  # those look-ups that found a document
    reserve_bytes: int  # bytes that the next merge may need in addition to bytes_used
    scrubbed_bytes: int  # bytes that the background has checked since the index was opened
    damaged_blocks: int  # blocks that it found damaged


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """The space left for an index."""

    free_bytes: int  # free bytes of the file system
    bytes_left: int  # bytes that the index may still add, within index.disk_budget
