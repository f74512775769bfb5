"""*Blocking.* The layers of an index: live delta, frozen delta, runs, slices.

Documents enter the live delta. A full delta is frozen and flushed into a segment; segments are
merged, and leave the window. :mod:`streamdedup.index.upkeep` decides what is due, the background
does the work, and the layers adopt its outcomes between two calls.
"""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from streamdedup.errors import REMEDY, IndexDamaged, IndexFull
from streamdedup.failpoints import reach
from streamdedup.index import upkeep
from streamdedup.index.chores import Readahead, Scrub
from streamdedup.index.delta import Delta
from streamdedup.index.directory import segment_directories, translated
from streamdedup.index.filter import SLOTS, Bank
from streamdedup.index.jobs import Expire, Flush, JobOutcome, JobThread, Merge, Remove, Workshop
from streamdedup.index.layout import Geometry, SegmentEntry
from streamdedup.index.lookup import Lookup
from streamdedup.index.manifest import Manifest
from streamdedup.index.segment import Segment
from streamdedup.index.state import IndexState
from streamdedup.index.upkeep import UpkeepLimits
from streamdedup.model import DiskRoom
from streamdedup.settings.sections import IndexSettings

RUN_CELLS, SLICE_CELLS = 16, 11
"""Bytes of filter for each key. Runs are small, so they can afford more."""
_MOST_UPDATES = 16_384
"""Updates between two checkpoints, however few documents they keep: a restart replays them."""


class Segments:
    """The open segments, newest first, and the filters in front of them: of runs, of slices.

    The ``users`` of a slot are counted: the segments whose bits it holds, jobs that will write to
    it, and a job that clears it. Only a slot without users is free.
    """

    def __init__(self, directory: Path, columns: int, limits: UpkeepLimits) -> None:
        self._directory, self._columns, self._limits = directory, columns, limits
        self.users: Counter[int] = Counter()
        self.held: list[Segment] = []
        self.banks = (
            Bank(columns, limits.delta_documents, RUN_CELLS),
            Bank(columns, limits.slice_documents, SLICE_CELLS),
        )

    def open(self, entries: list[SegmentEntry], next_number: int) -> None:
        """Open all segments, and fill their filters.

        The entries come oldest first. Their documents end before ``next_number``.

        Raises:
            IndexDamaged: the segments do not follow on each other, or one cannot be read.
        """
        names = {entry.name for entry in entries}
        for path in segment_directories(self._directory):
            if path.name not in names:  # a crash left it
                shutil.rmtree(path)
        end = entries[0].first if entries else next_number
        for entry in entries:
            if entry.first != end:
                raise IndexDamaged(
                    f"{self._directory}: documents {end} to {entry.first} are missing; {REMEDY}"
                )
            end = entry.end
            slot = self.free_slot(entry.first, entry.count)
            if slot is None:
                raise RuntimeError("no filter slot is free, although no job uses one")
            segment = Segment(self._directory, entry, self._columns)
            segment.slot = slot
            self.users[slot] += 1
            self.held.insert(0, segment)
        if end != next_number:
            raise IndexDamaged(
                f"{self._directory}: the segments end with document {end}, the manifest says "
                f"{next_number}; {REMEDY}"
            )
        # The last segment of a slice may have stored the filter bits of all.
        stored: dict[int, range] = {}
        for segment in self.held:
            entry, known = segment.entry, stored.get(segment.slot, range(0))
            if known.start <= entry.first and entry.end <= known.stop:
                continue
            if segment.add_to(self.banks[segment.slot // SLOTS]):
                stored[segment.slot] = entry.filter_documents

    def close(self) -> None:
        """Close all segments."""
        for segment in self.held:
            segment.close()
        self.held.clear()

    def free_slot(self, first: int, count: int) -> int | None:
        """Call :func:`upkeep.free_slot`."""
        return upkeep.free_slot(self.held, self.users, first, count, self._limits)

    def first_in_slot(self, slot: int, members: list[Segment]) -> int:
        """Return the number of the first document whose keys the slot of a merge holds."""
        first = members[0].entry.first
        for segment in self.held[self.held.index(members[0]) + 1 :]:
            if segment.slot != slot:
                break
            first = segment.entry.first
        return first

    def replace(self, members: list[Segment], *merged: Segment) -> Remove:
        """Replace segments, oldest first, by their merge if there is one.

        Returns the job that removes them, and clears the slots that only they have used. The merge
        counts as a user of its slot already.
        """
        newest = self.held.index(members[-1])
        self.held[newest : newest + len(members)] = merged
        free = []
        for segment in members:
            self.users[segment.slot] -= 1
            if not self.users[segment.slot]:
                free.append(segment.slot)
        self.users.update(free)  # until they are cleared
        return Remove(members, free)


class Layers:
    """Everything that holds documents, and its upkeep. Of the state, it changes only the erasures.

    Attributes:
        durable: changelog offset from which a restart replays.
        failure: the error that ended the background; every later call raises it.
    """

    def __init__(
        self, settings: IndexSettings, geometry: Geometry, manifest: Manifest, state: IndexState
    ) -> None:
        self._settings, self._geometry = settings, geometry
        self._limits = UpkeepLimits.of(settings)
        self._manifest, self._state, self._erasures = manifest, state, state.erasures
        self._merging = False
        self._unsaved_updates = 0
        # A staged update must not expire anything: its transaction may fail.
        self._confirmed = state.next_number, state.clock.now_ms
        self.counts = Counter(flushes=0, merges=0, expired=0, stalls=0)
        self.durable = state.applied
        self.failure: BaseException | None = None
        sizes = settings.delta_documents, geometry.columns, geometry.width
        self.live = Delta(*sizes)
        self._empty: Delta | None = Delta(*sizes)
        self.frozen: Delta | None = None
        self._segments = Segments(settings.directory, geometry.columns, self._limits)
        self.scrub = Scrub(manifest.record_damage)
        self.lookup = Lookup(geometry.width, state, self._segments.banks)
        with ExitStack() as resources:
            resources.callback(self._segments.close)
            self._segments.open(manifest.segments(), state.next_number)
            suspects = manifest.damage()
            for file in (file for segment in self._segments.held for file in segment.files):
                file.check(suspects.get(file.name, []))
            self._publish()
            readahead = Readahead(self._segments.held)
            banks = self._segments.banks
            name = max((int(entry.name) for entry in self.entries), default=-1) + 1
            workshop = Workshop(
                settings.directory, manifest, geometry, banks, next_name=name, sync=settings.sync
            )
            self._background = JobThread(workshop, (readahead, self.scrub))
            resources.callback(self._background.close)
            self._resources = resources.pop_all()

    def close(self) -> None:
        """Stop the background, and close all files. Unfinished work is lost."""
        self._resources.close()

    @property
    def entries(self) -> list[SegmentEntry]:
        """The segments' records in the manifest, newest first."""
        return [segment.entry for segment in self._segments.held]

    @property
    def oldest_number(self) -> int:
        """The number of the oldest document that is held, or of the next one."""
        firsts = [self._state.next_number]
        firsts += [delta.first for delta in (self.live, self.frozen) if delta and delta.count]
        return min(firsts + [entry.first for entry in self.entries])

    @property
    def documents_in_memory(self) -> int:
        """Number of documents that no segment holds."""
        return self.live.count + (self.frozen.count if self.frozen else 0)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the deltas and of the filters in use."""
        return 2 * self.live.nbytes + sum(bank.cells.nbytes for _, bank in self.lookup.banks_in_use)

    @property
    def bytes_used(self) -> int:
        """Bytes on disk."""
        return self._manifest.bytes_used + sum(entry.size for entry in self.entries)

    @property
    def reserve_bytes(self) -> int:
        """Bytes that a merge of the part that is filling would take, and those of the deltas."""
        width = self._limits.part_documents
        filling = self._state.next_number // width
        part = sum(entry.size for entry in self.entries if entry.first // width == filling)
        return part + self.documents_in_memory * self._geometry.document_bytes

    def room(self) -> DiskRoom:
        """Return how much room the disk and ``index.disk_budget`` leave."""
        with translated(self._settings.directory):
            free = shutil.disk_usage(self._settings.directory).free
        budget = self._settings.disk_budget
        left = free if budget is None else min(free, budget - self.bytes_used)
        return DiskRoom(free, max(0, left))

    def make_room(self, documents: int) -> None:
        """Make room for this many documents in the live delta."""
        if not self.live.has_room(documents):
            self._freeze()

    def end_update(self, *, erases: bool) -> None:
        """Count an update, which may have erased documents, and start what is due after it."""
        self._confirmed = self._state.next_number, self._state.clock.now_ms
        self._unsaved_updates += 1
        if self._unsaved_updates >= _MOST_UPDATES:
            if self.live.count:
                self._freeze()
            elif self.frozen is None:
                self._announce_checkpoint()
        if erases:
            self.plan()
        else:
            self._expire()

    def flush(self) -> None:
        """Write everything that is only in memory, and wait until it is on disk."""
        self.adopt()
        self._freeze()
        while self.frozen is not None:
            self.adopt(wait=True)
        if self._unsaved_updates:
            self._announce_checkpoint()

    def settle(self) -> None:
        """Wait until the background has nothing left to do."""
        while self._background.pending:
            self.adopt(wait=True)

    def adopt(self, *, wait: bool = False) -> None:
        """Take over the finished jobs. Only this changes what the look-ups search."""
        if self.failure is not None:
            raise self.failure
        adopted = False
        while (outcome := self._background.outcome(wait=wait)) is not None:
            self._adopt(outcome)
            adopted, wait = True, False
        if adopted:
            self._publish()
            self.plan()

    def _adopt(self, outcome: JobOutcome) -> None:
        if outcome.error is not None:
            self.failure = outcome.error
            raise outcome.error
        match outcome.job:
            case Flush(segment=Segment() as segment) as flush:
                self._segments.held.insert(0, segment)
                self.frozen = None
                self.durable = flush.checkpoint.applied
                numbers = range(segment.entry.first, segment.entry.end)
                self._erasures.overwritten(flush.erased.intersection(numbers))
                self.counts["flushes"] += 1
                self._background.submit(Remove(delta=flush.delta))
            case Merge(members=members, segment=Segment() as segment) as merge:
                self._merging = False
                self._erasures.overwritten(merge.erased)
                self.counts["merges"] += 1
                self._background.submit(self._segments.replace(members, segment))
            case Expire(segment=segment):
                self._erasures.forget(segment.entry.end)
                self.counts["expired"] += 1
                self._background.submit(self._segments.replace([segment]))
            case Remove(slots=slots, delta=delta):
                self._segments.users.subtract(slots)
                self._empty = self._empty or delta

    def _publish(self) -> None:
        deltas = [self.live] if self.frozen is None else [self.live, self.frozen]
        self.lookup.set_layers(deltas, self._segments.held)
        self.scrub.set_segments(self._segments.held)

    def _freeze(self) -> None:
        """Start to flush the live delta, and continue with the other one.

        Only this makes callers wait: until the other delta and a filter slot are free.
        """
        if not self.live.count:
            return
        if self.room().bytes_left < self.live.count * self._geometry.document_bytes // 2:
            raise IndexFull(
                f"the index {self._settings.directory} has no room left; free space on its disk, "
                "raise index.disk_budget, or lower index.window_documents"
            )
        if self.frozen is not None:
            self.counts["stalls"] += 1
        while self._empty is None:
            self.adopt(wait=True)
        while (slot := self._segments.free_slot(self.live.first, self.live.count)) is None:
            self.adopt(wait=True)
        self._segments.users[slot] += 1
        self.frozen, self.live, self._empty = self.live, self._empty, None
        self._publish()
        job = Flush(self.frozen, slot, self._state.checkpoint(), self._erasures.waiting())
        self._unsaved_updates = 0
        self._background.submit(job)

    def _announce_checkpoint(self) -> None:
        """Write the checkpoint of an index whose documents all lie in segments."""
        reach("checkpoint")
        checkpoint, erased = self._state.checkpoint(), self._erasures.waiting()
        self._manifest.announce(checkpoint=checkpoint, erased=erased)
        self.durable, self._unsaved_updates = self._state.applied, 0

    def plan(self) -> None:
        """Start what is due: expiry, and a merge if none is under way."""
        self._expire()
        if self._merging:
            return
        oldest_in_memory = (self.frozen or self.live).first
        if not self.documents_in_memory:
            oldest_in_memory = self._state.next_number
        waiting = self._erasures.waiting()
        due = upkeep.next_merge(self._segments.held, oldest_in_memory, waiting, self._limits)
        # A merge can wait until expiry, or the operator, has made room.
        if due is None or self.room().bytes_left < due.size:
            return
        slot = self._segments.free_slot(due.first, due.end - due.first)
        if slot is None:  # adopting the job that frees one plans again
            return
        self._segments.users[slot] += 1
        for member in due.members:
            member.busy = True
        self._merging = True
        erased = frozenset(number for number in waiting if due.first <= number < due.end)
        store_filter = due.ends_slice and slot in upkeep.SLICE_SLOTS
        first = self._segments.first_in_slot(slot, due.members)
        self._background.submit(Merge(due.members, slot, erased, store_filter, first))

    def _expire(self) -> None:
        """Start to remove the oldest segments if none of their documents can match any more."""
        for segment in upkeep.expired(self._segments.held, *self._confirmed, self._limits):
            segment.busy = True
            self._background.submit(Expire(segment))
