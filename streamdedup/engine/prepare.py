"""*Pure.* Turns records into a sketched batch: the work of one pool process.

This module does not use the index, so batches can be prepared in any process and in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from streamdedup.dedup.clock import UNLIMITED, Allowances, believed_ms
from streamdedup.formats.records import Decoder, Refusal
from streamdedup.model import (
    Document,
    DocumentColumns,
    Position,
    Record,
    Rejection,
    SketchedBatch,
    Sketches,
    SourceRange,
)
from streamdedup.settings.sections import Settings
from streamdedup.sketch.sketcher import Sketcher, namespace_hash
from streamdedup.sketch.texts import TextPacker

T = TypeVar("T")
NONE_REFUSED: Mapping[int, Rejection] = MappingProxyType({})
"""No rejections."""


@dataclass
class _Decoded:
    """The documents of a batch, the row of each in the batch, and the rejections by row."""

    rows: list[int] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    rejections: dict[int, Rejection] = field(default_factory=dict)


class Preparer:
    """Decodes and sketches batches, under fixed settings."""

    def __init__(self, settings: Settings) -> None:
        self._decoder = Decoder(settings.records, settings.limits)
        by_record = settings.index.clock == "record"
        self._allowances = Allowances.from_settings(settings.index) if by_record else UNLIMITED
        self._sketcher = Sketcher(settings.dedup.sketch_parameters())
        self._reject_empty = settings.dedup.empty_text == "reject"
        # Texts are packed here, and only if needed: every byte is sent to another process.
        self._packer = TextPacker(settings.text_room()) if settings.dedup.keeps_texts else None

    def warm(self) -> None:
        """Compile or load the kernels."""
        texts = self._sketcher.normalise(["warm", "w\u00e4rm"])
        self._sketcher.sketch(texts, np.zeros(len(texts), dtype=np.uint64))

    def prepare_records(
        self, records: Sequence[Record], refused: Mapping[int, Rejection] = NONE_REFUSED
    ) -> SketchedBatch:
        """Decode and sketch records; records that cannot be decoded are rejected.

        Args:
            records: the batch, in order of judgement.
            refused: rejections of records that are not looked at, by row.
        """
        decoded = _decode_each(records, self._decode, refused)
        return self._sketch([record.position for record in records], decoded)

    def _decode(self, record: Record) -> Document:
        """Decode a record, and replace an event time that its timestamp makes unbelievable."""
        document = self._decoder.decode(record)
        time_ms = believed_ms(document.event_time_ms, record.timestamp_ms, self._allowances)
        if time_ms == document.event_time_ms:
            return document
        return replace(document, event_time_ms=time_ms)

    def prepare_documents(
        self, documents: Sequence[Document], positions: list[Position]
    ) -> SketchedBatch:
        """Sketch documents that need no decoding; documents over the limits are rejected."""
        return self._sketch(positions, _decode_each(documents, self._decoder.check))

    def _sketch(self, positions: list[Position], decoded: _Decoded) -> SketchedBatch:
        normalised = self._sketcher.normalise([document.text for document in decoded.documents])
        blank = {row for row, text in enumerate(normalised) if not text}
        if self._reject_empty and blank:
            _reject(decoded, blank)
            normalised = [text for text in normalised if text]
            blank = set()
        return SketchedBatch(
            positions=positions,
            documents=self._columns(decoded, positions, normalised),
            rows=decoded.rows,
            blank=frozenset(blank),
            rejections=decoded.rejections,
            ranges=source_ranges(positions),
        )

    def _columns(
        self, decoded: _Decoded, positions: list[Position], normalised: Sequence[str]
    ) -> DocumentColumns:
        documents = decoded.documents
        own_positions = [positions[row] for row in decoded.rows]
        namespaces = np.array(
            [namespace_hash(document.namespace) for document in documents], dtype=np.uint64
        )
        return DocumentColumns(
            ids=[
                document.id or f"{position.topic}:{position.partition}:{position.offset}"
                for document, position in zip(documents, own_positions, strict=True)
            ],
            positions=own_positions,
            event_times_ms=np.array(
                [document.event_time_ms for document in documents], dtype=np.int64
            ),
            namespaces=namespaces,
            sketches=self._sketcher.sketch(normalised, namespaces),
            texts=self._pack(normalised),
        )

    def _pack(self, normalised: Sequence[str]) -> Sequence[bytes]:
        if self._packer is None:
            return ()
        return [self._packer.pack(text) for text in normalised]


def merge(first: SketchedBatch, second: SketchedBatch) -> SketchedBatch:
    """Return one batch of the records of two, those of ``first`` before those of ``second``."""
    records, documents = len(first.positions), len(first.documents)
    positions = first.positions + second.positions
    return SketchedBatch(
        positions=positions,
        documents=_joined(first.documents, second.documents),
        rows=first.rows + [records + row for row in second.rows],
        blank=first.blank | {documents + row for row in second.blank},
        rejections=first.rejections
        | {records + row: rejection for row, rejection in second.rejections.items()},
        ranges=source_ranges(positions),
    )


def _joined(first: DocumentColumns, second: DocumentColumns) -> DocumentColumns:
    one, two = first.sketches, second.sketches
    return DocumentColumns(
        ids=first.ids + second.ids,
        positions=first.positions + second.positions,
        event_times_ms=np.concatenate([first.event_times_ms, second.event_times_ms]),
        namespaces=np.concatenate([first.namespaces, second.namespaces]),
        sketches=Sketches(
            np.concatenate([one.signatures, two.signatures]),
            np.concatenate([one.band_keys, two.band_keys]),
        ),
        texts=[*first.texts, *second.texts],
    )


def _decode_each(
    items: Sequence[T],
    decode: Callable[[T], Document],
    refused: Mapping[int, Rejection] = NONE_REFUSED,
) -> _Decoded:
    decoded = _Decoded(rejections=dict(refused))
    for row, item in enumerate(items):
        if row in refused:
            continue
        try:
            document = decode(item)
        except Refusal as refusal:
            decoded.rejections[row] = refusal.rejection
        else:
            decoded.rows.append(row)
            decoded.documents.append(document)
    return decoded


def _reject(decoded: _Decoded, blank: set[int]) -> None:
    """Move the blank documents, given by their index among the documents, to the rejections."""
    message = "the text is empty after normalisation, dedup.empty_text is reject"
    for index in blank:
        decoded.rejections[decoded.rows[index]] = Rejection("sketch", "EmptyText", message)
    keep = [index for index in range(len(decoded.rows)) if index not in blank]
    decoded.documents = [decoded.documents[index] for index in keep]
    decoded.rows = [decoded.rows[index] for index in keep]


def source_ranges(positions: Sequence[Position]) -> tuple[SourceRange, ...]:
    """Return the positions as runs of ascending offsets of one partition.

    Gaps, such as those of a compacted topic or of transaction markers, do not end a run.
    """
    if not positions:
        return ()
    breaks = [
        row
        for row, (before, position) in enumerate(pairwise(positions), 1)
        if position.offset <= before.offset
        or position.partition != before.partition
        or position.topic != before.topic
    ]
    return tuple(
        SourceRange(*positions[start], positions[stop - 1].offset + 1)
        for start, stop in pairwise([0, *breaks, len(positions)])
    )
