"""*Pure.* Random texts, edited copies of them, and their exact similarity."""

from __future__ import annotations

import itertools
import random
import string
from collections.abc import Sequence

SIZE = 5
"""Characters per shingle."""


class Writer:
    """Writes texts of random words, the same ones for each seed.

    Args:
        seed: seed of the generator.
        words: number of words to draw from.
        letters: letters of the words.
        sizes: smallest and largest number of letters of a word.
        zipf: whether frequent words follow Zipf's law; else all are equally likely.

    Attributes:
        chance: the generator.
    """

    def __init__(
        self,
        seed: int,
        words: int = 20_000,
        letters: str = string.ascii_lowercase,
        sizes: tuple[int, int] = (3, 9),
        *,
        zipf: bool = False,
    ) -> None:
        self.chance = random.Random(seed)
        self._words = [
            "".join(self.chance.choices(letters, k=self.chance.randint(*sizes)))
            for _ in range(words)
        ]
        self._weights = (
            list(itertools.accumulate(1 / rank for rank in range(10, words + 10))) if zipf else None
        )

    def text(self, least: int, most: int | None = None) -> str:
        """Return a text of ``least`` to ``most`` words; by default of ``least``."""
        count = self.chance.randint(least, most or least)
        return " ".join(self.chance.choices(self._words, cum_weights=self._weights, k=count))

    def edited(self, text: str, changes: int, *, grows: bool = False) -> str:
        """Return a text with words replaced, or with words inserted if it ``grows``."""
        words = text.split()
        if grows:
            for _ in range(changes):
                words.insert(self.chance.randint(0, len(words)), self.chance.choice(self._words))
        else:
            for place in self.chance.sample(range(len(words)), min(changes, len(words))):
                words[place] = self.chance.choice(self._words)
        return " ".join(words)

    def stream(
        self,
        count: int,
        lengths: tuple[int, int],
        copies: float,
        changes: Sequence[int],
        *,
        recent: int | None = None,
        grows: bool = False,
    ) -> list[str]:
        """Return texts, of which some are edited copies of earlier ones.

        Args:
            count: number of texts.
            lengths: smallest and largest number of words.
            copies: share of the copies.
            changes: numbers of changed words, which are equally likely.
            recent: number of earlier texts to copy from; by default all.
            grows: whether words are inserted instead of replaced.
        """
        texts: list[str] = []
        for _ in range(count):
            if texts and self.chance.random() < copies:
                original = self.chance.choice(texts[-(recent or count) :])
                texts.append(self.edited(original, self.chance.choice(changes), grows=grows))
            else:
                texts.append(self.text(*lengths))
        return texts


def in_order(text: str) -> list[str]:
    """Return the character shingles in the order of the text, with repetitions."""
    return [text[start : start + SIZE] for start in range(max(1, len(text) - SIZE + 1))]


def shingles(text: str) -> set[str]:
    """Return the set of character shingles."""
    return set(in_order(text))


def jaccard(one: set[str], other: set[str]) -> float:
    """Return the exact similarity of two sets."""
    return len(one & other) / len(one | other)
