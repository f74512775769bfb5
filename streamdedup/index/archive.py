"""*Blocking.* Exports an index into one file, and creates one from what exists elsewhere.

An export is a tar archive, compressed with gzip or Zstandard if its name says so: ``index.json``
(see :class:`Head`), ``manifest/data.mdb``, and the files of all segments, oldest first. The
manifest holds the checksums of these files, and ``index.json`` holds that of the manifest.

Rule 1: every byte is summed on its way out and on its way in. An export of a damaged index fails.
Rule 2: an import accepts only files that the manifest names.
Rule 3: an index is created as a whole or not at all: it exists from the moment that its manifest is
moved into place, the last step.
Rule 4: an import removes only what an import has written.
Rule 5: documents that were judged elsewhere become an ordinary index in the staging directory. So
its segments are those that it would have had. Nothing is forced to disk before the end: an
interrupted import starts again.
"""

from __future__ import annotations

import gzip
import io
import os
import secrets
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import xxhash
import zstandard
from msgspec.structs import replace

from streamdedup.batches import IndexUpdate
from streamdedup.errors import IndexDamaged, IndexUnusable, InputError
from streamdedup.index.directory import (
    DATA_FILE,
    LOCK,
    MANIFEST,
    SEGMENTS,
    STAGING,
    checksum,
    fsync,
    lock,
    lock_existing,
    remove_index,
    segment_directories,
    segment_directory,
    translated,
)
from streamdedup.index.layout import FORMAT, FileEntry, Header, SegmentEntry
from streamdedup.index.manifest import Manifest, read_segments
from streamdedup.index.store import LOCAL_LOG, Index
from streamdedup.model import Progress, no_progress
from streamdedup.settings.sections import IndexSettings
from streamdedup.sketch.parameters import SketchParameters

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst")
CHUNK_BYTES = 1024**2
_GZIP_MAGIC, _ZSTANDARD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_HEAD = "index.json"
_MANIFEST_FILE = f"{MANIFEST}/{DATA_FILE}"
_MOST_HEAD_BYTES = 64 * 1024
_STAGED = {LOCK, MANIFEST, SEGMENTS}
"""What an import leaves in the staging directory if it is killed."""
_LOADED = "an import"
"""The log of an index without a tail: what is not in a segment is lost if the import ends."""
ArchiveMembers = Iterator[tuple[str, IO[bytes]]]
"""The files of an export, in order: the path of each within the index, and its content."""


class Head(msgspec.Struct, frozen=True):
    """The first member of an export; the entry of the manifest has its size and XXH3-64."""

    format: int
    documents: int
    manifest: FileEntry


def export_index(directory: Path, file: Path, progress: Progress = no_progress) -> Head:
    """Write an index into one file, without documents that only its changelog holds.

    No process may have the index open. The suffix of the new file decides about the compression.
    The progress is that of bytes.

    Raises:
        InputError: the file cannot be written.
        StreamdedupError: the index cannot be used, or is damaged.
    """
    if not file.name.endswith(SUFFIXES):
        raise InputError(
            f"{file}: the name of an export must end with one of {', '.join(SUFFIXES)}"
        )
    with writable(file):
        if file.is_symlink() or file.exists():
            raise InputError(f"{file} already exists; choose another name")
    # A name that no other file has: it is removed after an error.
    partial = file.with_name(f".streamdedup-{secrets.token_hex(8)}.partial")
    descriptor = lock_existing(directory)
    try:
        head, files = _list_files(directory)
        total, done = sum(entry.size for _, entry in files), 0
        with writable(file), _packing(partial, file.name) as tar:
            raw = msgspec.json.encode(head)
            _add(tar, _HEAD, io.BytesIO(raw), len(raw))
            for name, entry in files:
                _add_file(tar, directory / name, name, entry)
                done += entry.size
                progress(done, total)
        with writable(file):
            fsync(partial)
            partial.rename(file)
            fsync(file.parent)
    finally:
        os.close(descriptor)
        partial.unlink(missing_ok=True)
    return head


def import_index(source: Path, directory: Path, progress: Progress = no_progress) -> int:
    """Create an index from an export, or from the index in another directory.

    The progress is that of bytes. Returns the number of documents.

    Raises:
        InputError: the source is not an export, or not what was written.
        IndexUnusable: the directory already holds an index, or files in its place.
    """
    with readable(source):
        if not source.exists():
            raise InputError(f"cannot read {source}: no such file or directory")
    with staged(directory) as staging, ExitStack() as resources:
        members = (_from_directory if source.is_dir() else _unpack)(source, resources)
        head = _read_head(source, members)
        # The manifest goes to the staging directory, everything else into the index.
        manifest = staging / _MANIFEST_FILE
        _copy(source, members, _MANIFEST_FILE, manifest, head.manifest)
        segments = read_segments(staging)
        for segment in segments:
            if not segment.name.isdecimal() or any("/" in file.name for file in segment.files):
                raise InputError(f"{source}: the manifest names files outside of the index")
        files = _segment_files(segments)
        done = head.manifest.size
        total = done + sum(entry.size for _, entry in files)
        for name, entry in files:
            progress(done, total)
            _copy(source, members, name, directory / name, entry)
            done += entry.size
        progress(done, total)
        with readable(source):
            if extra := next(members, None):
                raise InputError(f"{source} holds {extra[0]}, which is not part of the index")
        with translated(directory):
            (directory / SEGMENTS).mkdir(exist_ok=True)
            for folder in {(directory / name).parent for name, _ in files}:
                fsync(folder)
            fsync(directory / SEGMENTS)
            fsync(manifest.parent)
    return head.documents


def load_index(
    updates: Iterable[IndexUpdate],
    settings: IndexSettings,
    parameters: SketchParameters,
    log: str,
    *,
    texts: bool,
) -> None:
    """Create an index from at least one update, and perform all merges that are due.

    The first update may begin with any number. The ``log`` is that of the changelog that continues
    the index, of which no entry is applied yet, or ``LOCAL_LOG``. See :class:`Index` for the rest.

    Raises:
        IndexUnusable: the directory already holds an index, or files in its place.
        IndexFull: no room is left on the disk.
    """
    directory = settings.directory
    with staged(directory) as staging:
        chosen = settings.model_copy(update={"directory": staging, "sync": False})
        with Index(chosen, parameters, _LOADED, texts=texts) as index:
            for update in updates:
                index.apply(update, index.applied + 1)
            index.flush()
            index.settle()
        with translated(staging):
            (staging / LOCK).unlink()
            (staging / SEGMENTS).mkdir(exist_ok=True)  # missing without documents
            with closing(Manifest(staging, None)) as manifest:
                checkpoint = manifest.checkpoint()
                if log != LOCAL_LOG:
                    checkpoint = replace(checkpoint, applied=0)
                manifest.rebind(Header(FORMAT, parameters.described(), log), checkpoint)
            if settings.sync:
                for name in (MANIFEST, SEGMENTS):
                    for path in (staging / name, *(staging / name).rglob("*")):
                        fsync(path)
            (staging / SEGMENTS).rename(directory / SEGMENTS)
            fsync(directory)


@contextmanager
def staged(directory: Path) -> Iterator[Path]:
    """Create an index: yield the directory in which the caller leaves its manifest.

    The caller puts the segments into ``directory``, and forces all files to disk.
    After an error nothing of the index is left.

    Raises:
        IndexUnusable: the directory already holds an index, or files in its place.
        IndexLocked: another process has the index open.
    """
    with translated(directory):
        if (directory / MANIFEST).exists():
            raise IndexUnusable(
                f"{directory} already holds an index; import into another directory"
            )
    descriptor = lock(directory)
    try:
        with translated(directory):
            _claim(directory)
        staging = directory / STAGING
        try:
            yield staging
            with translated(directory):
                (staging / MANIFEST).rename(directory / MANIFEST)
                staging.rmdir()
                fsync(directory)
        except BaseException:
            remove_index(directory)
            raise
    finally:
        os.close(descriptor)


def _claim(directory: Path) -> None:
    """Create the staging directory, which marks segments as those of an import."""
    staging, segments = directory / STAGING, directory / SEGMENTS
    foreign = []
    is_staged = staging.is_dir() and {path.name for path in staging.iterdir()} <= _STAGED
    if staging.exists() and not (is_staged and _has_only_segments(staging)):
        foreign.append(staging)
    if segments.exists() and not (staging.is_dir() and _has_only_segments(directory)):
        foreign.append(segments)
    if foreign:
        raise IndexUnusable(
            f"{foreign[0]} already exists, and an import would have to replace it; import into "
            "another directory"
        )
    remove_index(directory)  # what an interrupted import has left
    staging.mkdir()


def _has_only_segments(index: Path) -> bool:
    segments = index / SEGMENTS
    if not segments.is_dir():
        return not segments.exists()
    return set(segments.iterdir()) == set(segment_directories(index))


def _list_files(directory: Path) -> tuple[Head, list[tuple[str, FileEntry]]]:
    """Return the head of an index's export, and its files in order, with their paths."""
    segments = read_segments(directory)
    path = directory / _MANIFEST_FILE
    manifest = FileEntry(DATA_FILE, path.stat().st_size, checksum(path))
    head = Head(FORMAT, sum(entry.count for entry in segments), manifest)
    return head, [(_MANIFEST_FILE, manifest), *_segment_files(segments)]


def _segment_files(segments: list[SegmentEntry]) -> list[tuple[str, FileEntry]]:
    return [
        (str(segment_directory(Path(), segment.name) / file.name), file)
        for segment in segments
        for file in segment.files
    ]


def _read_head(source: Path, members: ArchiveMembers) -> Head:
    content = _expect(source, members, _HEAD)
    with readable(source):
        raw = content.read(_MOST_HEAD_BYTES)
    try:
        head = msgspec.json.decode(raw, type=Head)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"{source} is not an export of an index: {error}") from None
    if head.format != FORMAT:
        raise InputError(
            f"{source} holds index format {head.format}, this release reads {FORMAT}; use the "
            "release that wrote it"
        )
    return head


def _expect(source: Path, members: ArchiveMembers, name: str) -> IO[bytes]:
    """Return the content of the next member, which must have this name."""
    with readable(source):
        found, content = next(members, (None, None))
    if content is None or found != name:
        what = "ends" if found is None else f"has {found}"
        raise InputError(
            f"{source} is not a complete export of an index: it {what} instead of {name}"
        )
    return content


def _copy(source: Path, members: ArchiveMembers, name: str, target: Path, entry: FileEntry) -> None:
    """Copy the next member to a file, force it to disk, and compare it with its entry."""
    summed = _SummedFile(_expect(source, members, name))
    with translated(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as out:
            while True:
                with readable(source):
                    chunk = summed.read(CHUNK_BYTES)
                if not chunk:
                    break
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
    if (target.stat().st_size, summed.digest.intdigest()) != (entry.size, entry.sum):
        raise InputError(f"{source}: {name} is damaged: its checksum differs from the manifest's")


def _from_directory(source: Path, resources: ExitStack) -> ArchiveMembers:
    """Return the members that an export of an index would have."""
    resources.callback(os.close, lock_existing(source))
    head, files = _list_files(source)

    def members() -> ArchiveMembers:
        yield _HEAD, io.BytesIO(msgspec.json.encode(head))
        for name, _ in files:
            with (source / name).open("rb") as content:
                yield name, content

    return members()


class _SummedFile:
    """A file whose bytes are summed while they are read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = xxhash.xxh3_64()

    def read(self, size: int = -1) -> bytes:
        chunk = self._file.read(size)
        self.digest.update(chunk)
        return chunk


def _add_file(tar: tarfile.TarFile, path: Path, name: str, entry: FileEntry) -> None:
    """Add a file, which must be what its entry says."""
    sound = path.exists() and path.stat().st_size == entry.size
    if sound:
        with path.open("rb") as source:
            summed = _SummedFile(source)
            _add(tar, name, summed, entry.size)
        sound = summed.digest.intdigest() == entry.sum
    if not sound:
        raise IndexDamaged(
            f"{path} is not what was written; run 'streamdedup index check' for details"
        )


def _add(tar: tarfile.TarFile, name: str, content: Any, size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    tar.addfile(member, content)


@contextmanager
def _packing(path: Path, name: str) -> Iterator[tarfile.TarFile]:
    """Write an archive to a new file; the suffix of ``name`` decides about the compression."""
    with ExitStack() as resources:
        stream = resources.enter_context(path.open("xb"))
        if name.endswith((".gz", ".tgz")):
            packed = gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=1)
            stream = cast("Any", resources.enter_context(packed))
        elif name.endswith(".zst"):
            stream = cast("Any", resources.enter_context(zstandard.open(stream, "wb")))
        yield resources.enter_context(_tar(stream, "w|"))


def _unpack(source: Path, resources: ExitStack) -> ArchiveMembers:
    """Yield the members of an archive; the content of each is valid until the next one.

    The first bytes of the file decide about the compression. The caller translates errors.
    """
    file = resources.enter_context(source.open("rb"))
    magic = file.read(4)
    file.seek(0)
    stream: Any = file
    if magic.startswith(_GZIP_MAGIC):
        stream = resources.enter_context(gzip.GzipFile(fileobj=file))
    elif magic == _ZSTANDARD_MAGIC:
        stream = resources.enter_context(zstandard.open(file))
    tar = resources.enter_context(_tar(stream, "r|"))
    for member in tar:
        content = tar.extractfile(member)
        if content is None:
            raise InputError(f"{source} holds {member.name}, which is not a regular file")
        yield member.name, content


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
