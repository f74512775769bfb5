"""*Blocking.* Errors of LMDB and of the operating system, translated at the border."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import msgspec

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
        if _may_be_cut_short(error) and _is_full(path):
            raise _full(path) from error
        raise IndexUnusable(f"{path}: {error}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(path) from error
        raise IndexUnusable(f"{path}: {error.strerror}") from error


def _may_be_cut_short(error: lmdb.Error) -> bool:
    """Tell whether the error is EIO, which LMDB also reports if only a part of a write had room."""
    return str(error).endswith(os.strerror(errno.EIO))


def _is_full(path: Path) -> bool:
    try:
        return shutil.disk_usage(path if path.is_dir() else path.parent).free < _FULL_BYTES
    except OSError:
        return False


def _full(path: Path) -> IndexFull:
    return IndexFull(f"the disk of {path} is full; free some space and start again")
