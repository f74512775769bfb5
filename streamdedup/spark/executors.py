"""*Blocking.* What runs in Spark's executors: functions from record batches to record batches.

Each function is made on the driver from plain values, and pickled. Whatever it needs more is made
in the executor, once for each task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from streamdedup.batches import DocumentColumns, SketchedBatch
from streamdedup.columns import I64, Blobs, Positions
from streamdedup.dedup.buckets import IGNORED_KEY_BITS
from streamdedup.dedup.similarity import TextSimilarity
from streamdedup.engine.arrow import TableFields
from streamdedup.engine.prepare import Preparer
from streamdedup.settings.sections import Settings
from streamdedup.sketch.codec import SignatureCodec
from streamdedup.sketch.texts import NOT_STORED
from streamdedup.spark.pairing import Rows, full_buckets, pairs

Batches = Iterator[pa.RecordBatch]
Task = Callable[[Batches], Batches]

_BAND_SHIFT = np.uint64(64 - int(IGNORED_KEY_BITS))
"""Bits of a band key that count; the band's number is above them."""
_ROWS = 1 << 18
"""Rows of a bucket table that are looked at together, about."""


@cache
def _preparer(settings: str) -> Preparer:
    return Preparer(Settings.model_validate_json(settings))


def sketch(settings: Settings, carried: list[str]) -> Task:
    """Return the task that sketches documents.

    Args:
        settings: all settings; ``records`` names the columns.
        carried: columns that are returned as they are.
    """

    def task(batches: Batches) -> Batches:
        preparer = Preparer(settings)
        preparer.warm()
        fields: TableFields | None = None
        for batch in batches:
            if fields is None:
                fields = TableFields(batch.schema, settings.records, "the DataFrame")
            rows = fields.read(batch)
            count = len(batch)
            positions = Positions(
                ("archive",),
                np.zeros(count, dtype=np.int64),
                np.zeros(count, dtype=np.int64),
                np.arange(count, dtype=np.int64),
            )
            sketched = preparer.prepare_fields(rows.fields, positions, rows.refused)
            yield _sketched(batch, carried, rows.fields.ids, sketched)

    return task


def _sketched(
    batch: pa.RecordBatch, carried: list[str], ids: Blobs, sketched: SketchedBatch
) -> pa.RecordBatch:
    """Return the carried columns of a batch, and its sketches; null where a row is rejected."""
    count = len(batch)
    places = np.full(count, -1, dtype=np.int64)
    places[sketched.rows] = np.arange(len(sketched.rows))
    index = pa.array(places, mask=places < 0)
    documents = sketched.documents
    blank = np.zeros(count, dtype=np.bool_)
    blank[sketched.rows[sorted(sketched.blank)]] = True
    reasons = [sketched.rejections.get(row) for row in range(count)]
    columns = {name: batch.column(name) for name in carried}
    columns |= {
        "id": _binary(ids).cast(pa.string()),
        "time_ms": pa.array(documents.event_times_ms).take(index),
        "namespace": pa.array(documents.namespaces.view(np.int64)).take(index),
        "signature": _rows_as_binary(documents.sketches.signatures).take(index),
        "keys": _lists(documents.sketches.band_keys.view(np.int64)).take(index),
        "grp": pa.array(_groups(documents)).take(index),
        "text": _binary(documents.texts).take(index) if len(documents.texts) else pa.nulls(count),
        "blank": pa.array(blank),
        "reason": pa.array([each and each.reason for each in reasons], pa.string()),
        "message": pa.array([each and each.message for each in reasons], pa.string()),
    }
    return pa.RecordBatch.from_pydict(columns)


def _groups(documents: DocumentColumns) -> I64:
    """Return a number for each document that is equal for equal sketches, ``(n,)`` int64."""
    rows = np.concatenate(
        [
            documents.sketches.signatures,
            documents.sketches.band_keys[:, -1:].copy().view(np.uint8),
            documents.namespaces[:, None].copy().view(np.uint8),
        ],
        axis=1,
    )
    digests = [xxhash.xxh3_64_intdigest(row) for row in np.ascontiguousarray(rows)]
    return np.array(digests, dtype=np.uint64).view(np.int64)


def explode(batches: Batches) -> Batches:
    """Return a row for each bucket of each document: key, group and place.

    Of documents in one batch with equal sketches only the first comes: it stands for them.
    """
    for batch in batches:
        groups, places = _numbers(batch, "grp"), _numbers(batch, "seq")
        _, firsts = np.unique(groups, return_index=True)
        firsts.sort()
        lists = batch.column("keys")
        width = len(lists.values) // max(1, len(lists))
        keys = lists.flatten().to_numpy().view(np.uint64).reshape(-1, width)[firsts]
        numbered = (keys >> IGNORED_KEY_BITS) | (np.arange(width, dtype=np.uint64) << _BAND_SHIFT)
        yield pa.RecordBatch.from_pydict(
            {
                "key": numbered.view(np.int64).ravel(),
                "grp": np.repeat(groups[firsts], width),
                "seq": np.repeat(places[firsts], width),
            }
        )


def pair(bucket_size: int) -> Task:
    """Return the task that pairs documents of the same bucket; its rows are sorted by bucket.

    The rows that it returns are pairs, or with ``is_pair`` false, members of a bucket that may be
    full: the key and the place.
    """

    def task(batches: Batches) -> Batches:
        for rows in _whole_buckets(batches):
            for earlier, later in pairs(rows):
                yield _rows(earlier, later, is_pair=True)
            keys, places = full_buckets(rows, bucket_size)
            if len(keys):
                yield _rows(keys, places, is_pair=False)

    return task


def _rows(first: I64, second: I64, *, is_pair: bool) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"a": first, "b": second, "is_pair": np.full(len(first), is_pair)}
    )


def _whole_buckets(batches: Batches) -> Iterator[Rows]:
    """Yield the rows in parts that end where a bucket ends."""
    parts: list[Rows] = []
    count = 0
    for batch in batches:
        rows = Rows(*(_numbers(batch, name) for name in ("key", "grp", "seq")))
        parts.append(rows)
        count += len(rows.keys)
        if count < _ROWS:
            continue
        joined = Rows(*(np.concatenate(each) for each in zip(*parts, strict=True)))
        end = int(np.searchsorted(joined.keys, joined.keys[-1]))
        if end:
            yield Rows(*(column[:end] for column in joined))
        parts = [Rows(*(column[end:] for column in joined))]
        count = len(parts[0].keys)
    if count:
        yield Rows(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def estimate(codec: SignatureCodec) -> Task:
    """Return the task that estimates the similarity of pairs of signatures."""

    def task(batches: Batches) -> Batches:
        for batch in batches:
            one, two = (_signatures(batch, name, codec) for name in ("one", "two"))
            yield pa.RecordBatch.from_pydict(
                {
                    "a": batch.column("a"),
                    "b": batch.column("b"),
                    "estimate": codec.estimate_pairs(one, two),
                }
            )

    return task


def compare(settings: Settings) -> Task:
    """Return the task that computes the similarity of stored texts."""

    def task(batches: Batches) -> Batches:
        texts = TextSimilarity(settings.dedup.sketch_parameters().shingling())
        for batch in batches:
            similarities = [
                None if NOT_STORED in (one, two) else texts.jaccard(one, two)
                for one, two in zip(
                    batch.column("one").to_pylist(), batch.column("two").to_pylist(), strict=True
                )
            ]
            yield pa.RecordBatch.from_pydict(
                {
                    **{name: batch.column(name) for name in ("a", "b", "estimate")},
                    "jaccard": pa.array(similarities, pa.float64()),
                }
            )

    return task


def _numbers(batch: pa.RecordBatch, name: str) -> I64:
    numbers: I64 = batch.column(name).to_numpy(zero_copy_only=False)
    return numbers


def _signatures(batch: pa.RecordBatch, name: str, codec: SignatureCodec) -> Any:
    column = batch.column(name)
    data = np.frombuffer(column.buffers()[2], dtype=np.uint8)
    first = np.frombuffer(column.buffers()[1], dtype=np.int32)[column.offset]
    size = len(column) * codec.num_bytes
    return data[first : first + size].reshape(len(column), codec.num_bytes)


def _binary(blobs: Blobs) -> pa.Array:
    return pa.array(list(blobs), pa.binary())


def _rows_as_binary(rows: Any) -> pa.Array:
    """Return ``(n, width)`` uint8 as ``n`` values."""
    count, width = rows.shape
    ends = np.arange(count + 1, dtype=np.int32) * width
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _lists(rows: I64) -> pa.Array:
    """Return ``(n, width)`` int64 as ``n`` lists."""
    count, width = rows.shape
    ends = np.arange(count + 1, dtype=np.int32) * width
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(rows.ravel()))


