"""*Blocking.* Compression: the content of inputs by their first bytes, and outputs by their names.

Rule 1: what a batch adds is a complete gzip member, Zstandard frame, or bzip2 or xz stream. So an
output that is cut to a committed length is valid, and its parts are one content for every reader.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import zstandard

from streamdedup.errors import InputError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

PACKED = re.compile(r"\.(?:gz|gzip|bz2|xz|zst|zstd)$", re.IGNORECASE)
"""Extensions of files that are compressed as a whole."""
_OTHER = re.compile(r"\.(?:7z|br|lz|lz4|lzma|lzo|sz|snappy|t[gbx]z|tar|z|zip)$", re.IGNORECASE)
_GZIP_LEVEL = 6
"""The default of the program gzip; that of Python, 9, takes half as long again for 0.5% less."""

CHUNK_BYTES = 256 * 1024
_FEED_BYTES = 2048
"""Compressed bytes that are decompressed at once.

Three bytes of Zstandard can stand for 128 KiB, so this limits the memory that a hostile file can
claim to about 90 MiB.
"""
_WINDOW_BYTES = 128 * 1024**2
"""Largest window of a Zstandard frame and of an xz stream; ``zstd --long=27`` needs it."""
_MAGIC_BYTES = 6
_TOO_LARGE = ("requires too much memory", "Memory usage limit exceeded")
"""How the libraries of Zstandard and xz say that a window exceeds the limit."""


class _Unpacker(Protocol):
    """A decompressor of one gzip member, bzip2 or xz stream, or Zstandard frame."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


_UNPACKERS: dict[bytes, Callable[[], _Unpacker]] = {
    rb"\x1f\x8b": lambda: zlib.decompressobj(wbits=16 + zlib.MAX_WBITS),
    rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18": lambda: zstandard.ZstdDecompressor(
        max_window_size=_WINDOW_BYTES
    ).decompressobj(),
    rb"BZh[1-9](?:1A|\x17r)": bz2.BZ2Decompressor,
    rb"\xfd7zXZ\0": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _WINDOW_BYTES),
}
"""What unpacks a file, by a pattern of its first bytes: gzip, Zstandard, bzip2 and xz."""
_LIMITED = (bz2.BZ2Decompressor, lzma.LZMADecompressor)
"""Those whose results are at most a chunk; the rest follows without more data."""


def unpacked(file: io.BufferedReader[io.FileIO], name: str) -> io.BufferedReader[Any]:
    """Return the decompressed content of a file from its beginning; messages contain the name."""
    return io.BufferedReader(_Unpacked(file, name), CHUNK_BYTES)


class _Unpacked(io.RawIOBase):
    """The decompressed content of a file.

    Consecutive gzip members, bzip2 or xz streams, or Zstandard frames are one content, as for zcat
    and zstdcat.
    """

    def __init__(self, file: io.BufferedReader[io.FileIO], name: str) -> None:
        super().__init__()
        self._file = file
        self._name = name
        self._rest = b""
        while len(self._rest) < _MAGIC_BYTES and (more := file.read1(_FEED_BYTES)):
            self._rest += more
        # A file that is not compressed has no unpacker.
        self._new_unpacker = next(
            (new for magic, new in _UNPACKERS.items() if re.match(magic, self._rest)), None
        )
        self._unpacker: _Unpacker | None = None
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        target = memoryview(buffer)
        while not self._ready:
            if not self._refill():
                return 0
        count = min(len(target), len(self._ready))
        target[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _refill(self) -> bool:
        if isinstance(self._unpacker, _LIMITED) and not self._unpacker.needs_input:
            self._unpack(self._unpacker, b"")
            return True
        packed = self._rest or self._file.read1(_FEED_BYTES if self._new_unpacker else CHUNK_BYTES)
        self._rest = b""
        if self._new_unpacker is None:
            self._ready = memoryview(packed)
        elif packed:
            # Archivers may pad the last block with zeros, which gzip ignores.
            packed = packed if self._unpacker else packed.lstrip(b"\0")
            if packed:
                self._unpack(self._unpacker or self._new_unpacker(), packed)
            return True
        elif self._unpacker is not None:
            raise InputError(f"{self._name} ends too early: the compressed data is cut off")
        return bool(packed)

    def _unpack(self, unpacker: _Unpacker, packed: bytes) -> None:
        self._unpacker = unpacker
        try:
            if isinstance(unpacker, _LIMITED):
                self._ready = memoryview(unpacker.decompress(packed, CHUNK_BYTES))
            else:
                self._ready = memoryview(unpacker.decompress(packed))
        except (zlib.error, zstandard.ZstdError, lzma.LZMAError, OSError) as error:
            raise InputError(self._explain(error)) from error
        if unpacker.eof:
            self._rest = unpacker.unused_data
            self._unpacker = None

    def _explain(self, error: Exception) -> str:
        if any(words in str(error) for words in _TOO_LARGE):
            return (
                f"{self._name} was compressed with a window over the limit of "
                f"{_WINDOW_BYTES // 1024**2} MiB; decompress it first, for example with zstd -d "
                "--long=31 or xz -d"
            )
        return f"{self._name} is damaged and cannot be decompressed: {error}"


Packer = Callable[[bytes], bytes]
_PACKERS: dict[str, Packer] = {
    **dict.fromkeys((".gz", ".gzip"), lambda content: gzip.compress(content, _GZIP_LEVEL, mtime=0)),
    **dict.fromkeys(
        (".zst", ".zstd"), lambda content: zstandard.ZstdCompressor().compress(content)
    ),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}


def packer(path: str) -> Packer | None:
    """Return what compresses an output, or None; an InputError for an unsupported extension."""
    if found := _OTHER.search(path):
        raise InputError(
            f"{path}: {found[0]} files cannot be written; give a name without {found[0]}, or with "
            ".gz, .zst, .bz2 or .xz"
        )
    found = PACKED.search(path)
    return _PACKERS[found[0].lower()] if found else None
