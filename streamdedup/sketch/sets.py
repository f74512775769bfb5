"""*Pure.* Sets of shingles, as sorted hashes, and how similar two of them are, without estimating.

A shingle is known by its 64-bit hash; that two different ones of two texts of 1,000 shingles
collide is a chance of one in 10^13.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numba
import numpy as np

from streamdedup.model import U64
from streamdedup.sketch.minhash import hash_shingles
from streamdedup.sketch.shingle import Shingling, chunks, pack
from streamdedup.sketch.words import join_packed


def shingle_sets(texts: Sequence[str], shingling: Shingling) -> Iterator[U64]:
    """Yield for each normalised text the distinct hashes of its shingles, ``(m,)``, ascending.

    They are the shingles that a sketch is made of; a text without characters has none.
    """
    for chunk in chunks(texts):
        packed = pack(texts[chunk])
        codes, offsets = join_packed(packed) if shingling.words else packed
        room = np.empty(np.diff(offsets).max() + 1, dtype=np.uint64)
        for at in range(len(offsets) - 1):
            count = hash_shingles(codes, offsets[at], offsets[at + 1], shingling, room)
            yield np.unique(room[:count])


def jaccard(first: U64, second: U64) -> float:
    """Return the Jaccard similarity of two sets from :func:`shingle_sets`; 0 for empty ones."""
    common: int = _count_common(first, second)
    union = len(first) + len(second) - common
    return common / union if union else 0.0


@numba.njit(cache=True, nogil=True)
def _count_common(first, second):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    common = at = other = 0
    while at < len(first) and other < len(second):
        common += first[at] == second[other]
        # Both move where they are equal.
        mine = first[at]
        at += mine <= second[other]
        other += second[other] <= mine
    return common
