"""*Blocking.* Reads everything that the segments hold, slowly, and compares the checksums.

Postings and documents that are rarely used may be damaged for weeks before a merge reads them. So
the background checks all of them, file by file, when it has nothing else to do.

Rule 1: the values are read from the files and not from the map: a disk that cannot read its own
blocks then causes an error instead of killing the process.
Rule 2: damage is recorded in the manifest before it is raised. The next start checks those values
first, so that an automatic restart does not continue with them for another day.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence

from streamdedup.errors import REMEDY, IndexDamaged
from streamdedup.index.segment import Mapped, Segment

BYTES_PER_SECOND = 4 * 1024**2
"""The pace; 341 GB, the index of a billion documents, take a day."""
STEP_BYTES = 1024**2
"""Bytes between two pauses, at least; a step ends with a value."""
PASS_SECONDS = 24 * 3600.0
"""Time from the beginning of a pass to the next one, at least."""
_FIRST_SECONDS = 10.0
"""A start has more urgent work."""
_EMPTY_SECONDS = 60.0
"""Time between two checks for segments of an index that has none."""


class Scrub:
    """Checks the segments of an open index, one step after the other.

    Args:
        record: records which values of a file are damaged, by its name, for the next start.
        clock: a monotonic clock, in seconds.

    Attributes:
        bytes_read: bytes of the values checked so far.
        damaged: number of values found damaged so far.
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
            self._steps, self._pass_began = self._check_all(), started
        while read < STEP_BYTES:
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

    def _check_all(self) -> Iterator[int]:
        """Check all files, beginning with any, and yield the bytes of each value.

        A process that is often restarted thereby reaches every file as well.
        """
        files = [file for segment in self._segments for file in segment.files]
        start = random.randrange(len(files)) if files else 0  # noqa: S311 - spreads the work
        for file in files[start:] + files[:start]:
            if file.is_open:
                yield from self._check(file)

    def _check(self, file: Mapped) -> Iterator[int]:
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
