"""*Pure.* Compressed outputs of lines, as their names say.

Rule 1: what a batch adds is a complete gzip member, Zstandard frame, or bzip2 or xz stream. So an
output that is cut to a committed length is valid, and its parts are one content for every reader.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
from collections.abc import Callable

import zstandard

from streamdedup.errors import InputError

PACKED = re.compile(r"\.(?:gz|gzip|bz2|xz|zst|zstd)$", re.IGNORECASE)
"""Extensions of files that are compressed as a whole."""
_OTHER = re.compile(r"\.(?:7z|br|lz|lz4|lzma|lzo|sz|snappy|t[gbx]z|tar|z|zip)$", re.IGNORECASE)
_GZIP_LEVEL = 6
"""The default of the program gzip; that of Python, 9, takes half as long again for 0.5% less."""

Packer = Callable[[bytes], bytes]


def packer(path: str) -> Packer | None:
    """Return what compresses an output, or None; an InputError for an unsupported extension."""
    if found := _OTHER.search(path):
        raise InputError(
            f"{path}: {found[0]} files cannot be written; give a name without {found[0]}, or with "
            ".gz, .zst, .bz2 or .xz"
        )
    found = PACKED.search(path)
    return _PACKERS[found[0].lower()] if found else None


_PACKERS: dict[str, Packer] = {
    **dict.fromkeys((".gz", ".gzip"), lambda content: gzip.compress(content, _GZIP_LEVEL, mtime=0)),
    **dict.fromkeys(
        (".zst", ".zstd"), lambda content: zstandard.ZstdCompressor().compress(content)
    ),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
