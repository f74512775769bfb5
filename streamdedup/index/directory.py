"""*Blocking.* The files of an index: their directory, its lock, and their errors.

Errors of LMDB and of the system become those of an index. Damaged pages of LMDB are found here.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import msgspec
import xxhash
from lmdb.verify import VerifyError
from lmdb.verify import verify as walk

from streamdedup.errors import REMEDY, IndexDamaged, IndexFull, IndexLocked, IndexUnusable

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
_DAMAGE = (
    lmdb.BadTxnError,
    lmdb.CorruptedError,
    lmdb.CursorFullError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.PageFullError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.ProblemError,
    lmdb.VersionMismatchError,
)
_FULL_BYTES = 4 * 1024**2
"""Free bytes below which a failed write is blamed on the room: LMDB's largest writes are smaller.
"""
_PAGE_SIZE, _TRANSACTION = 40, 144
"""Offsets of fields of a meta page of LMDB 0.9, on a machine with 64 bits."""


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Translate errors of LMDB, msgspec and the operating system; messages name the path.

    Raises:
        IndexFull: the map or the disk is full.
        IndexDamaged: the file does not hold what was written.
        IndexUnusable: any other error of LMDB or of the system.
    """
    try:
        yield
    except lmdb.MapFullError as error:
        raise IndexFull(f"{path} has reached the maximum size of a file of an index") from error
    except _DAMAGE as error:
        raise IndexDamaged(f"{path} is damaged ({error}); {REMEDY}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise IndexDamaged(f"{path} holds an invalid value ({error}); {REMEDY}") from error
    except lmdb.DiskError as error:
        raise _full(path) from error
    except lmdb.Error as error:
        # LMDB also reports EIO if there was room for only a part of a write.
        if str(error).endswith(os.strerror(errno.EIO)):
            with contextlib.suppress(OSError):
                folder = path if path.is_dir() else path.parent
                if shutil.disk_usage(folder).free < _FULL_BYTES:
                    raise _full(path) from error
        raise IndexUnusable(f"{path}: {error}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(path) from error
        raise IndexUnusable(f"{path}: {error.strerror}") from error


def _full(path: Path) -> IndexFull:
    return IndexFull(f"the disk of {path} is full; free some space and start again")


def problem_of(path: Path) -> str | None:
    """Return what is wrong with the pages of an LMDB file; None if they are sound.

    LMDB trusts its pages, so this reads them without LMDB. The values are not read. A file of
    100 MB with a thousand of them takes 25 ms.
    """
    try:
        problems: list[str] = walk(str(path), subdir=False)  # type: ignore[no-untyped-call]
    except VerifyError as error:
        return f"not a valid LMDB file: {error}"
    except (struct.error, ValueError, IndexError, OverflowError, MemoryError) as error:
        return f"not a valid LMDB file: {type(error).__name__}"
    if not problems:
        return None if _is_latest(path) else "its last transaction is lost"
    return f"{problems[0]}, and {len(problems) - 1} more" if len(problems) > 1 else problems[0]


def _is_latest(path: Path) -> bool:
    """Return whether both meta pages are of consecutive transactions.

    LMDB writes them in turns, and reads the one with the higher number. If that number is damaged,
    LMDB returns to the state before the last transaction.
    """
    with path.open("rb") as file:
        first = file.read(_TRANSACTION + 8)
        file.seek(int.from_bytes(first[_PAGE_SIZE : _PAGE_SIZE + 4], sys.byteorder))
        pages = first, file.read(_TRANSACTION + 8)
    one, other = (int.from_bytes(page[_TRANSACTION:], sys.byteorder) for page in pages)
    return abs(one - other) == 1 or one == other == 0


def lock(directory: Path) -> int:
    """Create the directory if it is missing, and lock it for this process.

    Closing the file descriptor that this returns releases the lock.

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
        holder = (
            "is open in this process already; close its Deduplicator or Index first, with close() "
            "or a with block"
            if _is_open_here(descriptor)
            else "is open in another process; stop that process first"
        )
        os.close(descriptor)
        raise IndexLocked(f"the index {directory} {holder}") from error
    return descriptor


def _is_open_here(descriptor: int) -> bool:
    """Return whether this process, or its parent before a fork, has opened the file before."""
    identity = os.fstat(descriptor)
    for other in [int(path.name) for path in Path("/dev/fd").iterdir()]:
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
    """Lock a directory that must hold an index, as :func:`lock` does; never create it."""
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
