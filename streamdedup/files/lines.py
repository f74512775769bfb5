"""*Blocking.* Readers of lines, from plain or compressed files, and writers of lines.

Rule 1: a mark identifies the beginning of an input: its number of lines, its length in bytes, and
the hash of these bytes. Lines are skipped only if the hash is equal.
Rule 2: an output is cut to a recorded length once, when it is opened, and only grows after that.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
import xxhash
import zstandard

from streamdedup.errors import InputError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

STANDARD = "-"
"""The name that stands for standard input and standard output."""

_CHUNK_BYTES = 256 * 1024
_FEED_BYTES = 2048
"""Compressed bytes that are decompressed at once.

Three bytes of Zstandard can stand for 128 KiB, so this limits the memory that a hostile file can
claim to about 90 MiB.
"""
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGICS = (b"\x28\xb5\x2f\xfd", *(bytes([0x50 + n, 0x2A, 0x4D, 0x18]) for n in range(16)))
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_RENAME = "give new content a new file name, or use another index"
_GIVE_AGAIN = "pass the standard input of the interrupted run, or other output files"


class Mark(msgspec.Struct, frozen=True):
    """The beginning of an input, up to the last judged line.

    Attributes:
        lines: number of lines, blank lines included.
        length: number of decompressed bytes.
        digest: XXH3-128 of these bytes.
        ended: whether the last of these lines had a line feed.
    """

    lines: int = 0
    length: int = 0
    digest: bytes = xxhash.xxh3_128_digest(b"")
    ended: bool = True


class Line(NamedTuple):
    """One line of an input.

    Attributes:
        number: number of the line in its input, counted from 0.
        content: the line without its line feed; only the beginning of a line that is too long.
        size: bytes of the whole line, without its line feed.
    """

    number: int
    content: bytes
    size: int


class _Unpacker(Protocol):
    """A decompressor of one gzip member or Zstandard frame."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


class _Unpacked(io.RawIOBase):
    """The decompressed content of a file; its first bytes tell gzip and Zstandard from plain.

    Consecutive gzip members or Zstandard frames are one content, as for zcat and zstdcat.
    """

    def __init__(self, file: io.BufferedReader[io.FileIO], name: str) -> None:
        super().__init__()
        self._file = file
        self._name = name
        self._rest = _read_magic(file)
        self._new_unpacker = _unpacker_for(self._rest)
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
        packed = self._rest or self._file.read1(_FEED_BYTES if self._new_unpacker else _CHUNK_BYTES)
        self._rest = b""
        if self._new_unpacker is None:
            self._ready = memoryview(packed)
        elif packed:
            self._unpack(packed, self._new_unpacker)
        elif self._unpacker is not None:
            raise InputError(f"{self._name} ends too early: the compressed data is cut off")
        return bool(packed)

    def _unpack(self, packed: bytes, new_unpacker: Callable[[], _Unpacker]) -> None:
        if self._unpacker is None:
            # Archivers may pad the last block with zeros, which gzip ignores.
            packed = packed.lstrip(b"\0")
            if not packed:
                return
            self._unpacker = new_unpacker()
        try:
            self._ready = memoryview(self._unpacker.decompress(packed))
        except (zlib.error, zstandard.ZstdError) as error:
            raise InputError(
                f"{self._name} is damaged and cannot be decompressed: {error}"
            ) from error
        if self._unpacker.eof:
            self._rest = self._unpacker.unused_data
            self._unpacker = None


def _read_magic(file: io.BufferedReader[io.FileIO]) -> bytes:
    magic = b""
    while len(magic) < len(_ZSTD_MAGICS[0]) and (more := file.read1(_FEED_BYTES)):
        magic += more
    return magic


def _unpacker_for(magic: bytes) -> Callable[[], _Unpacker] | None:
    if magic.startswith(_GZIP_MAGIC):
        return lambda: zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    if magic.startswith(_ZSTD_MAGICS):
        return lambda: zstandard.ZstdDecompressor().decompressobj()
    return None


class LineReader:
    """Reads an input line by line, and marks how far it has read.

    Args:
        path: a file, or ``-`` for standard input.
        most_bytes: longest line that is held in memory whole; of a longer line, the beginning is.
        is_whole: tells whether a last line without a line feed is complete; any other last line is
            not read. By default, every last line is complete.

    Attributes:
        left_unfinished: whether a last line was not read; blank lines do not count.

    Raises:
        InputError: the file cannot be read, or is damaged.
    """

    def __init__(
        self, path: str, most_bytes: int, is_whole: Callable[[bytes], bool] | None = None
    ) -> None:
        self.left_unfinished = False
        self.name = "standard input" if path == STANDARD else path
        self._remedy = _GIVE_AGAIN if path == STANDARD else _RENAME
        # Room for the line, a byte order mark, the line feed, and one byte that shows that the
        # line is too long.
        self._room = most_bytes + len(_BYTE_ORDER_MARK) + 2
        with _translated(f"cannot read {self.name}"):
            self._raw = io.FileIO(0, closefd=False) if path == STANDARD else io.FileIO(path)
            self._file = io.BufferedReader(self._raw, _CHUNK_BYTES)
            self._content = io.BufferedReader(_Unpacked(self._file, self.name), _CHUNK_BYTES)
        self._lines = 0
        self._length = 0
        self._hash = xxhash.xxh3_128()
        self._ended = True
        self._is_whole = is_whole

    def mark(self) -> Mark:
        """Return the mark of the lines read so far."""
        return Mark(self._lines, self._length, self._hash.digest(), self._ended)

    def read(self) -> Line | None:
        """Return the next line, or None at the end."""
        part = raw = self._next(self._room)
        if not raw:
            return None
        # If the rest of the line turns out to be damaged, the mark stays before the line.
        hashed = self._hash if raw.endswith(b"\n") else self._hash.copy()
        hashed.update(raw)
        length = len(raw)
        while not part.endswith(b"\n") and (part := self._next(_CHUNK_BYTES)):
            hashed.update(part)
            length += len(part)
        ended = part.endswith(b"\n")
        if not ended and self._is_whole is not None and not self._is_whole(raw):
            self.left_unfinished = bool(raw.strip())
            return None
        self._hash = hashed
        self._length += length
        self._ended = ended
        self._lines += 1
        return self._line(raw, length)

    def skip(self, mark: Mark) -> None:
        """Skip the lines that a mark covers; call it before the first line is read.

        Raises:
            InputError: the input does not begin with the bytes that the mark covers.
        """
        while self._length < mark.length:
            part = self._next(min(_CHUNK_BYTES, mark.length - self._length), whole_lines=False)
            if not part:
                break
            self._count(part)
        if self._length != mark.length or self._hash.digest() != mark.digest:
            raise InputError(
                f"{self.name} has changed: it does not begin with the {mark.lines} lines that "
                f"earlier runs judged; {self._remedy}"
            )
        self._lines, self._ended = mark.lines, mark.ended
        if not mark.ended:
            self._end_line()

    @property
    def packed_bytes_read(self) -> int:
        """Bytes read from the file, compressed as they are on disk; 0 if unknown, as for a pipe."""
        return self._raw.tell() if self._raw.seekable() else 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _end_line(self) -> None:
        """Read the line end that the last judged line lacked, if the file now has it."""
        rest = self._next(_CHUNK_BYTES)
        if rest.strip(b"\r\n"):
            raise InputError(
                f"{self.name} has changed: its last line was judged when it had no line end, and "
                f"has grown since; {self._remedy}"
            )
        self._count(rest)
        self._ended = rest.endswith(b"\n")

    def _line(self, raw: bytes, length: int) -> Line:
        # A byte order mark belongs to the file, not to its first line.
        content = raw.removeprefix(_BYTE_ORDER_MARK) if self._lines == 1 else raw
        size = length - (len(raw) - len(content)) - self._ended
        return Line(self._lines - 1, content.removesuffix(b"\n"), size)

    def _count(self, part: bytes) -> None:
        self._hash.update(part)
        self._length += len(part)

    def _next(self, most: int, *, whole_lines: bool = True) -> bytes:
        try:
            return self._content.readline(most) if whole_lines else self._content.read(most)
        except OSError as error:
            raise InputError(f"cannot read {self.name}: {error.strerror or error}") from error


class OutputFile:
    """An output that grows.

    Args:
        path: a file, or ``-`` for standard output.
        length: committed length in bytes; the rest of the file, left by a crash, is cut off. An
            output that cannot be cut, such as standard output or a pipe, only grows.
        durable: whether :meth:`sync` forces the bytes to disk.

    Raises:
        InputError: the file cannot be written, or is shorter than ``length``.
    """

    def __init__(self, path: str, length: int, *, durable: bool) -> None:
        self.name = "standard output" if path == STANDARD else path
        self._path = path
        with _translated(f"cannot write {self.name}"):
            self._file = _open_output(path)
        regular = path != STANDARD and stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)
        self._durable = durable and regular
        self.length = length
        if regular:
            try:
                self._cut(length)
            except BaseException:
                self.close()
                raise

    def append(self, data: bytes) -> None:
        """Append bytes."""
        left = memoryview(data)
        with _translated(f"cannot write {self.name}"):
            while left:
                left = left[self._file.write(left) :]
        self.length += len(data)

    def sync(self) -> None:
        """Force the bytes to disk."""
        if self._durable:
            with _translated(f"cannot write {self.name}"):
                os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _cut(self, length: int) -> None:
        size = os.fstat(self._file.fileno()).st_size
        if size < length:
            raise InputError(
                f"{self.name} has {size} bytes, earlier runs wrote {length}: restore the file, or "
                "pass other output files, which are written from the start"
            )
        with _translated(f"cannot write {self.name}"):
            self._file.truncate(length)
            self._file.seek(length)
            if self._durable:
                _sync_directory(self._path)


def _open_output(path: str) -> io.FileIO:
    if path == STANDARD:
        sys.stdout.flush()
        return io.FileIO(1, "wb", closefd=False)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    return io.FileIO(descriptor, "wb")


def _sync_directory(path: str) -> None:
    """Force the name of a new file to disk."""
    descriptor = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def input_size(path: str) -> int | None:
    """Return the size of an input on disk in bytes; None if unknown, as for a pipe.

    Raises:
        InputError: the path is not a file, or cannot be read.
    """
    with _translated(f"cannot read {path}"):
        status = os.fstat(0) if path == STANDARD else os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return status.st_size if stat.S_ISREG(status.st_mode) else None


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Raise an operating system error as an InputError; a broken pipe passes through."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"{what}: {error.strerror or error}") from error
