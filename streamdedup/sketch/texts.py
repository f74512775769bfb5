"""*Pure.* Stored texts, their sets of shingles, and the exact Jaccard similarity of two sets.

Each stored text is normalised, in UTF-8, and one Zstandard frame. There is no shared dictionary, so
that each text can be read on its own.

A 64-bit hash stands for a shingle. Among the shingles of two texts with 1,000 shingles each, a
collision has a probability of 10^-13.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np
import zstandard

from streamdedup.columns import F64, I64, U64
from streamdedup.errors import REMEDY, IndexDamaged
from streamdedup.kernels import kernel
from streamdedup.sketch.minhash import hash_shingles
from streamdedup.sketch.shingle import Shingling, chunks, pack
from streamdedup.sketch.words import join_packed

NOT_STORED = b""
"""Replaces a text that is too large to be stored."""

_LEVEL = 3
"""Compression level. Level 9 takes three times as long on a news story and saves 2 %; on a post it
saves nothing."""
_MOST_SHINGLES = 4_000_000
"""Size of the cache, 8 bytes each: 40,000 posts, or a thousand long articles."""


class TextPacker:
    """Compresses normalised texts. Not safe for use by several threads."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)

    def pack(self, text: str) -> bytes:
        """Compress a text; return ``NOT_STORED`` if the result is larger than ``most_bytes``."""
        packed = self._compressor.compress(text.encode("utf-8", "surrogatepass"))
        return packed if len(packed) <= self._most_bytes else NOT_STORED


def text_bytes(packed: bytes) -> int:
    """Return the bytes in UTF-8 of a text, as :func:`unpack_text`, without decompressing it."""
    try:
        return zstandard.frame_content_size(packed)
    except zstandard.ZstdError as error:
        raise _damaged(error) from error


def unpack_text(packed: bytes) -> str:
    """Return the text of :meth:`TextPacker.pack`; IndexDamaged if the bytes are not such a text."""
    try:
        return zstandard.decompress(packed).decode("utf-8", "surrogatepass")
    except (zstandard.ZstdError, UnicodeDecodeError, MemoryError) as error:
        raise _damaged(error) from error


def _damaged(error: Exception) -> IndexDamaged:
    return IndexDamaged(f"a stored text cannot be read ({error}); {REMEDY}")


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
            hashes = np.sort(room[:count])  # np.unique takes fifteen times as long
            is_first = np.ones(count, dtype=np.bool_)
            np.not_equal(hashes[1:], hashes[:-1], out=is_first[1:])
            yield hashes[is_first]


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
    """Return the Jaccard similarities of a set with ``m`` others: ``(m,)`` float64.

    The others are one behind the other; ``ends``, ``(m,)`` int64, are where each ends. A similarity
    below ``least`` may be returned as 0; it is, if the sizes alone tell.
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


class TextSimilarity:
    """Compares stored texts; one object serves one batch.

    A popular original is compared many times. A cache therefore holds the shingles of the texts
    that were compared last.
    """

    def __init__(self, shingling: Shingling) -> None:
        self._shingling = shingling
        self._sets: OrderedDict[bytes, U64] = OrderedDict()
        self._size = 0

    def jaccard(self, first: bytes, second: bytes) -> float:
        """Return the Jaccard similarity of two stored texts; see :func:`unpack_text`."""
        return jaccard(self._shingles(first), self._shingles(second))

    def _shingles(self, packed: bytes) -> U64:
        """Return the distinct shingles of a stored text, ``(m,)``, ascending."""
        cached = self._sets.get(packed)
        if cached is not None:
            self._sets.move_to_end(packed)
            return cached
        [shingles] = shingle_sets([unpack_text(packed)], self._shingling)
        self._sets[packed] = shingles
        self._size += len(shingles)
        while self._size > _MOST_SHINGLES and len(self._sets) > 1:
            _, evicted = self._sets.popitem(last=False)
            self._size -= len(evicted)
        return shingles
