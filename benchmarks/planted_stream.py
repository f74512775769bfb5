"""An endless stream of sketched documents with planted copies, which needs no memory.

A counter-based hash of its place in the stream gives everything about a document. A copy can
therefore have the keys of a document ten million documents earlier. The sketches are random bits,
so that only copies share a bucket, or keys that agree in the part that an index stores.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamdedup.batches import DocumentColumns, IndexUpdate, Sketches
from streamdedup.columns import I64, U64, Positions, Strings
from streamdedup.model import SourceRange
from tests.testkit.documents import mixed

BATCH = 1000
COPIES = 0.05
"""Share of the documents that are copies."""
COLUMNS = 21
"""Columns of band keys: 20 bands, and the whole text."""
SIGNATURE_BYTES = 128
TOPIC = "documents"
PARTITIONS = 12

_FIRST_TIME_MS = 1_700_000_000_000
_STEP_MS = 7
_JITTER_MS = 60_000
_WORDS_PER_DOCUMENT = 64
"""Values of the hash's counter for one document: its keys, its signature, its draws."""
_SIGNATURE_AT = 24
_DRAWS_AT = 48
_TRIES = 8
"""Draws of an original. Copies are skipped; 8 copies in a row have a probability of 2^-34."""


class Batch(NamedTuple):
    """A part of the stream.

    Attributes:
        documents: the sketched documents.
        places: places of the documents in the stream, ``(n,)`` int64.
        originals: for each copy the place of its original, else the own place, ``(n,)`` int64.
        ranges: the source ranges of the documents.
    """

    documents: DocumentColumns
    places: I64
    originals: I64
    ranges: tuple[SourceRange, ...]

    @property
    def copies(self) -> NDArray[np.bool_]:
        """Whether each document is a planted copy."""
        copies: NDArray[np.bool_] = self.originals != self.places
        return copies

    def update(self, kept: NDArray[np.bool_], first_number: int) -> IndexUpdate:
        """Return the index update that keeps the given rows."""
        documents = self.documents.take(np.flatnonzero(kept).tolist())
        times = documents.event_times_ms
        return IndexUpdate(first_number, documents, self.ranges, effective_times_ms=times)


class Stream:
    """The stream.

    Args:
        reach: approximate largest number of kept documents between a copy and its original.
        copies: share of the documents that are copies.
    """

    def __init__(self, reach: int, copies: float = COPIES) -> None:
        self._reach = int(reach / (1 - copies))
        self._copies = copies

    def batch(self, start: int, count: int = BATCH) -> Batch:
        """Return the documents from a place on. No batch has a copy and its original."""
        places = np.arange(start, start + count, dtype=np.int64)
        originals = self._originals(places, start)
        documents = DocumentColumns(
            ids=Strings.of([document_id(place) for place in places.tolist()]),
            positions=Positions(
                (TOPIC,), np.zeros_like(places), places % PARTITIONS, places // PARTITIONS
            ),
            event_times_ms=_FIRST_TIME_MS
            + places * _STEP_MS
            + (_words(places, [_DRAWS_AT - 1])[:, 0] % np.uint64(_JITTER_MS)).astype(np.int64),
            namespaces=np.zeros(count, dtype=np.uint64),
            sketches=Sketches(signatures=signatures(originals), band_keys=band_keys(originals)),
        )
        return Batch(documents, places, originals, _ranges(start, start + count))

    def _originals(self, places: I64, start: int) -> I64:
        originals = places.copy()
        if not start:
            return originals
        copies = places[self._are_copies(places)]
        oldest = max(0, start - self._reach)
        words = _words(copies, range(_DRAWS_AT + 1, _DRAWS_AT + 1 + _TRIES))
        drawn = oldest + (words % np.uint64(start - oldest)).astype(np.int64)
        usable = ~self._are_copies(drawn.ravel()).reshape(drawn.shape)
        has_original = usable.any(axis=1)
        chosen = drawn[np.arange(len(drawn)), usable.argmax(axis=1)]
        originals[copies[has_original] - start] = chosen[has_original]
        return originals

    def _are_copies(self, places: I64) -> NDArray[np.bool_]:
        """Return which places hold a copy. Some originals of the first batch are not used."""
        below: NDArray[np.bool_] = _words(places, [_DRAWS_AT])[:, 0] < np.uint64(
            self._copies * 2**64
        )
        return below


def document_id(place: int) -> str:
    """Return the id of the document at a place, 20 characters."""
    return f"document-{place:011d}"


def band_keys(originals: I64) -> U64:
    """Return the band keys of documents by their originals, ``(n, COLUMNS)`` uint64."""
    return _words(originals, range(COLUMNS))


def signatures(originals: I64) -> NDArray[np.uint8]:
    """Return the stored signatures by originals, ``(n, SIGNATURE_BYTES)`` uint8."""
    words = _words(originals, range(_SIGNATURE_AT, _SIGNATURE_AT + SIGNATURE_BYTES // 8))
    return words.view(np.uint8)


def values(originals: I64, count: int) -> NDArray[np.uint32]:
    """Return whole MinHash values of documents by their originals, ``(n, count)``; even counts."""
    # Beyond the counters of all documents.
    beyond: U64 = originals.astype(np.uint64) | np.uint64(1 << 50)
    steps: U64 = np.arange(count // 2, dtype=np.uint64)
    return mixed(beyond[:, None] * np.uint64(len(steps)) + steps).view(np.uint32)


def _ranges(start: int, end: int) -> tuple[SourceRange, ...]:
    """Return the ranges of the partitions; documents go to the partitions in turn."""
    first = {partition: -(-(start - partition) // PARTITIONS) for partition in range(PARTITIONS)}
    return tuple(
        SourceRange(TOPIC, partition, offset, -(-(end - partition) // PARTITIONS))
        for partition, offset in first.items()
    )


def _words(places: I64, which: range | list[int]) -> U64:
    """Return random words of documents, ``(n, len(which))``."""
    first: U64 = places.astype(np.uint64)[:, None] * np.uint64(_WORDS_PER_DOCUMENT)
    counters: U64 = first + np.array(which, dtype=np.uint64)
    return mixed(counters)
