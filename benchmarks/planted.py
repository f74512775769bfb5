"""Random texts, and near-duplicates of them with a known exact similarity."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.testkit.texts import Writer, jaccard, shingles

NEAR = (0.8, 0.9)
FAR = (0.7, 0.8)
"""Exact similarities of the two copies of a text: close to the threshold on both sides, where the
methods differ. The upper ends are exclusive."""
MOST_REWRITTEN = 0.2
"""Largest share of the words of a copy that are replaced."""
TRIES = 30

Floats = NDArray[np.float64]


class Planted(NamedTuple):
    """Triples of an original, a near copy and a far copy.

    Attributes:
        texts: ``3 n`` texts, triple after triple.
        near: exact similarity of each original with its near copy, ``(n,)`` float64.
        far: the same for the far copy.
    """

    texts: list[str]
    near: Floats
    far: Floats


class Planter:
    """Writes texts with a Zipfian distribution of words, and copies of them.

    Args:
        length: approximate number of characters per text.
    """

    def __init__(self, length: int) -> None:
        self._writer = Writer(length, sizes=(2, 12), zipf=True)
        self._count = length // 8 + 1

    def texts(self, count: int) -> list[str]:
        """Return unrelated texts."""
        return [self._writer.text(self._count) for _ in range(count)]

    def planted(self, count: int) -> Planted:
        """Return triples."""
        triples: list[tuple[str, tuple[str, float], tuple[str, float]]] = []
        while len(triples) < count:
            text = self._writer.text(self._count)
            near, far = self._copy(text, *NEAR), self._copy(text, *FAR)
            if near and far:
                triples.append((text, near, far))
        return Planted(
            [text for original, near, far in triples for text in (original, near[0], far[0])],
            np.array([near[1] for _, near, _ in triples]),
            np.array([far[1] for _, _, far in triples]),
        )

    def _copy(self, text: str, low: float, high: float) -> tuple[str, float] | None:
        """Return a copy with a similarity in [low, high), and the similarity; None if none is."""
        original = shingles(text)
        for _ in range(TRIES):
            rewritten = round(self._count * self._writer.chance.uniform(0.0, MOST_REWRITTEN))
            copy = self._writer.edited(text, max(1, rewritten))
            similarity = jaccard(original, shingles(copy))
            if low <= similarity < high:
                return copy, similarity
        return None
