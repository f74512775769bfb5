"""*Pure.* Pairs the records of one partition with their verdicts, which come later."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from streamdedup.columns import RecordColumns
from streamdedup.formats.verdicts import JudgedRange, ReadVerdicts


@dataclass(frozen=True, slots=True)
class Paired:
    """Records of one partition, in order of offset, with their verdicts.

    Attributes:
        next_offset: the source offset behind them.
        verdict_offset: the offset of the verdicts that come next.
    """

    records: RecordColumns
    verdicts: ReadVerdicts
    next_offset: int
    verdict_offset: int


class VerdictPairs:
    """The records of a partition that wait for verdicts, and verdicts that wait for records.

    Args:
        begin: the source offset of the first record.
        verdict_offset: the offset of the first verdicts.

    Attributes:
        read_to, judged_to, paired_to: the source offset up to which records were added, verdicts
            were added, and records were taken, exclusive.
        size: bytes of the values of the records that wait.
    """

    def __init__(self, begin: int, verdict_offset: int) -> None:
        self.read_to = self.judged_to = self.paired_to = begin
        self._verdict_offset = verdict_offset
        self.size = 0
        self._records: deque[RecordColumns] = deque()
        self._verdicts: deque[tuple[int, JudgedRange]] = deque()

    def __len__(self) -> int:
        """Return the number of records that wait."""
        return sum(map(len, self._records))

    def add_records(self, records: RecordColumns) -> None:
        """Add records that follow those added before."""
        self._records.append(records)
        self.size += int(records.sizes().sum())
        self.reach(int(records.positions.offsets[-1]) + 1)

    def reach(self, offset: int) -> None:
        """Remember that no record before an offset will follow."""
        self.read_to = max(self.read_to, offset)

    def add_verdicts(self, offset: int, judged: JudgedRange) -> None:
        """Add the verdicts at an offset, except those on records before the beginning."""
        if (stop := judged.source.next_offset) > self.judged_to:
            self.judged_to = stop
            self._verdicts.append((offset, judged))

    @property
    def is_ready(self) -> bool:
        """Whether there are records with their verdicts."""
        return min(self.read_to, self.judged_to) > self.paired_to

    def take(self, most: int) -> Paired:
        """Take records with their verdicts; more than ``most`` if their verdicts came at once."""
        ranges, records = list[JudgedRange](), list[RecordColumns]()
        bound = min(self.read_to, self.judged_to)
        while self._verdicts and self.paired_to < bound and sum(map(len, records)) < most:
            offset, judged = self._verdicts[0]
            stop = judged.source.next_offset
            ranges.append(judged)
            self.paired_to, self._verdict_offset = min(stop, bound), offset
            if stop <= bound:
                self._verdict_offset += 1
                self._verdicts.popleft()
            records += self._take_records(self.paired_to)
        paired = RecordColumns.concatenate(records)
        self.size -= int(paired.sizes().sum())
        verdicts = ReadVerdicts(paired.positions, ranges)
        return Paired(paired, verdicts, self.paired_to, self._verdict_offset)

    def _take_records(self, stop: int) -> list[RecordColumns]:
        taken = []
        while self._records and self._records[0].positions.offsets[-1] < stop:
            taken.append(self._records.popleft())
        if self._records:
            first = self._records[0]
            if count := int(np.searchsorted(first.positions.offsets, stop)):
                taken.append(first[:count])
                self._records[0] = first[count:]
        return taken
