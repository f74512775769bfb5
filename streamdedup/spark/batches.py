"""*Pure.* Arrow batches, which Spark exchanges with Python, and numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from streamdedup.columns import F64, I64, U8, Blobs

PLACE = "_place"
"""Name of the column with a document's place in the order of the archive, from 0."""
Batches: TypeAlias = Iterator[pa.RecordBatch]
Task: TypeAlias = Callable[[Batches], Batches]
"""A function for ``DataFrame.mapInArrow``. The driver makes it from plain values, and Spark pickles
it. Whatever else it needs is made in the executor, once for each task. It depends on its rows
alone, so that Spark may run it again."""


def numbers(batch: pa.RecordBatch, name: str) -> I64:
    """Return a column of longs without nulls, ``(n,)``."""
    column: I64 = batch.column(name).to_numpy(zero_copy_only=False)
    return column


def floats(batch: pa.RecordBatch, name: str, missing: float = np.nan) -> F64:
    """Return a column of doubles, ``(n,)``; a null becomes ``missing``."""
    column: F64 = batch.column(name).fill_null(missing).to_numpy(zero_copy_only=False)
    return column


def rows_of(column: pa.Array, width: int) -> U8:
    """Return values of the same length as rows, ``(n, width)``, read-only and without a copy."""
    if not len(column):
        return np.empty((0, width), dtype=np.uint8)
    column = column.cast(pa.binary())
    _, offsets, data = column.buffers()
    first = int(np.frombuffer(offsets, dtype=np.int32)[column.offset])
    content = np.frombuffer(data, dtype=np.uint8)[first : first + len(column) * width]
    content.setflags(write=False)  # kernels are compiled for this type, whoever owns the buffer
    return content.reshape(len(column), width)


def as_binary(rows: Any) -> pa.Array:
    """Return ``(n, width)`` of any type as ``n`` values of the same length."""
    width = rows.shape[1] * rows.itemsize
    content = np.ascontiguousarray(rows).view(np.uint8)
    return from_ends(content, np.arange(len(rows) + 1, dtype=np.int64) * width)


def from_ends(content: U8, ends: I64) -> pa.Array:
    """Return values from their joined bytes; ``ends``, ``(n + 1,)``, is 0 and where each ends."""
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers)


def of_blobs(blobs: Blobs) -> pa.Array:
    """Return byte strings as an array."""
    content = np.ascontiguousarray(blobs.data[: blobs.size])
    return from_ends(content, np.concatenate([[0], blobs.ends]))
