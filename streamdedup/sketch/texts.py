"""*Pure.* Stored texts: normalised, in UTF-8, each a Zstandard frame of its own.

A frame of its own, and no dictionary, so that a text can be read whatever else is lost.
"""

from __future__ import annotations

import zstandard

from streamdedup.errors import REMEDY, IndexDamaged

NOT_STORED = b""
"""Stands for a text that is not stored."""

_LEVEL = 3
"""Higher levels cost more time than they save bytes: level 9 takes three times as long on a news
story for 2 % less, and nothing less on a post."""


class TextPacker:
    """Compresses normalised texts; not to be shared by threads."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)

    def pack(self, text: str) -> bytes:
        """Compress a text; one that stays above ``most_bytes`` is not stored."""
        packed = self._compressor.compress(text.encode("utf-8", "surrogatepass"))
        return packed if len(packed) <= self._most_bytes else NOT_STORED


def unpack_text(packed: bytes) -> str:
    """Return a text that was stored.

    Raises:
        IndexDamaged: the bytes are not what was stored.
    """
    try:
        return zstandard.decompress(packed).decode("utf-8", "surrogatepass")
    except (zstandard.ZstdError, UnicodeDecodeError) as error:
        raise IndexDamaged(f"a stored text cannot be read ({error}); {REMEDY}") from error
