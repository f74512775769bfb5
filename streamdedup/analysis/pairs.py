"""*Pure.* Pairs of shingle sets: which of them share a band, and how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamdedup.columns import I64, U64
from streamdedup.kernels import kernel

F64 = NDArray[np.float64]

MOST_PAIRS = 200_000_000
"""Pairs of different sets that an evaluation accepts."""


class SetPairs(NamedTuple):
    """Pairs of shingle sets and their Jaccard similarities.

    Attributes:
        first: ``(n,)`` int64, the smaller set number of each pair.
        second: ``(n,)`` int64, the larger set number.
        jaccard: ``(n,)`` float64.
    """

    first: I64
    second: I64
    jaccard: F64

    def __len__(self) -> int:
        return len(self.first)

    def where(self, mask: NDArray[np.bool_]) -> SetPairs:
        """Return the pairs that ``mask`` selects."""
        return SetPairs(self.first[mask], self.second[mask], self.jaccard[mask])


def count_by_level(jaccard: F64, weights: I64, edges: Sequence[float]) -> list[int]:
    """Sum the weights of the pairs in each level ``[edges[i], edges[i + 1])``.

    Pairs with a similarity of 1 belong to none of these levels.
    """
    level = np.searchsorted(np.array(edges), jaccard, side="right") - 1
    sums = np.bincount(level, weights=weights, minlength=len(edges))
    return [int(count) for count in sums[: len(edges) - 1].tolist()]


def count_equal_pairs(values: I64 | U64) -> int:
    """Return the number of pairs of equal values."""
    _, counts = np.unique(values, return_counts=True)
    return int((counts * (counts - 1) // 2).sum())


def share_a_band(keys: U64, pairs: SetPairs) -> NDArray[np.bool_]:
    """Return for each pair whether its rows of ``keys`` agree in a column: ``(pairs,)`` bool."""
    shared = np.zeros(len(pairs), dtype=np.bool_)
    for band in range(keys.shape[1]):
        shared |= keys[pairs.first, band] == keys[pairs.second, band]
    return shared


@kernel
def pairs_of_band(
    keys: U64, order: I64, band: int, start: int, capacity: int
) -> tuple[I64, I64, int]:
    """Return the pairs that share this band and none before it, from one position of the order.

    Args:
        keys: ``(sets, bands)`` uint64, the band keys.
        order: ``(sets,)`` int64, the rows sorted by their key of this band.
        band: column of ``keys``.
        start: position in ``order`` to begin at.
        capacity: pairs to return at most; not less than ``sets``.

    Returns:
        The smaller and the larger row of each pair, and the position to continue at.
    """
    first = np.empty(capacity, dtype=np.int64)
    second = np.empty(capacity, dtype=np.int64)
    count = 0
    position = start
    end = start
    while position < len(order):
        # The end of a run of equal keys is searched for once per run.
        if end <= position:
            end = position + 1
            while end < len(order) and keys[order[end], band] == keys[order[position], band]:
                end += 1
        if count + end - position > capacity:
            break
        for other in range(position + 1, end):
            smaller = min(order[position], order[other])
            larger = max(order[position], order[other])
            known = False
            for before in range(band):
                if keys[smaller, before] == keys[larger, before]:
                    known = True
                    break
            if not known:
                first[count] = smaller
                second[count] = larger
                count += 1
        position += 1
    return first[:count].copy(), second[:count].copy(), position
