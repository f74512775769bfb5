"""*Blocking.* Brings the files of an index into the page cache, and scrubs them.

A page that is not in memory costs its reader a disk access. After a start, :class:`Readahead` reads
the files from front to back. Later, :class:`Prefetch` asks for all pages of a look-up at once: a
batch may need thousands of them, and a disk is ten times as fast as with one request at a time.

Postings and documents that are rarely used may be damaged for weeks before a merge reads them. So
:class:`Scrub` compares all checksums, file by file, when the background has nothing else to do.

Rule 1: a start reads no more than fits into memory. Beyond that, it would only replace what it has
read. A file that cannot be read is left to the probes and to the scrub.
Rule 2: the scrub reads from the files and not from the map: a disk that cannot read its own blocks
then causes an error instead of killing the process.
Rule 3: damage is recorded in the manifest before it is raised. The next start checks those values
first, so that an automatic restart does not continue with them for another day.
"""

from __future__ import annotations

import itertools
import mmap
import random
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from streamdedup.columns import I64
from streamdedup.errors import REMEDY, IndexDamaged
from streamdedup.index.segment import Mapped, Segment

READ_BYTES = 4 * 1024**2
"""Bytes that are read before the queue of jobs is checked again."""
ROOT = Path("/")
_BLOCKS_OF_PAGE = 8
"""Blocks of 512 bytes, the unit of ``ru_inblock``."""
_DOCUMENTS_PER_PAGE = 10
"""Look-ups wait for the disk if they read at least one page for this many documents."""
_LIMIT_FILES = (
    ("memory.max", "memory.current", ""),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)
"""Limit, use, and the prefix of names in ``memory.stat``: of cgroup 2, and of cgroup 1."""
BYTES_PER_SECOND = 4 * 1024**2
"""The pace; 341 GB, the index of a billion documents, take a day."""
SCRUB_BYTES = 1024**2
"""Bytes between two pauses, at least; a step ends with a value."""
PASS_SECONDS = 24 * 3600.0
"""Time from the beginning of a pass to the next one, at least."""
_FIRST_SECONDS = 10.0
"""A start has more urgent work."""
_EMPTY_SECONDS = 60.0
"""Time between two checks for segments of an index that has none."""


class Prefetch:
    """Asks the system for pages of mapped files.

    A request costs a few microseconds a document, so the next look-up should ask only if the one
    before had to wait for the disk: then ``is_on`` is true.
    """

    def __init__(self) -> None:
        self.is_on = True  # the files may not be in memory
        self.set_files([])

    def set_files(self, files: Sequence[Mapped]) -> None:
        """Replace the files that are read."""
        self._files = sorted(files, key=lambda file: file.start)
        self._starts = np.array([file.start for file in self._files], dtype=np.int64)

    def pages(self, addresses: I64) -> None:
        """Ask for the pages of addresses, ``(n,)``, each within a file."""
        pages = np.unique(addresses & -mmap.PAGESIZE)
        owners = np.searchsorted(self._starts, pages, side="right") - 1
        for owner, page in zip(owners.tolist(), pages.tolist(), strict=True):
            self._files[owner].will_need_page(page)

    @contextmanager
    def measure(self, documents: int) -> Iterator[None]:
        """Measure whether the calling thread waits for the disk while it looks up documents."""
        before = _blocks_read()
        yield
        blocks = _blocks_read() - before
        self.is_on = blocks * _DOCUMENTS_PER_PAGE > documents * _BLOCKS_OF_PAGE


def _blocks_read() -> int:
    """Return the blocks that the calling thread has read from disks."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_inblock


def free_memory(root: Path = ROOT) -> int:
    """Return the bytes that the machine and the control group of the process leave; 0 if unknown.

    What the page cache takes counts as free: the kernel gives it back on demand. ``proc`` and
    ``sys`` are below ``root``.
    """
    left = [_fields(root / "proc/meminfo").get("MemAvailable:", 0) * 1024]
    for folder in _groups(root):
        for limit, used, prefix in _LIMIT_FILES:
            most = _number(folder / limit)
            if most is not None:
                stat, use = _fields(folder / "memory.stat"), _number(folder / used) or 0
                cached = (stat.get(f"{prefix}{each}_file", 0) for each in ("inactive", "active"))
                left.append(most - use + sum(cached))
    return max(0, min(left))


def _groups(root: Path) -> Iterator[Path]:
    """Yield the folders of the control groups; in a container, its own group is at the top."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            top = root / "sys/fs/cgroup" / controllers
            folder = top / path.strip("/")
            yield from (top, *(each for each in (folder, *folder.parents) if top in each.parents))


def _number(path: Path) -> int | None:
    """Return the number in a file; None if there is no such file, or no number in it."""
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _fields(path: Path) -> dict[str, int]:
    """Return the numbers of a file of names and numbers."""
    words = (line.split() for line in _text(path).splitlines())
    return {each[0]: int(each[1]) for each in words if len(each) > 1 and each[1].isdecimal()}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


class Readahead:
    """Reads the files of the segments with which an index was opened, one step after the other.

    The postings of all segments come first, since every probe needs them, then the documents. The
    segments come newest first. ``free`` returns the bytes of memory that files may fill.
    """

    def __init__(self, segments: Sequence[Segment], free: Callable[[], int] = free_memory) -> None:
        files = [shard.file for segment in segments for shard in segment.shards]
        files += [segment.documents for segment in segments]
        parts = (file.read_through(READ_BYTES) for file in files)
        self._parts: Iterator[int] | None = itertools.chain.from_iterable(parts)
        self._free, self._left = free, -1
        self.bytes_read = 0

    def due_in(self) -> float | None:
        """Return 0 seconds until the next step; None if everything was read."""
        return None if self._parts is None else 0.0

    def step(self) -> None:
        """Read the next part."""
        if self._left < 0:
            self._left = 0  # so that an error is the end, and does not come again
            self._left = self._free()
        size = None
        if self._parts is not None and self._left >= READ_BYTES:
            size = next(self._parts, None)
        if size is None:
            self._parts = None
        else:
            self._left -= size
            self.bytes_read += size


class Scrub:
    """Checks the segments of an open index, one step after the other.

    It counts the bytes of the values checked so far, and the damaged values. For the next start,
    ``record`` records which values of a file are damaged, by its name. The monotonic ``clock`` is
    in seconds.
    """

    def __init__(
        self, record: Callable[[str, list[int]], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._record, self._clock = record, clock
        self._segments: tuple[Segment, ...] = ()
        self._due: float | None = clock() + _FIRST_SECONDS
        self._steps: Iterator[int] | None = None
        self._pass_began = 0.0
        self.bytes_read = 0
        self.damaged = 0

    def set_segments(self, segments: Sequence[Segment]) -> None:
        """Replace what the next pass checks; any thread may call this."""
        self._segments = tuple(segments)

    def due_in(self) -> float | None:
        """Return the seconds until the next step; None after damage was found."""
        return None if self._due is None else max(0.0, self._due - self._clock())

    def step(self) -> None:
        """Check the next values.

        Raises:
            IndexDamaged: a file is not what was written; all of its values are checked by then.
        """
        started, read = self._clock(), 0
        self._due = None
        if self._steps is None:
            files = [file for segment in self._segments for file in segment.files]
            # A process that is often restarted reaches every file, since it begins with any.
            start = random.randrange(len(files)) if files else 0  # noqa: S311 - spreads the work
            checks = (self._check(file) for file in files[start:] + files[:start])
            self._steps, self._pass_began = itertools.chain.from_iterable(checks), started
        while read < SCRUB_BYTES:
            size = next(self._steps, None)
            if size is None:
                self._steps = None
                break
            read += size
            self.bytes_read += size
        self._due = started + read / BYTES_PER_SECOND
        if self._steps is None:
            pause = PASS_SECONDS if self._segments else _EMPTY_SECONDS
            self._due = max(self._due, self._pass_began + pause)

    def _check(self, file: Mapped) -> Iterator[int]:
        """Check a file, and yield the bytes of each value."""
        if not file.is_open:
            return
        try:
            raw = file.path.open("rb")
        except OSError as error:
            raise IndexDamaged(f"{file.path} cannot be read: {error.strerror}; {REMEDY}") from error
        damaged = []
        with raw:
            for number, size in enumerate(file.sizes.tolist()):
                if not file.is_open:  # merged, or out of the window, since the last step
                    return
                if not file.is_sound_on_disk(raw.fileno(), number):
                    damaged.append(number)
                    self.damaged += 1
                yield size
        if damaged:
            self._record(file.name, damaged)
            raise file.damage(damaged)
