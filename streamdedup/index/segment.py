"""*Blocking.* Segments: immutable runs of documents and their postings, open for reading.

A segment is a directory with one LMDB file for the documents and one for each *shard*, a range of
columns; :mod:`streamdedup.index.layout` names their values. The values are few and large. LMDB is
only a container for them: they are read by address, where the file is mapped.

Rule 1: only the manifest says where values lie. LMDB wrote the file, but does not open it again:
it trusts its own pages, and a damaged one could kill the process.
Rule 2: a value is what was written only if its checksum says so. docs/adr/0010-checksums.md lists
who checks it, and when.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from streamdedup.columns import I64, U8, U64
from streamdedup.errors import REMEDY, IndexDamaged
from streamdedup.index import blocks
from streamdedup.index.blocks import BLOCK_DOCUMENTS
from streamdedup.index.check_values import Broken, check_entry
from streamdedup.index.directory import segment_directory, translated
from streamdedup.index.filter import SLOTS, Bank
from streamdedup.index.layout import POSTING_BYTES, FileEntry, SegmentEntry, ShardEntry, sum_of
from streamdedup.index.memory import address
from streamdedup.index.postings import COUNT, KEYS, NUMBERS, SUBS, unpack_column
from streamdedup.index.rows import Bools, StoredRows


class Segment:
    """A segment, open for reading.

    The files of a ``fresh`` segment, which this process has just written, need no check.

    Raises:
        IndexDamaged: a file is missing, or is not as the manifest describes it.

    Attributes:
        subs: ``(columns * 256, 3)`` int64; see :data:`streamdedup.index.postings.KEYS`.
        slot: its slot in the filters; -1 until it has one.
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
                self.shards.append(Shard(record, file, entry.count))
            self.subs = np.concatenate([shard.subs() for shard in self.shards])
        except BaseException:
            self.close()
            raise

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
        """Check a column's postings."""
        self._shard_of(column).check_column(column)

    def rows(self, indices: I64, width: int) -> StoredRows:
        """Return documents by their indices, ``(n,)``, after a check.

        An index is the document's number less that of the first one.
        """
        numbers = indices // BLOCK_DOCUMENTS
        self.documents.check(np.unique(numbers).tolist())
        found, sizes = self.documents.addresses[numbers], self.documents.sizes[numbers]
        return blocks.gather(found, sizes, indices % BLOCK_DOCUMENTS, width)

    def find_positions(self, sources: I64, offsets: I64) -> Bools:
        """Return which positions, ``(n,)``, belong to documents of the segment."""
        addresses, sizes = self.documents.addresses, self.documents.sizes
        return blocks.find_positions(addresses, sizes, sources, offsets)

    def all_rows(self, width: int) -> Iterator[tuple[int, StoredRows]]:
        """Yield all documents, one block at a time, with the number of the block's first."""
        count = self.entry.count
        for low in range(0, count, BLOCK_DOCUMENTS):
            indices = np.arange(low, min(count, low + BLOCK_DOCUMENTS))
            yield self.entry.first + low, self.rows(indices, width)

    def add_to(self, bank: Bank) -> bool:
        """Set this segment's bits in a bank: the stored ones if they fit, or computed ones.

        Returns whether they were the stored ones, which may hold the keys of older segments too.
        """
        stored = all(shard.entry.plane_bytes == bank.plane_bytes for shard in self.shards)
        for shard in self.shards if not stored else ():
            for _ in shard.file.read_through(1024**2):  # faster than page by page
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
        IndexDamaged: the record does not describe the file, or a segment of ``count`` documents.
    """

    def __init__(self, entry: ShardEntry, file: Mapped, count: int) -> None:
        self.entry, self.file = entry, file
        starts = np.frombuffer(entry.starts, dtype=np.uint32)
        self._starts = starts.reshape(-1, SUBS + 1).astype(np.int64)
        self._chunks = 1 << entry.chunk_bits
        self.columns = range(entry.first_column, entry.first_column + len(self._starts))
        self._first_plane = len(self.columns) * self._chunks
        postings = np.diff(self._starts[:, :: SUBS // self._chunks], axis=1)
        sizes = np.maximum(1, POSTING_BYTES * postings).ravel()
        if entry.plane_bytes:
            sizes = np.append(sizes, np.full(len(self.columns), entry.plane_bytes))
        if (
            (np.diff(self._starts, axis=1) < 0).any()
            or self._starts[:, -1].max() > count
            or not np.array_equal(sizes, file.sizes)
        ):
            raise IndexDamaged(f"{file.path} is not as the manifest describes it; {REMEDY}")

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

    def check_column(self, column: int) -> None:
        """Check the chunks of a column's postings."""
        first = (column - self.columns.start) * self._chunks
        self.file.check(range(first, first + self._chunks))

    def plane(self, column: int) -> U8:
        """Read the stored filter bits of a column."""
        return self.file.read(self._first_plane + column - self.columns.start)


class Mapped:
    """A file of a segment, mapped for reading.

    If it is ``fresh``, this process has just written it, and its first readers need not check it.

    Raises:
        IndexDamaged: it is missing or has another size, its record leads out of it, or its first or
            last value is not what was written. The others are not read yet.

    Attributes:
        start: address of the first byte.
        sizes: ``(n,)`` int64: bytes of each value.
        addresses: ``(n,)`` int64: address of each value.
    """

    def __init__(self, path: Path, entry: FileEntry, *, fresh: bool) -> None:
        self.path = path
        size = path.stat().st_size if path.exists() else 0
        if size != entry.size:  # reading beyond the end of a file would kill the process
            raise IndexDamaged(f"{path} has {size} bytes instead of {entry.size}; {REMEDY}")
        self._offsets = np.frombuffer(entry.offsets, dtype=np.int64)
        self.sizes = np.frombuffer(entry.sizes, dtype=np.uint32).astype(np.int64)
        self._sums = np.frombuffer(entry.sums, dtype=np.uint64)
        offsets, sizes = self._offsets, self.sizes
        if (
            not 0 < len(offsets) == len(sizes) == len(self._sums)
            or offsets.min() < 0
            or sizes.min() < 1
            or (offsets > size - sizes).any()
        ):
            raise IndexDamaged(f"{path}: the manifest names values outside of it; {REMEDY}")
        self._unchecked = np.full(len(self), not fresh)
        self._any_unchecked = not fresh
        with translated(path), path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
            self._map.madvise(mmap.MADV_RANDOM)
        self._bytes: U8 | None = np.frombuffer(self._map, dtype=np.uint8)
        self.start = address(self._bytes)
        self.addresses = self.start + self._offsets
        if fresh:
            return
        try:
            self.check({0, len(self) - 1})
        except IndexDamaged:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._offsets)

    def close(self) -> None:
        """Unmap the file. Reading one of its addresses afterwards kills the process."""
        self._bytes = None
        # The traceback of an error may still hold a value; the file is unmapped when it goes.
        with contextlib.suppress(BufferError):
            self._map.close()

    @property
    def is_open(self) -> bool:
        """Whether the file is mapped."""
        return self._bytes is not None

    @property
    def name(self) -> str:
        """The segment's name and the file's."""
        return f"{self.path.parent.name}/{self.path.name}"

    def value(self, number: int) -> U8:
        """Return a value as a view of the map, unchecked."""
        if self._bytes is None:
            raise RuntimeError(f"{self.path} is closed")
        return self._bytes[self._offsets[number] : self._offsets[number] + self.sizes[number]]

    def check(self, numbers: Iterable[int]) -> None:
        """Check values, and raise an error if one is not what was written."""
        for number in numbers:
            self.will_need([number])
            if sum_of(self.value(number)) != self._sums[number]:
                raise self.damage([number])
            self._unchecked[number] = False

    def check_once(self, numbers: I64) -> None:
        """Check the values that were not checked yet."""
        if self._any_unchecked and self._unchecked[numbers].any():
            self.check(np.unique(numbers[self._unchecked[numbers]]).tolist())
            self._any_unchecked = bool(self._unchecked.any())

    def read(self, number: int) -> U8:
        """Read and check a value without the map: faster if it is not in memory yet."""
        value = np.empty(int(self.sizes[number]), dtype=np.uint8)
        try:
            with self.path.open("rb") as file:
                file.seek(int(self._offsets[number]))
                complete = file.readinto(value.data) == len(value)
        except OSError:  # the disk cannot read its own blocks
            complete = False
        if not complete or sum_of(value) != self._sums[number]:
            raise self.damage([number])
        return value

    def read_through(self, part_bytes: int) -> Iterator[int]:
        """Read the file into the page cache, and yield the bytes of each part.

        The end comes earlier if the file is closed or cannot be read.
        """
        part = bytearray(part_bytes)
        with contextlib.suppress(OSError), self.path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while self.is_open and (size := file.readinto(part)):
                yield size

    def is_sound_on_disk(self, file: int, number: int) -> bool:
        """Return whether a value, read by the descriptor ``file``, is what was written."""
        try:
            value = os.pread(file, int(self.sizes[number]), int(self._offsets[number]))
        except OSError:  # the disk cannot read its own blocks
            return False
        return sum_of(value) == int(self._sums[number])

    def damage(self, numbers: list[int]) -> IndexDamaged:
        """Return the error for values that are not what was written."""
        more = f", and {len(numbers) - 1} more," if len(numbers) > 1 else ""
        return IndexDamaged(
            f"{self.path} is damaged: the value at byte {self._offsets[numbers[0]]}{more} is not "
            f"what was written; {REMEDY}"
        )

    def will_need(self, numbers: Iterable[int]) -> None:
        """Ask the system to read values."""
        for number in numbers:
            start = int(self._offsets[number]) & -mmap.PAGESIZE
            end = int(self._offsets[number] + self.sizes[number])
            self._map.madvise(mmap.MADV_WILLNEED, start, end - start)

    def will_need_page(self, page: int) -> None:
        """Ask the system to read the page that begins at an address in memory."""
        self._map.madvise(mmap.MADV_WILLNEED, page - self.start, mmap.PAGESIZE)
