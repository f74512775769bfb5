"""*Pure.* The exact Jaccard similarity of stored texts.

A popular original is compared many times. A cache therefore holds the shingles of the texts that
were compared last, up to ``_MOST_SHINGLES`` shingles.
"""

from __future__ import annotations

from collections import OrderedDict

from streamdedup.columns import U64
from streamdedup.sketch import sets
from streamdedup.sketch.shingle import Shingling
from streamdedup.sketch.texts import unpack_text

_MOST_SHINGLES = 4_000_000
"""Size of the cache, 8 bytes each: 40,000 posts, or a thousand long articles."""


class TextSimilarity:
    """Compares stored texts; one object serves one batch.

    Args:
        shingling: how texts are cut into shingles.
    """

    def __init__(self, shingling: Shingling) -> None:
        self._shingling = shingling
        self._sets: OrderedDict[bytes, U64] = OrderedDict()
        self._size = 0

    def jaccard(self, first: bytes, second: bytes) -> float:
        """Return the Jaccard similarity of two stored texts.

        Raises:
            IndexDamaged: the bytes are not a stored text.
        """
        return sets.jaccard(self._shingles(first), self._shingles(second))

    def _shingles(self, packed: bytes) -> U64:
        """Return the distinct shingles of a stored text, ``(m,)``, ascending."""
        cached = self._sets.get(packed)
        if cached is not None:
            self._sets.move_to_end(packed)
            return cached
        [shingles] = sets.shingle_sets([unpack_text(packed)], self._shingling)
        self._sets[packed] = shingles
        self._size += len(shingles)
        while self._size > _MOST_SHINGLES and len(self._sets) > 1:
            _, evicted = self._sets.popitem(last=False)
            self._size -= len(evicted)
        return shingles
