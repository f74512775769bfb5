"""*Blocking.* What an index does beside its callers: writing, merging and dropping segments.

One thread does all of it, one job after the other. It never touches what the callers read: a job's
outcome waits in a queue until the index adopts it between two calls. A flush is urgent, since the
callers wait for it when both deltas are full; so a merge looks for waiting flushes between two
columns, and does them on the way.

The order that makes a crash harmless at any moment: files are written and synced; one transaction
of the manifest names them, and forgets what they replace; the index adopts them; what they replaced
is removed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from streamdedup.dedup.clock import Settlement
from streamdedup.index.blocks import Rows, concatenate
from streamdedup.index.delta import Delta
from streamdedup.index.filter import SLOTS, Bank
from streamdedup.index.manifest import Checkpoint, Manifest
from streamdedup.index.postings import COUNT, SUBS, merge_column, sort_column
from streamdedup.index.segment import Segment, SegmentWriter, segment_directory
from streamdedup.model import I64, U64


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes that an index is built with.

    Attributes:
        columns: of the band keys.
        width: bytes of a signature.
        bucket_size: postings of a key that are kept.
        shards: the columns of each file of postings.
    """

    columns: int
    width: int
    bucket_size: int
    shards: list[range]


@dataclass(slots=True)
class Flush:
    """Make a delta a segment, and move the checkpoint.

    Attributes:
        erased: numbers whose erasure became known since the last checkpoint.
        settlement: how early effective times are seen.
        segment: the outcome.
    """

    delta: Delta
    slot: int
    checkpoint: Checkpoint
    erased: frozenset[int]
    settlement: Settlement
    segment: Segment | None = None


@dataclass(slots=True)
class Merge:
    """Make one segment of several that follow on each other, oldest first; or of one, anew.

    Attributes:
        erased: numbers whose bytes are overwritten on the way.
        settlement: how early effective times are seen.
        store_filter: whether the filter's bits are stored, since nothing more will come to them.
        segment: the outcome.
    """

    members: list[Segment]
    slot: int
    erased: frozenset[int]
    settlement: Settlement
    store_filter: bool
    segment: Segment | None = None


@dataclass(slots=True)
class Expire:
    """Take the oldest segment out of the index."""

    segment: Segment


@dataclass(slots=True)
class Remove:
    """Remove files that nobody reads any more, and clear what is free again.

    Attributes:
        slots: of the filters.
        delta: a flushed one.
    """

    segments: list[Segment] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    delta: Delta | None = None


Job = Flush | Merge | Expire | Remove


@dataclass(slots=True)
class Outcome:
    """A job that is done, or the error that ended it."""

    job: Job
    error: BaseException | None = None


class Background:
    """The thread and its jobs.

    Args:
        directory: of the index.
        manifest: where outcomes are announced.
        geometry: the sizes.
        banks: the filters of runs and of slices; a slot from 8 on is one of the second bank.
        sync: whether files are on the disk before they are announced.
    """

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        geometry: Geometry,
        banks: tuple[Bank, Bank],
        *,
        sync: bool,
    ) -> None:
        self._directory = directory
        self._manifest = manifest
        self._geometry = geometry
        self._banks = banks
        self._sync = sync
        self._next_name = 0
        self._urgent: deque[Job] = deque()
        self._patient: deque[Job] = deque()
        self._outcomes: deque[Outcome] = deque()
        self._pending = 0
        self._stopping = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="index-background", daemon=True)

    def start(self, next_name: int) -> None:
        """Begin to work; segments get names from ``next_name`` on."""
        self._next_name = next_name
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Have a job done."""
        with self._changed:
            urgent = isinstance(job, Flush) or (isinstance(job, Remove) and job.delta is not None)
            (self._urgent if urgent else self._patient).append(job)
            self._pending += 1
            self._changed.notify_all()

    @property
    def pending(self) -> int:
        """Jobs whose outcome was not taken yet."""
        return self._pending

    def outcome(self, *, wait: bool) -> Outcome | None:
        """Take the next outcome; None where there is none, after waiting for one if told to."""
        if not wait and not self._outcomes:
            return None
        with self._changed:
            while wait and self._pending and not self._outcomes:
                self._changed.wait()
            if not self._outcomes:
                return None
            self._pending -= 1
            return self._outcomes.popleft()

    def close(self) -> None:
        """End; a merge is given up half-way, to be done again another time."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self._urgent or self._patient or self._stopping):
                    self._changed.wait()
                if self._stopping:
                    return
                job = (self._urgent or self._patient).popleft()
            try:
                self._do(job)
            except _GivenUp:
                return

    def _do(self, job: Job) -> None:
        error: BaseException | None = None
        try:
            match job:
                case Flush():
                    self._flush(job)
                case Merge():
                    self._merge(job)
                case Expire():
                    self._manifest.drop(job.segment.entry)
                case Remove():
                    self._remove(job)
        except _GivenUp:
            raise
        except BaseException as caught:  # noqa: BLE001 - the index raises it to its caller
            error = caught
        with self._changed:
            self._outcomes.append(Outcome(job, error))
            self._changed.notify_all()

    def _give_way(self) -> None:
        """Between two parts of a merge: do what is urgent, or end."""
        while self._urgent:
            self._do(self._urgent.popleft())
        if self._stopping:
            raise _GivenUp

    def _flush(self, job: Flush) -> None:
        delta, size = job.delta, self._geometry.bucket_size
        work = np.empty(delta.count, dtype=np.uint64)

        def rows(places: I64) -> Rows:
            return _erased(delta.rows(places), places + delta.first, job.erased)

        def column(number: int, out: U64, starts: I64) -> int:
            return sort_column(delta.keys, number, delta.count, size, work, out, starts)

        writer = self._writer(delta.first, lambda: None)
        entry = writer.write(
            delta.count,
            rows,
            column,
            self._geometry.shards,
            self._banks[job.slot // SLOTS],
            job.slot,
            store_filter=False,
            settlement=job.settlement,
        )
        job.segment = Segment(self._directory, entry, self._geometry.columns)
        job.segment.slot = job.slot
        here = range(entry.first, entry.end)
        self._manifest.announce(
            segment=entry,
            checkpoint=job.checkpoint,
            erased={number: number not in here for number in job.erased},
        )

    def _merge(self, job: Merge) -> None:
        members = job.members
        first, width = members[0].entry.first, self._geometry.width
        count = members[-1].entry.end - first
        shifts = np.array([member.entry.first - first for member in members], dtype=np.int64)
        places = np.stack([member.places for member in members])
        work = np.empty(int(places[..., COUNT].sum(axis=0).max()), dtype=np.uint64)

        def rows(wanted: I64) -> Rows:
            owners = np.searchsorted(shifts, wanted, side="right") - 1
            parts = [
                members[owner].rows(wanted[owners == owner] - shifts[owner], width)
                for owner in np.unique(owners).tolist()
            ]
            return _erased(concatenate(parts), wanted + first, job.erased)

        def column(number: int, out: U64, starts: I64) -> int:
            there = places[:, number * SUBS : (number + 1) * SUBS]
            return merge_column(there, shifts, self._geometry.bucket_size, work, out, starts)

        writer = self._writer(first, self._give_way)
        entry = writer.write(
            count,
            rows,
            column,
            self._geometry.shards,
            self._banks[job.slot // SLOTS],
            job.slot,
            store_filter=job.store_filter,
            settlement=job.settlement,
        )
        job.segment = Segment(self._directory, entry, self._geometry.columns)
        job.segment.slot = job.slot
        self._manifest.announce(
            segment=entry,
            instead_of=[member.entry for member in members],
            erased=dict.fromkeys(job.erased, False),
        )

    def _remove(self, job: Remove) -> None:
        for segment in job.segments:
            segment.remove()
        for slot in job.slots:
            self._banks[slot // SLOTS].clear(slot % SLOTS)
        if job.delta is not None:
            job.delta.clear()

    def _writer(self, first: int, pause: Callable[[], None]) -> SegmentWriter:
        name = f"{self._next_name:08}"
        self._next_name += 1
        return SegmentWriter(
            segment_directory(self._directory, name), first, sync=self._sync, pause=pause
        )


class _GivenUp(BaseException):
    """The index closes; a half-done merge is not an outcome."""


def _erased(rows: Rows, numbers: I64, erased: frozenset[int]) -> Rows:
    if not erased:
        return rows
    gone = np.isin(numbers, np.fromiter(erased, dtype=np.int64))
    return rows.erase(np.flatnonzero(gone))
