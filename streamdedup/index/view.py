"""*Blocking.* A read-only view of an index that no process has open.

Rule 1: a view needs no settings and writes nothing; everything follows from the manifest. An
:class:`streamdedup.index.store.Index` with other settings could drop what is outside its window.
Rule 2: a view finds what the index itself would find.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import numpy as np

from streamdedup.batches import Candidates, DocumentColumns, IndexUpdate
from streamdedup.columns import I64, U64
from streamdedup.dedup.clock import Clock
from streamdedup.formats import changelog
from streamdedup.index.delta import Delta
from streamdedup.index.directory import lock_existing
from streamdedup.index.erasures import Erasures
from streamdedup.index.layout import SegmentEntry, parameters_of
from streamdedup.index.lmdb_errors import translated
from streamdedup.index.lookup import Lookup
from streamdedup.index.manifest import Manifest
from streamdedup.index.postings import NUMBER_MASK
from streamdedup.index.rows import Bools, StoredRows
from streamdedup.index.segment import Segment
from streamdedup.index.sources import SourcePartitions


class View:
    """The index in a directory, locked until the view is closed.

    Args:
        directory: directory of the index.

    Raises:
        IndexUnusable: the directory holds no index.
        IndexLocked: another process has the index open.
        IndexMismatch: this release cannot read it.
        IndexDamaged: its files are not what was written.

    Attributes:
        directory: directory of the index.
        header: the identity of the index.
        parameters: everything that the bits of its sketches depend on.
        checkpoint: the state that the segments represent.
        entries: the segments' records in the manifest, oldest first.
        segments: the segments, newest first.
        tail: the documents that no segment holds yet, if there are any.
        updates: the updates that brought them, oldest first.
        applied: changelog offset up to which entries are applied, exclusive.
        erasures: the erased documents.
        manifest_bytes: bytes of the manifest on disk.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with translated(directory), ExitStack() as resources:
            resources.callback(os.close, lock_existing(directory))
            manifest = Manifest(directory, None, readonly=True)
            resources.callback(manifest.close)
            self.header, self.checkpoint = manifest.header, manifest.checkpoint()
            self.parameters = parameters_of(manifest.header)
            self.manifest_bytes = manifest.bytes_used
            self.columns = self.parameters.bands + 1
            self.entries: list[SegmentEntry] = manifest.segments()
            self.segments: list[Segment] = []
            for entry in self.entries:
                segment = Segment(directory, entry, self.columns)
                resources.callback(segment.close)
                self.segments.insert(0, segment)
            self._read_tail(manifest)
            self._resources = resources.pop_all()

    def _read_tail(self, manifest: Manifest) -> None:
        """Read the updates that no segment holds, and put their documents into a delta."""
        tail = list(manifest.tail())
        fingerprint = self.parameters.fingerprint()
        self.applied = tail[-1][0] if tail else self.checkpoint.applied
        self.updates: list[IndexUpdate] = [
            changelog.decode(each.update, fingerprint) for _, each in tail
        ]
        self.erasures = Erasures(manifest.erased())
        sources = SourcePartitions(self.checkpoint.sources)
        width = self.parameters.signature_bytes
        delta = Delta(max(1, self.tail_documents), self.columns, width)
        for update, (_, stored) in zip(self.updates, tail, strict=True):
            self.erasures.add(update.deleted)
            documents = update.documents
            if len(documents):
                located = sources.add(documents.positions)
                rows = StoredRows.of(documents, update.effective_times_ms, *located, texts=True)
                delta.add(update.first_number, documents.sketches.band_keys, rows)
            sources.forget(stored.forgotten)
        self.tail = delta if delta.count else None
        self._lookup = Lookup(width, sources, self.erasures)
        self._lookup.show([self.tail] if self.tail else [], self.segments)

    def close(self) -> None:
        """Close the files, and release the lock."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def next_number(self) -> int:
        """The number that the next kept document gets."""
        if not self.updates:
            return self.checkpoint.next_number
        return self.updates[-1].first_number + len(self.updates[-1].documents)

    @property
    def tail_documents(self) -> int:
        """Number of documents that no segment holds."""
        return sum(len(update.documents) for update in self.updates)

    @property
    def documents_held(self) -> int:
        """Number of documents that the index holds."""
        return sum(entry.count for entry in self.entries) + self.tail_documents

    @property
    def holds_texts(self) -> bool:
        """Whether every document came with its text; False for an index without documents."""
        in_tail = all(len(each.documents.texts) == len(each.documents) for each in self.updates)
        return self.next_number > 0 and self.checkpoint.has_all_texts and in_tail

    @property
    def clock(self) -> Clock:
        """The clock of the stream after the last update."""
        states = [self.checkpoint.clock, *(update.clock for update in self.updates)]
        return Clock.from_state(next(filter(None, reversed(states)), b""))

    def probe(
        self, documents: DocumentColumns, size: int, known: Bools | None = None
    ) -> Candidates:
        """Find the kept documents that share a bucket with each of the given ones.

        Args:
            documents: their positions count as new.
            size: newest documents of a bucket that count.
            known: ``(columns,)`` which columns to search; None for all.
        """
        return self._lookup.probe(documents, size, texts=self.holds_texts, known=known)

    def documents(self, numbers: I64) -> tuple[I64, DocumentColumns]:
        """Return documents by their numbers, ascending, as :meth:`Index.documents` does."""
        return self._lookup.documents(numbers, texts=self.holds_texts)

    def numbers_of(self, id_: str) -> list[int]:
        """Return the numbers of the documents with an id, ascending; all ids are read."""
        return self._lookup.numbers_of(id_)

    def keys_of(self, number: int) -> tuple[U64, Bools]:
        """Return the upper 40 bits of a document's band keys, as far as the index knows them.

        Returns:
            ``(columns,)`` keys whose other bits are 0, and ``(columns,)`` whether each is known:
            a full bucket drops its oldest postings.
        """
        if self.tail and self.tail.first <= number < self.tail.end:
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
