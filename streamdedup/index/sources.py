"""*Pure.* The source partitions of an index: their numbers and their next offsets."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from streamdedup.columns import I64, Positions
from streamdedup.model import SourceRange

Source = tuple[str, int]
"""Topic and partition."""


class _Numbers(dict[Source, int]):
    """The numbers of sources; -1 for an unknown source."""

    def __missing__(self, source: Source) -> int:
        return -1


class Sources:
    """Source partitions, numbered in the order in which the index met them.

    Args:
        entries: topic, partition and next offset of each source, by its number.

    Attributes:
        names: topic and partition of each source, by its number.
    """

    def __init__(self, entries: Iterable[tuple[str, int, int]] = ()) -> None:
        self.names: list[Source] = []
        self._next_offsets: list[int] = []
        for topic, partition, next_offset in entries:
            self.names.append((topic, partition))
            self._next_offsets.append(next_offset)
        self._numbers = _Numbers(zip(self.names, itertools.count()))

    def entries(self) -> list[tuple[str, int, int]]:
        """Return topic, partition and next offset of each source, by its number."""
        return [
            (*name, offset) for name, offset in zip(self.names, self._next_offsets, strict=True)
        ]

    def next_offset(self, topic: str, partition: int) -> int:
        """Return the offset up to which a partition was judged, exclusive; 0 if unknown."""
        number = self._numbers[topic, partition]
        return 0 if number < 0 else self._next_offsets[number]

    def judge(self, ranges: Iterable[SourceRange]) -> None:
        """Advance the next offsets past the ranges; they never go back."""
        for topic, partition, _, next_offset in ranges:
            number = self._add((topic, partition))
            self._next_offsets[number] = max(self._next_offsets[number], next_offset)

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

    def _add(self, source: Source) -> int:
        """Return the number of a source; a new source gets the next number."""
        if source not in self._numbers:
            self._numbers[source] = len(self.names)
            self.names.append(source)
            self._next_offsets.append(0)
        return self._numbers[source]
