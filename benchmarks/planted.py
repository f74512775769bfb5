"""Random texts, and near-duplicates of them with a known exact similarity."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SIZE = 5
"""Characters per shingle."""
NEAR = (0.8, 0.9)
FAR = (0.7, 0.8)
"""Exact similarities of the two copies of a text: close to the threshold on both sides, where the
methods differ. The upper ends are exclusive."""
VOCABULARY = 20_000
MOST_REWRITTEN = 0.2
"""Largest share of the words of a copy that are replaced."""

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


class Writer:
    """Generates texts with a Zipfian distribution of words, and copies of them.

    Args:
        length: approximate number of characters per text.
    """

    def __init__(self, length: int) -> None:
        self._rng = np.random.default_rng(length)
        self._count = length // 8 + 1
        lengths = self._rng.integers(2, 13, VOCABULARY)
        self._words = ["".join(map(chr, self._rng.integers(97, 123, size))) for size in lengths]
        frequencies = 1 / np.arange(10, VOCABULARY + 10)
        self._frequencies = frequencies / frequencies.sum()

    def texts(self, count: int) -> list[str]:
        """Return unrelated texts."""
        return [" ".join(self._write()) for _ in range(count)]

    def planted(self, count: int) -> Planted:
        """Return triples."""
        texts: list[str] = []
        near: list[float] = []
        far: list[float] = []
        while len(near) < count:
            words = self._write()
            tries = [self._copy(words, *NEAR), self._copy(words, *FAR)]
            copies = [copy for copy in tries if copy is not None]
            if len(copies) < len(tries):
                continue
            texts += [" ".join(words), *(text for text, _ in copies)]
            near.append(copies[0][1])
            far.append(copies[1][1])
        return Planted(texts, np.array(near), np.array(far))

    def _write(self) -> list[str]:
        drawn = self._rng.choice(VOCABULARY, self._count, p=self._frequencies)
        return [self._words[word] for word in drawn]

    def _copy(self, words: list[str], low: float, high: float) -> tuple[str, float] | None:
        """Return a copy of a similarity in [low, high), and the similarity; None after 30 tries."""
        original = shingles(" ".join(words))
        for _ in range(30):
            copy = list(words)
            rewritten = round(len(copy) * self._rng.uniform(0.0, MOST_REWRITTEN))
            for index in self._rng.choice(len(copy), max(1, rewritten)):
                copy[index] = self._words[self._rng.integers(VOCABULARY)]
            text = " ".join(copy)
            similarity = jaccard(original, shingles(text))
            if low <= similarity < high:
                return text, similarity
        return None


def shingles(text: str) -> set[str]:
    """Return the set of character shingles, which the peers take as input."""
    return {text[start : start + SIZE] for start in range(max(1, len(text) - SIZE + 1))}


def in_order(text: str) -> list[str]:
    """Return the character shingles in the order of the text, with repetitions."""
    return [text[start : start + SIZE] for start in range(max(1, len(text) - SIZE + 1))]


def jaccard(one: set[str], other: set[str]) -> float:
    """Return the exact similarity of two sets."""
    return len(one & other) / len(one | other)
