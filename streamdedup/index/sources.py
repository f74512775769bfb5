"""*Pure.* The source partitions of an index: their numbers, next offsets and written offsets."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from streamdedup.columns import I64, Positions
from streamdedup.model import SourceRange

Source = tuple[str, int]
"""Topic and partition."""

FREE: Source = ("", -1)
"""Replaces a forgotten source, until a new one gets its number."""


class _Numbers(dict[Source, int]):
    """The numbers of sources; -1 for an unknown source."""

    def __missing__(self, source: Source) -> int:
        return -1


class Sources:
    """Source partitions, numbered in the order in which the index met them.

    A forgotten source leaves its number to a new one.

    Args:
        entries: topic, partition and next offset of each source, by its number.
        written: the written offset of each source; empty if they are the next offsets.

    Attributes:
        names: topic and partition of each source, by its number.
    """

    def __init__(
        self, entries: Iterable[tuple[str, int, int]] = (), written: Sequence[int] = ()
    ) -> None:
        self.names: list[Source] = []
        self._next_offsets: list[int] = []
        for topic, partition, next_offset in entries:
            self.names.append((topic, partition))
            self._next_offsets.append(next_offset)
        self._written = list(written or self._next_offsets)
        self._numbers = _Numbers(zip(self.names, itertools.count()))
        self._numbers.pop(FREE, None)
        self._free = [number for number, name in enumerate(self.names) if name == FREE]

    def entries(self) -> list[tuple[str, int, int]]:
        """Return topic, partition and next offset of each source, by its number."""
        return [
            (*name, offset) for name, offset in zip(self.names, self._next_offsets, strict=True)
        ]

    def written(self) -> list[int]:
        """Return the written offset of each source; an empty list if they are the next offsets."""
        return [] if self._written == self._next_offsets else list(self._written)

    def next_offset(self, topic: str, partition: int) -> int:
        """Return the offset up to which a partition was judged, exclusive; 0 if unknown."""
        number = self._numbers[topic, partition]
        return 0 if number < 0 else self._next_offsets[number]

    def written_offset(self, topic: str, partition: int) -> int:
        """Return the offset behind the last range of a partition whose outputs came with it.

        It is earlier than the next offset if a judge has judged more than its edges had to write,
        and while records are written again. It is 0 for an unknown partition.
        """
        number = self._numbers[topic, partition]
        return 0 if number < 0 else self._written[number]

    def judge(self, ranges: Iterable[SourceRange], *, is_ahead: bool = False) -> None:
        """Advance the next offsets past the ranges; they never go back.

        Args:
            ranges: ranges that were judged.
            is_ahead: whether edges write their outputs later.
        """
        for topic, partition, _, next_offset in ranges:
            number = self._add((topic, partition))
            self._next_offsets[number] = max(self._next_offsets[number], next_offset)
            if not is_ahead:
                self._written[number] = next_offset

    def locate(self, positions: Positions) -> tuple[I64, I64]:
        """Return each position's source number, -1 for an unknown source, and its offset.

        Returns:
            Two arrays, ``(n,)`` int64.
        """
        sources, rows = positions.sources()
        # The last entry serves columns without rows.
        numbers = np.array([*(self._numbers[source] for source in sources), -1], dtype=np.int64)
        return numbers[rows], positions.offsets

    def add(self, positions: Positions) -> tuple[I64, I64]:
        """Number the sources of all positions, and return what :meth:`locate` returns."""
        for source in positions.sources()[0]:
            self._add(source)
        return self.locate(positions)

    def judged(self, sources: I64, offsets: I64) -> NDArray[np.bool_]:
        """Return whether each located position, ``(n,)``, lies before its next offset."""
        # The last entry is for the source -1: nothing of an unknown source was judged.
        next_offsets = np.array([*self._next_offsets, 0], dtype=np.int64)
        before: NDArray[np.bool_] = offsets < next_offsets[sources]
        return before

    def forget(self, sources: Iterable[Source]) -> None:
        """Forget sources of which the index holds no document; unknown ones are ignored."""
        for source in sources:
            number = self._numbers.pop(source, -1)
            if number >= 0:
                self.names[number], self._next_offsets[number], self._written[number] = FREE, 0, 0
                self._free.append(number)

    def _add(self, source: Source) -> int:
        """Return the number of a source; a new source gets a free number or the next one."""
        if source not in self._numbers:
            if not self._free:
                self._free.append(len(self.names))
                self.names.append(FREE)
                self._next_offsets.append(0)
                self._written.append(0)
            number = self._numbers[source] = self._free.pop()
            self.names[number] = source
        return self._numbers[source]
