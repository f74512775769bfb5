"""*Pure.* What the judge sends to the edges: the verdicts on source ranges; see docs/format.md.

A value holds the verdicts on one range of one partition, in MessagePack. Its first field is the
version. A document that is neither a duplicate nor rejected is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import numpy as np

from streamdedup.batches import (
    DUPLICATE,
    KEPT,
    REJECTED,
    JudgedVerdicts,
    SketchedRange,
    Verdicts,
)
from streamdedup.columns import I64, Positions
from streamdedup.errors import TopicError
from streamdedup.formats.arrays import (
    OtherVersion,
    Unreadable,
    check_range,
    pack,
    pack_strings,
    parse,
    unpack,
    unpack_strings,
)
from streamdedup.model import (
    Match,
    Outcome,
    Position,
    Rejection,
    SourceRange,
    Verdict,
)

VERSION = 1


class VerdictRow(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The verdicts on a range; docs/format.md describes each field."""

    version: int
    source: SourceRange
    offsets: bytes = b""
    event_times_ms: bytes = b""
    ids: bytes = b""
    id_ends: bytes = b""
    match_counts: bytes = b""
    match_ids: bytes = b""
    match_id_ends: bytes = b""
    match_topics: list[str] = []
    match_topic_indices: bytes = b""
    match_partitions: bytes = b""
    match_offsets: bytes = b""
    estimates: bytes = b""
    similarities: bytes = b""
    ages_s: bytes = b""
    rejections: dict[int, tuple[str, str, str]] = {}
    kept_offsets: bytes = b""
    kept_ids: bytes = b""
    kept_id_ends: bytes = b""


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(VerdictRow)


@dataclass(frozen=True, slots=True)
class JudgedRange:
    """The verdicts on a source range.

    Attributes:
        source: the range.
        places: the place of each duplicate in the next two columns, by its offset.
        event_times_ms: event times of the duplicates.
        ids: their ids.
        match_ends: where the matches of each end in the following columns.
        match_ids: ids of the matches, best first.
        match_positions: their topics, partitions and offsets.
        estimates: their estimated similarities.
        similarities: the similarities of their texts, NaN if not computed.
        ages_s: how many seconds older they are, NaN if unknown.
        rejections: the reason for each rejected record, by its offset.
        kept_ids: ids of kept documents by offset; empty if the outputs do not need them.
    """

    source: SourceRange
    places: dict[int, int]
    event_times_ms: list[int]
    ids: list[str]
    match_ends: list[int]
    match_ids: list[str]
    match_positions: list[Position]
    estimates: list[float]
    similarities: list[float]
    ages_s: list[float]
    rejections: dict[int, Rejection]
    kept_ids: dict[int, str]

    def verdict(self, row: int, positions: Positions) -> Verdict:
        """Return the verdict on the record at a row of ``positions``."""
        position = positions[row]
        offset = position.offset
        if (rejection := self.rejections.get(offset)) is not None:
            return Verdict(Outcome.REJECTED, "", position, rejection=rejection)
        place = self.places.get(offset)
        if place is None:
            return Verdict(Outcome.KEPT, self.kept_ids.get(offset, ""), position)
        first = self.match_ends[place - 1] if place else 0
        matches = tuple(map(self._match, range(first, self.match_ends[place])))
        time_ms = self.event_times_ms[place]
        return Verdict(Outcome.DUPLICATE, self.ids[place], position, time_ms, matches)

    def _match(self, place: int) -> Match:
        return Match(
            self.match_ids[place],
            self.match_positions[place],
            self.estimates[place],
            _known(self.ages_s[place]),
            _known(self.similarities[place]),
        )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


class ReadVerdicts(Verdicts):
    """The verdicts on records, which come from consecutive judged ranges.

    Args:
        positions: of the records, ascending, all inside the ranges.
        ranges: the judged ranges, in order.
    """

    def __init__(self, positions: Positions, ranges: list[JudgedRange]) -> None:
        self._positions = positions
        self._ranges = ranges
        self._elements: dict[int, Verdict] = {}
        offsets = positions.offsets
        starts = np.array([judged.source.start for judged in ranges], dtype=np.int64)
        self._of_rows = np.searchsorted(starts, offsets, side="right") - 1
        outcomes = np.full(len(offsets), KEPT, dtype=np.uint8)
        duplicates = [offset for judged in ranges for offset in judged.places]
        outcomes[np.isin(offsets, np.array(duplicates, dtype=np.int64))] = DUPLICATE
        refused = {
            offset: rejection
            for judged in ranges
            for offset, rejection in judged.rejections.items()
        }
        rows = np.flatnonzero(np.isin(offsets, np.array([*refused], dtype=np.int64)))
        outcomes[rows] = REJECTED
        super().__init__(outcomes, {row: refused[int(offsets[row])] for row in rows.tolist()})

    def _element(self, row: int) -> Verdict:
        # Outputs, metrics and the page ask for the same ones.
        if row not in self._elements:
            judged = self._ranges[int(self._of_rows[row])]
            self._elements[row] = judged.verdict(row, self._positions)
        return self._elements[row]


class VerdictEncoder:
    """Encodes the verdicts on a batch.

    Args:
        verdicts: the verdicts on documents, none of them rejected.
        most_bytes: largest value; that of a single record may be larger.
        keeps_ids: whether to name the ids of kept documents.
    """

    def __init__(self, verdicts: JudgedVerdicts, most_bytes: int, *, keeps_ids: bool) -> None:
        self._documents = verdicts.documents
        self._outcomes = verdicts.outcomes
        self._most_bytes = most_bytes
        self._keeps_ids = keeps_ids
        self._counts = verdicts.matches.counts
        self._matches = verdicts.matches.columns(verdicts.documents)

    def encode(self, sketched: SketchedRange, first: int) -> list[bytes]:
        """Encode the verdicts on one range, as several parts if one value would be too large.

        Args:
            sketched: the range.
            first: the row of its first document in the batch.
        """
        value = self._encode_one(sketched, first)
        offsets = sorted([*sketched.documents.positions.offsets.tolist(), *sketched.rejections])
        if len(value) <= self._most_bytes or len(offsets) <= 1:
            return [value]
        _, _, start, stop = sketched.source
        middle = offsets[len(offsets) // 2]
        before, after = sketched.part(start, middle), sketched.part(middle, stop)
        return [*self.encode(before, first), *self.encode(after, first + len(before.documents))]

    def _encode_one(self, sketched: SketchedRange, first: int) -> bytes:
        rows = np.arange(first, first + len(sketched.documents))
        row = VerdictRow(
            version=VERSION,
            source=sketched.source,
            rejections={
                offset: (rejection.stage, rejection.reason, rejection.message)
                for offset, rejection in sketched.rejections.items()
            },
        )
        duplicates = rows[self._outcomes[rows] == DUPLICATE]
        if len(duplicates):
            self._add_duplicates(row, duplicates)
        if self._keeps_ids:
            kept = rows[self._outcomes[rows] == KEPT]
            row.kept_offsets = pack(self._documents.positions.offsets[kept], "<i8")
            row.kept_ids, row.kept_id_ends = pack_strings(self._documents.ids.take(kept))
        return _ENCODER.encode(row)

    def _add_duplicates(self, row: VerdictRow, rows: I64) -> None:
        documents = self._documents
        row.offsets = pack(documents.positions.offsets[rows], "<i8")
        row.event_times_ms = pack(documents.event_times_ms[rows], "<i8")
        row.ids, row.id_ends = pack_strings(documents.ids.take(rows))
        row.match_counts = pack(self._counts[rows], "<u2")
        matches = self._matches.take(rows)
        positions = matches.positions
        row.match_ids, row.match_id_ends = pack_strings(matches.ids)
        row.match_topics = list(positions.topics)
        row.match_topic_indices = pack(positions.topic_indices, "<u4")
        row.match_partitions = pack(positions.partitions, "<i4")
        row.match_offsets = pack(positions.offsets, "<i8")
        row.estimates = pack(matches.estimates, "<f8")
        row.similarities = pack(matches.jaccards, "<f8")
        row.ages_s = pack(matches.ages_s, "<f8")


def decode(data: bytes) -> JudgedRange:
    """Decode one value.

    Raises:
        TopicError: the bytes are not verdicts, or of another version.
    """
    row = _parse(data)
    try:
        return _judged(row)
    except (ValueError, IndexError) as error:
        raise TopicError(f"verdicts are inconsistent: {error}") from error


def _parse(data: bytes) -> VerdictRow:
    try:
        return parse(data, _DECODER, VERSION)
    except Unreadable as error:
        raise TopicError(f"verdicts cannot be read: {error}") from error
    except OtherVersion as error:
        raise TopicError(
            f"the judge sends verdicts of version {error}, this release reads {VERSION}; run the "
            "same release of both"
        ) from error


def _judged(row: VerdictRow) -> JudgedRange:
    ids = unpack_strings(row.ids, row.id_ends).tolist()
    match_ids = unpack_strings(row.match_ids, row.match_id_ends).tolist()
    matches = len(match_ids)
    counts = unpack(row.match_counts, "<u2", len(ids)).astype(np.int64)
    if counts.sum() != matches:
        raise ValueError(f"{matches} matches instead of {counts.sum()}")
    topics = unpack(row.match_topic_indices, "<u4", matches)
    if matches and topics.max() >= len(row.match_topics):
        raise ValueError(f"topic {topics.max()} of {len(row.match_topics)}")
    offsets = unpack(row.offsets, "<i8", len(ids))
    kept_ids = unpack_strings(row.kept_ids, row.kept_id_ends).tolist()
    kept_offsets = unpack(row.kept_offsets, "<i8", len(kept_ids)).tolist()
    check_range(row.source, offsets, [*row.rejections, *kept_offsets])
    return JudgedRange(
        source=row.source,
        places={offset: place for place, offset in enumerate(offsets.tolist())},
        event_times_ms=unpack(row.event_times_ms, "<i8", len(ids)).tolist(),
        ids=ids,
        match_ends=np.cumsum(counts).tolist(),
        match_ids=match_ids,
        match_positions=[
            Position(row.match_topics[topic], partition, offset)
            for topic, partition, offset in zip(
                topics.tolist(),
                unpack(row.match_partitions, "<i4", matches).tolist(),
                unpack(row.match_offsets, "<i8", matches).tolist(),
                strict=True,
            )
        ],
        estimates=unpack(row.estimates, "<f8", matches).tolist(),
        similarities=unpack(row.similarities, "<f8", matches).tolist(),
        ages_s=unpack(row.ages_s, "<f8", matches).tolist(),
        rejections={offset: Rejection(*why) for offset, why in row.rejections.items()},
        kept_ids=dict(zip(kept_offsets, kept_ids, strict=True)),
    )
