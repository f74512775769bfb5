"""Made-up texts and documents for the tests of the analysis, with many near-duplicates."""

from __future__ import annotations

import random
from collections.abc import Sequence

from streamdedup.model import Document
from streamdedup.sketch.shingle import Shingling
from streamdedup.sketch.words import split_words

CHARACTERS = Shingling(words=False, size=3, bag=False, seed=1)
WORDS = Shingling(words=True, size=2, bag=False, seed=1)


def shingles(text: str, shingling: Shingling) -> frozenset[str]:
    """Return the shingles of a text, in plain Python."""
    parts: Sequence[str] = split_words(text) if shingling.words else text
    joint = " " if shingling.words else ""
    if not parts:
        return frozenset()
    count = max(1, len(parts) - shingling.size + 1)
    runs = [joint.join(parts[start : start + shingling.size]) for start in range(count)]
    if shingling.bag:
        return frozenset(f"{run}#{runs[:number].count(run)}" for number, run in enumerate(runs))
    return frozenset(runs)


def made_up_texts(count: int, seed: int) -> list[str]:
    """Return texts with a small vocabulary; many are copies or near-copies of others."""
    chance = random.Random(seed)
    words = ["".join(chance.choices("abcdeé漢", k=chance.randint(1, 6))) for _ in range(120)]
    texts: list[str] = []
    for _ in range(count):
        if texts and chance.random() < 0.6:
            parts = chance.choice(texts).split()
            for _ in range(chance.randint(0, 3)):
                parts.insert(chance.randint(0, len(parts)), chance.choice(words))
            texts.append(" ".join(parts))
        else:
            texts.append(" ".join(chance.choices(words, k=chance.randint(0, 25))))
    return texts


def made_up_documents() -> list[Document]:
    """Return documents with copies, near-copies, an empty one, and two namespaces."""
    chance = random.Random(4)
    words = ["".join(chance.choices("abcdefgh", k=chance.randint(2, 7))) for _ in range(300)]
    texts = [""]
    for _ in range(260):
        if len(texts) > 1 and chance.random() < 0.5:
            parts = chance.choice(texts[1:]).split()
            for _ in range(chance.choice((0, 0, 1, 1, 2, 4))):
                parts[chance.randrange(len(parts))] = chance.choice(words)
            texts.append(" ".join(parts))
        else:
            texts.append(" ".join(chance.choices(words, k=chance.randint(3, 30))))
    return [
        Document(text, f"id-{number}", namespace="other" if number % 10 == 0 else "")
        for number, text in enumerate(texts)
    ]


DOCUMENTS = made_up_documents()
