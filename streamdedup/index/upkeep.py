"""*Pure.* Decides what is due: which segments expire, which merge, and which filter slot is free.

A *run* is a segment of one flushed delta, or of a few. A *slice* is a seventh of the window, and
has a slot of its own in the filters. It consists of equal *parts*: of one, unless it is larger than
a segment can be. All runs of a full part are merged into one segment, which expires as a whole.

Rule 1: nothing here changes anything. The layers perform what is due, and ask again afterwards.
Rule 2: segments come newest first. A busy segment belongs to a job, and is never chosen.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from streamdedup.dedup.rule import is_in_reach, limit_ms, oldest_in_window
from streamdedup.index.filter import SLOTS
from streamdedup.index.layout import MOST_DOCUMENTS, SegmentEntry
from streamdedup.settings.sections import IndexSettings

SLICES = 7
"""Slices of a window. Another may be half filled, and one half expired: eight slots in all."""
MOST_IN_PART = MOST_DOCUMENTS - (1 << 21)
"""Documents of a part. Its last run may reach into the next part; a delta has at most 2^20."""
FAN_IN = 6
"""Segments of similar size that are merged into one. Eight runs have slots; two are for deltas
that are flushed during the merge."""
RUN_SLOTS = range(SLOTS)
SLICE_SLOTS = range(SLOTS, 2 * SLOTS)


class SegmentPart(Protocol):
    """A segment: its record, its slot in the filters, and whether a job works on it."""

    entry: SegmentEntry
    slot: int
    busy: bool


P = TypeVar("P", bound=SegmentPart)


@dataclass(frozen=True, slots=True)
class UpkeepLimits:
    """The settings that upkeep depends on.

    The documents of a part are merged into one segment, and expire together. A slice has ``parts``.
    ``reach_ms`` is how long a document may match by the clock, or ``NO_LIMIT``.
    """

    delta_documents: int
    part_documents: int
    parts: int
    window_documents: int
    reach_ms: int

    @classmethod
    def of(cls, settings: IndexSettings) -> UpkeepLimits:
        """Return the limits of the settings."""
        # The last run of a slice may reach into the next slice, and up to two deltas are in memory.
        most = settings.window_documents + 4 * settings.delta_documents
        in_slice = max(settings.delta_documents, -(-most // SLICES))
        parts = -(-in_slice // MOST_IN_PART)
        part, reach_ms = -(-in_slice // parts), limit_ms(settings.reach())
        return cls(settings.delta_documents, part, parts, settings.window_documents, reach_ms)

    @property
    def slice_documents(self) -> int:
        """Documents whose segments share a slot in the filters."""
        return self.parts * self.part_documents


class DueMerge(NamedTuple, Generic[P]):
    """A merge that is due. The members come oldest first, without gaps; a single one is rewritten.

    If the result ``ends_slice``, the slot of the slice gains no more keys.
    """

    members: list[P]
    ends_slice: bool

    @property
    def first(self) -> int:
        """Number of the first document."""
        return self.members[0].entry.first

    @property
    def end(self) -> int:
        """The number after the last document's."""
        return self.members[-1].entry.end

    @property
    def size(self) -> int:
        """Bytes of the members, and at most of the result."""
        return sum(member.entry.size for member in self.members)


def expired(parts: Sequence[P], next_number: int, now_ms: int, limits: UpkeepLimits) -> list[P]:
    """Return the oldest segments if none of their documents can match any more, oldest first."""
    oldest, found = oldest_in_window(next_number, limits.window_documents), []
    for part in reversed(parts):
        entry = part.entry
        may_match = entry.end > oldest and is_in_reach(entry.newest_ms, now_ms, limits.reach_ms)
        if part.busy or may_match:
            break
        found.append(part)
    return found


def next_merge(
    parts: Sequence[P], oldest_in_memory: int, waiting: Collection[int], limits: UpkeepLimits
) -> DueMerge[P] | None:
    """Return the merge that is due.

    In order of preference: a full part, runs of similar size, and a segment that holds an erased
    document whose bytes must be overwritten.

    ``oldest_in_memory`` is the number of the oldest document that no segment holds. The bytes of
    the ``waiting`` numbers are still to be overwritten.
    """
    filling = oldest_in_memory // limits.part_documents
    for number, group in itertools.groupby(
        parts, lambda part: part.entry.first // limits.part_documents
    ):
        members = list(group)
        # The last run may be a huge batch, so that one segment cannot hold all documents.
        documents = sum(member.entry.count for member in members)
        if any(member.busy for member in members) or documents > MOST_DOCUMENTS:
            continue
        if number < filling and len(members) > 1:
            return DueMerge(members[::-1], ends_slice=(number + 1) % limits.parts == 0)
        if number >= filling and (alike := _alike(members, limits)):
            return DueMerge(alike[::-1], ends_slice=False)
    for part in parts if waiting else ():
        numbers = range(part.entry.first, part.entry.end)
        if not part.busy and any(number in numbers for number in waiting):
            return DueMerge([part], ends_slice=part.entry.stores_filter)
    return None


def _alike(members: list[P], limits: UpkeepLimits) -> list[P]:
    """Return the newest segments of similar size if there are enough of them, newest first."""
    low, limit = 0, limits.delta_documents
    while limit < limits.part_documents:
        larger = (index for index, part in enumerate(members) if part.entry.count > limit)
        recent = members[: next(larger, len(members))]
        if sum(part.entry.count > low for part in recent) >= FAN_IN:
            return recent
        low, limit = limit, limit * FAN_IN
        if FAN_IN * limit > limits.part_documents // 2:
            break  # larger segments wait until the part is full: that merges them anyway
    return []


def free_slot(
    parts: Sequence[SegmentPart],
    users: Mapping[int, int],
    first: int,
    count: int,
    limits: UpkeepLimits,
) -> int | None:
    """Return the filter slot for a new segment with ``count`` documents from ``first`` on.

    A run gets a slot of its own, a slice gets one for its slice. If there is none, the segment
    shares the slot of the newest slice: a look-up then searches all segments of that slot.

    ``users`` says how many segments and jobs use each slot, or wait until it is cleared. Returns
    None if every slot is being cleared or written. Then ask again after a job.
    """
    if count <= limits.delta_documents:
        for slot in RUN_SLOTS:
            if not users.get(slot, 0):
                return slot
    size = limits.slice_documents
    slots = {part.entry.first // size: part.slot for part in parts if part.slot in SLICE_SLOTS}
    if first // size in slots:
        return slots[first // size]
    for slot in SLICE_SLOTS:
        if not users.get(slot, 0):
            return slot
    return slots[max(slots)] if slots else None
