"""*Pure.* Records to a sketched batch: the work of one pool process.

Nothing here knows of the index, so a batch can be prepared anywhere, and in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from streamdedup.formats.records import Decoder, Refusal
from streamdedup.model import (
    Document,
    DocumentColumns,
    Position,
    Record,
    Rejection,
    SketchedBatch,
    SourceRange,
)
from streamdedup.settings.sections import Settings
from streamdedup.sketch.sketcher import Sketcher, namespace_hash
from streamdedup.sketch.texts import TextPacker

T = TypeVar("T")
NONE_REFUSED: Mapping[int, Rejection] = MappingProxyType({})


@dataclass
class _Rows:
    """Documents that passed, with their places, and the rejections of the others."""

    places: list[int] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    rejections: dict[int, Rejection] = field(default_factory=dict)


class Preparer:
    """Decodes and sketches batches, under fixed settings."""

    def __init__(self, settings: Settings) -> None:
        self._decoder = Decoder(settings.records, settings.limits)
        self._sketcher = Sketcher(settings.dedup.sketch_parameters())
        self._reject_empty = settings.dedup.empty_text == "reject"
        # Packed here, and only where they are wanted: every byte goes from process to process.
        self._packer = TextPacker(settings.text_room()) if settings.dedup.keeps_texts else None

    def warm(self) -> None:
        """Compile or load the kernels."""
        texts = self._sketcher.normalise(["warm", "w\u00e4rm"])
        self._sketcher.sketch(texts, np.zeros(len(texts), dtype=np.uint64))

    def prepare_records(
        self, records: Sequence[Record], refused: Mapping[int, Rejection] = NONE_REFUSED
    ) -> SketchedBatch:
        """Decode and sketch records; those that cannot be decoded are rejected.

        Args:
            records: the batch, in order of judgement.
            refused: records that are rejected unseen.
        """
        passed = _pass_each(records, self._decoder.decode, refused)
        return self._sketch([record.position for record in records], passed)

    def prepare_documents(
        self, documents: Sequence[Document], positions: list[Position]
    ) -> SketchedBatch:
        """Sketch documents that need no decoding; those over the limits are rejected."""
        return self._sketch(positions, _pass_each(documents, self._decoder.check))

    def _sketch(self, positions: list[Position], passed: _Rows) -> SketchedBatch:
        normalised = self._sketcher.normalise([document.text for document in passed.documents])
        blank = {row for row, text in enumerate(normalised) if not text}
        if self._reject_empty and blank:
            _reject(passed, blank)
            normalised = [text for text in normalised if text]
            blank = set()
        namespaces = np.array(
            [namespace_hash(document.namespace) for document in passed.documents], dtype=np.uint64
        )
        places = [positions[place] for place in passed.places]
        columns = DocumentColumns(
            ids=[
                document.id or f"{at.topic}:{at.partition}:{at.offset}"
                for document, at in zip(passed.documents, places, strict=True)
            ],
            positions=places,
            event_times_ms=np.array(
                [document.event_time_ms for document in passed.documents], dtype=np.int64
            ),
            namespaces=namespaces,
            sketches=self._sketcher.sketch(normalised, namespaces),
            texts=self._pack(normalised),
        )
        return SketchedBatch(
            positions=positions,
            documents=columns,
            rows=passed.places,
            blank=frozenset(blank),
            rejections=passed.rejections,
            ranges=source_ranges(positions),
        )

    def _pack(self, normalised: Sequence[str]) -> Sequence[bytes]:
        if self._packer is None:
            return ()
        return [self._packer.pack(text) for text in normalised]


def _pass_each(
    items: Sequence[T],
    admit: Callable[[T], Document],
    refused: Mapping[int, Rejection] = NONE_REFUSED,
) -> _Rows:
    rows = _Rows(rejections=dict(refused))
    for place, item in enumerate(items):
        if place in refused:
            continue
        try:
            document = admit(item)
        except Refusal as refusal:
            rows.rejections[place] = refusal.rejection
        else:
            rows.places.append(place)
            rows.documents.append(document)
    return rows


def _reject(passed: _Rows, blank: set[int]) -> None:
    message = "the text is empty after normalisation, dedup.empty_text is reject"
    for row in blank:
        passed.rejections[passed.places[row]] = Rejection("sketch", "EmptyText", message)
    keep = [row for row in range(len(passed.places)) if row not in blank]
    passed.documents = [passed.documents[row] for row in keep]
    passed.places = [passed.places[row] for row in keep]


def source_ranges(positions: Sequence[Position]) -> tuple[SourceRange, ...]:
    """Return the runs of ascending offsets of one partition that the positions make up.

    Gaps (a compacted topic, the marks of transactions) do not end a run.
    """
    if not positions:
        return ()
    breaks = [
        at
        for at, (before, position) in enumerate(pairwise(positions), 1)
        if position.offset <= before.offset
        or position.partition != before.partition
        or position.topic != before.topic
    ]
    return tuple(
        SourceRange(*positions[start], positions[stop - 1].offset + 1)
        for start, stop in pairwise([0, *breaks, len(positions)])
    )
