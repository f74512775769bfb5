"""Made-up texts and documents for the tests of the analysis, with many near-duplicates."""

from __future__ import annotations

from collections.abc import Sequence

from streamdedup.model import Document
from streamdedup.sketch.shingle import Shingling
from tests.support.words import split_words
from tests.testkit.texts import Writer

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
    writer = Writer(seed, words=120, letters="abcdeé漢", sizes=(1, 6))
    return writer.stream(count, (0, 25), 0.6, range(4), grows=True)


def made_up_documents() -> list[Document]:
    """Return documents with copies, near-copies, an empty one, and two namespaces."""
    writer = Writer(4, words=300, letters="abcdefgh", sizes=(2, 7))
    texts = ["", *writer.stream(260, (3, 30), 0.5, (0, 0, 1, 1, 2, 4))]
    return [
        Document(text, f"id-{number}", namespace="other" if number % 10 == 0 else "")
        for number, text in enumerate(texts)
    ]


DOCUMENTS = made_up_documents()
