"""*Pure.* Documents as columns of arrays, as blocks and deltas store them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from streamdedup.batches import DocumentColumns, Sketches
from streamdedup.columns import I64, NO_BLOBS, U8, U64, Blobs, Columns, Positions, Strings

Bools = NDArray[np.bool_]
Source = tuple[str, int]
"""Topic and partition."""
S = TypeVar("S", Strings, Blobs)

FIELDS = 5
EVENT_TIME, EFFECTIVE_TIME, SOURCE, OFFSET, NAMESPACE = range(FIELDS)


@dataclass(frozen=True, slots=True)
class StoredRows(Columns):
    """``n`` documents as they are stored.

    Attributes:
        signatures: ``(n, num_bytes)`` uint8.
        fields: ``(n, 5)`` int64: event time, effective time (both milliseconds), source, offset,
            namespace (the bits of a uint64).
        ids: ``n`` ids, unchecked; they fill their bytes.
        texts: ``n`` packed texts, empty if texts are not stored; they fill their bytes.
    """

    signatures: U8
    fields: I64
    ids: Strings
    texts: Blobs

    @classmethod
    def of(
        cls, documents: DocumentColumns, times_ms: I64, sources: I64, offsets: I64, *, texts: bool
    ) -> StoredRows:
        """Return ``n`` documents as they are stored; missing texts become empty ones.

        Effective times, numbers of the sources, and offsets are ``(n,)`` int64.
        """
        count = len(documents)
        fields = np.empty((count, FIELDS), dtype=np.int64)
        fields[:, EVENT_TIME] = documents.event_times_ms
        fields[:, EFFECTIVE_TIME] = times_ms
        fields[:, SOURCE] = sources
        fields[:, OFFSET] = offsets
        fields[:, NAMESPACE] = documents.namespaces.view(np.int64)
        ids, packed = documents.ids, documents.texts if texts else NO_BLOBS
        missing = np.zeros(count - len(packed), dtype=np.int64)
        return cls(
            documents.sketches.signatures,
            fields,
            Strings(ids.data[: ids.size], ids.ends),
            Blobs(packed.data[: packed.size], np.concatenate([packed.ends, missing])),
        )

    def namespaces(self) -> U64:
        """Return the namespaces, ``(n,)``."""
        return np.ascontiguousarray(self.fields[:, NAMESPACE]).view(np.uint64)

    def effective_times_ms(self) -> I64:
        """Return a copy of the effective times, ``(n,)``."""
        return self.fields[:, EFFECTIVE_TIME].copy()

    def documents(self, sources: Sequence[Source], *, texts: bool) -> DocumentColumns:
        """Return the documents, without band keys; ``sources`` come by their numbers.

        Raises:
            ValueError: an id is not valid.
        """
        topics, partitions = list(zip(*sources, strict=True)) or [(), ()]
        of_rows = self.fields[:, SOURCE]
        return DocumentColumns(
            ids=self.ids.check(),
            positions=Positions(
                topics,
                np.arange(len(topics))[of_rows],
                np.array(partitions, dtype=np.int64)[of_rows],
                self.fields[:, OFFSET].copy(),
            ),
            event_times_ms=self.fields[:, EVENT_TIME].copy(),
            namespaces=self.namespaces(),
            sketches=Sketches(self.signatures, np.empty((len(self), 0), dtype=np.uint64)),
            texts=self.texts if texts else NO_BLOBS,
        )

    def rows_with_id(self, id_: str) -> list[int]:
        """Return the row numbers of the documents with an id."""
        # One search through all ids at once. A hit may span two ids, so the list decides.
        if id_.encode("utf-8", "surrogatepass") not in self.ids.data.tobytes():
            return []
        return [row for row, candidate in enumerate(self.ids) if candidate == id_]

    def erase(self, gone: I64) -> StoredRows:
        """Return all rows; those numbered ``gone`` lose signature, namespace, id and text."""
        if len(gone) == 0:
            return self
        is_gone = np.zeros(len(self), dtype=np.bool_)
        is_gone[gone] = True
        signatures, fields = self.signatures.copy(), self.fields.copy()
        signatures[gone] = 0
        fields[gone, NAMESPACE] = 0
        return StoredRows(
            signatures, fields, _emptied(self.ids, is_gone), _emptied(self.texts, is_gone)
        )


def _emptied(strings: S, is_gone: Bools) -> S:
    """Return the strings; some become empty."""
    lengths = strings.lengths()
    kept = strings.data[~np.repeat(is_gone, lengths)]
    return type(strings)(kept, np.cumsum(np.where(is_gone, 0, lengths)))
