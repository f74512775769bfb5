"""*Pure.* Verdicts on source ranges, from the judge to edges; see docs/internals/format.md.

A value holds the verdicts on one range of one partition, in MessagePack. Its first field is the
version. A document that is neither a duplicate nor rejected is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from streamdedup.batches import (
    DUPLICATE,
    KEPT,
    REJECTED,
    JudgedVerdicts,
    MatchColumns,
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
from streamdedup.model import Outcome, Position, Rejection, SourceRange, Verdict

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


_CODEC = Codec(
    VerdictRow,
    VERSION,
    (TopicError, "verdicts cannot be read"),
    (
        TopicError,
        (
            "the judge sends verdicts of version {found}, this release reads {own}; run the same "
            "release of both"
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class JudgedRange:
    """The verdicts on a source range."""

    source: SourceRange
    rows: dict[int, int]  # the row of each duplicate in the next three columns, by its offset
    event_times_ms: list[int]  # of the duplicates, as ids and matches
    ids: list[str]
    matches: MatchColumns
    rejections: dict[int, Rejection]  # the reason for each rejected record, by its offset
    kept_ids: dict[int, str]  # of kept documents by offset; empty if no output needs them

    def verdict(self, position: Position) -> Verdict:
        """Return the verdict on the record at a position in the range."""
        offset = position.offset
        if (rejection := self.rejections.get(offset)) is not None:
            return Verdict(Outcome.REJECTED, "", position, rejection=rejection)
        row = self.rows.get(offset)
        if row is None:
            return Verdict(Outcome.KEPT, self.kept_ids.get(offset, ""), position)
        time_ms, matches = self.event_times_ms[row], self.matches.of(row)
        return Verdict(Outcome.DUPLICATE, self.ids[row], position, time_ms, matches)


class ReadVerdicts(Verdicts):
    """The verdicts on records, ascending and all inside of consecutive judged ranges."""

    def __init__(self, positions: Positions, ranges: list[JudgedRange]) -> None:
        self._positions = positions
        self._ranges = ranges
        self._elements: dict[int, Verdict] = {}
        offsets = positions.offsets
        starts = np.array([judged.source.start for judged in ranges], dtype=np.int64)
        self._of_rows = np.searchsorted(starts, offsets, side="right") - 1
        outcomes = np.full(len(offsets), KEPT, dtype=np.uint8)
        duplicates = [offset for judged in ranges for offset in judged.rows]
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
            self._elements[row] = judged.verdict(self._positions[row])
        return self._elements[row]


class VerdictEncoder:
    """Encodes the verdicts on a batch, none of them a rejection.

    A value has at most ``most_bytes``, or is that of a single record. It names the ids of kept
    documents if ``keeps_ids``.
    """

    def __init__(self, verdicts: JudgedVerdicts, most_bytes: int, *, keeps_ids: bool) -> None:
        self._documents = verdicts.documents
        self._outcomes = verdicts.outcomes
        self._most_bytes = most_bytes
        self._keeps_ids = keeps_ids
        self._matches = verdicts.matches

    def encode(self, sketched: SketchedRange, first: int) -> list[bytes]:
        """Encode the verdicts on one range, whose first document is in row ``first`` of the batch.

        There are several parts if one value would be too large.
        """
        return encoded_parts((sketched, first), self._encode_one, _halves, self._most_bytes)

    def _encode_one(self, part: tuple[SketchedRange, int]) -> bytes:
        sketched, first = part
        rows = np.arange(first, first + len(sketched.documents))
        duplicates = rows[self._outcomes[rows] == DUPLICATE]
        kept: dict[str, bytes] = {}
        if self._keeps_ids:
            of_kept = rows[self._outcomes[rows] == KEPT]
            ids, ends = pack_strings(self._documents.ids.take(of_kept))
            offsets = pack(self._documents.positions.offsets[of_kept], "<i8")
            kept = {"kept_offsets": offsets, "kept_ids": ids, "kept_id_ends": ends}
        return _CODEC.encode(
            source=sketched.source,
            rejections=rejection_field(sketched.rejections),
            **(self._duplicate_fields(duplicates) if len(duplicates) else {}),
            **kept,
        )

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
            "match_counts": pack(np.diff(matches.ends, prepend=0), "<u2"),
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
    """Decode one value; TopicError if the bytes are not verdicts, or of another version."""
    row = _CODEC.decode(data)
    try:
        return _judged(row)
    except (ValueError, IndexError) as error:
        raise TopicError(f"verdicts are inconsistent: {error}") from error


def _judged(row: VerdictRow) -> JudgedRange:
    ids = unpack_strings(row.ids, row.id_ends).tolist()
    match_ids = unpack_strings(row.match_ids, row.match_id_ends)
    count = len(match_ids)
    ends = np.cumsum(unpack(row.match_counts, "<u2", len(ids)), dtype=np.int64)
    if (wanted := ends[-1] if len(ends) else 0) != count:
        raise ValueError(f"{count} matches instead of {wanted}")
    match_offsets = unpack(row.match_offsets, "<i8", count)
    matches = MatchColumns(
        ends,
        match_ids,
        read_positions(
            row.match_topics, row.match_topic_indices, row.match_partitions, match_offsets
        ),
        estimates=unpack(row.estimates, "<f8", count),
        jaccards=unpack(row.similarities, "<f8", count),
        ages_s=unpack(row.ages_s, "<f8", count),
    )
    offsets = unpack(row.offsets, "<i8", len(ids))
    kept_ids = unpack_strings(row.kept_ids, row.kept_id_ends).tolist()
    kept_offsets = unpack(row.kept_offsets, "<i8", len(kept_ids)).tolist()
    check_range(row.source, offsets, [*row.rejections, *kept_offsets])
    return JudgedRange(
        source=row.source,
        rows={offset: index for index, offset in enumerate(offsets.tolist())},
        event_times_ms=unpack(row.event_times_ms, "<i8", len(ids)).tolist(),
        ids=ids,
        matches=matches,
        rejections=read_rejections(row.rejections),
        kept_ids=dict(zip(kept_offsets, kept_ids, strict=True)),
    )
