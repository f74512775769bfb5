"""*Blocking.* The index: documents in one LMDB environment, their buckets in shards beside it.

Rule 1: the documents' environment is written first, and holds the last update whole. A shard that
a crash or an error left one update behind is brought up from there before the index is used again.
Rule 2: an environment's data and the changelog offset that it stands for move in one transaction.
Rule 3: one process owns an index, and one thread of it uses it.

Layout of the documents' environment: ``documents`` (``>u8`` number -> MessagePack), ``positions``
(hash of the topic, partition, offset -> number), ``sources`` (topic and partition -> next offset),
``notes`` (whatever the transport must remember in the same transaction).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from streamdedup import changelog
from streamdedup.errors import REMEDY, IndexDamaged, IndexLocked, IndexMismatch, IndexUnusable
from streamdedup.index.environment import FORMAT, Environment, Header
from streamdedup.index.shard import Shard
from streamdedup.model import (
    I64,
    U64,
    Candidates,
    DocumentColumns,
    IndexUpdate,
    Position,
    Sketches,
    SourceRange,
)
from streamdedup.settings import IndexSettings
from streamdedup.sketch.sketcher import SketchParameters
from streamdedup.sketch.texts import NOT_STORED

LOCAL_LOG = "the embedded mode"
"""The ``log`` of an index that no changelog topic stands behind."""

_NEXT_NUMBER = b"next_number"
_OLDEST = b"oldest"
_LAST_UPDATE = b"last_update"
_PREVIOUS = b"previous"
_TEXTS = b"texts"
_ALL = b"all"
_SOME = b"some"
_NO_LIMIT = 2**62
_MOST_OVERDUE = 10_000
"""Overdue documents that one update lets go of, beside as many as it brings: where the window was
made smaller there may be millions."""


class StoredDocument(msgspec.Struct, array_like=True):
    """A kept document as it is stored; see docs/format.md."""

    id: str
    topic: str
    partition: int
    offset: int
    event_time_ms: int
    namespace: int
    signature: bytes
    band_keys: bytes
    text: bytes = NOT_STORED


@dataclass(frozen=True, slots=True)
class IndexStats:
    """What an index holds."""

    documents: int
    postings: int
    bytes_used: int
    applied: int
    next_number: int


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(StoredDocument)


class Index:
    """The band index on disk.

    Args:
        settings: where it lives, and its limits.
        parameters: what the bits of its sketches depend on.
        log: the changelog that it is a copy of.
        texts: whether to hold the documents' texts, all of them. Once a document has come without
            its text the index holds them no more.

    Raises:
        IndexUnusable: the directory cannot be made or written.
        IndexLocked: another process has it open.
        IndexMismatch: it was built with other parameters or belongs to another changelog.
        IndexDamaged: its files are not what was written.
    """

    def __init__(
        self, settings: IndexSettings, parameters: SketchParameters, log: str, *, texts: bool
    ) -> None:
        self.directory = settings.directory
        self._texts = texts
        self._fingerprint = parameters.fingerprint()
        self._window = settings.window_documents
        self._widths = (parameters.codec().num_bytes, parameters.bands + 1)
        self._lock = _lock(settings.directory)
        self._environments: list[Environment] = []
        self._applied = self._previous = self._next_number = self._oldest = 0
        try:
            self._open(settings, parameters, log)
        except BaseException:
            self.close()
            raise

    def _open(self, settings: IndexSettings, parameters: SketchParameters, log: str) -> None:
        columns = parameters.bands + 1
        shards = min(settings.shards, columns)

        def environment(role: str) -> Environment:
            header = Header(FORMAT, role, shards, parameters.described(), log)
            opened = Environment(
                settings.directory / role, header, map_size=settings.map_size, sync=settings.sync
            )
            self._environments.append(opened)
            return opened

        self._main = environment("documents")
        self._documents = self._main.database("documents")
        self._positions = self._main.database("positions")
        self._sources = self._main.database("sources")
        self._notes = self._main.database("notes")
        edges = [columns * shard // shards for shard in range(shards + 1)]
        self._shards = [
            Shard(
                environment(f"shard-{number:03}"),
                range(edges[number], edges[number + 1]),
                bucket_size=settings.bucket_size,
            )
            for number in range(shards)
        ]
        self._load()
        self._check_texts()
        self._settled = False
        self._settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all files and let go of the lock."""
        for environment in self._environments:
            environment.close()
        self._environments.clear()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def applied(self) -> int:
        """The changelog offset up to which entries are in, exclusive."""
        return self._applied

    @property
    def is_new(self) -> bool:
        """Whether no entry was ever applied."""
        return self._applied == 0

    @property
    def next_number(self) -> int:
        """The number that the next kept document gets."""
        return self._next_number

    def next_offset(self, topic: str, partition: int) -> int:
        """Return the offset up to which a source partition was judged, exclusive."""
        return self._next_offsets.get((topic, partition), 0)

    def note(self, key: str) -> bytes | None:
        """Return what was noted with the last update under a key."""
        with self._main.read(self._notes) as txn:
            found: bytes | None = txn.get(_note_key(key))
            return found

    def stats(self) -> IndexStats:
        """Count what the index holds."""
        return IndexStats(
            documents=self._main.entries(self._documents),
            postings=sum(shard.postings for shard in self._shards),
            bytes_used=sum(environment.bytes_used for environment in self._environments),
            applied=self._applied,
            next_number=self._next_number,
        )

    def probe(self, documents: DocumentColumns) -> Candidates:
        """Find the kept documents that share a bucket with each of the given ones."""
        self._settle()
        keys = documents.sketches.band_keys
        parts = [shard.probe(keys) for shard in self._shards]
        rows, columns, numbers = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.argsort(rows, kind="stable")
        distinct = np.unique(numbers)
        judged = np.array(
            [at.offset < self.next_offset(at.topic, at.partition) for at in documents.positions],
            dtype=np.bool_,
        )
        return Candidates(
            hit_rows=rows[order],
            hit_columns=columns[order],
            hit_numbers=numbers[order],
            numbers=distinct,
            documents=self._fetch(distinct),
            already_kept=self._already_kept(documents.positions, judged),
            already_judged=judged,
        )

    def apply(
        self, update: IndexUpdate, applied: int, notes: Mapping[str, bytes] | None = None
    ) -> None:
        """Take an update in. One that was taken in before changes nothing.

        Args:
            update: what the index gains.
            applied: changelog offset that this brings the index to.
            notes: what the transport must remember in the same transaction.

        Raises:
            IndexFull: no room is left. Where the documents are in already, the shards take their
                part before the index is used again.
            IndexDamaged: the update does not go on where the index ends.
            IndexMismatch: the index holds texts, and the update brings none.
        """
        self._settle()
        if applied <= self._applied:
            return
        # A new index may begin where the changelog does: its retention may have cut the oldest.
        if update.first_number != self._next_number and not self.is_new:
            raise IndexDamaged(
                f"{self.directory}: the next document has number {self._next_number}, the "
                f"changelog goes on with {update.first_number}; {REMEDY}"
            )
        self._check_documents(update.documents)
        next_number = update.first_number + len(update.documents)
        oldest = self._oldest_after(update)
        self._write_documents(update, applied, next_number, oldest, notes or {})
        self._previous, self._applied = self._applied, applied
        self._next_number, self._oldest = next_number, oldest
        self._has_all_texts = self._has_all_texts_after(update)
        self._remember_sources(update.ranges)
        self._settled = False
        self._settle(update)

    def _check_texts(self) -> None:
        if self._texts and not self._has_all_texts:
            raise IndexMismatch(
                f"{self.directory}: the index was built without the texts that dedup.verify exact "
                "compares; set dedup.verify to estimate, or use another index directory and "
                "changelog"
            )

    def _check_documents(self, documents: DocumentColumns) -> None:
        """Refuse sketches of another width, to be read back as something else, and lost texts."""
        if not len(documents):
            return
        if self._texts and not documents.texts:
            raise IndexMismatch(
                "the changelog was written without the texts that dedup.verify exact compares; set "
                "dedup.verify to estimate, or choose a new changelog topic and index"
            )
        sketches = documents.sketches
        if (sketches.signatures.shape[1], sketches.band_keys.shape[1]) != self._widths:
            raise IndexDamaged(f"{self.directory}: an update has sketches of another width")

    def _oldest_after(self, update: IndexUpdate) -> int:
        """Return the number that the index begins with after an update: all before it go."""
        oldest = update.first_number if self.is_new else self._oldest
        wanted = update.first_number + len(update.documents) - self._window
        return max(oldest, min(wanted, oldest + len(update.documents) + _MOST_OVERDUE))

    def _has_all_texts_after(self, update: IndexUpdate) -> bool:
        return self._has_all_texts and (self._texts or not len(update.documents))

    def _load(self) -> None:
        self._applied = self._main.applied
        self._previous = int(self._main.note(_PREVIOUS) or 0)
        self._next_number = int(self._main.note(_NEXT_NUMBER) or 0)
        self._oldest = int(self._main.note(_OLDEST) or 0)
        self._has_all_texts = self._next_number == 0 or self._main.note(_TEXTS) == _ALL
        self._next_offsets: dict[tuple[str, int], int] = {}
        with self._main.read(self._sources) as txn:
            for _, value in txn.cursor():
                topic, partition, offset = msgspec.msgpack.decode(value)
                self._next_offsets[topic, partition] = offset

    def _settle(self, update: IndexUpdate | None = None) -> None:
        """Give the last update to each shard that does not have it yet.

        Args:
            update: the last update, where it is at hand; else it is read back.
        """
        if self._settled:
            return
        for shard in self._shards:
            applied = shard.environment.applied
            if applied == self._applied:
                continue
            if applied != self._previous:
                raise IndexDamaged(
                    f"{shard.environment.directory} does not belong to the documents beside it; "
                    f"{REMEDY}"
                )
            update = update or self._last_update()
            self._write_postings(shard, update)
        self._settled = True

    def _last_update(self) -> IndexUpdate:
        last = self._main.note(_LAST_UPDATE)
        if last is None:
            raise IndexDamaged(f"{self.directory}: the last update is missing; {REMEDY}")
        return changelog.decode(last, self._fingerprint)

    def _write_documents(
        self,
        update: IndexUpdate,
        applied: int,
        next_number: int,
        oldest: int,
        notes: Mapping[str, bytes],
    ) -> None:
        documents = update.documents
        with self._main.write(applied) as txn:
            # The shards let go of these at the last update, and no longer need their band keys.
            self._drop_documents(txn, self._oldest)
            self._main.put_note(txn, _PREVIOUS, str(self._applied).encode())
            for row in range(len(documents)):
                number = _number_key(update.first_number + row)
                text = documents.texts[row] if self._texts else NOT_STORED
                txn.put(number, _encode(documents, row, text), db=self._documents, append=True)
                txn.put(_position_key(documents.positions[row]), number, db=self._positions)
            for topic, partition, _, offset in update.ranges:
                if offset > self.next_offset(topic, partition):
                    value = msgspec.msgpack.encode((topic, partition, offset))
                    txn.put(_source_key(topic, partition), value, db=self._sources)
            for name, note in notes.items():
                txn.put(_note_key(name), note, db=self._notes)
            # The shards have no use for the texts.
            bare = replace(update, documents=replace(documents, texts=()))
            [whole] = changelog.encode(bare, self._fingerprint, _NO_LIMIT)
            for key, content in (
                (_LAST_UPDATE, whole),
                (_NEXT_NUMBER, str(next_number).encode()),
                (_OLDEST, str(oldest).encode()),
                (_TEXTS, _ALL if self._has_all_texts_after(update) else _SOME),
            ):
                self._main.put_note(txn, key, content)

    def _drop_documents(self, txn: Any, oldest: int) -> None:
        with txn.cursor(db=self._documents) as cursor:
            while cursor.first() and int.from_bytes(cursor.key(), "big") < oldest:
                stored = _DECODER.decode(cursor.value())
                position = Position(stored.topic, stored.partition, stored.offset)
                txn.delete(_position_key(position), db=self._positions)
                cursor.delete()

    def _write_postings(self, shard: Shard, update: IndexUpdate) -> None:
        first = update.first_number
        expired = self._band_keys_between(shard.oldest, min(self._oldest, first))
        # An update longer than the window brings documents that have left it already.
        outdated = max(0, self._oldest - first)
        numbers = np.arange(first, first + len(update.documents), dtype=np.int64)[outdated:]
        keys = update.documents.sketches.band_keys[outdated:]
        shard.apply(self._applied, numbers, keys, expired, self._oldest)

    def _band_keys_between(self, first: int, last: int) -> tuple[I64, U64]:
        numbers, keys = [], []
        with self._main.read(self._documents) as txn, txn.cursor() as cursor:
            cursor.set_range(_number_key(first))
            for key, value in cursor:
                number = int.from_bytes(key, "big")
                if number >= last:
                    break
                numbers.append(number)
                keys.append(np.frombuffer(_DECODER.decode(value).band_keys, dtype="<u8"))
        stacked = np.stack(keys) if keys else np.empty((0, 0), dtype=np.uint64)
        return np.array(numbers, dtype=np.int64), stacked

    def _remember_sources(self, ranges: tuple[SourceRange, ...]) -> None:
        for topic, partition, _, offset in ranges:
            known = self.next_offset(topic, partition)
            self._next_offsets[topic, partition] = max(known, offset)

    def _fetch(self, numbers: I64) -> DocumentColumns:
        stored = []
        with self._main.read(self._documents) as txn:
            for number in numbers.tolist():
                value = txn.get(_number_key(number))
                if value is None:
                    raise IndexDamaged(f"{self.directory}: document {number} is missing; {REMEDY}")
                stored.append(_DECODER.decode(value))
        signatures = np.frombuffer(b"".join(each.signature for each in stored), dtype=np.uint8)
        return DocumentColumns(
            ids=[each.id for each in stored],
            positions=[Position(each.topic, each.partition, each.offset) for each in stored],
            event_times_ms=np.array([each.event_time_ms for each in stored], dtype=np.int64),
            namespaces=np.array([each.namespace for each in stored], dtype=np.uint64),
            sketches=Sketches(
                signatures=signatures.reshape(len(stored), -1) if stored else _NO_SIGNATURES,
                band_keys=np.empty((len(stored), 0), dtype=np.uint64),
            ),
            texts=[each.text for each in stored] if self._texts else (),
        )

    def _already_kept(self, positions: list[Position], judged: NDArray[np.bool_]) -> frozenset[int]:
        if not judged.any():
            return frozenset()
        with self._main.read(self._positions) as txn:
            return frozenset(
                row
                for row in np.flatnonzero(judged).tolist()
                if txn.get(_position_key(positions[row])) is not None
            )


_NO_SIGNATURES = np.empty((0, 0), dtype=np.uint8)


def _encode(documents: DocumentColumns, row: int, text: bytes) -> bytes:
    position = documents.positions[row]
    return _ENCODER.encode(
        StoredDocument(
            id=documents.ids[row],
            topic=position.topic,
            partition=position.partition,
            offset=position.offset,
            event_time_ms=int(documents.event_times_ms[row]),
            namespace=int(documents.namespaces[row]),
            signature=documents.sketches.signatures[row].tobytes(),
            band_keys=documents.sketches.band_keys[row].astype("<u8").tobytes(),
            text=text,
        )
    )


def _number_key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _source_key(topic: str, partition: int) -> bytes:
    # A file's path may be longer than an LMDB key.
    digest = xxhash.xxh3_128_digest(topic.encode("utf-8", "surrogateescape"))
    return digest + partition.to_bytes(4, "big")


def _position_key(position: Position) -> bytes:
    return _source_key(position.topic, position.partition) + position.offset.to_bytes(8, "big")


def _note_key(key: str) -> bytes:
    return xxhash.xxh3_128_digest(key.encode("utf-8", "surrogateescape"))


def _lock(directory: Path) -> int:
    """Make the directory, and lock it for this process."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise IndexUnusable(
            f"cannot write the index directory {directory}: {error.strerror}"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise IndexLocked(
            f"the index {directory} is open in another process; stop that one first"
        ) from error
    return lock
