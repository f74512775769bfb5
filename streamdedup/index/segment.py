"""*Blocking.* Segments: immutable runs of documents and their postings, open for reading.

A segment is a directory with one LMDB file for the documents and one for each *shard*, a range of
columns; :mod:`streamdedup.index.layout` names their values. The values are few and large. LMDB is
only a container for them: they are read by address, where LMDB maps them.
"""

from __future__ import annotations

import ctypes
import mmap
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from streamdedup.columns import I64, U8, U64
from streamdedup.errors import REMEDY, IndexDamaged
from streamdedup.index import blocks
from streamdedup.index.blocks import BLOCK_DOCUMENTS
from streamdedup.index.directory import segment_directory
from streamdedup.index.entries import FileEntry, SegmentEntry, ShardEntry
from streamdedup.index.filter import Bank
from streamdedup.index.geometry import SLOTS
from streamdedup.index.layout import block_key, chunk_key
from streamdedup.index.lmdb_errors import translated
from streamdedup.index.memory import address
from streamdedup.index.postings import COUNT, KEYS, NUMBERS, SUBS, unpack_column
from streamdedup.index.rows import Rows

LEAST_MAP_BYTES = 1 << 20
"""LMDB refuses smaller maps."""
_WILL_NEED = 3
"""``MADV_WILLNEED`` of madvise(2)."""
_LIBC = ctypes.CDLL(None, use_errno=True)


class Segment:
    """A segment, open for reading.

    Args:
        index: directory of the index.
        entry: the segment's record in the manifest.
        columns: columns of the band keys.

    Raises:
        IndexDamaged: a file is missing, or has another size than the manifest says.

    Attributes:
        entry: its record in the manifest.
        blocks: ``(b,)`` int64: address of each block of documents.
        subs: ``(columns * 256, 3)`` int64; see :data:`streamdedup.index.postings.KEYS`.
        slot: its slot in the filters; -1 until it has one.
        busy: whether a job works on it.
    """

    def __init__(self, index: Path, entry: SegmentEntry, columns: int) -> None:
        self.entry = entry
        self.slot = -1
        self.busy = False
        self.subs = np.zeros((columns * SUBS, 3), dtype=np.int64)
        self._directory = segment_directory(index, entry.name)
        self._maps: list[Any] = []
        self._planes: dict[int, tuple[int, int]] = {}
        try:
            start = self._map(entry.documents, block_key(0))
            self.blocks = start + np.frombuffer(entry.blocks, dtype=np.int64)
            for shard in entry.shards:
                self._open_shard(shard)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unmap the files. Reading an address of the segment afterwards kills the process."""
        for environment in self._maps:
            environment.close()
        self._maps.clear()

    def remove(self) -> None:
        """Close the segment and delete its files."""
        self.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def column(self, column: int, out: U64) -> int:
        """Write a column's sorted postings to ``out``, and return their number."""
        return unpack_column(self.subs[column * SUBS : (column + 1) * SUBS], out)

    def rows(self, indices: I64, width: int) -> Rows:
        """Return documents by their indices in the segment, ``(n,)``.

        Args:
            indices: number of each document less that of the first one.
            width: bytes of a signature.
        """
        return blocks.gather(
            self.blocks[indices // BLOCK_DOCUMENTS], indices % BLOCK_DOCUMENTS, width
        )

    def all_rows(self, width: int) -> Iterator[tuple[int, Rows]]:
        """Yield all documents, one block at a time, with the number of the block's first."""
        count = self.entry.count
        for low in range(0, count, BLOCK_DOCUMENTS):
            indices = np.arange(low, min(count, low + BLOCK_DOCUMENTS))
            yield self.entry.first + low, self.rows(indices, width)

    def add_to(self, bank: Bank) -> None:
        """Set this segment's bits in a bank: the stored ones if they fit, or computed ones."""
        stored = all(shard.plane_bytes == bank.plane_bytes for shard in self.entry.shards)
        self._will_need(planes=stored)
        postings = np.empty(0 if stored else self.entry.count, dtype=np.uint64)
        for column in range(bank.columns):
            if stored:
                bank.add_plane(self._plane(column), column, self.slot % SLOTS)
            else:
                count = self.column(column, postings)
                bank.add(postings[:count], column, self.slot % SLOTS)

    def filter_fill(self) -> float:
        """Return the share of the stored filter bits that are set; NaN if none are stored."""
        ones = sum(int(np.bitwise_count(self._plane(column)).sum()) for column in self._planes)
        bits = sum(8 * size for _, size in self._planes.values())
        return ones / bits if bits else float("nan")

    def _plane(self, column: int) -> U8:
        """Return the stored filter bits of a column, where they are mapped."""
        start, size = self._planes[column]
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(start))

    def _open_shard(self, shard: ShardEntry) -> None:
        """Map a shard's file, and enter the addresses of its subs."""
        starts = np.frombuffer(shard.starts, dtype=np.uint32).reshape(-1, SUBS + 1)
        start = self._map(shard.file, chunk_key(shard.first_column, 0))
        chunks = start + np.frombuffer(shard.chunks, dtype=np.int64)
        subs = SUBS >> shard.chunk_bits
        # A chunk holds the keys of all its subs, then their numbers.
        firsts = starts[:, :-1:subs].astype(np.int64)
        lengths = np.diff(firsts, axis=1, append=starts[:, -1:].astype(np.int64))
        chunks = np.repeat(chunks.reshape(len(starts), -1), subs, axis=1)
        within = starts[:, :-1].astype(np.int64) - np.repeat(firsts, subs, axis=1)
        numbers = chunks + 4 * np.repeat(lengths, subs, axis=1) + 3 * within
        columns = slice(shard.first_column, shard.first_column + len(starts))
        entries = self.subs.reshape(-1, SUBS, 3)[columns]
        entries[..., KEYS] = chunks + 4 * within
        entries[..., NUMBERS] = numbers
        entries[..., COUNT] = np.diff(starts.astype(np.int64), axis=1)
        if shard.plane_bytes:
            planes = start + np.frombuffer(shard.planes, dtype=np.int64)
            for column, plane in enumerate(planes.tolist(), start=shard.first_column):
                self._planes[column] = (plane, shard.plane_bytes)

    def _map(self, file: FileEntry, first_key: bytes) -> int:
        """Map a file, and return the address of its first value."""
        path = self._directory / file.name
        size = path.stat().st_size if path.exists() else 0
        if size != file.size:  # reading beyond the end of a file would kill the process
            raise IndexDamaged(f"{path} has {size} bytes instead of {file.size}; {REMEDY}")
        with translated(path):
            environment = lmdb.open(
                str(path),
                subdir=False,
                readonly=True,
                lock=False,
                readahead=False,
                map_size=max(size, LEAST_MAP_BYTES),
            )
            self._maps.append(environment)
            with environment.begin(buffers=True) as txn:
                value = txn.get(first_key)
                if value is None:
                    raise IndexDamaged(f"{path} lacks its first value; {REMEDY}")
                return address(np.frombuffer(value, dtype=np.uint8))

    def _will_need(self, *, planes: bool) -> None:
        """Ask the system to read ahead the stored filter bits, or the postings."""
        for shard in self.entry.shards:
            if planes:
                first, last = shard.first_column, shard.first_column + len(shard.planes) // 8 - 1
                start = self._planes[first][0]
                size = self._planes[last][0] + shard.plane_bytes - start
            else:
                columns = len(shard.starts) // (4 * (SUBS + 1))
                subs = self.subs[shard.first_column * SUBS :][: columns * SUBS]
                start = int(subs[0, KEYS])
                size = int(subs[-1, NUMBERS]) - start
            page = start & -mmap.PAGESIZE
            _LIBC.madvise(ctypes.c_void_p(page), ctypes.c_size_t(start + size - page), _WILL_NEED)
