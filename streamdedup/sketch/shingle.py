"""*Pure.* Shingles: what they are, and the packed texts that the kernels hash them from.

- A shingle of ``size`` characters is hashed by a rolling polynomial modulo 2^64 over its code
  points and a finaliser (Stafford's variant 13 of the MurmurHash3 mixer, as in SplitMix64).
- A word is hashed like one shingle of its characters, and a shingle of words by the same
  polynomial over the hashes of its words.
- A text shorter than one shingle is one shingle, and a text without characters has none.
- A bag counts repetitions: the ``i``-th time that a shingle comes it is another element, so that
  the similarity becomes ``sum(min) / sum(max)`` of the counts.

The time is linear in the characters whatever the size, and the kernels hold 8 bytes per character
of the longest text, 56 for a bag.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamdedup.model import I64, U8

Codes = U8 | NDArray[np.uint32]

_CHUNK_TEXTS = 256
_CHUNK_CHARACTERS = 2**18
"""A chunk of texts is packed at once: few enough to stay in the processor's cache."""


class Shingling(NamedTuple):
    """What a shingle is.

    Attributes:
        words: whether the shingle is of words, separated by spaces; else of characters.
        size: how many of them.
        bag: whether a repeated shingle counts each time.
        seed: of the hash.
    """

    words: bool
    size: int
    bag: bool
    seed: int


class PackedTexts(NamedTuple):
    """Texts as code points, one after the other.

    Attributes:
        codes: ``(total,)`` uint8 where all of them are below 256, else uint32.
        offsets: text ``i`` is ``codes[offsets[i]:offsets[i + 1]]``, ``(n + 1,)`` int64.
    """

    codes: Codes
    offsets: I64


def pack(texts: Sequence[str]) -> PackedTexts:
    """Pack texts; lone surrogates are code points like any other."""
    joined = "".join(texts)
    try:
        codes: Codes = np.frombuffer(joined.encode("latin-1"), dtype=np.uint8)
    except UnicodeEncodeError:
        wide = joined.encode("utf-32-le", "surrogatepass")
        codes = np.frombuffer(wide, dtype="<u4").astype(np.uint32, copy=False)
    offsets = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)), out=offsets[1:])
    return PackedTexts(codes, offsets)


def chunks(texts: Sequence[str]) -> Iterator[slice]:
    """Cut a batch into runs of texts that are small enough to be packed at once."""
    start = characters = 0
    for at, text in enumerate(texts):
        full = at - start >= _CHUNK_TEXTS or characters + len(text) > _CHUNK_CHARACTERS
        if full and at > start:
            yield slice(start, at)
            start, characters = at, 0
        characters += len(text)
    if start < len(texts):
        yield slice(start, len(texts))
