"""*Blocking.* Reads the files of an index after it was opened, so that they are in the page cache.

A probe reads some postings at random, and a page that is not in memory costs it a disk access. So
the background reads the files once, from front to back, when it has nothing else to do: first the
postings of all segments, which every probe needs, then the documents; the newest segments first.

Rule 1: it reads no more than fits into memory. Beyond that, it would only replace what it has read.
Rule 2: it decides nothing: a file that cannot be read is left to the probes and to the scrub.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from streamdedup.index.free_memory import free_memory
from streamdedup.index.segment import Segment

STEP_BYTES = 4 * 1024**2
"""Bytes between two looks at the queue of jobs."""


class Readahead:
    """Reads the files of the segments with which an index was opened, one step after the other.

    Args:
        segments: newest first.
        free: returns the bytes of memory that files may fill.

    Attributes:
        bytes_read: bytes read so far.
    """

    def __init__(self, segments: Sequence[Segment], free: Callable[[], int] = free_memory) -> None:
        self._files = [shard.file for segment in segments for shard in segment.shards]
        self._files += [segment.documents for segment in segments]
        self._free = free
        self._parts: Iterator[int] | None = self._read_all()
        self.bytes_read = 0

    def due_in(self) -> float | None:
        """Return 0 seconds until the next step; None if everything was read."""
        return None if self._parts is None else 0.0

    def step(self) -> None:
        """Read the next part."""
        size = None if self._parts is None else next(self._parts, None)
        if size is None:
            self._parts, self._files = None, []
        else:
            self.bytes_read += size

    def _read_all(self) -> Iterator[int]:
        parts = itertools.chain.from_iterable(file.read_through(STEP_BYTES) for file in self._files)
        left = self._free()
        while left >= STEP_BYTES and (size := next(parts, None)) is not None:
            yield size
            left -= size
