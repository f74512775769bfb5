"""*Pure.* Sets of shingles as sorted hashes, and their exact Jaccard similarity.

A 64-bit hash stands for a shingle. Among the shingles of two texts with 1,000 shingles each, a
collision has a probability of 10^-13.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from streamdedup.columns import F64, I64, U64
from streamdedup.kernels import kernel
from streamdedup.sketch.minhash import hash_shingles
from streamdedup.sketch.shingle import Shingling, chunks, pack
from streamdedup.sketch.words import join_packed


def shingle_sets(texts: Sequence[str], shingling: Shingling) -> Iterator[U64]:
    """Yield for each normalised text the distinct hashes of its shingles, ``(m,)``, ascending.

    A sketch of the text is computed from the same shingles. A text without characters has none.
    """
    for chunk in chunks(texts):
        packed = pack(texts[chunk])
        codes, offsets = join_packed(packed) if shingling.words else packed
        room = np.empty(np.diff(offsets).max() + 1, dtype=np.uint64)
        for i in range(len(offsets) - 1):
            count = hash_shingles(codes, offsets[i], offsets[i + 1], shingling, room)
            yield _distinct(room[:count])


def _distinct(hashes: U64) -> U64:
    """Return the distinct hashes, ascending; ``np.unique`` takes fifteen times as long."""
    hashes = np.sort(hashes)
    is_first = np.ones(len(hashes), dtype=np.bool_)
    np.not_equal(hashes[1:], hashes[:-1], out=is_first[1:])
    return hashes[is_first]


def jaccard(first: U64, second: U64) -> float:
    """Return the Jaccard similarity of two sets from :func:`shingle_sets`; 0 if both are empty."""
    common = _count_common(first, second)
    union = len(first) + len(second) - common
    return common / union if union else 0.0


@kernel
def _count_common(first: U64, second: U64) -> int:
    """Return the number of common elements of two ascending arrays."""
    common = i = j = 0
    while i < len(first) and j < len(second):
        one, other = first[i], second[j]
        # Both indices advance if the elements are equal.
        common += one == other
        i += one <= other
        j += other <= one
    return common


@kernel
def similarities(mine: U64, others: U64, ends: I64, least: float) -> F64:
    """Return the Jaccard similarities of a set with others.

    Args:
        mine: a set.
        others: all other sets, one behind the other.
        ends: ``(m,)`` int64: where each ends.
        least: a smaller similarity may be returned as 0; it is, if the sizes alone tell.

    Returns:
        ``(m,)`` float64.
    """
    result = np.zeros(len(ends))
    begin = 0
    for other in range(len(ends)):
        end = ends[other]
        smaller, larger = min(len(mine), end - begin), max(len(mine), end - begin)
        if smaller > 0 and smaller >= least * larger:
            common = _count_common(mine, others[begin:end])
            result[other] = common / (smaller + larger - common)
        begin = end
    return result
