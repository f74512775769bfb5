"""*Blocking.* The index: documents in one LMDB environment, their buckets in shards beside it.

Rule 1: the documents' environment is written first, and holds the last update whole. A shard that
a crash left one update behind is brought up from there when the index opens.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import xxhash

from streamdedup import changelog
from streamdedup.errors import IndexDamaged, IndexLocked, IndexUnusable
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

LOCAL_LOG = "the embedded mode"
"""The ``log`` of an index that no changelog topic stands behind."""

_NEXT_NUMBER = b"next_number"
_OLDEST = b"oldest"
_LAST_UPDATE = b"last_update"
_NO_LIMIT = 2**62


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

    Raises:
        IndexUnusable: the directory cannot be made or written.
        IndexLocked: another process has it open.
        IndexMismatch: it was built with other parameters or belongs to another changelog.
        IndexDamaged: its files are not what was written.
    """

    def __init__(self, settings: IndexSettings, parameters: SketchParameters, log: str) -> None:
        self.directory = settings.directory
        self._fingerprint = parameters.fingerprint()
        self._window = settings.window_documents
        self._lock = _lock(settings.directory)
        self._environments: list[Environment] = []
        try:
            self._open(settings, parameters, log)
        except BaseException:
            self.close()
            raise

    def _open(self, settings: IndexSettings, parameters: SketchParameters, log: str) -> None:
        columns = parameters.bands + 1
        shards = min(settings.shards, columns)

        def environment(role: str) -> Environment:
            header = Header(FORMAT, role, shards, asdict(parameters), log)
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
        self._catch_up()

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
            documents=self._fetch(distinct, keys.shape[1]),
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
            IndexFull: no room is left; the update is not in.
        """
        if applied <= self._applied:
            return
        # A new index may begin where the changelog does: its retention may have cut the oldest.
        if update.first_number != self._next_number and not self.is_new:
            raise IndexDamaged(
                f"{self.directory}: the next document has number {self._next_number}, the "
                f"changelog goes on with {update.first_number}; remove the index directory and "
                "the next start rebuilds it from the changelog"
            )
        next_number = update.first_number + len(update.documents)
        oldest = max(self._oldest, next_number - self._window)
        self._write_documents(update, applied, next_number, oldest, notes or {})
        self._applied, self._next_number = applied, next_number
        self._remember_sources(update.ranges)
        for shard in self._shards:
            self._write_postings(shard, update, applied, oldest)
        self._oldest = oldest

    def _load(self) -> None:
        self._applied = self._main.applied
        self._next_number = int(self._main.note(_NEXT_NUMBER) or 0)
        self._oldest = int(self._main.note(_OLDEST) or 0)
        self._next_offsets: dict[tuple[str, int], int] = {}
        with self._main.read(self._sources) as txn:
            for _, value in txn.cursor():
                topic, partition, offset = msgspec.msgpack.decode(value)
                self._next_offsets[topic, partition] = offset

    def _catch_up(self) -> None:
        """Bring up a shard that a crash left behind the documents."""
        for shard in self._shards:
            behind = shard.environment.applied
            if behind == self._applied:
                continue
            last = self._main.note(_LAST_UPDATE)
            if behind > self._applied or last is None:
                raise IndexDamaged(
                    f"{shard.environment.directory} does not belong to the documents beside it; "
                    "remove the index directory and the next start rebuilds it"
                )
            update = changelog.decode(last, self._fingerprint)
            self._write_postings(shard, update, self._applied, self._oldest)

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
            for row in range(len(documents)):
                number = _number_key(update.first_number + row)
                txn.put(number, _encode(documents, row), db=self._documents, append=True)
                txn.put(_position_key(documents.positions[row]), number, db=self._positions)
            for topic, partition, _, offset in update.ranges:
                if offset > self.next_offset(topic, partition):
                    value = msgspec.msgpack.encode((topic, partition, offset))
                    txn.put(_source_key(topic, partition), value, db=self._sources)
            for key, note in notes.items():
                txn.put(_note_key(key), note, db=self._notes)
            [whole] = changelog.encode(update, self._fingerprint, _NO_LIMIT)
            for key, content in (
                (_LAST_UPDATE, whole),
                (_NEXT_NUMBER, str(next_number).encode()),
                (_OLDEST, str(oldest).encode()),
            ):
                self._main.put_note(txn, key, content)

    def _drop_documents(self, txn: Any, oldest: int) -> None:
        with txn.cursor(db=self._documents) as cursor:
            while cursor.first() and int.from_bytes(cursor.key(), "big") < oldest:
                stored = _DECODER.decode(cursor.value())
                position = Position(stored.topic, stored.partition, stored.offset)
                txn.delete(_position_key(position), db=self._positions)
                cursor.delete()

    def _write_postings(
        self, shard: Shard, update: IndexUpdate, applied: int, oldest: int
    ) -> None:
        first = update.first_number
        numbers = np.arange(first, first + len(update.documents), dtype=np.int64)
        expired = self._band_keys_between(shard.oldest, oldest)
        shard.apply(applied, numbers, update.documents.sketches.band_keys, expired, oldest)

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

    def _fetch(self, numbers: I64, columns: int) -> DocumentColumns:
        stored = []
        with self._main.read(self._documents) as txn:
            for number in numbers.tolist():
                value = txn.get(_number_key(number))
                if value is None:
                    raise IndexDamaged(
                        f"{self.directory}: document {number} is missing; remove the index "
                        "directory and the next start rebuilds it from the changelog"
                    )
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
        )

    def _already_kept(self, positions: list[Position], judged: np.ndarray) -> frozenset[int]:  # type: ignore[type-arg]
        if not judged.any():
            return frozenset()
        with self._main.read(self._positions) as txn:
            return frozenset(
                row
                for row in np.flatnonzero(judged).tolist()
                if txn.get(_position_key(positions[row])) is not None
            )


_NO_SIGNATURES = np.empty((0, 0), dtype=np.uint8)


def _encode(documents: DocumentColumns, row: int) -> bytes:
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
