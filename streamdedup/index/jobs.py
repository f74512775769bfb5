"""*Blocking.* The jobs of an index (flush, merge, expire, remove), and the thread that does them.

Rule 1: a crash is harmless at any moment. Files are written and synced; one transaction of the
manifest names them, and drops what they replace; the index adopts them; the replaced files are
removed.
Rule 2: the thread never changes what the callers read. A job's outcome waits in a queue until the
index adopts it between two calls.
Rule 3: a flush is urgent, since callers wait for it when both deltas are full. So a merge looks for
urgent jobs between two columns, and performs them first.

Without a job, the thread does its chores: it reads ahead, and later scrubs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from streamdedup.columns import I64, U64
from streamdedup.failpoints import reach
from streamdedup.index.chores import Readahead, Scrub
from streamdedup.index.delta import Delta
from streamdedup.index.directory import segment_directory, translated
from streamdedup.index.filter import SLOTS, Bank
from streamdedup.index.layout import Checkpoint, Geometry
from streamdedup.index.manifest import Manifest
from streamdedup.index.postings import COUNT, SUBS, merge_column, sort_column
from streamdedup.index.rows import StoredRows
from streamdedup.index.segment import Segment
from streamdedup.index.segment_writer import Content, SegmentWriter

BACKGROUND = "index-background"
"""The name of the thread."""


@dataclass(slots=True)
class Flush:
    """Turns a delta into a segment, and advances the checkpoint to the delta's last document.

    Nothing is added to the delta any more. The bytes of the erased numbers are still to be
    overwritten. The segment is the result.
    """

    delta: Delta
    slot: int
    checkpoint: Checkpoint
    erased: frozenset[int]
    segment: Segment | None = None


@dataclass(slots=True)
class Merge:
    """Merges consecutive segments, oldest first, into one, or rewrites a single one.

    The bytes of the erased numbers are overwritten on the way. The filter bits are stored only if
    the slot gains no more keys. It holds the keys of documents from ``filter_first`` on, up to
    those of the result. The segment is the result.
    """

    members: list[Segment]
    slot: int
    erased: frozenset[int]
    store_filter: bool
    filter_first: int
    segment: Segment | None = None


@dataclass(slots=True)
class Expire:
    """Takes the oldest segment out of the index."""

    segment: Segment


@dataclass(slots=True)
class Remove:
    """Deletes the files of segments that no reader uses any more, and clears slots and a delta."""

    segments: list[Segment] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    delta: Delta | None = None


Job = Flush | Merge | Expire | Remove


@dataclass(slots=True)
class Workshop:
    """Performs jobs, one at a time.

    The second bank of filters has the slots above 7. ``next_name`` is the number of the next
    segment's directory. With ``sync``, files are forced to disk before the manifest names them.
    """

    directory: Path
    manifest: Manifest
    geometry: Geometry
    banks: tuple[Bank, Bank]
    next_name: int
    sync: bool

    def perform(self, job: Job, pause: Callable[[], None]) -> None:
        """Perform a job, which gets its result; pause between two parts of long ones."""
        with translated(self.directory):
            match job:
                case Flush():
                    self._flush(job)
                case Merge():
                    self._merge(job, pause)
                case Expire():
                    reach("expire")
                    self.manifest.drop(job.segment.entry)
                case Remove():
                    self._remove(job, pause)

    def _flush(self, job: Flush) -> None:
        reach("flush")
        delta, bucket_size = job.delta, self.geometry.bucket_size
        work = np.empty(delta.count, dtype=np.uint64)

        def rows(indices: I64) -> StoredRows:
            return _without(delta.rows(indices), indices + delta.first, job.erased)

        def column(column: int, out: U64, starts: I64) -> int:
            return sort_column(delta.keys, column, delta.count, bucket_size, work, out, starts)

        bank, slot = self._bank(job.slot), job.slot
        content = Content(delta.first, delta.count, rows, column, bank, slot, False, delta.first)
        # Nothing is more urgent, so there is no pause.
        job.segment = self._write(content, "flush-write", lambda: None)
        entry = job.segment.entry
        here = range(entry.first, entry.end)
        self.manifest.announce(
            segment=entry,
            checkpoint=job.checkpoint,
            erased=[number for number in job.erased if number not in here],
            overwritten=[number for number in job.erased if number in here],
        )
        reach("flush-announce")

    def _merge(self, job: Merge, pause: Callable[[], None]) -> None:
        reach("merge")
        first, end = job.members[0].entry.first, job.members[-1].entry.end
        width, bucket_size = self.geometry.width, self.geometry.bucket_size
        subs = np.stack([member.subs for member in job.members])
        shifts = np.array([member.entry.first - first for member in job.members], dtype=np.int64)
        work = np.empty(int(subs[..., COUNT].sum(axis=0).max()), dtype=np.uint64)

        def column(column: int, out: U64, starts: I64) -> int:
            for member in job.members:  # damage must not get a new checksum
                member.check_column(column)
            of_column = subs[:, column * SUBS : (column + 1) * SUBS]
            return merge_column(of_column, shifts, bucket_size, work, out, starts)

        def rows(indices: I64) -> StoredRows:
            owners = np.searchsorted(shifts, indices, side="right") - 1
            parts = [
                job.members[owner].rows(indices[owners == owner] - shifts[owner], width)
                for owner in np.unique(owners).tolist()
            ]
            return _without(StoredRows.concatenate(parts), indices + first, job.erased)

        bank, store = self._bank(job.slot), job.store_filter
        content = Content(first, end - first, rows, column, bank, job.slot, store, job.filter_first)
        job.segment = self._write(content, "merge-write", pause)
        self.manifest.announce(
            segment=job.segment.entry,
            instead_of=[member.entry for member in job.members],
            overwritten=job.erased,
        )
        reach("merge-announce")

    def _remove(self, job: Remove, pause: Callable[[], None]) -> None:
        for segment in job.segments:
            reach("remove")
            segment.remove()
        for slot in job.slots:
            for column in range(self.geometry.columns):
                pause()
                self._bank(slot).clear(column, slot % SLOTS)
        if job.delta is not None:
            job.delta.clear()

    def _bank(self, slot: int) -> Bank:
        return self.banks[slot // SLOTS]

    def _write(self, content: Content, point: str, pause: Callable[[], None]) -> Segment:
        """Write and open a segment; ``point`` is the fail-point between the two."""
        directory = segment_directory(self.directory, f"{self.next_name:08}")
        self.next_name += 1
        writer = SegmentWriter(directory, content, sync=self.sync, pause=pause)
        entry = writer.write(self.geometry.shards)
        reach(point)
        segment = Segment(self.directory, entry, self.geometry.columns, fresh=True)
        segment.slot = content.slot
        return segment


def _without(rows: StoredRows, numbers: I64, erased: frozenset[int]) -> StoredRows:
    """Return rows of which the erased numbers are blank."""
    if not erased:
        return rows
    gone = np.isin(numbers, np.fromiter(erased, dtype=np.int64))
    return rows.erase(np.flatnonzero(gone))


@dataclass(slots=True)
class JobOutcome:
    """A finished job, or the error that ended it; without a job, that of a chore."""

    job: Job | None
    error: BaseException | None = None


class JobThread:
    """The thread and its queues of jobs; the chores come in order of preference.

    The outcomes of ``pending`` jobs were not taken yet.
    """

    def __init__(self, workshop: Workshop, chores: Sequence[Readahead | Scrub]) -> None:
        self._workshop, self._chores = workshop, list(chores)
        self._urgent: deque[Job] = deque()
        self._patient: deque[Job] = deque()
        self._outcomes: deque[JobOutcome] = deque()
        self.pending = 0
        self._stopping = False
        # An interrupt cannot come between taking a plain lock and the block that releases it.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._work, name=BACKGROUND, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job."""
        with self._lock:
            urgent = isinstance(job, Flush) or (isinstance(job, Remove) and job.delta is not None)
            (self._urgent if urgent else self._patient).append(job)
            self.pending += 1
            self._changed.notify_all()

    def outcome(self, *, wait: bool) -> JobOutcome | None:
        """Take the next outcome, or wait for it; None if there is none yet."""
        if self._stopping:
            raise RuntimeError("the index is closed")
        if not wait and not self._outcomes:
            return None
        with self._lock:
            while not self._outcomes:
                if not self.pending:
                    raise RuntimeError("no job is pending: waiting for one would never end")
                self._changed.wait()
            self.pending -= 1
            return self._outcomes.popleft()

    def close(self) -> None:
        """Stop the thread, and close the segments that only its queues know.

        An unfinished merge is abandoned; it is due again after a restart.
        """
        with self._lock:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()
        for job in (*self._urgent, *self._patient, *(outcome.job for outcome in self._outcomes)):
            _close_segments(job)

    def _work(self) -> None:
        while True:
            with self._lock:
                job = self._next()
                if self._stopping:
                    return
            try:
                self._perform(job)
            except _Abandoned:
                return

    def _next(self) -> Job | None:
        """Wait for a job, or until a chore is due; then there is none."""
        while not (self._urgent or self._patient or self._stopping):
            times = (chore.due_in() for chore in self._chores)
            due_in = min((seconds for seconds in times if seconds is not None), default=None)
            if due_in == 0 or not self._changed.wait(due_in):
                return None
        queue = self._urgent or self._patient
        return queue.popleft() if queue else None

    def _perform(self, job: Job | None) -> None:
        """Perform a job; without one, a step of the chore that is due."""
        error: BaseException | None = None
        # No chore is due if the clock was read a moment too early.
        due = [chore for chore in self._chores if job is None and chore.due_in() == 0]
        try:
            if job is not None:
                self._workshop.perform(job, self._give_way)
            elif due:
                due[0].step()
        except _Abandoned:
            raise
        except BaseException as caught:  # noqa: BLE001 - the index raises it in its caller
            error = caught
            _close_segments(job)
        if job is None and error is None:
            return
        with self._lock:
            self.pending += job is None  # a chore is counted only if it fails
            self._outcomes.append(JobOutcome(job, error))
            self._changed.notify_all()

    def _give_way(self) -> None:
        """Perform urgent jobs between two parts of a merge, or abandon the merge."""
        reach("merge-part")
        while self._urgent:
            self._perform(self._urgent.popleft())
        if self._stopping:
            raise _Abandoned


def _close_segments(job: Job | None) -> None:
    """Close the segments that the index does not know of yet, or no longer."""
    match job:
        case Flush(segment=Segment() as segment) | Merge(segment=Segment() as segment):
            segment.close()
        case Remove(segments=segments):
            for segment in segments:
                segment.close()


class _Abandoned(BaseException):
    """The index closes; an unfinished merge has no outcome."""
