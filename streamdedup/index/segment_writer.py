"""*Blocking.* Writes a segment: LMDB files with their values in ascending order of their keys.

A segment belongs to the index once a transaction of the manifest names it, and not before.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from streamdedup.columns import I64, U64
from streamdedup.index import blocks
from streamdedup.index.blocks import BLOCK_DOCUMENTS
from streamdedup.index.directory import checksum, fsync, translated
from streamdedup.index.filter import SLOTS, Bank
from streamdedup.index.layout import (
    DOCUMENTS_FILE,
    MOST_CHUNK_BITS,
    POSTING_BYTES,
    FileEntry,
    SegmentEntry,
    ShardEntry,
    block_key,
    chunk_key,
    plane_key,
    shard_file,
    sum_of,
)
from streamdedup.index.memory import address
from streamdedup.index.postings import SUBS, pack
from streamdedup.index.rows import EFFECTIVE_TIME, StoredRows

_CHUNK_BYTES = 128 * 1024
"""Bytes of postings above which a column is split into chunks."""
_TRANSACTION_BYTES = 4 * 1024**2
"""Bytes of one write transaction: LMDB keeps its dirty pages in memory until it ends."""
_WRITE_MAP = 1 << 40
"""Address space of a file while it is written; it takes no memory."""


@dataclass(frozen=True, slots=True)
class Content:
    """The documents of a new segment, and where their filter bits go.

    Attributes:
        count: number of documents, at least one.
        rows: returns documents by their indices, ``(n,)``.
        column: writes a column's sorted postings, and the starts of its subs; returns the number of
            postings.
        stores_filter: whether the bits are stored in the segment as well.
        filter_first: number of the first document whose keys the slot holds.
    """

    first: int
    count: int
    rows: Callable[[I64], StoredRows]
    column: Callable[[int, U64, I64], int]
    bank: Bank
    slot: int
    stores_filter: bool
    filter_first: int


class SegmentWriter:
    """Writes one segment to a directory, and forces it to disk with ``sync``.

    It calls ``pause`` between two parts of the work, so that more urgent work can be done.
    """

    def __init__(
        self, directory: Path, content: Content, *, sync: bool, pause: Callable[[], None]
    ) -> None:
        self._directory, self._content = directory, content
        self._sync, self._pause = sync, pause
        self._parts = {"documents": 0, "postings": 0, "filter": 0}

    def write(self, shards: list[range]) -> SegmentEntry:
        """Write all files, one for the documents and one for the columns of each shard."""
        with translated(self._directory):
            # A directory of an index that is gone must not come back with segments only.
            self._directory.parent.mkdir(exist_ok=True)
            self._directory.mkdir()
            documents, (oldest_ms, newest_ms) = self._write_documents()
            entries = [self._write_shard(*numbered) for numbered in enumerate(shards)]
            if self._sync:
                for directory in (self._directory, self._directory.parent):
                    fsync(directory)
        content = self._content
        shares_slot = content.stores_filter and content.filter_first < content.first
        return SegmentEntry(
            name=self._directory.name,
            first=content.first,
            count=content.count,
            oldest_ms=oldest_ms,
            newest_ms=newest_ms,
            documents=documents,
            shards=entries,
            parts=self._parts,
            filter_first=content.filter_first if shares_slot else -1,
        )

    def _write_documents(self) -> tuple[FileEntry, tuple[int, int]]:
        """Write the blocks; return their file and the range of times."""
        content = self._content
        oldest, newest = [], []

        def values() -> Iterator[tuple[bytes, bytes]]:
            for block, low in enumerate(range(0, content.count, BLOCK_DOCUMENTS)):
                self._pause()
                rows = content.rows(np.arange(low, min(content.count, low + BLOCK_DOCUMENTS)))
                times_ms = rows.fields[:, EFFECTIVE_TIME]
                oldest.append(int(times_ms.min()))
                newest.append(int(times_ms.max()))
                value = blocks.encode(rows)
                self._parts["documents"] += len(value)
                yield block_key(block), value

        file = self._write_file(DOCUMENTS_FILE, values())
        return file, (min(oldest), max(newest))

    def _write_shard(self, shard: int, columns: range) -> ShardEntry:
        """Write the postings of some columns, and set their filter bits."""
        content, count = self._content, self._content.count
        slot = content.slot % SLOTS
        postings = np.empty(count, dtype=np.uint64)
        starts = np.empty((len(columns), SUBS + 1), dtype=np.int64)
        chunk_bits = min(MOST_CHUNK_BITS, (count * POSTING_BYTES // _CHUNK_BYTES).bit_length())

        def values() -> Iterator[tuple[bytes, Any]]:
            for column, bounds in zip(columns, starts, strict=True):
                self._pause()
                size = content.column(column, postings, bounds)
                content.bank.add(postings[:size], column, slot)
                edges = bounds[:: SUBS >> chunk_bits].tolist()
                for chunk, (low, high) in enumerate(pairwise(edges)):
                    # An empty value would have no address, so a chunk has at least one byte.
                    value = np.zeros(max(1, POSTING_BYTES * (high - low)), dtype=np.uint8)
                    pack(postings[low:high], value)
                    self._parts["postings"] += len(value)
                    yield chunk_key(column, chunk), value.data
            for column in columns if content.stores_filter else ():
                plane = content.bank.plane(column, slot)
                self._parts["filter"] += len(plane)
                yield plane_key(column), plane.data

        file = self._write_file(shard_file(shard), values())
        return ShardEntry(
            file=file,
            first_column=columns.start,
            starts=starts.astype(np.uint32).tobytes(),
            chunk_bits=chunk_bits,
            plane_bytes=content.bank.plane_bytes if content.stores_filter else 0,
        )

    def _write_file(self, name: str, values: Iterator[tuple[bytes, Any]]) -> FileEntry:
        """Write values in ascending order of their keys, and sum them before LMDB gets them."""
        path = self._directory / name
        sizes, sums = [], []
        with lmdb.open(
            str(path), subdir=False, lock=False, sync=False, metasync=False, map_size=_WRITE_MAP
        ) as environment:
            for batch in _in_transactions(values):
                with environment.begin(write=True) as txn:
                    for key, value in batch:
                        sizes.append(len(value))
                        sums.append(sum_of(value))
                        txn.put(key, value, append=True)
            if self._sync:
                environment.sync(True)
            page_bytes = environment.stat()["psize"]
            used = (environment.info()["last_pgno"] + 1) * page_bytes
            with environment.begin(buffers=True) as txn:
                addresses = [address(np.frombuffer(value, np.uint8)) for _, value in txn.cursor()]
                # A page begins with its number (``mp_pgno`` of mdb.c), and the map at a multiple of
                # a page's size.
                page = addresses[0] & -page_bytes
                begin = page - ctypes.c_uint64.from_address(page).value * page_bytes
        offsets = np.array(addresses, dtype=np.int64) - begin
        # LMDB does not write an unused page at the end, and a mapping must not end before it.
        os.truncate(path, used)
        if self._sync:
            fsync(path)
        return FileEntry(
            name,
            path.stat().st_size,
            checksum(path),
            offsets.tobytes(),
            np.array(sizes, dtype=np.uint32).tobytes(),
            np.array(sums, dtype=np.uint64).tobytes(),
        )


def _in_transactions(values: Iterator[tuple[bytes, Any]]) -> Iterator[list[tuple[bytes, Any]]]:
    """Group values into lists of limited size."""
    batch, size = [], 0
    for key, value in values:
        batch.append((key, value))
        size += len(value)
        if size >= _TRANSACTION_BYTES:
            yield batch
            batch, size = [], 0
    yield batch
