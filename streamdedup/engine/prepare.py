"""*Pure.* Turns records into a sketched batch: the work of one pool process.

This module does not use the index, so batches can be prepared in any process and in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, repeat
from types import MappingProxyType
from typing import Any

import numpy as np

from streamdedup.batches import DocumentColumns, SketchedBatch
from streamdedup.columns import I64, NO_BLOBS, Blobs, Fields, Positions, RecordColumns, Strings
from streamdedup.dedup.clock import UNLIMITED, Allowances, believed_ms
from streamdedup.formats.objects import Refusal
from streamdedup.formats.records import Decoder
from streamdedup.formats.schemas import NO_SCHEMAS, Schema, frame_of, prefixes
from streamdedup.model import Document, Position, Record, Rejection, SourceRange, format_position
from streamdedup.settings.sections import Settings
from streamdedup.sketch.sketcher import Sketcher, namespace_hash
from streamdedup.sketch.texts import TextPacker

_FAR = 2**61
"""Timestamps, which producers choose, count as this many milliseconds at most, so that differences
of times do not overflow."""
NONE_REFUSED: Mapping[int, Rejection] = MappingProxyType({})
"""No rejections."""


@dataclass(frozen=True, slots=True)
class RawBatch:
    """What a pool process needs of a batch of ``n`` records; it is sent as a few arrays."""

    positions: Positions
    values: Blobs  # undecoded
    tombstones: frozenset[int]  # rows whose value is null
    keys: Blobs  # empty for a record without one; no rows if no record has one
    timestamps_ms: I64  # (n,)
    frames: Blobs  # see formats.schemas; no rows if no header names a schema
    schemas: Mapping[bytes, Schema]  # that the values name, by prefix
    fields: Fields | None = None  # the documents of a table; values and keys are then not sent

    @classmethod
    def of(cls, records: RecordColumns, schemas: Mapping[bytes, Schema] = NO_SCHEMAS) -> RawBatch:
        """Return what is needed of records; ``schemas`` are all known ones, by prefix."""
        values, keys = records.values, records.keys
        tombstones = frozenset[int]()
        if records.fields is not None:
            times_ms, none = records.timestamps_ms, NO_BLOBS
            return cls(
                records.positions, none, tombstones, none, times_ms, none, {}, records.fields
            )
        if None in values:
            tombstones = frozenset(row for row, value in enumerate(values) if value is None)
        return cls(
            records.positions,
            Blobs.of([value or b"" for value in values]),
            tombstones,
            Blobs.of([key or b"" for key in keys]) if any(keys) else NO_BLOBS,
            records.timestamps_ms,
            *_schemas_of(records, schemas),
        )


def _schemas_of(
    records: RecordColumns, schemas: Mapping[bytes, Schema]
) -> tuple[Blobs, dict[bytes, Schema]]:
    """Return the frames of records, and the schemas that they use."""
    if not schemas:
        return NO_BLOBS, {}
    named = set(prefixes(records.values, records.headers))
    frames = [frame_of(headers) for headers in records.headers] if any(records.headers) else []
    return (
        Blobs.of(frames) if any(frames) else NO_BLOBS,
        {prefix: schemas[prefix] for prefix in named if prefix in schemas},
    )


@dataclass
class _Decoded:
    """The documents of a batch, the row of each in the batch, and the rejections by row."""

    rows: list[int] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    rejections: dict[int, Rejection] = field(default_factory=dict)


class Preparer:
    """Decodes and sketches batches, under fixed settings."""

    def __init__(self, settings: Settings) -> None:
        self._schemas: dict[bytes, Schema] = {}
        self._decoder = Decoder(settings.records, settings.limits, self._schemas)
        by_record = settings.index.clock == "record"
        self._allowances = Allowances.from_settings(settings.index) if by_record else UNLIMITED
        self._sketcher = Sketcher(settings.dedup.sketch_parameters())
        self._reject_empty = settings.dedup.empty_text == "reject"
        # Texts are packed here, and only if needed: every byte is sent to another process.
        self._packer = TextPacker(settings.text_room()) if settings.dedup.keeps_texts else None

    def warm(self) -> None:
        """Compile or load the kernels; those of texts that are not ASCII follow when needed."""
        texts = self._sketcher.normalise(["warm"])
        self._sketcher.sketch(texts, np.zeros(len(texts), dtype=np.uint64))

    def prepare_records(
        self, records: Sequence[Record], refused: Mapping[int, Rejection] = NONE_REFUSED
    ) -> SketchedBatch:
        """Decode and sketch records, in order of judgement; what is not a document is rejected.

        Refused records, given by row, are not looked at.
        """
        return self.prepare_raw(RawBatch.of(RecordColumns.of(records)), refused)

    def prepare_raw(
        self, batch: RawBatch, refused: Mapping[int, Rejection] = NONE_REFUSED
    ) -> SketchedBatch:
        """Prepare what a pool process gets of records, like :meth:`prepare_records`."""
        if batch.fields is not None:
            return self.prepare_fields(batch.fields, batch.positions, refused)
        decode = self._decoder.decode_value
        self._schemas.update(batch.schemas)
        keys = iter(batch.keys) if batch.keys else repeat(None)
        frames = iter(batch.frames) if batch.frames else repeat(b"")
        fields = zip(batch.values, keys, batch.timestamps_ms.tolist(), frames, strict=False)
        undecoded = (
            (row, None if row in batch.tombstones else value, *others)
            for row, (value, *others) in enumerate(fields)
            if row not in refused
        )
        decoded = _decode_each(undecoded, decode, refused)
        return self._sketch(batch.positions, decoded, np.clip(batch.timestamps_ms, -_FAR, _FAR))

    def prepare_fields(
        self,
        fields: Fields,
        positions: Positions,
        refused: Mapping[int, Rejection] = NONE_REFUSED,
    ) -> SketchedBatch:
        """Sketch the documents of a table, whose event times stand; look at no refused row."""
        namespaces = iter(fields.namespaces) if len(fields.namespaces) else repeat(b"")
        times_ms = fields.event_times_ms.tolist()
        texts, ids = fields.texts.views(), fields.ids.tolist()
        columns = zip(texts, ids, namespaces, times_ms, strict=False)
        undecoded = ((row, *of_row) for row, of_row in enumerate(columns) if row not in refused)
        decoded = _decode_each(undecoded, self._decoder.decode_fields, refused)
        return self._sketch(positions, decoded)

    def prepare_documents(
        self, documents: Sequence[Document], positions: Sequence[Position]
    ) -> SketchedBatch:
        """Sketch documents that need no decoding; documents over the limits are rejected."""
        decoded = _decode_each(enumerate(documents), self._decoder.check)
        return self._sketch(Positions.of(positions), decoded)

    def _sketch(
        self, positions: Positions, decoded: _Decoded, timestamps_ms: I64 | None = None
    ) -> SketchedBatch:
        """Sketch decoded documents; the timestamps of all records, if given, bound event times."""
        normalised = self._sketcher.normalise([document.text for document in decoded.documents])
        blank = {row for row, text in enumerate(normalised) if not text}
        if self._reject_empty and blank:
            message = "the text is empty after normalisation, dedup.empty_text is reject"
            for row in blank:
                decoded.rejections[decoded.rows[row]] = Rejection("sketch", "EmptyText", message)
            decoded.documents = list(compress(decoded.documents, normalised))
            decoded.rows = list(compress(decoded.rows, normalised))
            normalised, blank = list(filter(None, normalised)), set()
        rows = np.array(decoded.rows, dtype=np.int64)
        of_documents = positions.take(rows)
        ids = [document.id for document in decoded.documents]
        if not all(ids):
            ids = [id_ or format_position(of_documents[row]) for row, id_ in enumerate(ids)]
        names = [document.namespace for document in decoded.documents]
        hashes = {name: namespace_hash(name) for name in set(names)}
        namespaces = np.array([hashes[name] for name in names], dtype=np.uint64)
        times = [document.event_time_ms for document in decoded.documents]
        times_ms = np.array(times, dtype=np.int64)
        if timestamps_ms is not None:
            times_ms = believed_ms(times_ms, timestamps_ms[rows], self._allowances)
        packer = self._packer
        documents = DocumentColumns(
            ids=Strings.of(ids),
            positions=of_documents,
            event_times_ms=times_ms,
            namespaces=namespaces,
            sketches=self._sketcher.sketch(normalised, namespaces),
            texts=NO_BLOBS if packer is None else Blobs.of([*map(packer.pack, normalised)]),
        )
        return SketchedBatch(
            positions=positions,
            documents=documents,
            rows=rows,
            blank=frozenset(blank),
            rejections=decoded.rejections,
            ranges=source_ranges(positions),
        )


def merge(first: SketchedBatch, second: SketchedBatch) -> SketchedBatch:
    """Return one batch of the records of two, those of ``first`` before those of ``second``."""
    records, documents = len(first.positions), len(first.documents)
    positions = Positions.concatenate([first.positions, second.positions])
    return SketchedBatch(
        positions=positions,
        documents=DocumentColumns.concatenate([first.documents, second.documents]),
        rows=np.concatenate([first.rows, records + second.rows]),
        blank=first.blank | {documents + row for row in second.blank},
        rejections=first.rejections
        | {records + row: rejection for row, rejection in second.rejections.items()},
        ranges=source_ranges(positions),
    )


def _decode_each(
    undecoded: Iterable[tuple[Any, ...]],
    decode: Callable[..., Document],
    refused: Mapping[int, Rejection] = NONE_REFUSED,
) -> _Decoded:
    """Decode documents that are not refused: the row of each, and the arguments of ``decode``."""
    decoded = _Decoded(rejections=dict(refused))
    for row, *arguments in undecoded:
        try:
            document = decode(*arguments)
        except Refusal as refusal:
            decoded.rejections[row] = refusal.rejection
        else:
            decoded.rows.append(row)
            decoded.documents.append(document)
    return decoded


def source_ranges(positions: Sequence[Position]) -> tuple[SourceRange, ...]:
    """Return the positions as runs of ascending offsets of one partition.

    Gaps, such as those of a compacted topic or of transaction markers, do not end a run.
    """
    if not positions:
        return ()
    columns = Positions.of(positions)
    sources, of_rows = columns.sources()
    offsets = columns.offsets
    breaks = np.flatnonzero((np.diff(of_rows) != 0) | (np.diff(offsets) <= 0)) + 1
    starts = np.concatenate([[0], breaks])
    stops = np.concatenate([breaks, [len(positions)]])
    runs = (of_rows[starts], offsets[starts], offsets[stops - 1] + 1)
    return tuple(
        SourceRange(sources[number][0], sources[number][1], start, stop)
        for number, start, stop in zip(*(column.tolist() for column in runs), strict=True)
    )
