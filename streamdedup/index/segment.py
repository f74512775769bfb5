"""*Blocking.* Segments: immutable runs of documents and their postings, open for reading.

A segment is a directory with one LMDB file for the documents and one for each *shard*, a range of
columns; :mod:`streamdedup.index.layout` names their values. The values are few and large. LMDB is
only a container for them: they are read by address, where the file is mapped.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from streamdedup.columns import I64, U8, U64
from streamdedup.errors import REMEDY, IndexDamaged
from streamdedup.index import blocks
from streamdedup.index.blocks import BLOCK_DOCUMENTS
from streamdedup.index.check_values import Broken, check_entry
from streamdedup.index.directory import segment_directory
from streamdedup.index.filter import SLOTS, Bank
from streamdedup.index.layout import POSTING_BYTES, SegmentEntry, ShardEntry
from streamdedup.index.mapped import Mapped
from streamdedup.index.postings import COUNT, KEYS, NUMBERS, SUBS, unpack_column
from streamdedup.index.rows import Bools, StoredRows

_PART_BYTES = 1024**2
"""Bytes that are read at once."""


class Segment:
    """A segment, open for reading.

    The files of a ``fresh`` segment, which this process has just written, need no check.

    Raises:
        IndexDamaged: a file is missing, or is not as the manifest describes it.

    Attributes:
        entry: its record in the manifest.
        documents: its blocks of documents.
        shards: its postings.
        subs: ``(columns * 256, 3)`` int64; see :data:`streamdedup.index.postings.KEYS`.
        slot: its slot in the filters; -1 until it has one.
        busy: whether a job works on it.
    """

    def __init__(
        self, index: Path, entry: SegmentEntry, columns: int, *, fresh: bool = False
    ) -> None:
        self.entry = entry
        self.slot = -1
        self.busy = False
        self.shards: list[Shard] = []
        self._directory = segment_directory(index, entry.name)
        try:
            check_entry(entry, columns)
        except Broken as error:
            raise IndexDamaged(f"{self._directory}: {error}; {REMEDY}") from error
        path = self._directory / entry.documents.name
        self.documents = Mapped(path, entry.documents, fresh=fresh)
        try:
            for record in entry.shards:
                file = Mapped(self._directory / record.file.name, record.file, fresh=fresh)
                self.shards.append(Shard(record, file))
            self.subs = self._subs()
        except BaseException:
            self.close()
            raise

    def _subs(self) -> I64:
        """Check what the manifest says about the files, and return the table of all subs."""
        for shard in self.shards:
            if shard.most_postings > self.entry.count:
                raise _mismatch(shard.file.path)
        return np.concatenate([shard.subs() for shard in self.shards])

    @property
    def files(self) -> list[Mapped]:
        """All files."""
        return [self.documents, *(shard.file for shard in self.shards)]

    def close(self) -> None:
        """Unmap the files. Reading an address of the segment afterwards kills the process."""
        for file in self.files:
            file.close()

    def remove(self) -> None:
        """Close the segment and delete its files."""
        self.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def column(self, column: int, out: U64) -> int:
        """Check a column's postings, write them to ``out``, sorted, and return their number."""
        self.check_column(column)
        return unpack_column(self.subs[column * SUBS : (column + 1) * SUBS], out)

    def check_column(self, column: int) -> None:
        """Check a column's postings.

        Raises:
            IndexDamaged: they are not what was written.
        """
        shard = self._shard_of(column)
        shard.file.check(shard.chunks_of(column))

    def rows(self, indices: I64, width: int) -> StoredRows:
        """Return documents by their indices in the segment, ``(n,)``, after a check.

        Args:
            indices: number of each document less that of the first one.
            width: bytes of a signature.

        Raises:
            IndexDamaged: a block is not what was written.
        """
        numbers = indices // BLOCK_DOCUMENTS
        self.documents.check(np.unique(numbers).tolist())
        found, sizes = self.documents.addresses[numbers], self.documents.sizes[numbers]
        return blocks.gather(found, sizes, indices % BLOCK_DOCUMENTS, width)

    def find_positions(self, sources: I64, offsets: I64) -> Bools:
        """Return which positions, ``(n,)``, belong to documents of the segment."""
        file = self.documents
        return blocks.find_positions(file.addresses, file.sizes, sources, offsets)

    def all_rows(self, width: int) -> Iterator[tuple[int, StoredRows]]:
        """Yield all documents, one block at a time, with the number of the block's first."""
        count = self.entry.count
        for low in range(0, count, BLOCK_DOCUMENTS):
            indices = np.arange(low, min(count, low + BLOCK_DOCUMENTS))
            yield self.entry.first + low, self.rows(indices, width)

    def add_to(self, bank: Bank) -> bool:
        """Set this segment's bits in a bank: the stored ones if they fit, or computed ones.

        Returns:
            Whether they were the stored ones, which may hold the keys of older segments as well.
        """
        stored = all(shard.entry.plane_bytes == bank.plane_bytes for shard in self.shards)
        for shard in self.shards if not stored else ():
            for _ in shard.file.read_through(_PART_BYTES):  # faster than page by page
                pass
        postings = np.empty(0 if stored else self.entry.count, dtype=np.uint64)
        for column in range(bank.columns):
            if stored:
                bank.add_plane(self._shard_of(column).plane(column), column, self.slot % SLOTS)
            else:
                count = self.column(column, postings)
                bank.add(postings[:count], column, self.slot % SLOTS)
        return stored

    def filter_fill(self) -> float:
        """Return the share of the stored filter bits that are set; NaN if none are stored."""
        ones = bits = 0
        for shard in self.shards:
            for column in shard.columns if shard.entry.plane_bytes else ():
                ones += int(np.bitwise_count(shard.plane(column)).sum())
                bits += 8 * shard.entry.plane_bytes
        return ones / bits if bits else float("nan")

    def _shard_of(self, column: int) -> Shard:
        return next(shard for shard in self.shards if column in shard.columns)


class Shard:
    """The postings of a range of columns, and perhaps their filter bits.

    Raises:
        IndexDamaged: the record does not describe the file.

    Attributes:
        columns: the range.
    """

    def __init__(self, entry: ShardEntry, file: Mapped) -> None:
        self.entry, self.file = entry, file
        starts = np.frombuffer(entry.starts, dtype=np.uint32)
        self._starts = starts.reshape(-1, SUBS + 1).astype(np.int64)
        self._chunks = 1 << entry.chunk_bits
        self.columns = range(entry.first_column, entry.first_column + len(self._starts))
        chunks = len(self.columns) * self._chunks
        counts = np.diff(self._starts[:, :: SUBS // self._chunks], axis=1)
        sizes = np.maximum(1, POSTING_BYTES * counts).ravel()
        if entry.plane_bytes:
            sizes = np.append(sizes, np.full(len(self.columns), entry.plane_bytes))
        if (np.diff(self._starts, axis=1) < 0).any() or not np.array_equal(sizes, file.sizes):
            raise _mismatch(file.path)
        self._first_plane = chunks

    @property
    def most_postings(self) -> int:
        """Number of postings of the longest column."""
        return int(self._starts[:, -1].max())

    def subs(self) -> I64:
        """Return the addresses and counts of the subs of all columns, ``(columns * 256, 3)``."""
        begins = self._starts[:, :-1].reshape(len(self.columns), self._chunks, -1)
        ends = self._starts[:, 1:].reshape(begins.shape)
        first, end = begins[..., :1], ends[..., -1:]
        # A chunk holds the keys of all its subs, then their numbers.
        keys = self.file.addresses[: self._first_plane].reshape(first.shape)
        numbers = keys + 4 * (end - first)
        entries = np.empty((*begins.shape, 3), dtype=np.int64)
        entries[..., KEYS] = keys + 4 * (begins - first)
        entries[..., NUMBERS] = numbers + 3 * (begins - first)
        entries[..., COUNT] = ends - begins
        return entries.reshape(-1, 3)

    def chunks_of(self, column: int) -> range:
        """Return the numbers of the values that a column's postings are split into."""
        first = (column - self.columns.start) * self._chunks
        return range(first, first + self._chunks)

    def plane(self, column: int) -> U8:
        """Read the stored filter bits of a column.

        Raises:
            IndexDamaged: they are not what was written.
        """
        return self.file.read(self._first_plane + column - self.columns.start)


def _mismatch(path: Path) -> IndexDamaged:
    return IndexDamaged(f"{path} is not as the manifest describes it; {REMEDY}")
