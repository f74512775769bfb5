"""*Blocking.* Segments: immutable runs of documents and their postings, in LMDB files.

A segment is a directory of one file for the documents and one for each *shard*, a range of
columns. Its values are few and large, so LMDB serves as a container with an ordered write; they
are read where LMDB maps them, by address. Layout of the documents' file: ``d`` + u32 block -> a
block (:mod:`streamdedup.index.blocks`). Of a shard's: ``c`` + u16 column, u8 chunk -> postings
(:mod:`streamdedup.index.postings`); ``f`` + u16 column -> filter bits, where they are stored.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import xxhash

from streamdedup.dedup.clock import Settlement
from streamdedup.errors import REMEDY, IndexDamaged
from streamdedup.index import blocks
from streamdedup.index.blocks import BLOCK_DOCUMENTS, Rows
from streamdedup.index.filter import SLOTS, Bank
from streamdedup.index.manifest import FileEntry, SegmentEntry, ShardEntry, translated
from streamdedup.index.memory import address
from streamdedup.index.postings import (
    COUNT,
    KEYS,
    NUMBERS,
    POSTING_BYTES,
    SUBS,
    pack,
    unpack_column,
)
from streamdedup.model import I64, U8, U64

DOCUMENTS_FILE = "documents.mdb"
_CHUNK_BYTES = 128 * 1024
_MOST_CHUNK_BITS = 8
_TRANSACTION_BYTES = 4 * 1024**2
"""Of one write transaction: its dirty pages stay in memory until it ends."""
_WRITE_MAP = 1 << 38
"""Addresses for a file while it is written; they cost nothing."""
_WILL_NEED = 3

SortedColumn = Callable[[int, U64, I64], int]
"""Writes a column's sorted postings, and where its subs begin; returns how many there are."""


def segment_directory(index: Path, name: str) -> Path:
    """Return where a segment lives."""
    return index / "segments" / name


class Segment:
    """A segment, open for reading.

    Attributes:
        entry: what the manifest says of it.
        blocks: address of each block of documents.
        places: ``(columns * 256, 3)``; see :data:`streamdedup.index.postings.KEYS`.
        slot: its bit in the filters.
        busy: whether the background works on it.
    """

    def __init__(self, index: Path, entry: SegmentEntry, columns: int) -> None:
        self.entry = entry
        self.directory = segment_directory(index, entry.name)
        self.slot = -1
        self.busy = False
        self._maps: list[Any] = []
        self._planes: dict[int, tuple[int, int]] = {}
        self.places = np.zeros((columns * SUBS, 3), dtype=np.int64)
        try:
            start = self._map(entry.documents, _block_key(0))
            self.blocks = start + np.frombuffer(entry.blocks, dtype=np.int64)
            for shard in entry.shards:
                self._open_shard(shard)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unmap the files; nothing may read them any more."""
        for environment in self._maps:
            environment.close()
        self._maps.clear()

    def remove(self) -> None:
        """Close, and give the disk space back."""
        self.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def column(self, column: int, out: U64) -> int:
        """Write a column's sorted postings, and return how many there are."""
        return unpack_column(self.places[column * SUBS : (column + 1) * SUBS], out)

    def rows(self, places: I64, width: int) -> Rows:
        """Return the documents at some places, ``(n,)``."""
        return blocks.gather(
            self.blocks[places // BLOCK_DOCUMENTS], places % BLOCK_DOCUMENTS, width
        )

    def all_rows(self, width: int) -> Iterator[tuple[int, Rows]]:
        """Yield all documents, a block at a time, with the number of the first."""
        count = self.entry.count
        for low in range(0, count, BLOCK_DOCUMENTS):
            places = np.arange(low, min(count, low + BLOCK_DOCUMENTS))
            yield self.entry.first + low, self.rows(places, width)

    def fill(self, bank: Bank) -> None:
        """Set this segment's bits in a bank: from the stored ones, or anew."""
        stored = all(shard.plane_bytes == bank.plane_bytes for shard in self.entry.shards)
        self._will_need(planes=stored)
        postings = np.empty(0 if stored else self.entry.count, dtype=np.uint64)
        for column in range(bank.columns):
            if stored:
                start, size = self._planes[column]
                bank.add_plane(_view(start, size), column, self.slot % SLOTS)
            else:
                count = self.column(column, postings)
                bank.add(postings[:count], column, self.slot % SLOTS)

    def _open_shard(self, shard: ShardEntry) -> None:
        starts = np.frombuffer(shard.starts, dtype=np.uint32).reshape(-1, SUBS + 1)
        start = self._map(shard.file, _chunk_key(shard.first_column, 0))
        chunks = start + np.frombuffer(shard.chunks, dtype=np.int64)
        subs = SUBS >> shard.chunk_bits
        # Keys and numbers of the chunk that a sub lies in begin where its first sub does.
        firsts = starts[:, :-1:subs].astype(np.int64)
        lengths = np.diff(firsts, axis=1, append=starts[:, -1:].astype(np.int64))
        chunks = np.repeat(chunks.reshape(len(starts), -1), subs, axis=1)
        within = starts[:, :-1].astype(np.int64) - np.repeat(firsts, subs, axis=1)
        numbers = chunks + 4 * np.repeat(lengths, subs, axis=1) + 3 * within
        there = self.places.reshape(-1, SUBS, 3)[
            shard.first_column : shard.first_column + len(starts)
        ]
        there[..., KEYS] = chunks + 4 * within
        there[..., NUMBERS] = numbers
        there[..., COUNT] = np.diff(starts.astype(np.int64), axis=1)
        if shard.plane_bytes:
            planes = start + np.frombuffer(shard.planes, dtype=np.int64)
            for column, at in enumerate(planes.tolist(), start=shard.first_column):
                self._planes[column] = (at, shard.plane_bytes)

    def _map(self, file: FileEntry, first_key: bytes) -> int:
        """Map a file and return the address of its first value."""
        path = self.directory / file.name
        size = path.stat().st_size if path.exists() else 0
        if size != file.size:  # reading behind the end of a file would kill the process
            raise IndexDamaged(f"{path} has {size} bytes instead of {file.size}; {REMEDY}")
        with translated(path):
            environment = lmdb.open(
                str(path),
                subdir=False,
                readonly=True,
                lock=False,
                readahead=False,
                map_size=max(size, 1 << 20),
            )
            self._maps.append(environment)
            with environment.begin(buffers=True) as txn:
                value = txn.get(first_key)
                if value is None:
                    raise IndexDamaged(f"{path} lacks its first value; {REMEDY}")
                return address(np.frombuffer(value, dtype=np.uint8))

    def _will_need(self, *, planes: bool) -> None:
        """Have the system read ahead what the filter is made from."""
        for shard in self.entry.shards:
            if planes:
                first, last = shard.first_column, shard.first_column + len(shard.planes) // 8 - 1
                start = self._planes[first][0]
                size = self._planes[last][0] + shard.plane_bytes - start
            else:
                columns = len(shard.starts) // (4 * (SUBS + 1))
                there = self.places[shard.first_column * SUBS :][: columns * SUBS]
                start = int(there[0, KEYS])
                size = int(there[-1, NUMBERS]) - start
            page = start & -mmap.PAGESIZE
            _LIBC.madvise(ctypes.c_void_p(page), ctypes.c_size_t(start + size - page), _WILL_NEED)


_LIBC = ctypes.CDLL(None, use_errno=True)


def _view(start: int, size: int) -> U8:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(start))


class SegmentWriter:
    """Writes one segment. It counts from the manifest's transaction that names it.

    Args:
        directory: of the segment; its name is the segment's.
        first: number of the first document.
        sync: whether everything is on the disk in the end.
        pause: called between two parts, so that something more urgent may pass.
    """

    def __init__(
        self, directory: Path, first: int, *, sync: bool, pause: Callable[[], None]
    ) -> None:
        self._directory, self._first = directory, first
        self._sync, self._pause = sync, pause
        self._parts = {"documents": 0, "postings": 0, "filter": 0}

    def write(
        self,
        count: int,
        rows: Callable[[I64], Rows],
        column: SortedColumn,
        shards: list[range],
        bank: Bank,
        slot: int,
        *,
        store_filter: bool,
        settlement: Settlement,
    ) -> SegmentEntry:
        """Write all files.

        Args:
            count: documents, at least one.
            rows: returns the documents at some places.
            column: returns a column's sorted postings.
            shards: the columns of each shard.
            bank: where the filter bits go.
            slot: which of the bank's.
            store_filter: whether the slot's bits are stored too.
            settlement: how early effective times are seen.
        """
        with translated(self._directory):
            self._directory.mkdir(parents=True)
            documents, distances, (oldest, newest) = self._write_documents(count, rows, settlement)
            entries = [
                self._write_shard(
                    number, columns, count, column, bank, slot, store_filter=store_filter
                )
                for number, columns in enumerate(shards)
            ]
            if self._sync:
                for directory in (self._directory, self._directory.parent):
                    _fsync(directory)
        return SegmentEntry(
            name=self._directory.name,
            first=self._first,
            count=count,
            oldest_ms=oldest,
            newest_ms=newest,
            documents=documents,
            blocks=distances.tobytes(),
            shards=entries,
            parts=self._parts,
        )

    def _write_documents(
        self, count: int, rows: Callable[[I64], Rows], settlement: Settlement
    ) -> tuple[FileEntry, I64, tuple[int, int]]:
        oldest, newest = [], []

        def values() -> Iterator[tuple[bytes, bytes]]:
            for number, low in enumerate(range(0, count, BLOCK_DOCUMENTS)):
                self._pause()
                some = rows(np.arange(low, min(count, low + BLOCK_DOCUMENTS)))
                times = settlement.all_seen_ms(
                    self._first + low, some.fields[:, blocks.EFFECTIVE_TIME]
                )
                oldest.append(int(times.min()))
                newest.append(int(times.max()))
                value = blocks.encode(some)
                self._parts["documents"] += len(value)
                yield _block_key(number), value

        entry, distances = self._write_file(DOCUMENTS_FILE, values())
        return entry, distances, (min(oldest), max(newest))

    def _write_shard(
        self,
        number: int,
        columns: range,
        count: int,
        column: SortedColumn,
        bank: Bank,
        slot: int,
        *,
        store_filter: bool,
    ) -> ShardEntry:
        postings = np.empty(count, dtype=np.uint64)
        starts = np.empty((len(columns), SUBS + 1), dtype=np.int64)
        chunk_bits = min(_MOST_CHUNK_BITS, (count * POSTING_BYTES // _CHUNK_BYTES).bit_length())
        subs = SUBS >> chunk_bits

        def values() -> Iterator[tuple[bytes, Any]]:
            for at, each in enumerate(columns):
                self._pause()
                found = column(each, postings, starts[at])
                bank.add(postings[:found], each, slot % SLOTS)
                for chunk in range(1 << chunk_bits):
                    some = postings[starts[at, chunk * subs] : starts[at, (chunk + 1) * subs]]
                    # Without a byte a value would have no address.
                    value = np.zeros(max(1, POSTING_BYTES * len(some)), dtype=np.uint8)
                    pack(some, value)
                    self._parts["postings"] += len(value)
                    yield _chunk_key(each, chunk), value.data
            for each in columns if store_filter else ():
                plane = bank.plane(each, slot % SLOTS)
                self._parts["filter"] += len(plane)
                yield _plane_key(each), plane.data

        entry, distances = self._write_file(f"shard-{number:03}.mdb", values())
        chunks = len(columns) << chunk_bits
        return ShardEntry(
            file=entry,
            first_column=columns.start,
            starts=starts.astype(np.uint32).tobytes(),
            chunk_bits=chunk_bits,
            chunks=distances[:chunks].tobytes(),
            plane_bytes=bank.plane_bytes if store_filter else 0,
            planes=distances[chunks:].tobytes(),
        )

    def _write_file(self, name: str, values: Iterator[tuple[bytes, Any]]) -> tuple[FileEntry, I64]:
        """Write values in ascending order of their keys.

        Returns:
            The file, and the distance of each value from the first in its map, in order.
        """
        path = self._directory / name
        environment = lmdb.open(
            str(path),
            subdir=False,
            lock=False,
            sync=False,
            metasync=False,
            map_size=_WRITE_MAP,
        )
        try:
            for some in _in_transactions(values):
                with environment.begin(write=True) as txn:
                    for key, value in some:
                        txn.put(key, value, append=True)
            if self._sync:
                environment.sync(True)
            used = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
            with environment.begin(buffers=True) as txn:
                places = [
                    address(np.frombuffer(value, dtype=np.uint8)) for _, value in txn.cursor()
                ]
        finally:
            environment.close()
        # LMDB leaves an unused page at the end unwritten, and a mapping must not end before it.
        os.truncate(path, used)
        if self._sync:
            _fsync(path)
        entry = FileEntry(name, path.stat().st_size, checksum(path))
        return entry, np.array(places, dtype=np.int64) - places[0]


def _in_transactions(
    values: Iterator[tuple[bytes, Any]],
) -> Iterator[list[tuple[bytes, Any]]]:
    some, size = [], 0
    for key, value in values:
        some.append((key, value))
        size += len(value)
        if size >= _TRANSACTION_BYTES:
            yield some
            some, size = [], 0
    yield some


def checksum(path: Path) -> int:
    """Return the XXH3-64 of a file."""
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.intdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _block_key(block: int) -> bytes:
    return b"d" + block.to_bytes(4, "big")


def _chunk_key(column: int, chunk: int) -> bytes:
    return b"c" + column.to_bytes(2, "big") + bytes([chunk])


def _plane_key(column: int) -> bytes:
    return b"f" + column.to_bytes(2, "big")
