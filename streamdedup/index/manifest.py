"""*Blocking.* The manifest: what an index consists of, in one small LMDB environment.

A segment counts from the transaction that names it here; what no such transaction names is not
part of the index, whatever lies on the disk. The same transaction moves the changelog offset that
the segments stand for, with everything else that a worker must know at that offset.

Layout: ``meta`` (``header``, ``checkpoint``), ``segments`` (>u8 first number -> MessagePack),
``erased`` (>u8 number -> whether its bytes are still to be overwritten), ``tail`` (>u8 applied ->
update and notes; only where no changelog stands behind the index). See docs/format.md.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import lmdb
import msgspec

from streamdedup.errors import REMEDY, IndexDamaged, IndexFull, IndexMismatch, IndexUnusable

FORMAT = 2
MAP_BYTES = 1 << 36
"""Addresses, not disk: the manifest itself stays small."""
_DATA = "data.mdb"
_DAMAGE = (
    lmdb.BadTxnError,
    lmdb.CorruptedError,
    lmdb.CursorFullError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.PageFullError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.ProblemError,
    lmdb.VersionMismatchError,
)
_HEADER = b"header"
_CHECKPOINT = b"checkpoint"
_TO_OVERWRITE, _OVERWRITTEN = b"\1", b"\0"


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an index says of itself.

    Attributes:
        format: version of the layout.
        parameters: everything that the bits of a sketch depend on.
        log: the changelog whose offsets the index has applied.
    """

    format: int
    parameters: dict[str, int | str | bool]
    log: str


class Checkpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the segments stand for, together.

    Attributes:
        applied: changelog offset up to which entries are in, exclusive.
        next_number: number of the next kept document.
        clock: state of the clock of the stream.
        sources: topic, partition and next offset of each source; its place is the source's number.
        notes: what the transport wants to remember.
        has_all_texts: whether every document came with its text.
    """

    applied: int = 0
    next_number: int = 0
    clock: bytes = b""
    sources: list[tuple[str, int, int]] = []
    notes: dict[str, bytes] = {}
    has_all_texts: bool = True


class FileEntry(msgspec.Struct, frozen=True):
    """A file of a segment: its name, size in bytes and XXH3-64."""

    name: str
    size: int
    sum: int


class ShardEntry(msgspec.Struct, frozen=True):
    """The postings of a range of columns.

    Attributes:
        file: where they are.
        first_column: the first of them.
        starts: ``(columns, 257)`` uint32: where each sub begins in its column, and the end.
        chunk_bits: a column is cut into ``2 ** chunk_bits`` values.
        chunks: ``(columns, 2 ** chunk_bits)`` int64: distance of each from the first.
        plane_bytes: bytes of a column's filter bits; 0 where they are not stored.
        planes: ``(columns,)`` int64: distance of these from the first chunk.
    """

    file: FileEntry
    first_column: int
    starts: bytes
    chunk_bits: int
    chunks: bytes
    plane_bytes: int = 0
    planes: bytes = b""


class SegmentEntry(msgspec.Struct, frozen=True):
    """An immutable segment.

    Attributes:
        name: its directory.
        first: number of its first document; the others follow without gaps.
        count: documents.
        oldest_ms: earliest effective time.
        newest_ms: latest effective time.
        documents: the file of the documents.
        blocks: int64: distance of each block from the first.
        shards: the postings.
        parts: bytes of each kind of value: ``documents``, ``postings``, ``filter``.
    """

    name: str
    first: int
    count: int
    oldest_ms: int
    newest_ms: int
    documents: FileEntry
    blocks: bytes
    shards: list[ShardEntry]
    parts: dict[str, int]

    @property
    def end(self) -> int:
        """The number after the last document's."""
        return self.first + self.count

    @property
    def files(self) -> list[FileEntry]:
        """All files."""
        return [self.documents, *(shard.file for shard in self.shards)]

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.size for file in self.files)


class Tail(msgspec.Struct, frozen=True, array_like=True):
    """An update that no segment holds yet, where there is no changelog to read it from."""

    update: bytes
    notes: dict[str, bytes]


T = TypeVar("T")

_ENCODER = msgspec.msgpack.Encoder()


class Manifest:
    """The manifest of the index in a directory.

    Args:
        directory: of the index.
        header: what the index must be; None to take it as it is.
        sync: whether a transaction is on the disk when it ends.
        readonly: for looking at an index that nobody has open.

    Raises:
        IndexMismatch: the index is another one than the header says.
        IndexDamaged: the manifest is not what was written.
        IndexUnusable: it cannot be opened.
    """

    def __init__(
        self, directory: Path, header: Header | None, *, sync: bool = True, readonly: bool = False
    ) -> None:
        self.directory = directory / "manifest"
        if header is None and not (self.directory / _DATA).exists():
            raise IndexUnusable(f"{directory} holds no index")
        with translated(self.directory):
            self._lmdb = lmdb.open(
                str(self.directory),
                map_size=MAP_BYTES,
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
                self._meta, self._segments, self._erased, self._tail = (
                    self._lmdb.open_db(name.encode(), create=not readonly)
                    for name in ("meta", "segments", "erased", "tail")
                )
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
        """Return what the segments stand for."""
        raw = self._get(_CHECKPOINT)
        return Checkpoint() if raw is None else self._decode(raw, Checkpoint)

    def segments(self) -> list[SegmentEntry]:
        """Return the segments, oldest first."""
        with self._read(self._segments) as txn:
            return [self._decode(value, SegmentEntry) for _, value in txn.cursor()]

    def erased(self) -> dict[int, bool]:
        """Return the erased numbers, and whether their bytes are still to be overwritten."""
        with self._read(self._erased) as txn:
            return {
                int.from_bytes(key, "big"): value == _TO_OVERWRITE for key, value in txn.cursor()
            }

    def tail(self) -> Iterator[tuple[int, Tail]]:
        """Return the updates that no segment holds yet, with the offset that each brings."""
        with self._read(self._tail) as txn:
            for key, value in txn.cursor():
                yield int.from_bytes(key, "big"), self._decode(value, Tail)

    def append(self, applied: int, tail: Tail) -> None:
        """Remember an update until a segment holds it."""
        with self._write() as txn:
            if not txn.put(_number_key(applied), _ENCODER.encode(tail), db=self._tail, append=True):
                raise IndexDamaged(f"{self.directory} holds the update {applied} already; {REMEDY}")

    def announce(
        self,
        *,
        segment: SegmentEntry | None = None,
        instead_of: Iterable[SegmentEntry] = (),
        checkpoint: Checkpoint | None = None,
        erased: Mapping[int, bool] | None = None,
    ) -> None:
        """Change what the index consists of, in one transaction.

        Args:
            segment: what is new.
            instead_of: segments that no longer count.
            checkpoint: what the segments stand for from now on.
            erased: numbers that are erased, and whether their bytes are still to be overwritten.
        """
        with self._write() as txn:
            for old in instead_of:
                txn.delete(_number_key(old.first), db=self._segments)
            if segment is not None:
                key = _number_key(segment.first)
                txn.put(key, _ENCODER.encode(segment), db=self._segments)
            for number, to_overwrite in (erased or {}).items():
                value = _TO_OVERWRITE if to_overwrite else _OVERWRITTEN
                txn.put(_number_key(number), value, db=self._erased)
            if checkpoint is not None:
                txn.put(_CHECKPOINT, _ENCODER.encode(checkpoint), db=self._meta)
                with txn.cursor(db=self._tail) as cursor:
                    while cursor.first() and _number(cursor.key()) <= checkpoint.applied:
                        cursor.delete()

    def drop(self, segment: SegmentEntry) -> None:
        """Take out the oldest segment, and what is known of erased documents in it."""
        with self._write() as txn:
            txn.delete(_number_key(segment.first), db=self._segments)
            with txn.cursor(db=self._erased) as cursor:
                while cursor.first() and _number(cursor.key()) < segment.end:
                    cursor.delete()

    def rebind(self, header: Header, checkpoint: Checkpoint) -> None:
        """Make this the index of another changelog, none of whose entries is in yet."""
        with self._write() as txn:
            txn.put(_HEADER, msgspec.json.encode(header), db=self._meta)
            txn.put(_CHECKPOINT, _ENCODER.encode(checkpoint), db=self._meta)
        self.header = header

    @contextmanager
    def _read(self, database: Any) -> Iterator[Any]:
        with translated(self.directory), self._lmdb.begin(db=database, buffers=False) as txn:
            yield txn

    @contextmanager
    def _write(self) -> Iterator[Any]:
        with translated(self.directory), self._lmdb.begin(write=True) as txn:
            yield txn
        self._fill()

    def _get(self, key: bytes) -> bytes | None:
        with self._read(self._meta) as txn:
            found: bytes | None = txn.get(key)
            return found

    def _decode(self, raw: bytes, kind: type[T]) -> T:
        with translated(self.directory):
            return msgspec.msgpack.decode(raw, type=kind)

    def _check_size(self) -> None:
        """Refuse a file that was cut: to read behind its end would kill the process."""
        size = (self.directory / _DATA).stat().st_size
        if size < self.bytes_used:
            raise IndexDamaged(
                f"{self.directory} is damaged (it has {size} bytes of {self.bytes_used}); {REMEDY}"
            )

    def _fill(self) -> None:
        """Let the file reach its last page; LMDB leaves an unused one at the end unwritten."""
        path = self.directory / _DATA
        if path.stat().st_size < self.bytes_used:
            os.truncate(path, self.bytes_used)

    def _check_header(self, expected: Header | None) -> Header:
        raw = self._get(_HEADER)
        if raw is None:
            # Segments without a manifest are what is left of an index, and no new one.
            if expected is None or any((self.directory.parent / "segments").glob("*")):
                raise IndexDamaged(f"{self.directory} has no header; {REMEDY}")
            with self._write() as txn:
                txn.put(_HEADER, msgspec.json.encode(expected), db=self._meta)
            return expected
        found = _decode_header(raw, self.directory)
        if expected is not None and found != expected:
            raise IndexMismatch(f"{self.directory.parent}: {_difference(found, expected)}")
        return found


def _decode_header(raw: bytes, directory: Path) -> Header:
    try:
        layout = msgspec.json.decode(raw).get("format")
        if layout != FORMAT:
            raise IndexMismatch(
                f"{directory} has index format {layout}, this release reads {FORMAT}; use the "
                f"release that wrote it, or {REMEDY}"
            )
        return msgspec.json.decode(raw, type=Header)
    except (msgspec.MsgspecError, UnicodeDecodeError, AttributeError) as error:
        raise IndexDamaged(f"{directory}: the header cannot be read: {error}") from error


def _difference(found: Header, expected: Header) -> str:
    differences = [
        f"{name} {found.parameters.get(name)} (the settings say {ours})"
        for name, ours in expected.parameters.items()
        if found.parameters.get(name) != ours
    ]
    if differences:
        return (
            f"the index was built with {', '.join(differences)}; restore the settings, or use "
            "another index directory and changelog"
        )
    return f"the index belongs to {found.log}, not to {expected.log}; use another directory"


def _number_key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _number(key: bytes) -> int:
    return int.from_bytes(key, "big")


@contextmanager
def translated(directory: Path) -> Iterator[None]:
    """Put LMDB's and the system's errors in our words.

    Raises:
        IndexFull: the map or the disk is full.
        IndexDamaged: the file is not what was written.
        IndexUnusable: anything else that LMDB or the system reports.
    """
    try:
        yield
    except lmdb.MapFullError as error:
        raise IndexFull(
            f"{directory} has reached the most that a file of an index may take"
        ) from error
    except _DAMAGE as error:
        raise IndexDamaged(f"{directory} is damaged ({error}); {REMEDY}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise IndexDamaged(f"{directory} holds what was not written ({error}); {REMEDY}") from error
    except lmdb.DiskError as error:
        raise _full(directory) from error
    except lmdb.Error as error:
        raise IndexUnusable(f"{directory}: {error}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(directory) from error
        raise IndexUnusable(f"{directory}: {error.strerror}") from error


def _full(directory: Path) -> IndexFull:
    return IndexFull(f"the disk of {directory} is full; make room and start again")
