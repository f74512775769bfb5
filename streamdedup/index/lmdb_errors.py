"""*Blocking.* Translates errors of LMDB and of the system, and finds damaged pages of LMDB."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import msgspec
from lmdb.verify import VerifyError
from lmdb.verify import verify as walk

from streamdedup.errors import REMEDY, IndexDamaged, IndexFull, IndexUnusable

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
    """Translate errors of LMDB, msgspec and the operating system.

    Args:
        path: the file or directory that the messages name.

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
        if str(error).endswith(os.strerror(errno.EIO)) and _is_full(path):
            raise _full(path) from error
        raise IndexUnusable(f"{path}: {error}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(path) from error
        raise IndexUnusable(f"{path}: {error.strerror}") from error


def _is_full(path: Path) -> bool:
    try:
        return shutil.disk_usage(path if path.is_dir() else path.parent).free < _FULL_BYTES
    except OSError:
        return False


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
