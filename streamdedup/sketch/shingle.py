"""*Pure.* The definition of shingles, and the packed texts that the kernels hash them from.

- The hash of a shingle of ``size`` characters is a rolling polynomial modulo 2^64 over its code
  points, and a finaliser (Stafford's variant 13 of the MurmurHash3 mixer, as in SplitMix64).
- The hash of a word is that of one shingle of all its characters. The hash of a shingle of words is
  the same polynomial over the hashes of its words.
- A text shorter than one shingle is one shingle. A text without characters has none.
- A bag counts repetitions: each occurrence of a shingle is another element. The similarity is then
  ``sum(min) / sum(max)`` of the counts.

The time is linear in the number of characters, for any size. The kernels use 8 bytes of memory per
character of the longest text, 56 for a bag.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamdedup.columns import I64, U8

Codes = U8 | NDArray[np.uint32]

_CHUNK_TEXTS = 256
_CHUNK_CHARACTERS = 2**18
"""Most texts and characters that are packed at once, so that they fit in the processor's cache."""


class Shingling(NamedTuple):
    """How texts are cut into shingles."""

    words: bool  # whether shingles are runs of words, separated by spaces; else of characters
    size: int  # number of words or characters per shingle
    bag: bool  # whether a repeated shingle counts each time
    seed: int  # seed of the hash


class PackedTexts(NamedTuple):
    """The code points of several texts, in one array."""

    codes: Codes  # (total,) uint8 if all code points are below 256, else uint32
    offsets: I64  # text i is codes[offsets[i]:offsets[i + 1]], (n + 1,)


def pack(texts: Sequence[str]) -> PackedTexts:
    """Pack texts; lone surrogates are ordinary code points."""
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
    """Cut a batch into slices that are small enough to be packed at once."""
    start = characters = 0
    for i, text in enumerate(texts):
        is_full = i - start >= _CHUNK_TEXTS or characters + len(text) > _CHUNK_CHARACTERS
        if is_full and i > start:
            yield slice(start, i)
            start, characters = i, 0
        characters += len(text)
    if start < len(texts):
        yield slice(start, len(texts))
