"""*Blocking.* Checks the pages of LMDB files without LMDB, which trusts them."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from lmdb.verify import VerifyError
from lmdb.verify import verify as walk

_PAGE_SIZE, _TRANSACTION = 40, 144
"""Places of fields of a meta page of LMDB 0.9, on a machine with 64 bits."""


def problem_of(path: Path) -> str | None:
    """Return what is wrong with the pages of an LMDB file; None if nothing is.

    The values are not looked at. A file of 100 MB with a thousand of them takes 25 ms.
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
