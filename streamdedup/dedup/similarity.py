"""*Pure.* The similarity of stored texts, without estimating.

A popular original is compared again and again, so the shingles of a text are remembered, up to a
bound: as many texts as ``_MOST_SHINGLES`` allows, those compared last.
"""

from __future__ import annotations

from collections import OrderedDict

from streamdedup.model import U64
from streamdedup.sketch import sets
from streamdedup.sketch.shingle import Shingling
from streamdedup.sketch.texts import unpack_text

_MOST_SHINGLES = 4_000_000
"""Remembered at once, 8 bytes each: 40,000 posts, or a thousand long articles."""


class TextSimilarity:
    """Compares stored texts, shingled in one way; meant to live as long as a batch."""

    def __init__(self, shingling: Shingling) -> None:
        self._shingling = shingling
        self._sets: OrderedDict[bytes, U64] = OrderedDict()
        self._size = 0

    def jaccard(self, first: bytes, second: bytes) -> float:
        """Return the Jaccard similarity of two texts as they are stored.

        Raises:
            IndexDamaged: the bytes are no stored text.
        """
        return sets.jaccard(self._shingles(first), self._shingles(second))

    def _shingles(self, packed: bytes) -> U64:
        found = self._sets.get(packed)
        if found is not None:
            self._sets.move_to_end(packed)
            return found
        [made] = sets.shingle_sets([unpack_text(packed)], self._shingling)
        self._sets[packed] = made
        self._size += len(made)
        while self._size > _MOST_SHINGLES and len(self._sets) > 1:
            _, forgotten = self._sets.popitem(last=False)
            self._size -= len(forgotten)
        return made
