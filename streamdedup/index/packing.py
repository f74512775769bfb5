"""*Blocking.* The tar archive of an export: its members, their checksums, its compression."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import xxhash
import zstandard

from streamdedup.errors import IndexDamaged, InputError
from streamdedup.index.layout import FileEntry

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst")
CHUNK_BYTES = 1024**2
_GZIP_MAGIC, _ZSTANDARD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class ArchiveMember(NamedTuple):
    """A file of an export: its path within the index, and its content."""

    name: str
    content: IO[bytes]


class Summed:
    """A file whose bytes are summed while they are read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = xxhash.xxh3_64()

    def read(self, size: int = -1) -> bytes:
        """Read the next bytes."""
        chunk = self._file.read(size)
        self._digest.update(chunk)
        return chunk

    def sum(self) -> int:
        """Return the XXH3-64 of the bytes so far."""
        return self._digest.intdigest()


def add_file(tar: tarfile.TarFile, path: Path, name: str, entry: FileEntry) -> None:
    """Add a file that must be what its entry says.

    Raises:
        IndexDamaged: it is not.
    """
    sound = path.exists() and path.stat().st_size == entry.size
    if sound:
        with path.open("rb") as source:
            summed = Summed(source)
            add(tar, name, summed, entry.size)
        sound = summed.sum() == entry.sum
    if not sound:
        raise IndexDamaged(
            f"{path} is not what was written; run 'streamdedup index check' for details"
        )


def add(tar: tarfile.TarFile, name: str, content: Any, size: int) -> None:
    """Add a member; ``content`` is a binary file."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    tar.addfile(member, content)


@contextmanager
def packing(path: Path, name: str) -> Iterator[tarfile.TarFile]:
    """Write an archive.

    Args:
        path: the file to write, which must not exist.
        name: its suffix decides about the compression; see :data:`SUFFIXES`.
    """
    with ExitStack() as resources:
        stream = resources.enter_context(path.open("xb"))
        if name.endswith((".gz", ".tgz")):
            packed = gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=1)
            stream = cast("Any", resources.enter_context(packed))
        elif name.endswith(".zst"):
            stream = cast("Any", resources.enter_context(zstandard.open(stream, "wb")))
        yield resources.enter_context(_tar(stream, "w|"))


def unpack(source: Path, resources: ExitStack) -> Iterator[ArchiveMember]:
    """Return the members of an archive; the content of each is valid until the next one.

    Args:
        source: the archive; its first bytes decide about the compression.
        resources: closes the archive.

    Raises:
        InputError: it is not an archive, or holds something else than files.
    """
    with readable(source):
        file = resources.enter_context(source.open("rb"))
        magic = file.read(4)
        file.seek(0)
        stream: Any = file
        if magic.startswith(_GZIP_MAGIC):
            stream = resources.enter_context(gzip.GzipFile(fileobj=file))
        elif magic == _ZSTANDARD_MAGIC:
            stream = resources.enter_context(zstandard.open(file))
        tar = resources.enter_context(_tar(stream, "r|"))
    return _members(source, tar)


def _members(source: Path, tar: tarfile.TarFile) -> Iterator[ArchiveMember]:
    for member in tar:
        content = tar.extractfile(member)
        if content is None:
            raise InputError(f"{source} holds {member.name}, which is not a regular file")
        yield ArchiveMember(member.name, content)


def _tar(stream: Any, mode: Any) -> tarfile.TarFile:
    return tarfile.open(fileobj=stream, mode=mode, bufsize=CHUNK_BYTES)


@contextmanager
def writable(file: Path) -> Iterator[None]:
    """Translate errors of writing an export."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror or error}") from error


@contextmanager
def readable(source: Path) -> Iterator[None]:
    """Translate errors of reading an export."""
    try:
        yield
    except (tarfile.TarError, zlib.error, EOFError, zstandard.ZstdError, OSError) as error:
        raise InputError(f"{source} is not a complete export of an index: {error}") from error
