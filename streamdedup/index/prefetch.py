"""*Blocking.* Reads what a look-up needs from the disk at once, instead of page by page.

A page that is not in memory costs its reader a disk access, and a batch may need thousands, one
after the other. A disk is ten times as fast if it is asked for all of them together. Asking costs a
few microseconds a document, so a look-up asks only if the one before had to wait for the disk.
"""

from __future__ import annotations

import mmap
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from streamdedup.columns import I64
from streamdedup.index.mapped import Mapped

_BLOCKS_OF_PAGE = 8
"""Blocks of 512 bytes, the unit of ``ru_inblock``."""
_DOCUMENTS_PER_PAGE = 10
"""Look-ups wait for the disk if they read a page for each so many documents, or more."""


class Prefetch:
    """Asks the system for pages of mapped files.

    Attributes:
        is_on: whether the next look-up should ask; at first the files may not be in memory.
    """

    def __init__(self) -> None:
        self.is_on = True
        self.show([])

    def show(self, files: Sequence[Mapped]) -> None:
        """Replace the files that are read."""
        self._files = sorted(files, key=lambda file: file.start)
        self._starts = np.array([file.start for file in self._files], dtype=np.int64)

    def pages(self, addresses: I64) -> None:
        """Ask for the pages of some addresses, ``(n,)``, each within a file."""
        pages = np.unique(addresses & -mmap.PAGESIZE)
        owners = np.searchsorted(self._starts, pages, side="right") - 1
        for owner, page in zip(owners.tolist(), pages.tolist(), strict=True):
            self._files[owner].will_need_page(page)

    @contextmanager
    def watch(self, documents: int) -> Iterator[None]:
        """Note whether the calling thread has to wait for the disk while it looks up documents."""
        before = _blocks_read()
        yield
        blocks = _blocks_read() - before
        self.is_on = blocks * _DOCUMENTS_PER_PAGE > documents * _BLOCKS_OF_PAGE


def _blocks_read() -> int:
    """Return the blocks that the calling thread has read from disks."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_inblock
