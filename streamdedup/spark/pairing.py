"""*Pure.* Pairs of documents that share a band key, from rows that are sorted by key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from streamdedup.columns import I64

MOST_COMPARED = 2048
"""Groups of a bucket that are compared with each other. In a larger bucket each group is compared
with so many before it, and with the first ones."""
_FIRST = 256
"""Groups at the beginning of a larger bucket, with which all later ones are compared."""
_AT_ONCE = 1 << 20
"""Pairs that are returned at once, about."""


class Rows(NamedTuple):
    """``n`` documents in buckets, sorted by key, group and place.

    Attributes:
        keys: ``(n,)`` int64, the bucket.
        groups: ``(n,)`` int64: equal for documents with equal sketches.
        places: ``(n,)`` int64, the document's place in the order.
    """

    keys: I64
    groups: I64
    places: I64


def pairs(rows: Rows) -> Iterator[tuple[I64, I64]]:
    """Yield the pairs of groups that share a bucket, each by the first documents of the groups.

    Args:
        rows: whole buckets.

    Yields:
        The earlier and the later document of each pair. A pair that shares several buckets comes
        several times.
    """
    if not len(rows.keys):
        return
    new_key = np.ones(len(rows.keys), dtype=np.bool_)
    new_key[1:] = rows.keys[1:] != rows.keys[:-1]
    new_group = new_key.copy()
    new_group[1:] |= rows.groups[1:] != rows.groups[:-1]
    firsts = np.flatnonzero(new_group)
    places = rows.places[firsts]
    buckets = np.cumsum(new_key)[firsts]
    order = np.lexsort((places, buckets))
    places, buckets = places[order], buckets[order]
    starts = np.flatnonzero(np.diff(buckets, prepend=buckets[0] - 1))
    sizes = np.diff(starts, append=len(buckets))
    for size in np.unique(sizes[sizes > 1]).tolist():
        of_size = starts[sizes == size]
        earlier, later = _combinations(size)
        step = max(1, _AT_ONCE // len(earlier))
        for chunk in range(0, len(of_size), step):
            begins = of_size[chunk : chunk + step, None]
            yield places[(begins + earlier).ravel()], places[(begins + later).ravel()]


def _combinations(size: int) -> tuple[I64, I64]:
    """Return which places of a bucket with this many groups are compared."""
    if size <= MOST_COMPARED:
        later, earlier = np.tril_indices(size, -1)
        return earlier.astype(np.int64), later.astype(np.int64)
    rows = np.arange(size, dtype=np.int64)
    near = rows[:, None] - np.arange(1, MOST_COMPARED + 1)
    later, column = np.nonzero(near >= 0)
    first = np.broadcast_to(np.arange(_FIRST, dtype=np.int64), (size, _FIRST))
    far_later, far = np.nonzero(first < rows[:, None] - MOST_COMPARED)
    return (
        np.concatenate([near[later, column], far]).astype(np.int64),
        np.concatenate([later, far_later]).astype(np.int64),
    )


def full_buckets(rows: Rows, bucket_size: int) -> tuple[I64, I64]:
    """Return the keys and places of the documents in buckets with more than ``bucket_size``."""
    _, index, counts = np.unique(rows.keys, return_inverse=True, return_counts=True)
    chosen = counts[index] > bucket_size
    return rows.keys[chosen], rows.places[chosen]
