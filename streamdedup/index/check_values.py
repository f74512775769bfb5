"""*Pure.* Checks the values of a segment, and its record, and trusts no length or offset of them.

The kernels read by address and would kill the process if a value contradicted itself. These
functions do the same by slicing, and raise :class:`Broken`.
"""

from __future__ import annotations

import numpy as np

from streamdedup.columns import I64, U8, U64, Blobs, Strings
from streamdedup.index.blocks import BLOCK_DOCUMENTS, COLUMNS, HEAD_BYTES
from streamdedup.index.filter import Bank
from streamdedup.index.layout import (
    MOST_CHUNK_BITS,
    MOST_DOCUMENTS,
    POSTING_BYTES,
    FileEntry,
    SegmentEntry,
)
from streamdedup.index.memory import LINE
from streamdedup.index.postings import NUMBER_MASK, PREFIX_SHIFT, SUBS
from streamdedup.index.rows import StoredRows


class Broken(Exception):  # noqa: N818 - says what was found
    """A problem after which the checker cannot look further into the same part."""


def check_entry(entry: SegmentEntry, columns: int) -> None:
    """Check a segment's record in the manifest, on which all further checks rely."""
    if not 1 <= entry.count <= MOST_DOCUMENTS or entry.first < 0:
        raise Broken(f"it has {entry.count} documents from {entry.first} on")
    if entry.filter_first >= (entry.first if entry.stores_filter else 0):
        raise Broken(f"its filter begins with document {entry.filter_first}")
    _check_tables(entry.documents, -(-entry.count // BLOCK_DOCUMENTS))
    column = 0
    for shard in entry.shards:
        if shard.first_column != column:
            raise Broken(f"{shard.file.name} does not begin with column {column}")
        columns_of_shard, rest = divmod(len(shard.starts), 4 * (SUBS + 1))
        if rest or not columns_of_shard or not 0 <= shard.chunk_bits <= MOST_CHUNK_BITS:
            raise Broken(f"{shard.file.name} is described by tables of other lengths")
        planes = columns_of_shard if shard.plane_bytes else 0
        _check_tables(shard.file, (columns_of_shard << shard.chunk_bits) + planes)
        if shard.plane_bytes < 0 or shard.plane_bytes % (LINE // 8):
            raise Broken(f"{shard.file.name} has filters of {shard.plane_bytes} bytes")
        column += columns_of_shard
    if column != columns:
        raise Broken(f"it has {column} columns instead of {columns}")
    if len({shard.plane_bytes for shard in entry.shards}) > 1:
        raise Broken("its filters have different sizes")


def _check_tables(file: FileEntry, values: int) -> None:
    """Check the lengths of the tables that describe the values of a file."""
    if (len(file.offsets), len(file.sizes), len(file.sums)) != (8 * values, 4 * values, 8 * values):
        raise Broken(f"{file.name} is described by tables of other lengths")


def decode_block(value: U8, count: int, width: int) -> StoredRows:
    """Return the documents of a block: ``count``, with signatures of ``width`` bytes."""
    if len(value) < HEAD_BYTES or value[:8].view("<u4").tolist() != [count, width]:
        raise Broken(f"it does not begin as a block of {count} documents")
    end = HEAD_BYTES + count * width
    signatures = value[HEAD_BYTES:end]
    columns = []
    for column in range(COLUMNS):
        values, end = _decode_column(value, 8 + 16 * column, count, end)
        columns.append(values)
    *fields, id_ends, text_ends = columns
    ids, texts = value[HEAD_BYTES - 8 : HEAD_BYTES].view("<u4").tolist()
    for ends, size in ((id_ends, texts - ids), (text_ends, len(value) - texts)):
        if ids != end or ends[0] < 0 or (np.diff(ends) < 0).any() or ends[-1] != size:
            raise Broken("its ids and texts do not fill it")
    return StoredRows(
        signatures.reshape(count, width),
        np.stack(fields, axis=1),
        Strings(value[ids:texts], id_ends),
        Blobs(value[texts:], text_ends),
    )


def _decode_column(value: U8, head: int, count: int, start: int) -> tuple[I64, int]:
    """Return the column of a block that must begin at ``start``, and its end."""
    base = value[head : head + 8].view("<i8")[0]
    size, offset = value[head + 8 : head + 16].view("<u4").tolist()
    end = start + count * size
    if size not in {0, 1, 2, 4, 8} or offset != start or end > len(value):
        raise Broken("its columns do not follow on each other")
    if not size:
        return np.full(count, base), end
    return base + value[start:end].view(f"<u{size}").astype(np.int64), end


def unpack_chunks(chunks: list[U8], starts: I64) -> U64:
    """Return the postings of a column from its chunks; ``starts`` is ``(257,)``."""
    if starts[0] != 0 or (np.diff(starts) < 0).any():
        raise Broken("its subs do not follow on each other")
    edges = starts[:: SUBS // len(chunks)]
    keys, numbers = [], []
    for value, count in zip(chunks, np.diff(edges).tolist(), strict=True):
        if len(value) != max(1, POSTING_BYTES * count):
            raise Broken(f"it has {len(value)} bytes for {count} postings")
        keys.append(value[: 4 * count].view("<u4"))
        numbers.append(value[4 * count : POSTING_BYTES * count].reshape(count, 3))
    lower = np.concatenate(keys).astype(np.uint64) << PREFIX_SHIFT
    upper = np.repeat(np.arange(SUBS, dtype=np.uint64), np.diff(starts)) << np.uint64(56)
    low, middle, high = np.concatenate(numbers).astype(np.uint64).T
    postings: U64 = upper | lower | low | middle << np.uint64(8) | high << np.uint64(16)
    return postings


def check_plane(plane: U8, size: int, postings: U64) -> None:
    """Check that stored filter bits let all postings through; they may let others through."""
    if len(plane) != size:
        raise Broken(f"its filter has {len(plane)} bytes instead of {size}")
    bank = Bank(1, size * 8 // LINE, LINE)
    bank.add_plane(plane, 0, 0)
    if not bank.has_all(postings, 0, 0):
        raise Broken("its filter would miss a document")


def check_postings(count: int, postings: U64, bucket_size: int | None) -> None:
    """Check the postings of a column of ``count`` documents; the bucket size may be unknown."""
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
