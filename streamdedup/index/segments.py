"""*Blocking.* The segments of an open index, newest first, and the filter slots that they use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from streamdedup.errors import REMEDY, IndexDamaged
from streamdedup.index import upkeep
from streamdedup.index.directory import remove_leftovers
from streamdedup.index.filter import SLOTS, Bank
from streamdedup.index.jobs import Remove
from streamdedup.index.layout import SegmentEntry
from streamdedup.index.segment import Segment
from streamdedup.index.upkeep import UpkeepLimits

RUN_CELLS, SLICE_CELLS = 16, 11
"""Bytes of filter for each key. Runs are small, so they can afford more."""


class Segments:
    """The open segments, and the filters in front of them.

    A slot has users: the segments whose bits it holds, jobs that will write to it, and a job that
    clears it. Only a slot without users is free.

    Attributes:
        held: newest first.
        banks: the filters of runs and of slices.
    """

    def __init__(self, directory: Path, columns: int, limits: UpkeepLimits) -> None:
        self._directory, self._columns, self._limits = directory, columns, limits
        self._users: Counter[int] = Counter()
        self.held: list[Segment] = []
        self.banks = (
            Bank(columns, limits.delta_documents, RUN_CELLS),
            Bank(columns, limits.slice_documents, SLICE_CELLS),
        )

    def open(self, entries: list[SegmentEntry], next_number: int) -> None:
        """Open all segments, and fill their filters.

        Args:
            entries: the segments' records in the manifest, oldest first.
            next_number: the number after the last segment's last document.

        Raises:
            IndexDamaged: the segments do not follow on each other, or one cannot be read.
        """
        remove_leftovers(self._directory, {entry.name for entry in entries})
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
            self.reserve(slot)
            self.held.insert(0, segment)
        if end != next_number:
            raise IndexDamaged(
                f"{self._directory}: the segments end with document {end}, the manifest says "
                f"{next_number}; {REMEDY}"
            )
        self._fill_filters()

    def _fill_filters(self) -> None:
        """Set the bits of all segments. The last one of a slice may have stored those of all."""
        stored: dict[int, range] = {}
        for segment in self.held:
            entry, bank = segment.entry, self.banks[segment.slot // SLOTS]
            known = stored.get(segment.slot, range(0))
            if known.start <= entry.first and entry.end <= known.stop:
                continue
            if segment.add_to(bank):
                stored[segment.slot] = entry.filter_documents

    def check(self, suspects: Mapping[str, list[int]]) -> None:
        """Check values that were once found damaged, as far as the index still has them.

        Args:
            suspects: the numbers of the values by the name of their file; see
                :attr:`streamdedup.index.mapped.Mapped.name`.

        Raises:
            IndexDamaged: one is still damaged.
        """
        for file in (file for segment in self.held for file in segment.files):
            file.check(suspects.get(file.name, []))

    def close(self) -> None:
        """Close all segments."""
        for segment in self.held:
            segment.close()
        self.held.clear()

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(segment.entry.size for segment in self.held)

    def size_of_part(self, number: int) -> int:
        """Return the bytes on disk of the segments of the part that holds a number."""
        width = self._limits.part_documents
        return sum(
            segment.entry.size
            for segment in self.held
            if segment.entry.first // width == number // width
        )

    def free_slot(self, first: int, count: int) -> int | None:
        """Return the filter slot for a new segment; see :func:`upkeep.free_slot`."""
        return upkeep.free_slot(self.held, self._users, first, count, self._limits)

    def first_in_slot(self, slot: int, members: list[Segment]) -> int:
        """Return the number of the first document whose keys a slot holds, up to those of a merge.

        Args:
            slot: the slot of the merge's result.
            members: the segments to merge, oldest first.
        """
        first = members[0].entry.first
        for segment in self.held[self.held.index(members[0]) + 1 :]:
            if segment.slot != slot:
                break
            first = segment.entry.first
        return first

    def reserve(self, slot: int) -> None:
        """Count a user of a slot."""
        self._users[slot] += 1

    def release(self, slots: Iterable[int]) -> None:
        """Release the slots that a job has cleared."""
        self._users.subtract(slots)

    def add(self, segment: Segment) -> None:
        """Add the newest segment; its slot is reserved."""
        self.held.insert(0, segment)

    def replace(self, members: list[Segment], segment: Segment) -> Remove:
        """Replace consecutive segments by their merge, whose slot is reserved.

        Args:
            members: oldest first.
            segment: the merge.

        Returns:
            The job that removes the members.
        """
        newest = self.held.index(members[-1])
        self.held[newest : newest + len(members)] = [segment]
        return self._retire(members)

    def remove(self, segment: Segment) -> Remove:
        """Take out a segment, and return the job that removes it."""
        self.held.remove(segment)
        return self._retire([segment])

    def _retire(self, segments: list[Segment]) -> Remove:
        """Return the job that removes segments, and clears the slots that only they have used."""
        free = []
        for segment in segments:
            self._users[segment.slot] -= 1
            if not self._users[segment.slot]:
                free.append(segment.slot)
        self._users.update(free)  # until they are cleared
        return Remove(segments, free)
