"""*Blocking.* The directory of an index: its lock, the directories of its segments, its files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Collection
from pathlib import Path

import xxhash

from streamdedup.errors import REMEDY, IndexLocked, IndexUnusable
from streamdedup.index.lmdb_errors import translated

LOCK = "lock"
MANIFEST = "manifest"
"""The directory of the manifest. An index exists if and only if it holds :data:`DATA_FILE`."""
DATA_FILE = "data.mdb"
LMDB_FILES = (DATA_FILE, "lock.mdb")
"""What LMDB keeps in the directory of the manifest."""
SEGMENTS = "segments"
STAGING = "importing"
"""Where an import, or a compaction, writes until the manifest is complete."""
FILES = (LOCK, MANIFEST, SEGMENTS, STAGING)
"""The names in the directory that belong to the index; other files are not ours."""


def lock(directory: Path) -> int:
    """Create the directory if it is missing, and lock it for this process.

    Returns:
        An open file descriptor. Closing it releases the lock.

    Raises:
        IndexUnusable: the directory cannot be created or written.
        IndexLocked: the index is open, in another process or in this one.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise IndexUnusable(
            f"cannot write the index directory {directory}: {error.strerror}"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        is_own = _is_open_here(descriptor)
        os.close(descriptor)
        holder = (
            "is open in this process already; close its Deduplicator or Index first, with close() "
            "or a with block"
            if is_own
            else "is open in another process; stop that process first"
        )
        raise IndexLocked(f"the index {directory} {holder}") from error
    return descriptor


def _is_open_here(descriptor: int) -> bool:
    """Return whether this process, or its parent before a fork, has opened the file before."""
    identity = os.fstat(descriptor)
    for path in list(Path("/dev/fd").iterdir()):
        other = int(path.name)
        # The descriptor of the listing itself is closed by now.
        with contextlib.suppress(OSError):
            if other != descriptor and os.path.samestat(os.fstat(other), identity):
                return True
    return False


def check_locked(directory: Path, descriptor: int) -> None:
    """Check that the directory is still the one that was locked.

    Open files outlive their directory, but new segments would go to another one.

    Raises:
        IndexUnusable: it was removed, moved or replaced.
    """
    with translated(directory):
        try:
            is_same = os.path.samestat(os.fstat(descriptor), (directory / LOCK).stat())
        except (FileNotFoundError, NotADirectoryError):
            is_same = False
    if not is_same:
        raise IndexUnusable(
            f"the index directory {directory} was removed, moved or replaced while it was in use; "
            f"put it back, or {REMEDY}"
        )


def unlock(descriptor: int) -> None:
    """Release a lock, even if a forked process has inherited its descriptor."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def lock_existing(directory: Path) -> int:
    """Lock a directory that holds an index; never create it.

    Returns:
        An open file descriptor. Closing it releases the lock.

    Raises:
        IndexUnusable: the directory holds no index.
        IndexLocked: another process has the index open.
    """
    if not holds_index(directory):
        raise IndexUnusable(f"{directory} holds no index")
    return lock(directory)


def holds_index(directory: Path) -> bool:
    """Return whether a directory holds an index.

    Raises:
        IndexUnusable: this user may not look at the directory, or its name is invalid.
    """
    with translated(directory):
        return (directory / MANIFEST / DATA_FILE).exists()


def segment_directory(index: Path, name: str) -> Path:
    """Return the directory of a segment."""
    return index / SEGMENTS / name


def remove_leftovers(index: Path, known: Collection[str]) -> None:
    """Remove the segments that the manifest does not name: a crash left them."""
    for path in segment_directories(index):
        if path.name not in known:
            shutil.rmtree(path)


def segment_directories(index: Path) -> list[Path]:
    """Return what looks like a segment, named by the manifest or not; other files are not ours."""
    segments = index / SEGMENTS
    found = segments.iterdir() if segments.is_dir() else ()
    return [path for path in found if path.name.isdecimal() and path.is_dir()]


def remove_index(directory: Path) -> None:
    """Remove an index and the remains of an interrupted import; keep all other files.

    The caller holds the lock. A directory without an index may have other files of these names,
    since a user may name a wrong one.
    """
    with translated(directory):
        staging = directory / STAGING
        for index in (staging, directory):
            for path in segment_directories(index):
                shutil.rmtree(path)
            if (index / MANIFEST).is_dir():
                for name in LMDB_FILES:
                    (index / MANIFEST / name).unlink(missing_ok=True)
            for name in (MANIFEST, SEGMENTS):
                _remove_empty(index / name)
        (staging / LOCK).unlink(missing_ok=True)
        _remove_empty(staging)


def _remove_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def fsync(path: Path) -> None:
    """Force a file or a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(path: Path) -> int:
    """Return the XXH3-64 of a file."""
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.intdigest()
