"""*Blocking.* Whether an index is what was written: every invariant, from its own files alone.

Rule 1: damage is listed, never raised; and nothing is believed before it was looked at. So files
are walked page by page and summed first, values are read with their lengths, and no kernel that
reads by address is let near them.
Rule 2: what a crash may leave is no damage. It is named apart.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
from lmdb.verify import VerifyError
from lmdb.verify import verify as walk

from streamdedup.dedup.clock import Clock
from streamdedup.errors import IndexUnusable, StreamdedupError
from streamdedup.formats import changelog
from streamdedup.index import blocks
from streamdedup.index.blocks import BLOCK_DOCUMENTS, FIELDS, Rows
from streamdedup.index.filter import Bank
from streamdedup.index.manifest import (
    Checkpoint,
    FileEntry,
    Manifest,
    SegmentEntry,
    ShardEntry,
    translated,
)
from streamdedup.index.memory import LINE, address
from streamdedup.index.postings import MOST_DOCUMENTS, POSTING_BYTES, SUBS
from streamdedup.index.segment import checksum, segment_directory
from streamdedup.index.store import LOCAL_LOG, lock
from streamdedup.index.view import Progress, no_progress, parameters_of
from streamdedup.model import I64, U8, U64
from streamdedup.settings.sections import IndexSettings

_PREFIX_SHIFT = np.uint64(24)
_NUMBER_MASK = np.uint64((1 << 24) - 1)
_HEAD_BYTES = 8 + 16 * (FIELDS + 2) + 8


@dataclass(slots=True)
class Report:
    """What the checker has found.

    Attributes:
        problems: what is wrong, one line each; an index without any is sound.
        left_over: what a crash has left, and the next opening removes or passes over.
        documents: how many the index holds.
        segments: how many parts of it lie on the disk.
        bytes_checked: bytes of these.
    """

    problems: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)
    documents: int = 0
    segments: int = 0
    bytes_checked: int = 0


def check(
    directory: Path, *, bucket_size: int | None = None, progress: Progress = no_progress
) -> Report:
    """Check an index that nobody has open.

    Args:
        directory: of the index.
        bucket_size: the largest that the index was ever opened with; None where it is not known.
        progress: told how many bytes are checked, and of how many.

    Raises:
        IndexUnusable: the directory holds no index, or cannot be written.
        IndexLocked: another process has it open.
    """
    if not any((directory / name).exists() for name in ("manifest", "segments")):
        raise IndexUnusable(f"{directory} holds no index")
    with ExitStack() as resources:
        resources.callback(os.close, lock(directory))
        report = Report()
        _Checker(directory, bucket_size, progress, report).check()
    return report


class _Broken(Exception):  # noqa: N818 - says what was found
    """What was found to be wrong, where there is no use in looking further."""


class _Checker:
    """One walk through an index, oldest segment first."""

    def __init__(
        self, directory: Path, bucket_size: int | None, progress: Progress, report: Report
    ) -> None:
        self._directory = directory
        self._bucket_size = bucket_size
        self._progress = progress
        self._report = report
        self._bytes_done = self._bytes_total = 0
        self._columns = self._width = 0
        self._checkpoint = Checkpoint()
        self._overwritten: I64 = np.empty(0, dtype=np.int64)
        self._last_offsets: dict[int, int] = {}

    def check(self) -> None:
        """Fill the report."""
        with self._noted("manifest"):
            path = self._directory / "manifest" / "data.mdb"
            if not path.exists():
                raise _Broken("it is missing")
            self._walk(path)
            manifest = Manifest(self._directory, None, readonly=True)
            try:
                self._check_manifest(manifest)
            finally:
                manifest.close()

    def _check_manifest(self, manifest: Manifest) -> None:
        parameters = parameters_of(manifest.header)
        self._columns = parameters.bands + 1
        self._width = parameters.signature_bytes
        self._checkpoint = manifest.checkpoint()
        entries = manifest.segments()
        erased = manifest.erased()
        self._overwritten = np.array([at for at, waits in erased.items() if not waits], np.int64)
        self._bytes_total = sum(entry.size for entry in entries)
        self._report.segments = len(entries)
        self._report.documents = sum(entry.count for entry in entries)
        self._check_checkpoint(erased)
        self._find_left_over(entries)
        self._check_order(entries)
        for entry in entries:
            self._check_segment(entry)
        with self._noted("tail"):
            self._check_tail(manifest, parameters.fingerprint())

    def _check_checkpoint(self, erased: Mapping[int, bool]) -> None:
        found = self._checkpoint
        with self._noted("checkpoint"):
            if min(found.applied, found.next_number) < 0:
                raise _Broken("it counts below zero")
            sources = [(topic, partition) for topic, partition, _ in found.sources]
            if len(set(sources)) < len(sources):
                raise _Broken("a source is there twice")
            if any(offset < 0 for _, _, offset in found.sources):
                raise _Broken("a source has an offset below zero")
            if found.clock:
                Clock.from_state(found.clock, IndexSettings())
            unknown = [number for number in erased if number >= found.next_number]
            if unknown:
                raise _Broken(f"documents are erased that never were, the first is {min(unknown)}")

    def _find_left_over(self, entries: list[SegmentEntry]) -> None:
        known = {
            self._directory: {"lock", "manifest", "segments"},
            self._directory / "manifest": {"data.mdb", "lock.mdb"},
            self._directory / "segments": {entry.name for entry in entries},
        }
        for entry in entries:
            there = segment_directory(self._directory, entry.name)
            known[there] = {file.name for file in entry.files}
        for there, names in known.items():
            found = sorted(there.iterdir()) if there.is_dir() else []
            self._report.left_over += [
                f"{path.relative_to(self._directory)} is left over"
                for path in found
                if path.name not in names
            ]

    def _check_order(self, entries: list[SegmentEntry]) -> None:
        end = entries[0].first if entries else self._checkpoint.next_number
        for entry in entries:
            if entry.first != end:
                self._say(f"segment {entry.name}", f"begins with {entry.first} instead of {end}")
            end = entry.end
        if end != self._checkpoint.next_number:
            told = self._checkpoint.next_number
            self._say("manifest", f"the segments end with {end}, the checkpoint says {told}")

    def _check_segment(self, entry: SegmentEntry) -> None:
        name = f"segment {entry.name}"
        with self._noted(name):
            self._check_entry(entry)
            parts = dict.fromkeys(("documents", "postings", "filter"), 0)
            with self._noted(f"{name}: {entry.documents.name}"):
                self._check_documents(entry, parts)
            for shard in entry.shards:
                with self._noted(f"{name}: {shard.file.name}"):
                    self._check_shard(entry, shard, parts)
            if parts != entry.parts and not self._has_said(name):
                raise _Broken(f"its values have {parts} bytes, the manifest says {entry.parts}")

    def _check_entry(self, entry: SegmentEntry) -> None:
        """Look at what follows from the manifest alone, and is relied on below."""
        if not 1 <= entry.count <= MOST_DOCUMENTS or entry.first < 0:
            raise _Broken(f"it has {entry.count} documents from {entry.first} on")
        if len(entry.blocks) != 8 * -(-entry.count // BLOCK_DOCUMENTS):
            raise _Broken("its number of blocks is not that of its documents")
        column = 0
        for shard in entry.shards:
            if shard.first_column != column:
                raise _Broken(f"{shard.file.name} does not begin with column {column}")
            columns, rest = divmod(len(shard.starts), 4 * (SUBS + 1))
            chunks = 8 * columns << shard.chunk_bits if 0 <= shard.chunk_bits <= 8 else -1  # noqa: PLR2004
            planes = 8 * columns if shard.plane_bytes else 0
            if rest or not columns or (len(shard.chunks), len(shard.planes)) != (chunks, planes):
                raise _Broken(f"{shard.file.name} is described by tables of other lengths")
            if shard.plane_bytes < 0 or shard.plane_bytes % (LINE // 8):
                raise _Broken(f"{shard.file.name} has filters of {shard.plane_bytes} bytes")
            column += columns
        if column != self._columns:
            raise _Broken(f"it has {column} columns instead of {self._columns}")
        if len({shard.plane_bytes for shard in entry.shards}) > 1:
            raise _Broken("its filters are of several sizes")

    def _check_documents(self, entry: SegmentEntry, parts: dict[str, int]) -> None:
        keys = [b"d" + at.to_bytes(4, "big") for at in range(len(entry.blocks) // 8)]
        times_ms = np.empty(entry.count, dtype=np.int64)
        sound = True
        with self._values(entry, entry.documents, keys, entry.blocks) as values:
            for at, value in enumerate(values):
                parts["documents"] += len(value)
                first = at * BLOCK_DOCUMENTS
                count = min(BLOCK_DOCUMENTS, entry.count - first)
                with self._noted(f"segment {entry.name}: block {at}") as noted:
                    rows = _decode(value, count, self._width)
                    times_ms[first : first + count] = rows.fields[:, blocks.EFFECTIVE_TIME]
                    self._check_rows(entry.first + first, rows)
                sound = sound and not noted
        if sound:
            self._check_times(entry, times_ms)

    def _check_times(self, entry: SegmentEntry, times_ms: I64) -> None:
        """Compare the times of a segment: as they are, or as the settled clock sees early ones."""
        raw = self._checkpoint.clock
        clock = Clock.from_state(raw, IndexSettings()) if raw else None
        seen_ms = times_ms if clock is None else clock.settlement.all_seen_ms(entry.first, times_ms)
        possible = [(int(each.min()), int(each.max())) for each in (times_ms, seen_ms)]
        # A merge may have known of a settlement that the checkpoint does not know of yet.
        unsettled = clock is None or clock.oldest_ms is None
        if not unsettled and (entry.oldest_ms, entry.newest_ms) not in possible:
            raise _Broken(
                f"the times go from {possible[0][0]} to {possible[0][1]}, the manifest says from "
                f"{entry.oldest_ms} to {entry.newest_ms}"
            )

    def _check_rows(self, first: int, rows: Rows) -> None:
        sources = rows.fields[:, blocks.SOURCE]
        if sources.min() < 0 or sources.max() >= len(self._checkpoint.sources):
            raise _Broken("a document has a source that the checkpoint does not know")
        for source in np.unique(sources).tolist():
            self._check_offsets(source, rows.fields[sources == source, blocks.OFFSET])
        self._check_ids(rows)
        gone = self._overwritten - first
        gone = gone[(gone >= 0) & (gone < len(rows))]
        lengths = np.diff(rows.id_ends, prepend=0) + np.diff(rows.text_ends, prepend=0)
        if rows.signatures[gone].any() or lengths[gone].any() or rows.namespaces()[gone].any():
            raise _Broken("a document is still there that is said to be overwritten")

    def _check_offsets(self, source: int, offsets: I64) -> None:
        """Let a source go on: positions are kept in order, and once."""
        last = self._last_offsets.get(source, -1)
        self._last_offsets[source] = int(offsets[-1])
        if offsets[0] <= last or (np.diff(offsets) <= 0).any():
            topic, partition, _ = self._checkpoint.sources[source]
            raise _Broken(f"the offsets of {topic} {partition} do not ascend")

    def _check_ids(self, rows: Rows) -> None:
        try:
            rows.ids.tobytes().decode()
        except UnicodeDecodeError as error:
            raise _Broken(f"the ids are no UTF-8: {error}") from error
        inner = rows.id_ends[rows.id_ends < len(rows.ids)]
        if (rows.ids[inner] & 0xC0 == 0x80).any():  # noqa: PLR2004 - the form of all but a first byte
            raise _Broken("an id ends within a character")

    def _check_shard(self, entry: SegmentEntry, shard: ShardEntry, parts: dict[str, int]) -> None:
        starts = np.frombuffer(shard.starts, dtype="<u4").reshape(-1, SUBS + 1).astype(np.int64)
        there = range(shard.first_column, shard.first_column + len(starts))
        chunks = range(1 << shard.chunk_bits)
        of_columns = [column.to_bytes(2, "big") for column in there]
        keys = [b"c" + column + bytes([chunk]) for column in of_columns for chunk in chunks]
        if shard.plane_bytes:
            keys += [b"f" + column for column in of_columns]
        with self._values(entry, shard.file, keys, shard.chunks + shard.planes) as values:
            found = list(values)  # of addresses: the bytes stay where they are mapped
            for at, column in enumerate(there):
                mine = found[at * len(chunks) : (at + 1) * len(chunks)]
                parts["postings"] += sum(len(value) for value in mine)
                with self._noted(f"segment {entry.name}: column {column}"):
                    postings = _unpack(mine, starts[at])
                    self._check_postings(entry, postings)
                    if shard.plane_bytes:
                        plane = found[len(there) * len(chunks) + at]
                        parts["filter"] += len(plane)
                        _check_plane(plane, shard.plane_bytes, postings)

    def _check_postings(self, entry: SegmentEntry, postings: U64) -> None:
        if not len(postings):
            raise _Broken("it has no postings")
        if (postings[1:] <= postings[:-1]).any():
            raise _Broken("its postings do not ascend")
        numbers = (postings & _NUMBER_MASK).astype(np.int64)
        if numbers.max() >= entry.count:
            raise _Broken(f"a posting leads to document {numbers.max()} of {entry.count}")
        if np.bincount(numbers).max() > 1:
            raise _Broken("a document has two postings")
        if self._bucket_size is None:
            return
        changes = np.flatnonzero(np.diff(postings >> _PREFIX_SHIFT))
        largest = int(np.diff(changes, prepend=-1, append=len(postings) - 1).max())
        if largest > self._bucket_size:
            raise _Broken(f"a bucket has {largest} documents")

    def _check_tail(self, manifest: Manifest, fingerprint: str) -> None:
        applied, number = self._checkpoint.applied, self._checkpoint.next_number
        last = {
            (topic, partition): self._last_offsets.get(source, -1)
            for source, (topic, partition, _) in enumerate(self._checkpoint.sources)
        }
        for at, tail in manifest.tail():
            if manifest.header.log != LOCAL_LOG:
                raise _Broken(f"it stands beside {manifest.header.log}")
            if at <= applied:
                raise _Broken(f"update {at} follows {applied}")
            update = changelog.decode(tail.update, fingerprint)
            if number not in (0, update.first_number):
                raise _Broken(f"update {at} begins with {update.first_number} instead of {number}")
            for topic, partition, offset in update.documents.positions:
                if offset <= last.get((topic, partition), -1):
                    raise _Broken(f"update {at}: the offsets of {topic} {partition} do not ascend")
                last[topic, partition] = offset
            applied, number = at, update.first_number + len(update.documents)
            self._report.documents += len(update.documents)

    @contextmanager
    def _values(
        self, entry: SegmentEntry, file: FileEntry, keys: list[bytes], distances: bytes
    ) -> Iterator[Iterator[U8]]:
        """Open a file that is what was written, and yield its values, in order."""
        path = segment_directory(self._directory, entry.name) / file.name
        self._bytes_done += file.size
        size = path.stat().st_size if path.exists() else None
        if size != file.size:
            told = "it is missing" if size is None else f"it has {size} bytes"
            raise _Broken(f"{told}, the manifest says {file.size}")
        if checksum(path) != file.sum:
            raise _Broken("its sum is not that of what was written")
        self._walk(path)
        with translated(path), ExitStack() as resources:
            environment = lmdb.open(
                str(path), subdir=False, readonly=True, lock=False, map_size=max(size, 1 << 20)
            )
            resources.callback(environment.close)
            txn = resources.enter_context(environment.begin(buffers=True))
            values = _values_of(txn, keys, np.frombuffer(distances, dtype=np.int64))
            yield iter(values)
        self._report.bytes_checked += size
        self._progress(self._bytes_done, self._bytes_total)

    def _walk(self, path: Path) -> None:
        """Look at the structure of a file, without LMDB, which trusts it."""
        try:
            found: list[str] = walk(str(path), subdir=False)  # type: ignore[no-untyped-call]
        except VerifyError as error:
            raise _Broken(f"{path.name} is no file of LMDB: {error}") from error
        if found:
            more = f", and {len(found) - 1} more" if len(found) > 1 else ""
            raise _Broken(f"{path.name}: {found[0]}{more}")

    @contextmanager
    def _noted(self, where: str) -> Iterator[list[str]]:
        """Note what is wrong, and go on behind it; what is yielded is then no longer empty."""
        noted: list[str] = []
        try:
            yield noted
        except (_Broken, StreamdedupError) as error:
            noted.append(self._say(where, str(error)))
        except OSError as error:
            noted.append(self._say(where, f"it cannot be read: {error.strerror}"))

    def _say(self, where: str, what: str) -> str:
        self._report.problems.append(f"{where}: {what}")
        return what

    def _has_said(self, where: str) -> bool:
        return any(line.startswith(f"{where}:") for line in self._report.problems)


def _values_of(txn: Any, keys: list[bytes], distances: I64) -> list[U8]:
    """Return a file's values, which must be those of the keys, so far from the first."""
    found = [(bytes(key), np.frombuffer(value, dtype=np.uint8)) for key, value in txn.cursor()]
    if [key for key, _ in found] != keys:
        raise _Broken("its values are not those that the manifest lists")
    places = np.array([address(value) for _, value in found], dtype=np.int64)
    if (places - places[0] != distances).any():
        raise _Broken("its values are not where the manifest says")
    return [value for _, value in found]


def _decode(value: U8, count: int, width: int) -> Rows:
    """Return the documents of a block whose layout is checked on the way."""
    if len(value) < _HEAD_BYTES or value[:8].view("<u4").tolist() != [count, width]:
        raise _Broken(f"it does not begin as one of {count} documents")
    end = _HEAD_BYTES + count * width
    signatures = value[_HEAD_BYTES:end]
    columns = []
    for at in range(8, 8 + 16 * (FIELDS + 2), 16):
        base = value[at : at + 8].view("<i8")[0]
        size, place = value[at + 8 : at + 16].view("<u4").tolist()
        if size not in {0, 1, 2, 4, 8} or place != end or place + count * size > len(value):
            raise _Broken("its columns do not follow on each other")
        end += count * size
        if size:
            columns.append(base + value[place:end].view(f"<u{size}").astype(np.int64))
        else:
            columns.append(np.full(count, base))
    *fields, id_ends, text_ends = columns
    ids, texts = value[_HEAD_BYTES - 8 : _HEAD_BYTES].view("<u4").tolist()
    for ends, size in ((id_ends, texts - ids), (text_ends, len(value) - texts)):
        if ids != end or ends[0] < 0 or (np.diff(ends) < 0).any() or ends[-1] != size:
            raise _Broken("its ids and texts do not fill it")
    return Rows(
        signatures.reshape(count, width),
        np.stack(fields, axis=1),
        id_ends,
        value[ids:texts],
        text_ends,
        value[texts:],
    )


def _unpack(chunks: list[U8], starts: I64) -> U64:
    """Return the postings of a column from the values that it is cut into."""
    if starts[0] != 0 or (np.diff(starts) < 0).any():
        raise _Broken("its parts do not follow on each other")
    edges = starts[:: SUBS // len(chunks)]
    keys, numbers = [], []
    for value, count in zip(chunks, np.diff(edges).tolist(), strict=True):
        if len(value) != max(1, POSTING_BYTES * count):
            raise _Broken(f"it has {len(value)} bytes for {count} postings")
        keys.append(value[: 4 * count].view("<u4"))
        numbers.append(value[4 * count : POSTING_BYTES * count].reshape(count, 3))
    lower = np.concatenate(keys).astype(np.uint64) << _PREFIX_SHIFT
    upper = np.repeat(np.arange(SUBS, dtype=np.uint64), np.diff(starts)) << np.uint64(56)
    low, middle, high = np.concatenate(numbers).astype(np.uint64).T
    found: U64 = upper | lower | low | middle << np.uint64(8) | high << np.uint64(16)
    return found


def _check_plane(plane: U8, size: int, postings: U64) -> None:
    """Have a filter let all postings through; it may let others through as well."""
    if len(plane) != size:
        raise _Broken(f"its filter has {len(plane)} bytes instead of {size}")
    bank = Bank(1, size * 8 // LINE, LINE)
    bank.add_plane(plane, 0, 0)
    if not bank.has_all(postings, 0, 0):
        raise _Broken("its filter would miss a document")
