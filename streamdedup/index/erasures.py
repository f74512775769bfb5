"""*Pure.* Erased documents, and which of them still have their bytes in a segment.

Rule 1: an erased document is never found again, whether its bytes are overwritten or not.
Rule 2: an erasure advances from *waiting* to *overwritten*, and never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from streamdedup.columns import I64


class Erasures:
    """The erased documents of an index.

    Args:
        known: erased numbers, and whether their bytes are still to be overwritten.
    """

    def __init__(self, known: Mapping[int, bool] | None = None) -> None:
        self._waits = dict(known or {})

    def __contains__(self, number: object) -> bool:
        return number in self._waits

    def __len__(self) -> int:
        return len(self._waits)

    def add(self, numbers: Iterable[int]) -> None:
        """Erase documents; a replayed erasure changes nothing."""
        for number in numbers:
            self._waits.setdefault(number, True)

    def waiting(self) -> frozenset[int]:
        """Return the numbers whose bytes are still to be overwritten."""
        return frozenset(number for number, waits in self._waits.items() if waits)

    def overwritten(self, numbers: Iterable[int]) -> None:
        """Record that the bytes of erased documents are overwritten."""
        self._waits.update(dict.fromkeys(numbers, False))

    def forget(self, end: int) -> None:
        """Forget the numbers below ``end``: their segment has left the index."""
        for number in [number for number in self._waits if number < end]:
            del self._waits[number]

    def split(self, numbers: I64) -> tuple[I64, frozenset[int]]:
        """Return the numbers, ``(n,)``, that are not erased, and those that are."""
        if not self._waits:
            return numbers, frozenset()
        erased = np.fromiter(self._waits, dtype=np.int64, count=len(self._waits))
        gone = np.isin(numbers, erased)
        return numbers[~gone], frozenset(numbers[gone].tolist())
