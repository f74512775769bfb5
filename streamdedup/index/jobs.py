"""*Blocking.* The jobs of the background: write a segment, merge, expire, remove.

The order makes a crash harmless at any moment: files are written and synced; one transaction of the
manifest names them, and drops what they replace; the index adopts them; the replaced files are
removed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from streamdedup.columns import I64, U64
from streamdedup.failpoints import reach
from streamdedup.index.delta import Delta
from streamdedup.index.directory import segment_directory
from streamdedup.index.filter import SLOTS, Bank
from streamdedup.index.layout import Checkpoint, Geometry, SegmentEntry
from streamdedup.index.lmdb_errors import translated
from streamdedup.index.manifest import Manifest
from streamdedup.index.postings import COUNT, SUBS, merge_column, sort_column
from streamdedup.index.rows import StoredRows
from streamdedup.index.segment import Segment
from streamdedup.index.segment_writer import Content, FilterSlot, SegmentWriter


@dataclass(slots=True)
class Flush:
    """Turns a delta into a segment, and advances the checkpoint.

    Attributes:
        delta: the delta; nothing is added to it any more.
        slot: filter slot of the segment.
        checkpoint: the state after the delta's last document.
        erased: erased numbers whose bytes are still to be overwritten.
        segment: the result.
    """

    delta: Delta
    slot: int
    checkpoint: Checkpoint
    erased: frozenset[int]
    segment: Segment | None = None


@dataclass(slots=True)
class Merge:
    """Merges consecutive segments into one, or rewrites a single one.

    Attributes:
        members: oldest first.
        slot: filter slot of the result.
        erased: numbers whose bytes are overwritten on the way.
        store_filter: whether the filter bits are stored; only if the slot gains no more keys.
        filter_first: number of the first document whose keys the slot holds, up to the result's.
        segment: the result.
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
    """Removes what no reader uses any more.

    Attributes:
        segments: segments whose files are deleted.
        slots: filter slots that are cleared.
        delta: a flushed delta that is cleared.
    """

    segments: list[Segment] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    delta: Delta | None = None


Job = Flush | Merge | Expire | Remove


class Workshop:
    """Performs jobs, one at a time.

    Args:
        directory: directory of the index.
        manifest: where results are announced.
        geometry: the sizes.
        banks: the filters of runs and of slices; slots from 8 on belong to the second bank.
        next_name: number of the next segment's directory.
        sync: whether files are forced to disk before they are announced.
    """

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        geometry: Geometry,
        banks: tuple[Bank, Bank],
        *,
        next_name: int,
        sync: bool,
    ) -> None:
        self._directory = directory
        self._manifest = manifest
        self._geometry = geometry
        self._banks = banks
        self._next_name = next_name
        self._sync = sync

    def perform(self, job: Job, pause: Callable[[], None]) -> None:
        """Perform a job.

        Args:
            job: its result is stored in it.
            pause: called between two parts of a merge, and of clearing a slot.

        Raises:
            IndexFull: the disk is full.
            IndexUnusable: the disk reports another error.
        """
        with translated(self._directory):
            match job:
                case Flush():
                    self._flush(job)
                case Merge():
                    self._merge(job, pause)
                case Expire():
                    reach("expire")
                    self._manifest.drop(job.segment.entry)
                case Remove():
                    self._remove(job, pause)

    def _flush(self, job: Flush) -> None:
        reach("flush")
        delta, size = job.delta, self._geometry.bucket_size
        work = np.empty(delta.count, dtype=np.uint64)

        def rows(indices: I64) -> StoredRows:
            return _without(delta.rows(indices), indices + delta.first, job.erased)

        def column(column: int, out: U64, starts: I64) -> int:
            return sort_column(delta.keys, column, delta.count, size, work, out, starts)

        content = Content(delta.first, delta.count, rows, column)
        target = FilterSlot(self._bank(job.slot), job.slot, store=False, first=delta.first)
        entry = self._write(content, target, pause=_do_not_pause)
        reach("flush-write")
        job.segment = self._open(entry, job.slot)
        here = range(entry.first, entry.end)
        self._manifest.announce(
            segment=entry,
            checkpoint=job.checkpoint,
            erased=[number for number in job.erased if number not in here],
            overwritten=[number for number in job.erased if number in here],
        )
        reach("flush-announce")

    def _merge(self, job: Merge, pause: Callable[[], None]) -> None:
        reach("merge")
        first, end = job.members[0].entry.first, job.members[-1].entry.end
        subs = np.stack([member.subs for member in job.members])
        shifts = np.array([member.entry.first - first for member in job.members], dtype=np.int64)
        work = np.empty(int(subs[..., COUNT].sum(axis=0).max()), dtype=np.uint64)

        def column(column: int, out: U64, starts: I64) -> int:
            for member in job.members:  # damage must not get a new checksum
                member.check_column(column)
            of_column = subs[:, column * SUBS : (column + 1) * SUBS]
            return merge_column(of_column, shifts, self._geometry.bucket_size, work, out, starts)

        rows = partial(_merged_rows, job, shifts, self._geometry.width)
        content = Content(first, end - first, rows, column)
        bank = self._bank(job.slot)
        target = FilterSlot(bank, job.slot, job.store_filter, job.filter_first)
        entry = self._write(content, target, pause=pause)
        reach("merge-write")
        job.segment = self._open(entry, job.slot)
        self._manifest.announce(
            segment=entry,
            instead_of=[member.entry for member in job.members],
            overwritten=job.erased,
        )
        reach("merge-announce")

    def _remove(self, job: Remove, pause: Callable[[], None]) -> None:
        for segment in job.segments:
            reach("remove")
            segment.remove()
        for slot in job.slots:
            for column in range(self._geometry.columns):
                pause()
                self._bank(slot).clear(column, slot % SLOTS)
        if job.delta is not None:
            job.delta.clear()

    def _bank(self, slot: int) -> Bank:
        return self._banks[slot // SLOTS]

    def _write(
        self, content: Content, target: FilterSlot, *, pause: Callable[[], None]
    ) -> SegmentEntry:
        directory = segment_directory(self._directory, f"{self._next_name:08}")
        self._next_name += 1
        writer = SegmentWriter(directory, content, target, sync=self._sync, pause=pause)
        return writer.write(self._geometry.shards)

    def _open(self, entry: SegmentEntry, slot: int) -> Segment:
        segment = Segment(self._directory, entry, self._geometry.columns, fresh=True)
        segment.slot = slot
        return segment


def _merged_rows(job: Merge, shifts: I64, width: int, indices: I64) -> StoredRows:
    """Return documents of a merge by their indices in the result, without the erased ones."""
    owners = np.searchsorted(shifts, indices, side="right") - 1
    parts = [
        job.members[owner].rows(indices[owners == owner] - shifts[owner], width)
        for owner in np.unique(owners).tolist()
    ]
    return _without(StoredRows.concatenate(parts), indices + job.members[0].entry.first, job.erased)


def _without(rows: StoredRows, numbers: I64, erased: frozenset[int]) -> StoredRows:
    """Return rows of which the erased numbers are blank."""
    if not erased:
        return rows
    gone = np.isin(numbers, np.fromiter(erased, dtype=np.int64))
    return rows.erase(np.flatnonzero(gone))


def _do_not_pause() -> None:
    """Let nothing pass: a flush is as urgent as work can be."""
