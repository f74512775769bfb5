"""*Blocking.* An index as one file, and back.

An export is a tar archive, by its name packed with gzip or Zstandard: ``index.json`` (see
:class:`Head`), ``manifest/data.mdb``, and the files of all segments, oldest first. The manifest
holds the sums of these, and ``index.json`` that of the manifest.

Rule 1: every byte is summed on its way out and on its way in, and nothing counts that does not
agree: an export of a damaged index fails, and a directory holds an index from the moment on that
its manifest is moved into its place, which is the last thing that happens.
Rule 2: nothing of a file is believed that its manifest does not name.
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import lmdb
import msgspec
import xxhash
import zstandard

from streamdedup.errors import IndexDamaged, IndexUnusable, InputError
from streamdedup.index.manifest import FORMAT, FileEntry, Manifest, SegmentEntry, translated
from streamdedup.index.segment import segment_directory
from streamdedup.index.store import lock
from streamdedup.index.view import Progress, lock_existing, no_progress

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst")
_HEAD = "index.json"
_MANIFEST = "manifest/data.mdb"
_STAGING = "importing"
_CHUNK_BYTES = 1024**2
_MOST_HEAD_BYTES = 64 * 1024


class Head(msgspec.Struct, frozen=True):
    """What an export says of itself.

    Attributes:
        format: version of the index's layout.
        documents: how many it holds.
        manifest: the manifest's size in bytes and XXH3-64.
    """

    format: int
    documents: int
    manifest: FileEntry


class _Part(NamedTuple):
    """A file of an index: where it belongs, how large it is, and its bytes."""

    name: str
    size: int
    content: IO[bytes]


def export_index(directory: Path, file: Path, progress: Progress = no_progress) -> Head:
    """Write an index into one file. What it holds only in its changelog is not part of it.

    Args:
        directory: of the index; nobody may have it open.
        file: does not exist yet; its suffix says how it is packed.
        progress: told how many bytes are written.

    Raises:
        InputError: the file cannot be written.
        StreamdedupError: the index cannot be used, or is damaged.
    """
    if not file.name.endswith(SUFFIXES):
        raise InputError(f"{file}: the name of an export ends with one of {', '.join(SUFFIXES)}")
    if file.exists():
        raise InputError(f"{file} is there already")
    partial = file.with_name(file.name + ".partial")
    descriptor = lock_existing(directory)
    try:
        head, files = _listed(directory)
        total = sum(entry.size for _, entry in files)
        with _written(file), _packed(partial, file.name) as packed, _tar(packed, "w|") as tar:
            _add(tar, _HEAD, io.BytesIO(raw := msgspec.json.encode(head)), len(raw))
            done = 0
            for name, entry in files:
                _add_file(tar, directory / name, name, entry)
                done += entry.size
                progress(done, total)
        with _written(file):
            _sync(partial)
            partial.rename(file)
            _sync(file.parent)
    finally:
        os.close(descriptor)
        partial.unlink(missing_ok=True)
    return head


def import_index(source: Path, directory: Path, progress: Progress = no_progress) -> int:
    """Make an index of an export, or a copy of the index in a directory.

    Args:
        source: file or directory.
        directory: where it goes; holds no index.
        progress: told how many bytes are read.

    Returns:
        How many documents it holds.

    Raises:
        InputError: the source is no export, or not what was written.
        IndexUnusable: there is an index already.
    """
    if not source.exists():
        raise InputError(f"cannot read {source}: there is no such file or directory")
    if (directory / "manifest").exists():
        raise IndexUnusable(f"{directory} holds an index already; import into another directory")
    descriptor = lock(directory)
    try:
        remove_index(directory)
        with ExitStack() as resources:
            parts = (
                _from_directory(source, resources)
                if source.is_dir()
                else _from_file(source, resources)
            )
            head = _import(source, parts, directory, progress)
        with translated(directory):
            (directory / _STAGING / "manifest").rename(directory / "manifest")
            (directory / _STAGING).rmdir()
            _sync(directory)
    except BaseException:
        remove_index(directory)
        raise
    finally:
        os.close(descriptor)
    return head.documents


def remove_index(directory: Path) -> None:
    """Remove an index, and what a broken-off import has left; other files stay.

    The caller holds its lock.
    """
    with translated(directory):
        for name in ("manifest", "segments", _STAGING):
            if (directory / name).exists():
                shutil.rmtree(directory / name)


def compact_manifest(directory: Path) -> None:
    """Write the manifest anew without its free pages, which still hold what was deleted.

    Raises:
        IndexUnusable: the directory holds no index.
        IndexLocked: another process has it open.
    """
    staging = directory / _STAGING
    descriptor = lock_existing(directory)
    try:
        shutil.rmtree(staging, ignore_errors=True)
        with translated(directory):
            staging.mkdir()
            manifest = directory / "manifest"
            with lmdb.open(str(manifest), readonly=True, lock=False) as environment:
                environment.copy(str(staging), compact=True)
            _sync(staging / "data.mdb")
            (staging / "data.mdb").replace(directory / _MANIFEST)
            _sync(manifest)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        os.close(descriptor)


def _listed(directory: Path) -> tuple[Head, list[tuple[str, FileEntry]]]:
    """Return what an export of an index says, and its files in order, with their names."""
    manifest = Manifest(directory, None, readonly=True)
    try:
        segments = manifest.segments()
    finally:
        manifest.close()
    with (directory / _MANIFEST).open("rb") as file:
        summed = _Summed(file)
        size = sum(len(chunk) for chunk in iter(lambda: summed.read(_CHUNK_BYTES), b""))
    own = FileEntry("data.mdb", size, summed.sum())
    head = Head(FORMAT, sum(entry.count for entry in segments), own)
    return head, [(_MANIFEST, own), *_files(segments)]


def _files(segments: list[SegmentEntry]) -> Iterator[tuple[str, FileEntry]]:
    for segment in segments:
        for file in segment.files:
            yield str(segment_directory(Path(), segment.name) / file.name), file


def _import(source: Path, parts: Iterator[_Part], directory: Path, progress: Progress) -> Head:
    head = _read_head(source, parts)
    staged = directory / _STAGING / _MANIFEST
    _copy(source, _expected(source, parts, _MANIFEST), staged, head.manifest)
    manifest = Manifest(directory / _STAGING, None, readonly=True)
    try:
        segments = manifest.segments()
    finally:
        manifest.close()
    for segment in segments:
        if not segment.name.isdecimal() or any("/" in file.name for file in segment.files):
            raise InputError(f"{source}: the manifest names files outside of the index")
    total = head.manifest.size + sum(segment.size for segment in segments)
    done = head.manifest.size
    for name, file in _files(segments):
        progress(done, total)
        _copy(source, _expected(source, parts, name), directory / name, file)
        done += file.size
    progress(done, total)
    with _readable(source):
        more = next(parts, None)
    if more is not None:
        raise InputError(f"{source} holds {more.name}, which is not part of the index")
    with translated(directory):
        (directory / "segments").mkdir(exist_ok=True)
        for made in {(directory / name).parent for name, _ in _files(segments)}:
            _sync(made)
        _sync(directory / "segments")
        _sync(staged.parent)
    return head


def _read_head(source: Path, parts: Iterator[_Part]) -> Head:
    part = _expected(source, parts, _HEAD)
    try:
        head = msgspec.json.decode(part.content.read(_MOST_HEAD_BYTES), type=Head)
    except msgspec.MsgspecError as error:
        raise InputError(f"{source} is no export of an index: {error}") from None
    if head.format != FORMAT:
        raise InputError(f"{source} holds index format {head.format}, this release reads {FORMAT}")
    return head


def _expected(source: Path, parts: Iterator[_Part], name: str) -> _Part:
    with _readable(source):
        part = next(parts, None)
    if part is None or part.name != name:
        found = "ends" if part is None else f"has {part.name}"
        raise InputError(f"{source} is no whole export of an index: it {found} instead of {name}")
    return part


def _copy(source: Path, part: _Part, to: Path, entry: FileEntry) -> None:
    """Copy a part to its place, and see that it is what was written."""
    summed = _Summed(part.content)
    with translated(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        with to.open("wb") as out:
            while True:
                with _readable(source):
                    chunk = summed.read(_CHUNK_BYTES)
                if not chunk:
                    break
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
    if (to.stat().st_size, summed.sum()) != (entry.size, entry.sum):
        raise InputError(f"{source}: {part.name} is damaged: its sum is not that of the manifest")


def _from_directory(source: Path, resources: ExitStack) -> Iterator[_Part]:
    resources.callback(os.close, lock_existing(source))
    head, files = _listed(source)
    raw = msgspec.json.encode(head)

    def parts() -> Iterator[_Part]:
        yield _Part(_HEAD, len(raw), io.BytesIO(raw))
        for name, entry in files:
            with (source / name).open("rb") as content:
                yield _Part(name, entry.size, content)

    return parts()


def _from_file(source: Path, resources: ExitStack) -> Iterator[_Part]:
    with _readable(source):
        file = resources.enter_context(source.open("rb"))
        magic = file.read(4)
        file.seek(0)
        stream: Any = file
        if magic.startswith(b"\x1f\x8b"):
            stream = resources.enter_context(gzip.GzipFile(fileobj=file))
        elif magic == b"\x28\xb5\x2f\xfd":
            stream = resources.enter_context(zstandard.open(file))
        tar = resources.enter_context(_tar(stream, "r|"))

    def parts() -> Iterator[_Part]:
        for member in tar:
            content = tar.extractfile(member)
            if content is None:
                raise InputError(f"{source} holds {member.name}, which is no file")
            yield _Part(member.name, member.size, content)

    return parts()


class _Summed:
    """A file whose bytes are summed while they are read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = xxhash.xxh3_64()

    def read(self, size: int = -1) -> bytes:
        """Read on."""
        chunk = self._file.read(size)
        self._digest.update(chunk)
        return chunk

    def sum(self) -> int:
        """Return the XXH3-64 of what was read."""
        return self._digest.intdigest()


def _add_file(tar: tarfile.TarFile, path: Path, name: str, entry: FileEntry) -> None:
    whole = path.exists() and path.stat().st_size == entry.size
    if whole:
        with path.open("rb") as source:
            summed = _Summed(source)
            _add(tar, name, summed, entry.size)
        whole = summed.sum() == entry.sum
    if not whole:
        raise IndexDamaged(
            f"{path} is not what was written; 'streamdedup index check' says more of it"
        )


def _tar(stream: Any, mode: Any) -> tarfile.TarFile:
    return tarfile.open(fileobj=stream, mode=mode, bufsize=_CHUNK_BYTES)


def _add(tar: tarfile.TarFile, name: str, content: Any, size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    tar.addfile(member, content)


@contextmanager
def _packed(path: Path, name: str) -> Iterator[IO[bytes]]:
    with ExitStack() as resources:
        file = resources.enter_context(path.open("wb"))
        if name.endswith((".gz", ".tgz")):
            yield cast("IO[bytes]", resources.enter_context(gzip.open(file, "wb", compresslevel=1)))
        elif name.endswith(".zst"):
            yield resources.enter_context(zstandard.open(file, "wb"))
        else:
            yield file


@contextmanager
def _written(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror or error}") from error


@contextmanager
def _readable(source: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, zlib.error, EOFError, zstandard.ZstdError, OSError) as error:
        raise InputError(f"{source} is no whole export of an index: {error}") from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
