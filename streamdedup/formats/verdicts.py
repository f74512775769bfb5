"""*Pure.* Verdicts on source ranges, from the judge to edges; see docs/internals/format.md.

A value holds the verdicts on one range of one partition, in MessagePack. Its first field is the
version. A document that is neither a duplicate nor rejected is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

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
    Codec,
    check_range,
    encoded_parts,
    pack,
    pack_strings,
    position_fields,
    read_positions,
    read_rejections,
    rejection_field,
    unpack,
    unpack_strings,
)
from streamdedup.model import (
    Match,
    Outcome,
    Rejection,
    SourceRange,
    Verdict,
)

VERSION = 1


class VerdictRow(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The verdicts on a range; docs/internals/format.md describes each field."""

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


def _other_version(version: int) -> TopicError:
    return TopicError(
        f"the judge sends verdicts of version {version}, this release reads {VERSION}; run the "
        "same release of both"
    )


_CODEC = Codec(
    VerdictRow,
    VERSION,
    lambda reason: TopicError(f"verdicts cannot be read: {reason}"),
    _other_version,
)


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
    match_positions: Positions
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
        return encoded_parts((sketched, first), self._encode_one, _halves, self._most_bytes)

    def _encode_one(self, part: tuple[SketchedRange, int]) -> bytes:
        sketched, first = part
        rows = np.arange(first, first + len(sketched.documents))
        duplicates = rows[self._outcomes[rows] == DUPLICATE]
        kept = rows[self._outcomes[rows] == KEPT]
        return _CODEC.encode(
            source=sketched.source,
            rejections=rejection_field(sketched.rejections),
            **(self._duplicate_fields(duplicates) if len(duplicates) else {}),
            **(self._kept_fields(kept) if self._keeps_ids else {}),
        )

    def _kept_fields(self, rows: I64) -> dict[str, Any]:
        ids, ends = pack_strings(self._documents.ids.take(rows))
        offsets = pack(self._documents.positions.offsets[rows], "<i8")
        return {"kept_offsets": offsets, "kept_ids": ids, "kept_id_ends": ends}

    def _duplicate_fields(self, rows: I64) -> dict[str, Any]:
        documents, matches = self._documents, self._matches.take(rows)
        ids, id_ends = pack_strings(documents.ids.take(rows))
        match_ids, match_id_ends = pack_strings(matches.ids)
        positions = position_fields(matches.positions)
        return {
            "offsets": pack(documents.positions.offsets[rows], "<i8"),
            "event_times_ms": pack(documents.event_times_ms[rows], "<i8"),
            "ids": ids,
            "id_ends": id_ends,
            "match_counts": pack(self._counts[rows], "<u2"),
            "match_ids": match_ids,
            "match_id_ends": match_id_ends,
            **{f"match_{name}": field for name, field in positions.items()},
            "match_offsets": pack(matches.positions.offsets, "<i8"),
            "estimates": pack(matches.estimates, "<f8"),
            "similarities": pack(matches.jaccards, "<f8"),
            "ages_s": pack(matches.ages_s, "<f8"),
        }


def _halves(part: tuple[SketchedRange, int], _: int) -> list[tuple[SketchedRange, int]]:
    sketched, first = part
    found = []
    for half in sketched.halves():
        found.append((half, first))
        first += len(half.documents)
    return found


def decode(data: bytes) -> JudgedRange:
    """Decode one value.

    Raises:
        TopicError: the bytes are not verdicts, or of another version.
    """
    row = _CODEC.decode(data)
    try:
        return _judged(row)
    except (ValueError, IndexError) as error:
        raise TopicError(f"verdicts are inconsistent: {error}") from error


def _judged(row: VerdictRow) -> JudgedRange:
    ids = unpack_strings(row.ids, row.id_ends).tolist()
    match_ids = unpack_strings(row.match_ids, row.match_id_ends).tolist()
    matches = len(match_ids)
    counts = unpack(row.match_counts, "<u2", len(ids)).astype(np.int64)
    if counts.sum() != matches:
        raise ValueError(f"{matches} matches instead of {counts.sum()}")
    match_positions = read_positions(
        row.match_topics,
        row.match_topic_indices,
        row.match_partitions,
        unpack(row.match_offsets, "<i8", matches),
    )
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
        match_positions=match_positions,
        estimates=unpack(row.estimates, "<f8", matches).tolist(),
        similarities=unpack(row.similarities, "<f8", matches).tolist(),
        ages_s=unpack(row.ages_s, "<f8", matches).tolist(),
        rejections=read_rejections(row.rejections),
        kept_ids=dict(zip(kept_offsets, kept_ids, strict=True)),
    )
