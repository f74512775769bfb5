"""*Pure.* Documents as columns of arrays, as blocks and deltas store them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamdedup.batches import DocumentColumns, Sketches
from streamdedup.columns import I64, NO_BLOBS, U8, U64, Blobs, Positions, Strings
from streamdedup.index.sources import Source

Bools = NDArray[np.bool_]

FIELDS = 5
EVENT_TIME, EFFECTIVE_TIME, SOURCE, OFFSET, NAMESPACE = range(FIELDS)


@dataclass(frozen=True, slots=True)
class StoredRows:
    """``n`` documents as they are stored.

    Attributes:
        signatures: ``(n, num_bytes)`` uint8.
        fields: ``(n, 5)`` int64: event time, effective time (both milliseconds), source, offset,
            namespace (the bits of a uint64).
        id_ends: ``(n,)`` int64: where each id ends in ``ids``.
        ids: UTF-8, concatenated.
        text_ends: ``(n,)`` int64: where each text ends in ``texts``.
        texts: packed texts, concatenated; empty if texts are not stored.
    """

    signatures: U8
    fields: I64
    id_ends: I64
    ids: U8
    text_ends: I64
    texts: U8

    @classmethod
    def of(
        cls,
        documents: DocumentColumns,
        effective_times_ms: I64,
        sources: I64,
        offsets: I64,
        *,
        texts: bool,
    ) -> StoredRows:
        """Return the rows of some documents.

        Args:
            documents: ``n`` documents.
            effective_times_ms: ``(n,)`` int64.
            sources: ``(n,)`` int64: the number of each document's source.
            offsets: ``(n,)`` int64.
            texts: whether to store the texts; missing texts become empty ones.
        """
        count = len(documents)
        fields = np.empty((count, FIELDS), dtype=np.int64)
        fields[:, EVENT_TIME] = documents.event_times_ms
        fields[:, EFFECTIVE_TIME] = effective_times_ms
        fields[:, SOURCE] = sources
        fields[:, OFFSET] = offsets
        fields[:, NAMESPACE] = documents.namespaces.view(np.int64)
        packed = documents.texts if texts else NO_BLOBS
        missing = np.zeros(count - len(packed), dtype=np.int64)
        ids = documents.ids
        return cls(
            documents.sketches.signatures,
            fields,
            ids.ends,
            ids.data[: ids.size],
            np.concatenate([packed.ends, missing]),
            packed.data[: packed.size],
        )

    def __len__(self) -> int:
        return len(self.fields)

    def namespaces(self) -> U64:
        """Return the namespaces, ``(n,)``."""
        return np.ascontiguousarray(self.fields[:, NAMESPACE]).view(np.uint64)

    def effective_times_ms(self) -> I64:
        """Return a copy of the effective times, ``(n,)``."""
        return self.fields[:, EFFECTIVE_TIME].copy()

    def documents(self, sources: Sequence[Source], *, texts: bool) -> DocumentColumns:
        """Return the documents, without band keys.

        Args:
            sources: topic and partition of each source, by its number.
            texts: whether the texts are stored.

        Raises:
            ValueError: an id is not valid.
        """
        topics, partitions = _parts(sources)
        of_rows = self.fields[:, SOURCE]
        return DocumentColumns(
            ids=Strings(self.ids, self.id_ends).check(),
            positions=Positions(
                topics,
                np.arange(len(topics))[of_rows],
                partitions[of_rows],
                self.fields[:, OFFSET].copy(),
            ),
            event_times_ms=self.fields[:, EVENT_TIME].copy(),
            namespaces=self.namespaces(),
            sketches=Sketches(self.signatures, np.empty((len(self), 0), dtype=np.uint64)),
            texts=Blobs(self.texts, self.text_ends) if texts else NO_BLOBS,
        )

    def rows_with_id(self, id_: str) -> list[int]:
        """Return the row numbers of the documents with an id."""
        # One search through all ids at once. A hit may span two ids, so the list decides.
        if id_.encode("utf-8", "surrogatepass") not in self.ids.tobytes():
            return []
        ids = Strings(self.ids, self.id_ends)
        return [row for row, candidate in enumerate(ids) if candidate == id_]

    def erase(self, gone: I64) -> StoredRows:
        """Return the rows, some of them without signature, namespace, id and text.

        Args:
            gone: the row numbers to erase, ``(k,)``.
        """
        if len(gone) == 0:
            return self
        signatures = self.signatures.copy()
        signatures[gone] = 0
        fields = self.fields.copy()
        fields[gone, NAMESPACE] = 0
        id_ends, ids = _without(self.id_ends, self.ids, gone)
        text_ends, texts = _without(self.text_ends, self.texts, gone)
        return StoredRows(signatures, fields, id_ends, ids, text_ends, texts)


def _parts(sources: Sequence[Source]) -> tuple[tuple[str, ...], I64]:
    """Return the topic and the partition of each source, by its number."""
    topics, partitions = list(zip(*sources, strict=True)) or [(), ()]
    return topics, np.array(partitions, dtype=np.int64)


def concatenate(parts: Sequence[StoredRows]) -> StoredRows:
    """Return the rows of all parts, in order. There must be at least one part."""
    if len(parts) == 1:
        return parts[0]
    return StoredRows(
        np.concatenate([part.signatures for part in parts]),
        np.concatenate([part.fields for part in parts]),
        _concatenate_ends([part.id_ends for part in parts]),
        np.concatenate([part.ids for part in parts]),
        _concatenate_ends([part.text_ends for part in parts]),
        np.concatenate([part.texts for part in parts]),
    )


def _concatenate_ends(parts: list[I64]) -> I64:
    return np.cumsum(np.concatenate([np.diff(ends, prepend=0) for ends in parts]))


def _without(ends: I64, data: U8, gone: I64) -> tuple[I64, U8]:
    """Return the ends and the data of strings, some of which become empty."""
    lengths = np.diff(ends, prepend=0)
    is_gone = np.zeros(len(ends), dtype=np.bool_)
    is_gone[gone] = True
    kept = data[~np.repeat(is_gone, lengths)]
    return np.cumsum(np.where(is_gone, 0, lengths)), kept
