"""*Blocking.* Checks an index: every invariant, from its own files alone.

Rule 1: damage is listed, never raised. Nothing is trusted before it is checked: files are walked
page by page and summed first, values are read with their lengths, and no kernel reads by address.
Rule 2: what a crash may leave is not damage. It is listed separately.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from streamdedup.columns import U8
from streamdedup.dedup.clock import Clock
from streamdedup.errors import IndexUnusable, StreamdedupError
from streamdedup.formats import changelog
from streamdedup.index.blocks import BLOCK_DOCUMENTS
from streamdedup.index.check_values import (
    Broken,
    check_entry,
    check_plane,
    check_postings,
    decode_block,
    unpack_chunks,
)
from streamdedup.index.directory import (
    DATA_FILE,
    LMDB_FILES,
    LOCK,
    MANIFEST,
    SEGMENTS,
    checksum,
    lock,
    problem_of,
    segment_directory,
    translated,
)
from streamdedup.index.layout import (
    Checkpoint,
    FileEntry,
    SegmentEntry,
    ShardEntry,
    block_key,
    chunk_key,
    parameters_of,
    plane_key,
    sum_of,
)
from streamdedup.index.manifest import Manifest
from streamdedup.index.memory import address
from streamdedup.index.postings import SUBS
from streamdedup.index.rows import EFFECTIVE_TIME, OFFSET, SOURCE, StoredRows
from streamdedup.index.state import FREE
from streamdedup.index.store import LOCAL_LOG
from streamdedup.model import Progress, no_progress


@dataclass(slots=True)
class CheckReport:
    """What the checker has found.

    There is one line for each problem, and an index without problems is sound. What a crash has
    left is in ``left_over``: the next opening removes or ignores it. The bytes checked are those of
    the segments' sound files.
    """

    problems: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)
    documents: int = 0
    segments: int = 0
    bytes_checked: int = 0

    def add(self, part: str, problem: str) -> str:
        """Add a problem of a part of the index, and return the problem."""
        self.problems.append(f"{part}: {problem}")
        return problem

    @contextmanager
    def collect(self, part: str) -> Iterator[list[str]]:
        """Add the problem that ends the block, which checks a part; continue after the block.

        The list that this yields holds the problem afterwards, if there is one.
        """
        found: list[str] = []
        try:
            yield found
        except (Broken, StreamdedupError) as error:
            found.append(self.add(part, str(error)))
        except OSError as error:
            found.append(self.add(part, f"cannot be read: {error.strerror}"))


def check(
    directory: Path, *, bucket_size: int | None = None, progress: Progress = no_progress
) -> CheckReport:
    """Check an index that no process has open. The progress is that of bytes.

    The bucket size is the largest one that the index was ever opened with; None if it is not known.

    Raises:
        IndexUnusable: the directory holds no index, or cannot be written.
        IndexLocked: another process has the index open.
    """
    with translated(directory):
        if not any((directory / name).exists() for name in (MANIFEST, SEGMENTS)):
            raise IndexUnusable(f"{directory} holds no index")
    report = CheckReport()
    with ExitStack() as resources:
        resources.callback(os.close, lock(directory))
        with report.collect("manifest"):
            path = directory / MANIFEST / DATA_FILE
            if not path.exists():
                raise Broken(f"{DATA_FILE} is missing")
            if problem := problem_of(path):
                raise Broken(f"{path.name}: {problem}")
            with closing(Manifest(directory, None, readonly=True)) as manifest:
                checkpoint, entries = manifest.checkpoint(), manifest.segments()
                report.segments = len(entries)
                report.documents = sum(entry.count for entry in entries)
                with report.collect("checkpoint"):
                    _check_checkpoint(checkpoint, manifest.erased())
                report.left_over += _left_over(directory, entries)
                _check_order(entries, checkpoint, report)
                segments = _SegmentChecker(manifest, bucket_size, report, progress)
                for entry in entries:
                    segments.check(entry)
                with report.collect("tail"):
                    _check_tail(manifest, checkpoint, segments.last_offsets, report)
    return report


def _check_checkpoint(checkpoint: Checkpoint, erased: Mapping[int, bool]) -> None:
    if min(checkpoint.applied, checkpoint.next_number) < 0:
        raise Broken("it counts below zero")
    names = ((topic, partition) for topic, partition, _ in checkpoint.sources)
    sources = [name for name in names if name != FREE]
    if len(set(sources)) < len(sources):
        raise Broken("it names a source twice")
    if min([0, *checkpoint.written, *(offset for _, _, offset in checkpoint.sources)]) < 0:
        raise Broken("a source has an offset below zero")
    if len(checkpoint.written) not in (0, len(checkpoint.sources)):
        raise Broken("sources have no written offset")
    Clock.from_state(checkpoint.clock)
    unknown = [number for number in erased if number >= checkpoint.next_number]
    if unknown:
        raise Broken(f"documents that never existed are erased, the first is {min(unknown)}")


def _left_over(directory: Path, entries: list[SegmentEntry]) -> list[str]:
    """Return a line for each file or directory that the manifest does not name."""
    known = {
        directory: {LOCK, MANIFEST, SEGMENTS},
        directory / MANIFEST: set(LMDB_FILES),
        directory / SEGMENTS: {entry.name for entry in entries},
    }
    for entry in entries:
        known[segment_directory(directory, entry.name)] = {file.name for file in entry.files}
    return [
        f"{path.relative_to(directory)} is left over"
        for folder, names in known.items()
        for path in (sorted(folder.iterdir()) if folder.is_dir() else ())
        if path.name not in names
    ]


def _check_order(entries: list[SegmentEntry], checkpoint: Checkpoint, report: CheckReport) -> None:
    """Check that the segments follow on each other up to the checkpoint."""
    end = entries[0].first if entries else checkpoint.next_number
    for entry in entries:
        if entry.first != end:
            report.add(f"segment {entry.name}", f"begins with {entry.first} instead of {end}")
        end = entry.end
    if end != checkpoint.next_number:
        told = checkpoint.next_number
        report.add("manifest", f"the segments end with {end}, the checkpoint says {told}")


def _check_tail(
    manifest: Manifest, checkpoint: Checkpoint, last_offsets: Mapping[int, int], report: CheckReport
) -> None:
    """Check that the tail continues where the segments end."""
    fingerprint = parameters_of(manifest.header).fingerprint()
    applied, number = checkpoint.applied, checkpoint.next_number
    last = {
        (topic, partition): last_offsets.get(source, -1)
        for source, (topic, partition, _) in enumerate(checkpoint.sources)
    }
    for offset, tail in manifest.tail():
        if manifest.header.log != LOCAL_LOG:
            raise Broken(f"an index with a changelog ({manifest.header.log}) must not have a tail")
        if offset <= applied:
            raise Broken(f"update {offset} follows {applied}")
        update = changelog.decode(tail.update, fingerprint)
        if number not in (0, update.first_number):
            raise Broken(f"update {offset} begins with {update.first_number} instead of {number}")
        for position in update.documents.positions:
            topic, partition, _ = position
            if position.offset <= last.get((topic, partition), -1):
                raise Broken(f"update {offset}: the offsets of {topic} {partition} do not ascend")
            last[topic, partition] = position.offset
        for source in tail.forgotten:
            last.pop(source, None)
        applied, number = offset, update.first_number + len(update.documents)
        report.documents += len(update.documents)


class _SegmentChecker:
    """Checks segments, oldest first: files against the manifest, and values against each other.

    ``last_offsets`` has the last offset of each source so far, by its number.
    """

    def __init__(
        self, manifest: Manifest, bucket_size: int | None, report: CheckReport, progress: Progress
    ) -> None:
        parameters = parameters_of(manifest.header)
        self._directory, self._bucket_size = manifest.directory.parent, bucket_size
        self._report, self._progress = report, progress
        self._columns, self._width = parameters.bands + 1, parameters.signature_bytes
        self._sources = manifest.checkpoint().sources
        overwritten = [number for number, waits in manifest.erased().items() if not waits]
        self._overwritten = np.array(overwritten, dtype=np.int64)
        self._bytes_done = 0
        self._bytes_total = sum(entry.size for entry in manifest.segments())
        self.last_offsets: dict[int, int] = {}

    def check(self, entry: SegmentEntry) -> None:
        name = f"segment {entry.name}"
        with self._report.collect(name):
            check_entry(entry, self._columns)
            parts = dict.fromkeys(("documents", "postings", "filter"), 0)
            with self._report.collect(f"{name}: {entry.documents.name}"):
                self._check_documents(entry, parts)
            for shard in entry.shards:
                with self._report.collect(f"{name}: {shard.file.name}"):
                    self._check_shard(entry, shard, parts)
            known = any(problem.startswith(f"{name}:") for problem in self._report.problems)
            if parts != entry.parts and not known:
                raise Broken(f"its values have {parts} bytes, the manifest says {entry.parts}")

    def _check_documents(self, entry: SegmentEntry, parts: dict[str, int]) -> None:
        keys = [block_key(block) for block in range(-(-entry.count // BLOCK_DOCUMENTS))]
        times_ms = np.empty(entry.count, dtype=np.int64)
        sound = True
        with self._values(entry.name, entry.documents, keys) as values:
            for block, value in enumerate(values):
                parts["documents"] += len(value)
                first = block * BLOCK_DOCUMENTS
                count = min(BLOCK_DOCUMENTS, entry.count - first)
                with self._report.collect(f"segment {entry.name}: block {block}") as problems:
                    rows = decode_block(value, count, self._width)
                    times_ms[first : first + count] = rows.fields[:, EFFECTIVE_TIME]
                    self._check_rows(entry.first + first, rows)
                sound = sound and not problems
        if sound and (times_ms.min(), times_ms.max()) != (entry.oldest_ms, entry.newest_ms):
            raise Broken(
                f"the times range from {times_ms.min()} to {times_ms.max()}, the manifest says "
                f"from {entry.oldest_ms} to {entry.newest_ms}"
            )

    def _check_rows(self, first: int, rows: StoredRows) -> None:
        sources = rows.fields[:, SOURCE]
        if sources.min() < 0 or sources.max() >= len(self._sources):
            raise Broken("a document has a source that the checkpoint does not name")
        for source in np.unique(sources).tolist():
            # The offsets of a source ascend across blocks and segments as well.
            offsets = rows.fields[sources == source, OFFSET]
            last = self.last_offsets.get(source, -1)
            self.last_offsets[source] = int(offsets[-1])
            if offsets[0] <= last or (np.diff(offsets) <= 0).any():
                topic, partition, _ = self._sources[source]
                raise Broken(f"the offsets of {topic} {partition} do not ascend")
        try:
            rows.ids.check()
        except ValueError as error:
            raise Broken(f"the ids are not valid: {error}") from error
        gone = self._overwritten - first
        gone = gone[(gone >= 0) & (gone < len(rows))]
        lengths = rows.ids.lengths() + rows.texts.lengths()
        if rows.signatures[gone].any() or lengths[gone].any() or rows.namespaces()[gone].any():
            raise Broken("a document still has its bytes, the manifest says they are overwritten")

    def _check_shard(self, entry: SegmentEntry, shard: ShardEntry, parts: dict[str, int]) -> None:
        starts = np.frombuffer(shard.starts, dtype="<u4").reshape(-1, SUBS + 1).astype(np.int64)
        columns = range(shard.first_column, shard.first_column + len(starts))
        chunks = 1 << shard.chunk_bits
        keys = [chunk_key(column, chunk) for column in columns for chunk in range(chunks)]
        if shard.plane_bytes:
            keys += [plane_key(column) for column in columns]
        with self._values(entry.name, shard.file, keys) as values:
            # The values are addresses: their bytes stay in the mapped file.
            of_chunks, planes = values[: len(columns) * chunks], values[len(columns) * chunks :]
            for index, column in enumerate(columns):
                packed = of_chunks[index * chunks : (index + 1) * chunks]
                parts["postings"] += sum(len(value) for value in packed)
                with self._report.collect(f"segment {entry.name}: column {column}"):
                    postings = unpack_chunks(packed, starts[index])
                    check_postings(entry.count, postings, self._bucket_size)
                    if shard.plane_bytes:
                        parts["filter"] += len(planes[index])
                        check_plane(planes[index], shard.plane_bytes, postings)

    @contextmanager
    def _values(self, segment: str, file: FileEntry, keys: list[bytes]) -> Iterator[list[U8]]:
        """Open a file after checking its bytes, and yield its values, in order."""
        path = segment_directory(self._directory, segment) / file.name
        self._bytes_done += file.size
        _check_file(path, file)
        size = max(file.size, 1 << 20)  # LMDB refuses smaller maps
        with (
            translated(path),
            lmdb.open(str(path), subdir=False, readonly=True, lock=False, map_size=size) as opened,
            opened.begin(buffers=True) as txn,
        ):
            yield _read_values(path, txn, keys, file)
        self._report.bytes_checked += file.size
        self._progress(self._bytes_done, self._bytes_total)


def _check_file(path: Path, file: FileEntry) -> None:
    """Check the size, the checksum and the structure of a file."""
    if not path.exists():
        raise Broken(f"the file is missing, the manifest says {file.size} bytes")
    size = path.stat().st_size
    if size != file.size:
        raise Broken(f"the file has {size} bytes, the manifest says {file.size}")
    if checksum(path) != file.sum:
        raise Broken("its checksum differs from the manifest's")
    if problem := problem_of(path):
        raise Broken(f"{path.name}: {problem}")


def _read_values(path: Path, txn: Any, keys: list[bytes], file: FileEntry) -> list[U8]:
    """Return a file's values, which must have these keys, and be what the manifest describes."""
    found = [(bytes(key), np.frombuffer(value, dtype=np.uint8)) for key, value in txn.cursor()]
    if [key for key, _ in found] != keys:
        raise Broken("its values are not those that the manifest lists")
    values = [value for _, value in found]
    offsets = np.frombuffer(file.offsets, dtype=np.int64)
    addresses = np.array([address(value) for value in values], dtype=np.int64)
    with path.open("rb") as raw:
        raw.seek(max(0, int(offsets[0])))
        first = raw.read(len(values[0]))
    if (np.diff(addresses) != np.diff(offsets)).any() or first != values[0].tobytes():
        raise Broken("its values are not where the manifest says")
    sums = [(len(value), sum_of(value)) for value in values]
    sizes = np.frombuffer(file.sizes, dtype=np.uint32).tolist()
    if sums != list(zip(sizes, np.frombuffer(file.sums, dtype=np.uint64).tolist(), strict=True)):
        raise Broken("its values are not those that the manifest has checksums of")
    return values
