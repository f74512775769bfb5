"""*Blocking.* A read-only view of an index that no process has open, and statistics of it.

Rule 1: a view needs no settings and writes nothing; everything follows from the manifest. An
:class:`streamdedup.index.store.Index` with other settings could drop what is outside its window.
Rule 2: a view finds what the index itself would find.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from streamdedup.batches import Candidates, DocumentColumns
from streamdedup.columns import I64, U64
from streamdedup.formats import changelog
from streamdedup.index.delta import Delta
from streamdedup.index.directory import lock_existing, translated
from streamdedup.index.layout import parameters_of
from streamdedup.index.lookup import Lookup
from streamdedup.index.manifest import Manifest
from streamdedup.index.postings import NUMBER_MASK, PREFIX_SHIFT
from streamdedup.index.rows import Bools
from streamdedup.index.segment import Segment
from streamdedup.index.state import IndexState
from streamdedup.model import NO_TIMESTAMP, Progress, no_progress


class View:
    """The index in a directory, locked until the view is closed.

    Raises:
        IndexUnusable: the directory holds no index.
        IndexLocked: another process has the index open.
        IndexMismatch: this release cannot read it.
        IndexDamaged: its files are not what was written.

    Attributes:
        entries: the segments' records in the manifest, oldest first; ``segments`` newest first.
        tail: the documents that no segment holds yet.
        updates: the updates that brought them, oldest first.
        next_number: the number that the next kept document gets.
        holds_texts: whether every document came with its text; False without documents.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with translated(directory), ExitStack() as resources:
            resources.callback(os.close, lock_existing(directory))
            manifest = Manifest(directory, None, readonly=True)
            resources.callback(manifest.close)
            self.header = manifest.header
            self.parameters = parameters_of(manifest.header)
            self.manifest_bytes = manifest.bytes_used
            self.columns = self.parameters.bands + 1
            self.entries = manifest.segments()
            self.segments: list[Segment] = []
            for entry in self.entries:
                segment = Segment(directory, entry, self.columns)
                resources.callback(segment.close)
                self.segments.insert(0, segment)
            self.state = IndexState(manifest.checkpoint(), manifest.erased())
            self._read_tail(manifest)
            self._resources = resources.pop_all()

    def _read_tail(self, manifest: Manifest) -> None:
        tail, fingerprint = list(manifest.tail()), self.parameters.fingerprint()
        self.updates = [changelog.decode(each.update, fingerprint) for _, each in tail]
        documents = sum(len(update.documents) for update in self.updates)
        width = self.parameters.signature_bytes
        self.tail = Delta(max(1, documents), self.columns, width)
        for update, (applied, stored) in zip(self.updates, tail, strict=True):
            has_texts = len(update.documents.texts) == len(update.documents)
            rows = self.state.advance(update, stored.forgotten, texts=has_texts)
            if rows is not None:
                self.tail.add(update.first_number, update.documents.sketches.band_keys, rows)
            self.state.confirm(applied, stored.notes)
        self._lookup = Lookup(width, self.state)
        self._lookup.set_layers([self.tail], self.segments)
        self.next_number, self.clock = self.state.next_number, self.state.clock
        self.documents_held = sum(entry.count for entry in self.entries) + documents
        self.holds_texts = self.next_number > 0 and self.state.has_all_texts

    def close(self) -> None:
        """Close the files, and release the lock."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def probe(
        self, documents: DocumentColumns, bucket_size: int, known: Bools | None = None
    ) -> Candidates:
        """Find candidates; see :meth:`Lookup.probe`."""
        return self._lookup.probe(documents, bucket_size, texts=self.holds_texts, known=known)

    def documents(self, numbers: I64) -> tuple[I64, DocumentColumns]:
        """Return documents by their numbers; see :meth:`Lookup.documents`."""
        return self._lookup.documents(numbers, texts=self.holds_texts)

    def numbers_of(self, id_: str) -> list[int]:
        """Return the numbers of the documents with an id, ascending; all ids are read."""
        return self._lookup.numbers_of(id_)

    def keys_of(self, number: int) -> tuple[U64, Bools]:
        """Return the upper 40 bits of a document's band keys, as far as the index knows them.

        The other bits are 0. Both arrays are ``(columns,)``; the second one says whether each key
        is known: a full bucket drops its oldest postings.
        """
        if self.tail.first <= number < self.tail.end:
            keys = self.tail.keys[number - self.tail.first]
            return keys & ~NUMBER_MASK, np.ones(self.columns, dtype=np.bool_)
        keys = np.zeros(self.columns, dtype=np.uint64)
        known = np.zeros(self.columns, dtype=np.bool_)
        for segment in self.segments:
            entry = segment.entry
            if not entry.first <= number < entry.end:
                continue
            postings = np.empty(entry.count, dtype=np.uint64)
            for column in range(self.columns):
                some = postings[: segment.column(column, postings)]
                own = some[(some & NUMBER_MASK) == np.uint64(number - entry.first)]
                known[column] = len(own) > 0
                keys[column] = own[0] if len(own) else 0
        return keys & ~NUMBER_MASK, known


@dataclass(frozen=True, slots=True)
class FilterFill:
    """The stored filter of a segment with the keys of some documents.

    ``fill`` is the share of the bits that are set; above one half the filter is overfull.
    """

    segment: str
    documents: int
    fill: float


@dataclass(frozen=True, slots=True)
class Contents:
    """What an index holds.

    Attributes:
        log: the changelog that it is a copy of.
        applied: changelog offset up to which entries are applied, exclusive.
        documents: number of kept documents, including erased ones.
        tail_documents: number of those that no segment holds yet; 0 with a changelog.
        erased: number of erased documents whose number is still held.
        erased_waiting: number of those whose bytes are not overwritten yet.
        clock_ms: time of the clock of the stream; None if it has none yet.
        oldest_ms: earliest effective time, ``newest_ms`` the latest; None if no document has one.
        bytes_by_part: bytes by kind of value; ``overhead`` is LMDB's own.
        buckets: number of buckets that hold 1, 2, 3-4, 5-8, ... documents.
        largest_bucket: number of documents in the largest bucket.
        filters: the stored filters; the others are computed when the index is opened.
    """

    log: str
    documents: int
    tail_documents: int
    segments: int
    erased: int
    erased_waiting: int
    applied: int
    next_number: int
    clock_ms: int | None
    oldest_ms: int | None
    newest_ms: int | None
    holds_texts: bool
    bytes_used: int
    bytes_by_part: dict[str, int]
    buckets: dict[str, int]
    largest_bucket: int
    filters: list[FilterFill]


def count_contents(view: View, progress: Progress = no_progress) -> Contents:
    """Count what an index holds; this reads all postings. The progress is that of the columns."""
    sizes: Counter[int] = Counter()
    for column in range(view.columns):
        progress(column, view.columns)
        sizes.update(_bucket_sizes(view, column))
    progress(view.columns, view.columns)
    state = view.state
    oldest = [entry.oldest_ms for entry in view.entries]
    newest = [entry.newest_ms for entry in view.entries]
    for update in view.updates:
        if len(update.documents):
            oldest.append(int(update.effective_times_ms.min()))
            newest.append(int(update.effective_times_ms.max()))
    segment_bytes = sum(entry.size for entry in view.entries)
    by_part: Counter[str] = Counter()
    for entry in view.entries:
        by_part.update(entry.parts)
    return Contents(
        log=view.header.log,
        documents=view.documents_held,
        tail_documents=sum(len(update.documents) for update in view.updates),
        segments=len(view.entries),
        erased=len(state.erasures),
        erased_waiting=len(state.erasures.waiting()),
        applied=state.applied,
        next_number=state.next_number,
        clock_ms=_known_time([state.clock.now_ms]),
        oldest_ms=_known_time(oldest),
        newest_ms=_known_time([max(newest, default=NO_TIMESTAMP)]),
        holds_texts=view.holds_texts,
        bytes_used=segment_bytes + view.manifest_bytes,
        bytes_by_part={
            **by_part,
            "overhead": segment_bytes - by_part.total(),
            "manifest": view.manifest_bytes,
        },
        buckets=_histogram(sizes),
        largest_bucket=max(sizes, default=0),
        filters=[
            FilterFill(entry.name, len(entry.filter_documents), segment.filter_fill())
            for entry, segment in zip(view.entries, reversed(view.segments), strict=True)
            if entry.stores_filter
        ],
    )


def _bucket_sizes(view: View, column: int) -> Counter[int]:
    """Count a column's buckets by their size, over all segments and the tail."""
    parts = [view.tail.keys[: view.tail.count, column]]
    for segment in view.segments:
        postings = np.empty(segment.entry.count, dtype=np.uint64)
        parts.append(postings[: segment.column(column, postings)])
    _, buckets = np.unique(np.concatenate(parts) >> PREFIX_SHIFT, return_counts=True)
    sizes, times = np.unique(buckets, return_counts=True)
    return Counter(dict(zip(sizes.tolist(), times.tolist(), strict=True)))


def _known_time(times_ms: list[int]) -> int | None:
    """Return the earliest of the known times; None if there is none."""
    return min((time_ms for time_ms in times_ms if time_ms != NO_TIMESTAMP), default=None)


def _histogram(sizes: Counter[int]) -> dict[str, int]:
    """Count buckets of sizes 1, 2, 3-4, 5-8, ..., ascending, without gaps."""
    classes: Counter[int] = Counter()
    for size, times in sizes.items():
        classes[(size - 1).bit_length()] += times
    bounds = [((1 << each >> 1) + 1, 1 << each) for each in range(max(classes, default=-1) + 1)]
    names = (f"{high}" if low >= high else f"{low}-{high}" for low, high in bounds)
    return {name: classes[number] for number, name in enumerate(names)}
