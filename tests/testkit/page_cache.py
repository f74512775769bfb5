"""*Blocking.* Which pages of files are in the page cache, as ``mincore`` of Linux tells."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

_LIBC = ctypes.CDLL(None, use_errno=True)


def files_below(directory: Path) -> list[Path]:
    """Return the files below a directory; a running index may remove some."""
    return [path for path in directory.rglob("*") if path.is_file()]


def resident_share(paths: Iterable[Path]) -> float:
    """Return the share of the pages of files that are in the page cache."""
    pages = [_resident(path) for path in paths]
    total = sum(count for _, count in pages)
    return sum(found for found, _ in pages) / total if total else 0.0


def _resident(path: Path) -> tuple[int, int]:
    """Return how many pages of a file are in the page cache, and how many there are."""
    size = path.stat().st_size
    if not size:
        return 0, 0
    file = os.open(path, os.O_RDONLY)
    try:
        with mmap.mmap(file, size, prot=mmap.PROT_READ) as mapped:
            content = np.frombuffer(mapped, dtype=np.uint8)
            found = np.zeros(-(-size // mmap.PAGESIZE), dtype=np.uint8)
            address = ctypes.c_void_p(content.ctypes.data)
            failed = _LIBC.mincore(
                address, ctypes.c_size_t(size), found.ctypes.data_as(ctypes.c_void_p)
            )
            del content  # the map can be closed only then
            if failed:
                raise OSError(ctypes.get_errno(), "mincore")
    finally:
        os.close(file)
    return int((found & 1).sum()), len(found)


def drop_from_cache(path: Path) -> None:
    """Drop a file that no process has mapped from the page cache."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)
