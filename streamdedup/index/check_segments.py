"""*Blocking.* Checks segments: files against the manifest, and values against each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from streamdedup.columns import I64, U8, U64
from streamdedup.index.blocks import BLOCK_DOCUMENTS
from streamdedup.index.check_report import Broken, CheckReport
from streamdedup.index.check_values import check_plane, decode_block, unpack_chunks
from streamdedup.index.directory import segment_directory
from streamdedup.index.layout import (
    MOST_DOCUMENTS,
    Checkpoint,
    FileEntry,
    SegmentEntry,
    ShardEntry,
    block_key,
    chunk_key,
    plane_key,
    sum_of,
)
from streamdedup.index.lmdb_errors import translated
from streamdedup.index.memory import LINE, address
from streamdedup.index.postings import NUMBER_MASK, PREFIX_SHIFT, SUBS
from streamdedup.index.rows import EFFECTIVE_TIME, OFFSET, SOURCE, StoredRows
from streamdedup.index.segment_writer import MOST_CHUNK_BITS, checksum
from streamdedup.index.structure import problem_of
from streamdedup.model import Progress

_LEAST_MAP_BYTES = 1 << 20
"""LMDB refuses smaller maps."""


@dataclass(slots=True)
class Expected:
    """What the segments must agree with.

    Attributes:
        columns: columns of the band keys.
        width: bytes of a signature.
        checkpoint: the state that the segments represent.
        overwritten: the numbers whose bytes must be overwritten.
        bucket_size: the largest bucket; None if it is not known.
        total_bytes: bytes of all segments.
        last_offsets: the last offset of each source so far, by its number.
    """

    columns: int
    width: int
    checkpoint: Checkpoint
    overwritten: I64
    bucket_size: int | None
    total_bytes: int
    last_offsets: dict[int, int] = field(default_factory=dict)


def walk_file(path: Path) -> None:
    """Check the structure of an LMDB file, without LMDB, which trusts it.

    Raises:
        Broken: the structure is damaged.
    """
    if problem := problem_of(path):
        raise Broken(f"{path.name}: {problem}")


class SegmentChecker:
    """Checks segments, oldest first.

    Args:
        directory: directory of the index.
        expected: what the segments must agree with.
        report: where problems are noted.
        progress: called with the number of bytes checked so far, and of all bytes.
    """

    def __init__(
        self, directory: Path, expected: Expected, report: CheckReport, progress: Progress
    ) -> None:
        self._directory, self._expected = directory, expected
        self._report, self._progress = report, progress
        self._bytes_done = 0

    def check(self, entry: SegmentEntry) -> None:
        """Note the problems of a segment."""
        name = f"segment {entry.name}"
        with self._report.noting(name):
            check_entry(entry, self._expected.columns)
            parts = dict.fromkeys(("documents", "postings", "filter"), 0)
            with self._report.noting(f"{name}: {entry.documents.name}"):
                self._check_documents(entry, parts)
            for shard in entry.shards:
                with self._report.noting(f"{name}: {shard.file.name}"):
                    self._check_shard(entry, shard, parts)
            if parts != entry.parts and not self._report.mentions(name):
                raise Broken(f"its values have {parts} bytes, the manifest says {entry.parts}")

    def _check_documents(self, entry: SegmentEntry, parts: dict[str, int]) -> None:
        keys = [block_key(block) for block in range(-(-entry.count // BLOCK_DOCUMENTS))]
        times_ms = np.empty(entry.count, dtype=np.int64)
        sound = True
        with self._values(entry, entry.documents, keys) as values:
            for block, value in enumerate(values):
                parts["documents"] += len(value)
                first = block * BLOCK_DOCUMENTS
                count = min(BLOCK_DOCUMENTS, entry.count - first)
                with self._report.noting(f"segment {entry.name}: block {block}") as noted:
                    rows = decode_block(value, count, self._expected.width)
                    times_ms[first : first + count] = rows.fields[:, EFFECTIVE_TIME]
                    self._check_rows(entry.first + first, rows)
                sound = sound and not noted
        if sound and (times_ms.min(), times_ms.max()) != (entry.oldest_ms, entry.newest_ms):
            raise Broken(
                f"the times range from {times_ms.min()} to {times_ms.max()}, the manifest says "
                f"from {entry.oldest_ms} to {entry.newest_ms}"
            )

    def _check_rows(self, first: int, rows: StoredRows) -> None:
        sources = rows.fields[:, SOURCE]
        if sources.min() < 0 or sources.max() >= len(self._expected.checkpoint.sources):
            raise Broken("a document has a source that the checkpoint does not name")
        for source in np.unique(sources).tolist():
            self._check_offsets(source, rows.fields[sources == source, OFFSET])
        try:
            rows.ids.check()
        except ValueError as error:
            raise Broken(f"the ids are not valid: {error}") from error
        gone = self._expected.overwritten - first
        gone = gone[(gone >= 0) & (gone < len(rows))]
        lengths = rows.ids.lengths() + rows.texts.lengths()
        if rows.signatures[gone].any() or lengths[gone].any() or rows.namespaces()[gone].any():
            raise Broken("a document still has its bytes, the manifest says they are overwritten")

    def _check_offsets(self, source: int, offsets: I64) -> None:
        """Check that the offsets of a source ascend, across blocks and segments as well."""
        last = self._expected.last_offsets.get(source, -1)
        self._expected.last_offsets[source] = int(offsets[-1])
        if offsets[0] <= last or (np.diff(offsets) <= 0).any():
            topic, partition, _ = self._expected.checkpoint.sources[source]
            raise Broken(f"the offsets of {topic} {partition} do not ascend")

    def _check_shard(self, entry: SegmentEntry, shard: ShardEntry, parts: dict[str, int]) -> None:
        starts = np.frombuffer(shard.starts, dtype="<u4").reshape(-1, SUBS + 1).astype(np.int64)
        columns = range(shard.first_column, shard.first_column + len(starts))
        chunks = 1 << shard.chunk_bits
        keys = [chunk_key(column, chunk) for column in columns for chunk in range(chunks)]
        if shard.plane_bytes:
            keys += [plane_key(column) for column in columns]
        with self._values(entry, shard.file, keys) as values:
            # The values are addresses: their bytes stay in the mapped file.
            of_chunks, planes = values[: len(columns) * chunks], values[len(columns) * chunks :]
            for index, column in enumerate(columns):
                packed = of_chunks[index * chunks : (index + 1) * chunks]
                parts["postings"] += sum(len(value) for value in packed)
                with self._report.noting(f"segment {entry.name}: column {column}"):
                    postings = unpack_chunks(packed, starts[index])
                    check_postings(entry.count, postings, self._expected.bucket_size)
                    if shard.plane_bytes:
                        parts["filter"] += len(planes[index])
                        check_plane(planes[index], shard.plane_bytes, postings)

    @contextmanager
    def _values(
        self, entry: SegmentEntry, file: FileEntry, keys: list[bytes]
    ) -> Iterator[list[U8]]:
        """Open a file after checking its bytes, and yield its values, in order."""
        path = segment_directory(self._directory, entry.name) / file.name
        self._bytes_done += file.size
        size = check_file(path, file)
        with translated(path), ExitStack() as resources:
            map_size = max(size, _LEAST_MAP_BYTES)
            environment = lmdb.open(
                str(path), subdir=False, readonly=True, lock=False, map_size=map_size
            )
            resources.callback(environment.close)
            txn = resources.enter_context(environment.begin(buffers=True))
            yield read_values(path, txn, keys, file)
        self._report.bytes_checked += size
        self._progress(self._bytes_done, self._expected.total_bytes)


def check_entry(entry: SegmentEntry, columns: int) -> None:
    """Check a segment's record in the manifest, on which all further checks rely."""
    if not 1 <= entry.count <= MOST_DOCUMENTS or entry.first < 0:
        raise Broken(f"it has {entry.count} documents from {entry.first} on")
    if entry.filter_first >= (entry.first if entry.stores_filter else 0):
        raise Broken(f"its filter begins with document {entry.filter_first}")
    _check_table(entry.documents, -(-entry.count // BLOCK_DOCUMENTS))
    column = 0
    for shard in entry.shards:
        if shard.first_column != column:
            raise Broken(f"{shard.file.name} does not begin with column {column}")
        column += _check_tables(shard)
    if column != columns:
        raise Broken(f"it has {column} columns instead of {columns}")
    if len({shard.plane_bytes for shard in entry.shards}) > 1:
        raise Broken("its filters have different sizes")


def _check_tables(shard: ShardEntry) -> int:
    """Check the tables that describe a shard, and return its number of columns."""
    columns, rest = divmod(len(shard.starts), 4 * (SUBS + 1))
    if rest or not columns or not 0 <= shard.chunk_bits <= MOST_CHUNK_BITS:
        raise Broken(f"{shard.file.name} is described by tables of other lengths")
    _check_table(shard.file, (columns << shard.chunk_bits) + (columns if shard.plane_bytes else 0))
    if shard.plane_bytes < 0 or shard.plane_bytes % (LINE // 8):
        raise Broken(f"{shard.file.name} has filters of {shard.plane_bytes} bytes")
    return columns


def _check_table(file: FileEntry, values: int) -> None:
    """Check the lengths of the table that describes the values of a file."""
    if (len(file.places), len(file.sizes), len(file.sums)) != (8 * values, 4 * values, 8 * values):
        raise Broken(f"{file.name} is described by tables of other lengths")


def check_postings(count: int, postings: U64, bucket_size: int | None) -> None:
    """Check the postings of a column.

    Args:
        count: documents of the segment.
        postings: of the column.
        bucket_size: most postings of a key; None if it is not known.
    """
    if not len(postings):
        raise Broken("it has no postings")
    if (postings[1:] <= postings[:-1]).any():
        raise Broken("its postings do not ascend")
    numbers = (postings & NUMBER_MASK).astype(np.int64)
    if numbers.max() >= count:
        raise Broken(f"a posting leads to document {numbers.max()} of {count}")
    if np.bincount(numbers).max() > 1:
        raise Broken("a document has two postings")
    if bucket_size is None:
        return
    _, buckets = np.unique(postings >> PREFIX_SHIFT, return_counts=True)
    if buckets.max() > bucket_size:
        raise Broken(f"a bucket has {buckets.max()} documents")


def check_file(path: Path, file: FileEntry) -> int:
    """Check the size, the checksum and the structure of a file, and return its size."""
    if not path.exists():
        raise Broken(f"the file is missing, the manifest says {file.size} bytes")
    size = path.stat().st_size
    if size != file.size:
        raise Broken(f"the file has {size} bytes, the manifest says {file.size}")
    if checksum(path) != file.sum:
        raise Broken("its checksum differs from the manifest's")
    walk_file(path)
    return size


def read_values(path: Path, txn: Any, keys: list[bytes], file: FileEntry) -> list[U8]:
    """Return a file's values, which must have these keys, and be what the manifest describes."""
    found = [(bytes(key), np.frombuffer(value, dtype=np.uint8)) for key, value in txn.cursor()]
    if [key for key, _ in found] != keys:
        raise Broken("its values are not those that the manifest lists")
    values = [value for _, value in found]
    places = np.frombuffer(file.places, dtype=np.int64)
    addresses = np.array([address(value) for value in values], dtype=np.int64)
    with path.open("rb") as raw:
        raw.seek(max(0, int(places[0])))
        first = raw.read(len(values[0]))
    if (np.diff(addresses) != np.diff(places)).any() or first != values[0].tobytes():
        raise Broken("its values are not where the manifest says")
    sums = [(len(value), sum_of(value)) for value in values]
    sizes = np.frombuffer(file.sizes, dtype=np.uint32).tolist()
    if sums != list(zip(sizes, np.frombuffer(file.sums, dtype=np.uint64).tolist(), strict=True)):
        raise Broken("its values are not those that the manifest has checksums of")
    return values
