"""*Pure.* The exact set-similarity join, without sketches.

A prefix-filtered join (AllPairs, Bayardo et al. 2007; PPJoin, Xiao et al. 2008). Tokens are ordered
from the rarest on. Two sets with a large enough overlap share a token among the first few of each.
The positions of that token bound the overlap from above.
"""

from __future__ import annotations

import math

import numpy as np

from streamdedup.analysis.pairs import F64
from streamdedup.analysis.sets import I32, ShingleSets
from streamdedup.columns import I64
from streamdedup.kernels import kernel

_SLACK = 1e-9
"""Subtracted before rounding up, so that a rounding error does not raise a whole bound by one."""
_INITIAL_PAIRS = 1024
"""Pairs that the result has room for at first; it doubles when it is full."""


def jaccards(sets: ShingleSets, first: I64, second: I64) -> F64:
    """Return the exact Jaccard similarity of given pairs of sets: ``(n,)`` float64."""
    overlap = _overlaps(sets, first, second)
    union = sets.sizes[first] + sets.sizes[second] - overlap
    # Shingles of one set only are not tokens, so the overlap of a set with itself is too small.
    return np.where(first == second, 1.0, overlap / union)


@kernel
def join(sets: ShingleSets, floor: float, first: int, last: int) -> I32:
    """Find the partners of the sets ``first`` to ``last`` among the sets with smaller numbers.

    Args:
        sets: the indexed sets.
        floor: smallest Jaccard similarity of a pair, in (0, 1].
        first: first set to find partners of.
        last: end of these sets, exclusive.

    Returns:
        ``(pairs, 3)`` int32: the larger set number, the smaller one, and the overlap.
    """
    sizes = sets.sizes
    result = np.empty((_INITIAL_PAIRS, 3), dtype=np.int32)
    count = 0
    shared = np.zeros(last, dtype=np.int32)
    from_x = np.empty(last, dtype=np.int32)
    from_y = np.empty(last, dtype=np.int32)
    candidates = np.empty(last, dtype=np.int32)
    scratch = (shared, from_x, from_y, candidates)
    for x in range(first, last):
        for i in range(_probe(sets, floor, x, scratch)):
            y = candidates[i]
            if shared[y] > 0:
                needed = _needed_overlap(sizes, floor, x, y)
                overlap = _overlap(sets, x, y, from_x[y], from_y[y], needed)
                if overlap / (sizes[x] + sizes[y] - overlap) >= floor:
                    if count == len(result):
                        grown = np.empty((2 * count, 3), dtype=np.int32)
                        grown[:count] = result
                        result = grown
                    result[count, 0] = x
                    result[count, 1] = y
                    result[count, 2] = overlap
                    count += 1
            shared[y] = 0
    return result[:count].copy()


@kernel
def _probe(sets: ShingleSets, floor: float, x: int, scratch: tuple[I32, I32, I32, I32]) -> int:
    """Find the smaller sets that share a rare token with ``x`` and can overlap it enough.

    One loop over postings; its state per set lives in ``scratch``.

    Args:
        sets: the indexed sets.
        floor: smallest Jaccard similarity of a pair.
        x: the set to find partners of.
        scratch: four arrays with an entry per set, written here. ``shared`` counts the shared
            tokens seen, or is -1 if the rest cannot be enough. ``from_x`` and ``from_y`` are the
            indices of the first shared token. ``candidates`` are the sets seen.

    Returns:
        The number of candidates.
    """
    shared, from_x, from_y, candidates = scratch
    sizes, offsets = sets.sizes, sets.offsets
    begin = offsets[x]
    length = offsets[x + 1] - begin
    least_size = math.ceil(floor * sizes[x] - _SLACK)
    # Shingles of one set only are the rarest of all, but are not among the tokens. The prefix to
    # look at is shorter by their number.
    prefix = min(length, sizes[x] - least_size + 1 - (sizes[x] - length))
    lowest = np.searchsorted(sizes[:x], least_size)
    count = 0
    for i in range(prefix):
        token = sets.tokens[begin + i]
        start, stop = sets.starts[token], sets.starts[token + 1]
        row = start + np.searchsorted(sets.members[start:stop], lowest)
        while row < stop and sets.members[row] < x:
            y = sets.members[row]
            j = sets.indices[row]
            row += 1
            seen = shared[y]
            if seen < 0:
                continue
            if seen == 0:
                candidates[count] = y
                count += 1
                from_x[y] = i
                from_y[y] = j
            rest = min(length - i, offsets[y + 1] - offsets[y] - j)
            shared[y] = seen + 1 if seen + rest >= _needed_overlap(sizes, floor, x, y) else -1
    return count


@kernel
def _needed_overlap(sizes: I64, floor: float, x: int, y: int) -> int:
    """Return the overlap from which two sets have a Jaccard similarity of ``floor``."""
    needed: int = math.ceil(floor / (1.0 + floor) * (sizes[x] + sizes[y]) - _SLACK)
    return needed


@kernel
def _overlap(sets: ShingleSets, x: int, y: int, i: int, j: int, needed: int) -> int:
    """Count the common tokens from two indices on; stop when ``needed`` is out of reach."""
    tokens = sets.tokens
    i += sets.offsets[x]
    j += sets.offsets[y]
    end_i, end_j = sets.offsets[x + 1], sets.offsets[y + 1]
    overlap = 0
    while i < end_i and j < end_j:
        if overlap + min(end_i - i, end_j - j) < needed:
            break
        if tokens[i] == tokens[j]:
            overlap += 1
            i += 1
            j += 1
        elif tokens[i] < tokens[j]:
            i += 1
        else:
            j += 1
    return overlap


@kernel
def _overlaps(sets: ShingleSets, first: I64, second: I64) -> I64:
    """Return the number of tokens that each pair of sets has in common: ``(n,)`` int64."""
    result = np.empty(len(first), dtype=np.int64)
    for i in range(len(first)):
        result[i] = _overlap(sets, first[i], second[i], 0, 0, 0)
    return result
