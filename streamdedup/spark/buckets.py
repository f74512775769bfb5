"""*Pure.* Brings documents with the same band key together.

A document has a row in each of its buckets. Spark would handle each of these rows on its own. So a
batch is divided here: a *slice* is a part of all buckets, and a value that Spark shuffles holds all
rows of a batch that belong to one slice. The first of several equal documents of a batch stands for
them in all buckets. So a bucket of copies alone has as many rows as there are batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from streamdedup.columns import I64, U64
from streamdedup.dedup.judge import IGNORED_KEY_BITS
from streamdedup.spark.batches import Batches, Task, from_ends, numbers, rows_of
from streamdedup.spark.pairing import BucketRows, bounded, copies, full_buckets, groups_of, pairs
from streamdedup.spark.sketching import PLACE

SLICED = "slice int, rows binary, copies binary"
FOUND = "kind byte, a long, b long"
"""The schema of what buckets tell; ``kind`` is one of the following."""
PAIR, COPY, FULL, BOUNDED = range(4)
"""A pair of groups by their first documents; a document and a copy of it; a key and the first
document of a group in a bucket that may be full; a key and the number of groups in a bucket of
which not all groups are compared. A document with copies may itself be a copy, of the first one of
the group."""
ROW_BYTES = 24
"""Bytes of a document in a bucket: key, group and place."""
_BAND_SHIFT = np.uint64(64 - int(IGNORED_KEY_BITS))
"""Bits of a band key that count; the number of the band is above them."""
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


def divide(slices: int, keys_each: int, documents_at_once: int) -> Task:
    """Return the task that divides the buckets of documents into slices.

    Its rows have place, group and band keys.

    Args:
        slices: number of slices.
        keys_each: band keys of a document.
        documents_at_once: documents that are divided together.
    """

    def task(batches: Batches) -> Batches:
        waiting: list[pa.RecordBatch] = []
        count = 0
        for batch in batches:
            waiting.append(batch)
            count += len(batch)
            if count >= documents_at_once:
                yield _divided(waiting, slices, keys_each)
                waiting, count = [], 0
        if count:
            yield _divided(waiting, slices, keys_each)

    return task


def _divided(batches: list[pa.RecordBatch], slices: int, keys_each: int) -> pa.RecordBatch:
    places, groups = (
        np.concatenate([numbers(batch, name) for batch in batches]) for name in (PLACE, "grp")
    )
    raw = [rows_of(batch.column("band_keys"), 8 * keys_each) for batch in batches]
    keys = np.concatenate(raw).view("<u8").astype(np.uint64, copy=False)
    # Spark reads files in any order, and the first document of a group must be the same everywhere.
    in_order = np.argsort(places)
    places, groups, keys = places[in_order], groups[in_order], keys[in_order]
    _, firsts, of_group = np.unique(groups, return_index=True, return_inverse=True)
    bands = np.arange(keys_each, dtype=np.uint64) << _BAND_SHIFT
    rows = BucketRows(
        ((keys[firsts] >> IGNORED_KEY_BITS) | bands).ravel().view(np.int64),
        np.repeat(groups[firsts], keys_each),
        np.repeat(places[firsts], keys_each),
    )
    owners = slice_of(rows.keys.view(np.uint64), slices)
    order = np.argsort(owners, kind="stable")
    content = np.stack([column[order] for column in rows], axis=1).view(np.uint8)
    sizes = np.bincount(owners, minlength=slices)
    present = np.flatnonzero(sizes)
    ends = np.concatenate([[0], np.cumsum(sizes[present])]) * ROW_BYTES
    columns = {
        "slice": pa.array(present.astype(np.int32)),
        "rows": from_ends(content.ravel(), ends),
        "copies": _copies(places, places[firsts][of_group], len(present)),
    }
    return pa.RecordBatch.from_pydict(columns)


def _copies(places: I64, firsts: I64, count: int) -> pa.Array:
    """Return the copies of a batch as one of ``count`` values, another one for each batch."""
    is_copy = places != firsts
    content = np.stack([firsts[is_copy], places[is_copy]], axis=1).view(np.uint8)
    ends = np.zeros(count + 1, dtype=np.int64)
    ends[places[0] % count + 1 :] = content.size
    return from_ends(content.ravel(), ends)


def slice_of(keys: U64, slices: int) -> I64:
    """Return the slice of each bucket, ``(n,)``; small integers, which sort faster."""
    kind = np.uint16 if slices < np.iinfo(np.uint16).max else np.uint32
    return ((keys * _SPREAD >> np.uint64(32)) % np.uint64(slices)).astype(kind)


def pair(bucket_size: int, keys_each: int) -> Task:
    """Return the task that finds pairs in whole slices.

    Args:
        bucket_size: documents that a bucket of the index holds.
        keys_each: band keys of a document.
    """

    def task(batches: Batches) -> Batches:
        # Spark may give several slices to one task, in any order.
        parts = defaultdict[int, list[bytes]](list)
        for batch in batches:
            rows, copied = batch.column("rows"), batch.column("copies")
            for row, number in enumerate(numbers(batch, "slice").tolist()):
                # Bytes of Python, so that the batch can go.
                parts[number].append(rows[row].as_py())
                if len(content := copied[row].as_buffer()):
                    yield _found(COPY, *_columns(content, 2))
        for number in sorted(parts):
            shared = BucketRows(*_columns(b"".join(parts.pop(number)), 3)).shared()
            groups = groups_of(shared)
            for earlier, later in pairs(groups):
                yield _found(PAIR, earlier, later)
            is_text = shared.keys.view(np.uint64) >> _BAND_SHIFT == keys_each - 1
            yield _found(COPY, *copies(shared.take(is_text)))
            yield _found(FULL, *full_buckets(groups, bucket_size))
            yield _found(BOUNDED, *bounded(groups))

    return task


def _columns(content: bytes | pa.Buffer, count: int) -> Iterator[I64]:
    """Yield the columns of a table of 64-bit numbers, each without gaps."""
    table = np.frombuffer(content, dtype=np.int64).reshape(-1, count)
    for column in range(count):
        yield np.ascontiguousarray(table[:, column])


def _found(kind: int, a: I64, b: I64) -> pa.RecordBatch:
    columns = {"kind": np.full(len(a), kind, dtype=np.int8), "a": a, "b": b}
    return pa.RecordBatch.from_pydict(columns)
