"""*Blocking.* The manifest: the segments that an index consists of, in one small LMDB environment.

A segment belongs to the index once a transaction of the manifest names it. Other files in the
directory do not count. The same transaction advances the changelog offset that the segments
represent, together with everything else that a worker must know at that offset.

Layout: ``meta`` (``header``, ``checkpoint``, ``damage``, ``sum``), ``segments`` (>u8 first number
-> MessagePack), ``erased`` (>u8 number -> whether its bytes are still to be overwritten), ``tail``
(>u8 applied -> update and notes; only without a changelog). See docs/internals/stored-index.md.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import lmdb
import msgspec

from streamdedup.errors import REMEDY, IndexDamaged, IndexMismatch, IndexUnusable
from streamdedup.failpoints import reach
from streamdedup.index.directory import (
    DATA_FILE,
    MANIFEST,
    STAGING,
    fsync,
    holds_index,
    lock_existing,
    problem_of,
    segment_directories,
    translated,
)
from streamdedup.index.layout import (
    Checkpoint,
    Header,
    SegmentEntry,
    Tail,
    decode_header,
    difference,
    sum_of,
)

_MAP_BYTES = 1 << 36
"""Address space of the manifest; the file itself stays small."""
_META, _SEGMENTS, _ERASED, _TAIL = "meta", "segments", "erased", "tail"
_HEADER, _CHECKPOINT, _DAMAGE, _SUM = b"header", b"checkpoint", b"damage", b"sum"
"""Keys in the first database; the sum is that of the checksums of all other records."""
_MASK = (1 << 64) - 1
_TO_OVERWRITE, _OVERWRITTEN = b"\1", b"\0"
_ENCODER = msgspec.msgpack.Encoder()

T = TypeVar("T")


class Manifest:
    """The manifest of the index in a directory.

    The expected header is written to a new index; None accepts any. With ``sync``, a transaction is
    forced to disk when it ends. With ``readonly``, no process may have the index open.

    Raises:
        IndexMismatch: the stored header is not the expected one.
        IndexDamaged: the manifest is not what was written.
        IndexUnusable: the manifest cannot be opened.
    """

    def __init__(
        self, directory: Path, header: Header | None, *, sync: bool = True, readonly: bool = False
    ) -> None:
        self.directory = directory / MANIFEST
        self._writing = threading.Lock()
        if not holds_index(directory):
            if (directory / STAGING).exists():
                raise IndexUnusable(
                    f"{directory} holds an interrupted import; run the import again, or remove "
                    "the directory"
                )
            if header is None:
                raise IndexUnusable(f"{directory} holds no index")
        path = self.directory / DATA_FILE
        # LMDB trusts its pages: a damaged one could kill the process. A crash while LMDB creates
        # the file may leave it empty.
        if path.exists() and path.stat().st_size and (problem := problem_of(path)):
            raise IndexDamaged(f"{path} is damaged ({problem}); {REMEDY}")
        with translated(self.directory):
            self._lmdb = lmdb.open(
                str(self.directory),
                map_size=_MAP_BYTES,
                max_dbs=4,
                sync=sync,
                readonly=readonly,
                readahead=False,
                max_readers=16,
            )
        try:
            self._check_size()
            with translated(self.directory):
                self._lmdb.reader_check()
                self._databases = {
                    name: self._lmdb.open_db(name.encode(), create=not readonly)
                    for name in (_META, _SEGMENTS, _ERASED, _TAIL)
                }
            self.header = self._check_header(header)
        except BaseException:
            self._lmdb.close()
            raise

    def close(self) -> None:
        """Close the environment."""
        self._lmdb.close()

    @property
    def bytes_used(self) -> int:
        """Bytes on disk."""
        return int((self._lmdb.info()["last_pgno"] + 1) * self._lmdb.stat()["psize"])

    def checkpoint(self) -> Checkpoint:
        """Return the state that the segments represent; a new index has an empty one."""
        return self._get(_CHECKPOINT, Checkpoint) or Checkpoint()

    def segments(self) -> list[SegmentEntry]:
        """Return the segments, oldest first."""
        with self._read(_SEGMENTS) as txn:
            return [self._decode(value, SegmentEntry) for _, value in txn.cursor()]

    def erased(self) -> dict[int, bool]:
        """Return the erased numbers, and whether their bytes are still to be overwritten."""
        with self._read(_ERASED) as txn:
            return {_number(key): value == _TO_OVERWRITE for key, value in txn.cursor()}

    def tail(self) -> Iterator[tuple[int, Tail]]:
        """Yield the updates that no segment holds yet, each with the offset that it leads to."""
        with self._read(_TAIL) as txn:
            for key, value in txn.cursor():
                yield _number(key), self._decode(value, Tail)

    def append(self, applied: int, tail: Tail) -> None:
        """Store an update until a segment holds it."""
        with self._write() as records:
            key = _number_key(applied)
            if records.get(_TAIL, key) is not None:
                raise IndexDamaged(f"{self.directory} already holds the update {applied}; {REMEDY}")
            records.put(_TAIL, key, _ENCODER.encode(tail))

    def announce(
        self,
        *,
        segment: SegmentEntry | None = None,
        instead_of: Iterable[SegmentEntry] = (),
        checkpoint: Checkpoint | None = None,
        erased: Iterable[int] = (),
        overwritten: Iterable[int] = (),
    ) -> None:
        """Change what the index consists of, in one transaction.

        A new segment comes ``instead_of`` others. The checkpoint is the state that the segments
        represent afterwards. The bytes of ``erased`` numbers are still to be overwritten.

        The caller may not know yet what the last transactions have done: numbers that an earlier
        transaction declared overwritten stay so, and numbers older than every segment are ignored.
        """
        with self._write() as records:
            for old in instead_of:
                records.delete(_SEGMENTS, _number_key(old.first))
            if segment is not None:
                records.put(_SEGMENTS, _number_key(segment.first), _ENCODER.encode(segment))
            oldest = records.first_key(_SEGMENTS)
            for key in map(_number_key, erased):
                is_held = oldest is not None and key >= oldest
                if is_held and records.get(_ERASED, key) is None:
                    records.put(_ERASED, key, _TO_OVERWRITE)
            for number in overwritten:
                records.put(_ERASED, _number_key(number), _OVERWRITTEN)
            if checkpoint is not None:
                records.put(_META, _CHECKPOINT, _ENCODER.encode(checkpoint))
                _delete_up_to(records, _TAIL, checkpoint.applied)

    def drop(self, segment: SegmentEntry) -> None:
        """Remove the oldest segment, and the erasures of its documents."""
        with self._write() as records:
            records.delete(_SEGMENTS, _number_key(segment.first))
            _delete_up_to(records, _ERASED, segment.end - 1)

    def rebind(self, header: Header, checkpoint: Checkpoint) -> None:
        """Make this the index of another changelog, of which no entry is applied yet."""
        with self._write() as records:
            records.put(_META, _HEADER, msgspec.json.encode(header))
            records.put(_META, _CHECKPOINT, _ENCODER.encode(checkpoint))
        self.header = header

    def damage(self) -> dict[str, list[int]]:
        """Return the numbers of values that were found damaged, by the name of their file."""
        return self._get(_DAMAGE, dict[str, list[int]]) or {}

    def record_damage(self, name: str, numbers: list[int]) -> None:
        """Record that values of a file were found damaged."""
        known = self.damage() | {name: numbers}
        with self._write() as records:
            records.put(_META, _DAMAGE, _ENCODER.encode(known))

    @contextmanager
    def _read(self, name: str) -> Iterator[Any]:
        database = self._databases[name]
        with translated(self.directory), self._lmdb.begin(db=database, buffers=False) as txn:
            yield txn

    @contextmanager
    def _write(self) -> Iterator[Records]:
        # A second writer could make the file longer than the first one is about to make it.
        with self._writing, translated(self.directory):
            with self._lmdb.begin(write=True) as txn:
                records = Records(txn, self._databases)
                yield records
                records.save()
                reach("manifest")
            self._extend_file()

    def _get(self, key: bytes, kind: type[T]) -> T | None:
        with self._read(_META) as txn:
            raw = txn.get(key)
        return None if raw is None else self._decode(raw, kind)

    def _decode(self, raw: bytes, kind: type[T]) -> T:
        with translated(self.directory):
            return msgspec.msgpack.decode(raw, type=kind)

    def _check_size(self) -> None:
        """Refuse a truncated file: reading beyond its end would kill the process."""
        size = (self.directory / DATA_FILE).stat().st_size
        if size < self.bytes_used:
            raise IndexDamaged(
                f"{self.directory} is damaged (it has {size} bytes of {self.bytes_used}); {REMEDY}"
            )

    def _extend_file(self) -> None:
        """Extend the file to its last page; LMDB does not write an unused page at the end."""
        path = self.directory / DATA_FILE
        if path.stat().st_size < self.bytes_used:
            os.truncate(path, self.bytes_used)

    def _check_header(self, expected: Header | None) -> Header:
        with self._read(_META) as txn:
            records = Records(txn, self._databases)
            raw, is_complete = records.get(_META, _HEADER), records.is_complete()
        stored = None if raw is None else decode_header(raw, self.directory)
        if not is_complete:
            raise IndexDamaged(
                f"{self.directory} is damaged: its records are not those that were written; "
                f"{REMEDY}"
            )
        if stored is None:
            # Segments without a manifest are the remains of an index, not a new one.
            if expected is None or segment_directories(self.directory.parent):
                raise IndexDamaged(f"{self.directory} has no header; {REMEDY}")
            with self._write() as changes:
                changes.put(_META, _HEADER, msgspec.json.encode(expected))
            return expected
        if expected is not None and stored != expected:
            raise IndexMismatch(f"{self.directory.parent}: {difference(stored, expected)}")
        return stored


class Records:
    """The records of the manifest within one transaction, and the sum of their checksums.

    The sum, modulo 2^64, tells whether a record was lost or changed. A transaction adds the
    checksums of the records that it writes, and subtracts those that it replaces or deletes.
    """

    def __init__(self, txn: Any, databases: Mapping[str, Any]) -> None:
        self._txn, self._databases, self._home = txn, databases, databases[_META]
        self._sum = int.from_bytes(txn.get(_SUM, db=self._home) or b"", "little")

    def is_complete(self) -> bool:
        """Return whether these are the records that were written; reads all of them."""
        found = 0
        for name, database in self._databases.items():
            for key, value in self._txn.cursor(db=database):
                if database is not self._home or key != _SUM:
                    found += _sum_of_record(name, key, value)
        return found & _MASK == self._sum

    def get(self, name: str, key: bytes) -> bytes | None:
        """Return the value under a key of a database; None if it has no such key."""
        value: bytes | None = self._txn.get(key, db=self._databases[name])
        return value

    def put(self, name: str, key: bytes, value: bytes) -> None:
        """Write a record; it replaces one with the same key."""
        self._subtract(name, key)
        self._txn.put(key, value, db=self._databases[name])
        self._sum += _sum_of_record(name, key, value)

    def delete(self, name: str, key: bytes) -> None:
        """Delete a record if it exists."""
        self._subtract(name, key)
        self._txn.delete(key, db=self._databases[name])

    def first_key(self, name: str) -> bytes | None:
        """Return the first key of a database; None if it is empty."""
        with self._txn.cursor(db=self._databases[name]) as cursor:
            return cursor.key() if cursor.first() else None

    def save(self) -> None:
        """Write the sum; the last step of a transaction that has changed records."""
        self._txn.put(_SUM, (self._sum & _MASK).to_bytes(8, "little"), db=self._home)

    def _subtract(self, name: str, key: bytes) -> None:
        old = self.get(name, key)
        if old is not None:
            self._sum -= _sum_of_record(name, key, old)


def _sum_of_record(name: str, key: bytes, value: bytes) -> int:
    return sum_of(value, seed=sum_of(name.encode() + b"/" + key))


def read_segments(directory: Path) -> list[SegmentEntry]:
    """Return the segments of an index that no process has open, oldest first."""
    with closing(Manifest(directory, None, readonly=True)) as manifest:
        return manifest.segments()


def compact_manifest(directory: Path) -> None:
    """Lock an index, and rewrite its manifest without free pages, which hold deleted values."""
    staging, manifest = directory / STAGING, directory / MANIFEST
    descriptor = lock_existing(directory)
    try:
        shutil.rmtree(staging, ignore_errors=True)
        with translated(directory):
            staging.mkdir()
            with lmdb.open(str(manifest), readonly=True, lock=False) as environment:
                environment.copy(str(staging), compact=True)
            fsync(staging / DATA_FILE)
            (staging / DATA_FILE).replace(manifest / DATA_FILE)
            fsync(manifest)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        os.close(descriptor)


def _delete_up_to(records: Records, name: str, last: int) -> None:
    """Delete the records of a database up to a number, inclusive."""
    while (key := records.first_key(name)) is not None and _number(key) <= last:
        records.delete(name, key)


def _number_key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _number(key: bytes) -> int:
    return int.from_bytes(key, "big")
