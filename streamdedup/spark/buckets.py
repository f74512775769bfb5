"""*Pure.* Brings documents with the same band key together.

A document has a row in each of its buckets. Spark would handle each of these rows on its own. So a
batch is divided here: a *slice* is a part of all buckets, and a value that Spark shuffles holds all
rows of a batch that belong to one slice. The first of several equal documents of a batch stands for
them in all buckets. So a bucket of copies alone has as many rows as there are batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamdedup.columns import I64, U64
from streamdedup.dedup.judge import IGNORED_KEY_BITS
from streamdedup.spark.batches import PLACE, Batches, Task, from_ends, numbers, rows_of

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
MOST_COMPARED = 1024
"""Groups of a bucket up to which all are compared with each other."""
NEAR, FIRST = 128, 128
"""In a larger bucket, each group is compared with this many before it, and this many of the first
ones."""
_AT_ONCE = 1 << 20  # pairs that are returned at once, about


def divide(slices: int, keys_each: int, documents_at_once: int) -> Task:
    """Return the task that divides the buckets of documents into slices.

    Its rows have place, group and ``keys_each`` band keys.
    """

    def task(batches: Batches) -> Batches:
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            waiting.append(batch)
            if sum(map(len, waiting)) >= documents_at_once:
                yield _divided(waiting, slices, keys_each)
                waiting = []
        if any(map(len, waiting)):
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
    # All copies of the batch are in one of the values, in another one for each batch.
    originals = places[firsts][of_group]
    is_copy = places != originals
    copied = np.stack([originals[is_copy], places[is_copy]], axis=1).view(np.uint8)
    copied_ends = np.zeros(len(present) + 1, dtype=np.int64)
    copied_ends[places[0] % len(present) + 1 :] = copied.size
    columns = {
        "slice": pa.array(present.astype(np.int32)),
        "rows": from_ends(content.ravel(), ends),
        "copies": from_ends(copied.ravel(), copied_ends),
    }
    return pa.RecordBatch.from_pydict(columns)


def slice_of(keys: U64, slices: int) -> I64:
    """Return the slice of each bucket, ``(n,)``; small integers, which sort faster."""
    kind = np.uint16 if slices < np.iinfo(np.uint16).max else np.uint32
    return ((keys * _SPREAD >> np.uint64(32)) % np.uint64(slices)).astype(kind)


def pair(bucket_size: int, keys_each: int) -> Task:
    """Return the task that finds pairs in whole slices; ``bucket_size`` is that of the index."""

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


class BucketRows(NamedTuple):
    """``n`` documents in buckets: three columns ``(n,)``."""

    keys: I64  # the bucket
    groups: I64  # equal for documents with equal sketches
    places: I64  # in the order

    def take(self, rows: I64 | NDArray[np.bool_]) -> BucketRows:
        """Return some of the rows."""
        return BucketRows(self.keys[rows], self.groups[rows], self.places[rows])

    def shared(self) -> BucketRows:
        """Return the rows of buckets with several, sorted by key, group and place."""
        order = np.argsort(self.keys)
        keys = self.keys[order]
        same = np.zeros(len(keys) + 1, dtype=np.bool_)
        np.equal(keys[1:], keys[:-1], out=same[1:-1])
        rows = self.take(order[same[1:] | same[:-1]])
        return rows.take(np.lexsort((rows.places, rows.groups, rows.keys)))

    def is_first(self) -> NDArray[np.bool_]:
        """Tell which rows are the first ones of a group in a bucket; the rows are sorted."""
        firsts = np.ones(len(self.keys), dtype=np.bool_)
        firsts[1:] = (self.keys[1:] != self.keys[:-1]) | (self.groups[1:] != self.groups[:-1])
        return firsts


class Groups(NamedTuple):
    """Groups in buckets, in order: ``(n,)`` each by its first document, and ``(m,)`` buckets."""

    keys: I64  # (n,), the bucket
    places: I64  # (n,), the first document
    starts: I64  # (m,), where each bucket begins
    sizes: I64  # (m,), the groups of each bucket


def groups_of(rows: BucketRows) -> Groups:
    """Return the groups of whole buckets, whose rows are sorted by key, group and place."""
    firsts = np.flatnonzero(rows.is_first())
    keys, places = rows.keys[firsts], rows.places[firsts]
    order = np.lexsort((places, keys))
    keys, places = keys[order], places[order]
    is_start = np.ones(len(keys), dtype=np.bool_)
    is_start[1:] = keys[1:] != keys[:-1]
    starts = np.flatnonzero(is_start)
    return Groups(keys, places, starts, np.diff(starts, append=len(keys)))


def pairs(groups: Groups) -> Iterator[tuple[I64, I64]]:
    """Yield the earlier and the later document of each two groups that share a bucket.

    Two groups that share several buckets come several times.
    """
    for size in np.unique(groups.sizes[groups.sizes > 1]).tolist():
        of_size = groups.starts[groups.sizes == size]
        for earlier, later in _combinations(size):
            step = max(1, _AT_ONCE // len(earlier))
            for chunk in range(0, len(of_size), step):
                begins = of_size[chunk : chunk + step, None]
                yield (
                    groups.places[(begins + earlier).ravel()],
                    groups.places[(begins + later).ravel()],
                )


def _combinations(size: int) -> Iterator[tuple[I64, I64]]:
    """Yield which of the groups of a bucket with so many are compared."""
    if size <= MOST_COMPARED:
        later, earlier = np.tril_indices(size, -1)
        yield earlier, later
        return
    step = _AT_ONCE // (NEAR + FIRST)
    for begin in range(1, size, step):
        later = np.arange(begin, min(size, begin + step), dtype=np.int64)[:, None]
        near = later - np.arange(1, NEAR + 1)
        first = np.broadcast_to(np.arange(FIRST), (len(later), FIRST))
        earlier = np.concatenate([near, np.where(first < later - NEAR, first, -1)], axis=1)
        rows, columns = np.nonzero(earlier >= 0)
        yield earlier[rows, columns], later[rows, 0]


def copies(rows: BucketRows) -> tuple[I64, I64]:
    """Return the first document of each group, and each copy of it; of sorted, whole buckets."""
    is_first = rows.is_first()
    firsts, others = np.flatnonzero(is_first), np.flatnonzero(~is_first)
    firsts = firsts[np.searchsorted(firsts, others) - 1] if len(others) else others
    return rows.places[firsts], rows.places[others]


def full_buckets(groups: Groups, bucket_size: int) -> tuple[I64, I64]:
    """Return key and first document of the groups in buckets with more than ``bucket_size``."""
    chosen = np.repeat(groups.sizes > bucket_size, groups.sizes)
    return groups.keys[chosen], groups.places[chosen]


def bounded(groups: Groups) -> tuple[I64, I64]:
    """Return key and number of groups of the buckets in which not all groups are compared."""
    chosen = groups.sizes > MOST_COMPARED
    return groups.keys[groups.starts[chosen]], groups.sizes[chosen]
