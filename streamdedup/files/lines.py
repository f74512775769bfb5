"""*Blocking.* Readers of lines, from plain or compressed files, and writers of lines.

Rule 1: a mark identifies the beginning of an input: its number of lines, its length in bytes, and
the hash of these bytes. Lines are skipped only if the hash is equal.
Rule 2: an output is cut to a recorded length once, when it is opened, and only grows after that.
"""

from __future__ import annotations

import errno
import io
import os
import select
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import msgspec
import xxhash

from streamdedup.errors import InputError
from streamdedup.files.compression import CHUNK_BYTES, unpacked
from streamdedup.files.first_line import BYTE_ORDER_MARK, check_encoding, check_json
from streamdedup.index.directory import fsync

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

STANDARD = "-"
"""The name that stands for standard input and standard output."""

RENAME = "give new content a new file name, or use another index"
_SPOOL_BYTES = 16 * 1024**2
"""A copy of standard input beyond this size is on disk."""


class InputMark(msgspec.Struct, frozen=True):
    """The beginning of an input, up to the last judged line; blank lines are included.

    It has a length in decompressed bytes, and their XXH3-128 as digest. It has ``ended`` if the
    last of the lines had a line feed.
    """

    lines: int = 0
    length: int = 0
    digest: bytes = xxhash.xxh3_128_digest(b"")
    ended: bool = True


class Line(NamedTuple):
    """One line of an input, without its line feed; its number counts from 0.

    The content of a line that is too long is its beginning; the size is that of the whole line.
    """

    number: int
    content: bytes
    size: int


OnWait = Callable[[Callable[[float], bool]], None]


class LineReader:
    """Reads an input line by line, and marks how far it has read.

    Args:
        path: a file, or ``-`` for standard input.
        most_bytes: longest line that is in memory whole; of a longer one, only the beginning is.
        is_whole: tells whether a last line without a line feed is complete; any other last line is
            not read. By default, every last line is complete.
        on_wait: called before each read of an input that has nothing to read yet, with a function
            that waits up to so many seconds and tells whether there is something now. Except in
            :meth:`skip` and :meth:`begins_with`, :meth:`mark` is then right.
        is_json: whether the lines are JSON; an array, or objects over several lines, are an error.

    Attributes:
        lines: number of lines read so far.
        left_unfinished: whether a last line was not read; blank lines do not count.

    Raises:
        InputError: the file cannot be read, or is damaged.
    """

    def __init__(
        self,
        path: str,
        most_bytes: int,
        is_whole: Callable[[bytes], bool] | None = None,
        on_wait: OnWait | None = None,
        *,
        is_json: bool = False,
    ) -> None:
        self.left_unfinished = False
        self.name = "standard input" if path == STANDARD else path
        self._path = None if path == STANDARD else path
        self._is_json = is_json
        # Room for the line, a byte order mark, the line feed, and one byte that shows that the
        # line is too long.
        self._room = most_bytes + len(BYTE_ORDER_MARK) + 2
        with translated(f"cannot read {self.name}"):
            self._raw: io.FileIO = _Input(path, on_wait)
            self._file: io.BufferedReader[io.FileIO] = io.BufferedReader(self._raw, CHUNK_BYTES)
            self._content = unpacked(self._file, self.name)
        self.lines = 0
        self._length = 0
        self._hash = xxhash.xxh3_128()
        self._ended = True
        self._is_whole = is_whole
        self._copies: list[IO[bytes]] = []

    def mark(self) -> InputMark:
        """Return the mark of the lines read so far."""
        return InputMark(self.lines, self._length, self._hash.digest(), self._ended)

    def read(self) -> Line | None:
        """Return the next line, or None at the end."""
        part = raw = self._next(self._room)
        if not raw:
            return None
        if not self.lines:
            check_encoding(raw, self.name)
            if self._is_json:
                check_json(raw, self._path)
        # If the rest of the line turns out to be damaged, the mark stays before the line.
        hashed = self._hash if raw.endswith(b"\n") else self._hash.copy()
        hashed.update(raw)
        length = len(raw)
        while not part.endswith(b"\n") and (part := self._next(CHUNK_BYTES)):
            hashed.update(part)
            length += len(part)
        ended = part.endswith(b"\n")
        if not ended and self._is_whole is not None and not self._is_whole(raw):
            self.left_unfinished = bool(raw.strip())
            return None
        self._hash = hashed
        self._length += length
        self._ended = ended
        self.lines += 1
        # A byte order mark belongs to the file, not to its first line.
        content = raw.removeprefix(BYTE_ORDER_MARK) if self.lines == 1 else raw
        size = length - (len(raw) - len(content)) - ended
        return Line(self.lines - 1, content.removesuffix(b"\n"), size)

    def read_buffered(self, most: int, most_bytes: int) -> list[bytes]:
        """Return whole lines that follow the first one, without line feeds, at little cost a line.

        They are in memory already, ``most`` with ``most_bytes`` at most. There are none if
        :meth:`read` must read the next one.
        """
        if not self.lines:
            return []
        with translated(f"cannot read {self.name}"):
            ahead = self._content.peek()[:most_bytes]
        *lines, rest = ahead.split(b"\n", most)
        if lines:
            self._count(self._next(len(ahead) - len(rest), whole_lines=False))
            self.lines += len(lines)
        return lines

    def skip(self, mark: InputMark) -> None:
        """Skip the lines of a mark, before any but a header is read.

        If the input differs, raise an InputError.
        """
        if not mark.length:
            return
        for part in self._parts(mark.length - self._length):
            self._count(part)
        if self._length != mark.length or self._hash.digest() != mark.digest:
            raise InputError(
                f"{self.name} has changed: it does not begin with the {mark.lines} lines that "
                f"earlier runs judged; {RENAME}"
            )
        self.lines, self._ended = mark.lines, mark.ended
        if not mark.ended:
            # The file may now have the line end that the last judged line lacked.
            rest = self._next(CHUNK_BYTES)
            if rest.strip(b"\r\n"):
                raise InputError(
                    f"{self.name} has changed: its last line was judged when it had no line end, "
                    f"and has grown since; {RENAME}"
                )
            self._count(rest)
            self._ended = rest.endswith(b"\n")

    def begins_with(self, mark: InputMark) -> bool:
        """Return whether the input begins with the lines that a mark covers; skip nothing.

        At most a header was read before, which counts as a part of them.
        The content is read into a temporary file, and from there once more.
        """
        if not mark.length:
            return True
        copy = tempfile.SpooledTemporaryFile(_SPOOL_BYTES)  # noqa: SIM115 - close() closes it
        hashed = self._hash.copy()
        for part in self._parts(mark.length - self._length):
            hashed.update(part)
            copy.write(part)
        same = self._length + copy.tell() == mark.length and hashed.digest() == mark.digest
        if same and not mark.ended:
            rest = self._next(CHUNK_BYTES)
            same = not rest.strip(b"\r\n")
            copy.write(rest)
        copy.seek(0)
        self._copies.append(copy)
        self._content = io.BufferedReader(_Joined(copy, self._content), CHUNK_BYTES)
        return same

    def _parts(self, length: int) -> Iterator[bytes]:
        """Read this many bytes, or up to the end, in parts."""
        while length > 0 and (part := self._next(min(CHUNK_BYTES, length), whole_lines=False)):
            length -= len(part)
            yield part

    @property
    def packed_bytes_read(self) -> int:
        """Bytes read from the file, compressed as they are on disk; 0 if unknown, as for a pipe."""
        return self._raw.tell() if self._raw.seekable() else 0

    def close(self) -> None:
        """Close the file."""
        for file in (self._file, *self._copies):
            file.close()

    def _count(self, part: bytes) -> None:
        self._hash.update(part)
        self._length += len(part)

    def _next(self, most: int, *, whole_lines: bool = True) -> bytes:
        with translated(f"cannot read {self.name}"):
            return self._content.readline(most) if whole_lines else self._content.read(most)


class _Input(io.FileIO):
    """An input that calls back before a read that must wait."""

    def __init__(self, path: str, on_wait: OnWait | None) -> None:
        super().__init__(0 if path == STANDARD else path, closefd=path != STANDARD)
        self._on_wait = on_wait

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        if self._on_wait is not None and not self._is_ready(0):
            self._on_wait(self._is_ready)
        return super().readinto(buffer)

    def _is_ready(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self, select.POLLIN)
        return bool(poll.poll(1000 * seconds))


class _Joined(io.RawIOBase):
    """The contents of two files, one after the other."""

    def __init__(self, first: IO[bytes], second: io.BufferedReader[Any]) -> None:
        super().__init__()
        self._first = first
        self._second = second

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        target = memoryview(buffer)
        part = self._first.read(len(target)) or self._second.read1(len(target))
        target[: len(part)] = part
        return len(part)


class OutputFile:
    """An output that grows: a file, or ``-`` for standard output.

    The file is cut to its committed length in bytes; a crash left the rest. An output that cannot
    be cut, such as standard output or a pipe, only grows.

    Raises:
        InputError: the file cannot be written, or is shorter than ``length``.
    """

    def __init__(self, path: str, length: int, *, durable: bool) -> None:
        self.name = "standard output" if path == STANDARD else path
        self._path = path
        with translated(f"cannot write {self.name}"):
            if path == STANDARD:
                sys.stdout.flush()
                self._file = io.FileIO(1, "wb", closefd=False)
            else:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
                self._file = io.FileIO(descriptor, "wb")
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
        with translated(f"cannot write {self.name}"):
            while left:
                left = left[self._file.write(left) :]
        self.length += len(data)

    def sync(self) -> None:
        """Force the bytes to disk."""
        if self._durable:
            with translated(f"cannot write {self.name}"):
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
        with translated(f"cannot write {self.name}"):
            self._file.truncate(length)
            self._file.seek(length)
            if self._durable:
                sync_directory(self._path)


def sync_directory(path: str) -> None:
    """Force the name of a new file to disk."""
    fsync(Path(os.path.dirname(os.path.abspath(path))))


def input_size(path: str) -> int | None:
    """Return the bytes of an input on disk, None for a pipe; an InputError if it is unreadable."""
    with translated(f"cannot read {path}"):
        status = os.fstat(0) if path == STANDARD else os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return status.st_size if stat.S_ISREG(status.st_mode) else None


@contextmanager
def translated(what: str, kinds: tuple[type[Exception], ...] = (OSError,)) -> Iterator[None]:
    """Raise errors of these kinds as an InputError of one line; a broken pipe passes through."""
    try:
        yield
    except BrokenPipeError:
        raise
    except kinds as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise InputError(f"{what}: {reason}") from error
