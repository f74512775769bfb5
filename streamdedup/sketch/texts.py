"""*Pure.* Stored texts: normalised, in UTF-8, each compressed to one Zstandard frame.

There is no shared dictionary, so that each text can be read on its own.
"""

from __future__ import annotations

import zstandard

from streamdedup.errors import REMEDY, IndexDamaged

NOT_STORED = b""
"""Replaces a text that is too large to be stored."""

_LEVEL = 3
"""Compression level. Level 9 takes three times as long on a news story and saves 2 %; on a post it
saves nothing."""


class TextPacker:
    """Compresses normalised texts. Not safe for use by several threads.

    Args:
        most_bytes: largest compressed text that is stored.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)

    def pack(self, text: str) -> bytes:
        """Compress a text; return ``NOT_STORED`` if the result is larger than ``most_bytes``."""
        packed = self._compressor.compress(text.encode("utf-8", "surrogatepass"))
        return packed if len(packed) <= self._most_bytes else NOT_STORED


def text_bytes(packed: bytes) -> int:
    """Return the bytes in UTF-8 of a text of :meth:`TextPacker.pack`, without decompressing it.

    Raises:
        IndexDamaged: the bytes are not a stored text.
    """
    try:
        return zstandard.frame_content_size(packed)
    except zstandard.ZstdError as error:
        raise _damaged(error) from error


def unpack_text(packed: bytes) -> str:
    """Return the text of :meth:`TextPacker.pack`.

    Raises:
        IndexDamaged: the bytes are not a stored text.
    """
    try:
        return zstandard.decompress(packed).decode("utf-8", "surrogatepass")
    except (zstandard.ZstdError, UnicodeDecodeError, MemoryError) as error:
        raise _damaged(error) from error


def _damaged(error: Exception) -> IndexDamaged:
    return IndexDamaged(f"a stored text cannot be read ({error}); {REMEDY}")
