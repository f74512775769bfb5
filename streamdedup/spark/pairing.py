"""*Pure.* Pairs of documents that share a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamdedup.columns import I64

MOST_COMPARED = 1024
"""Groups of a bucket up to which all are compared with each other."""
NEAR, FIRST = 128, 128
"""In a larger bucket, each group is compared with so many before it, and with so many of the first
ones."""
_AT_ONCE = 1 << 20
"""Pairs that are returned at once, about."""


class BucketRows(NamedTuple):
    """``n`` documents in buckets.

    Attributes:
        keys: ``(n,)`` int64, the bucket.
        groups: ``(n,)`` int64: equal for documents with equal sketches.
        places: ``(n,)`` int64, the document's place in the order.
    """

    keys: I64
    groups: I64
    places: I64

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
    """``n`` groups in ``m`` buckets, each by its first document, in order.

    Attributes:
        keys: ``(n,)`` int64, the bucket.
        places: ``(n,)`` int64, the first document.
        starts: ``(m,)`` int64, where each bucket begins.
        sizes: ``(m,)`` int64, the groups of each bucket.
    """

    keys: I64
    places: I64
    starts: I64
    sizes: I64


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
    """Return the first document of each group, and each copy of it.

    Args:
        rows: whole buckets of a band, sorted by key, group and place.
    """
    is_first = rows.is_first()
    firsts = np.flatnonzero(is_first)
    others = np.flatnonzero(~is_first)
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
