"""Comparing stored texts: the cache does not change the result."""

from __future__ import annotations

import random

import pytest

from streamdedup.errors import IndexDamaged
from streamdedup.sketch import texts as stored
from streamdedup.sketch.shingle import Shingling
from streamdedup.sketch.texts import TextPacker, TextSimilarity, unpack_text

CHARACTERS = Shingling(words=False, size=3, bag=False, seed=1)


def test_forgetting_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a cache for two of ten texts, the similarities are those of the stored."""
    monkeypatch.setattr(stored, "_MOST_SHINGLES", 20)
    draw = random.Random(5)
    texts = ["".join(draw.choices("ab", k=12)) for _ in range(10)]
    packer = TextPacker(1000)
    packed = [packer.pack(text) for text in texts]
    known = list(stored.shingle_sets(texts, CHARACTERS))
    compared = TextSimilarity(CHARACTERS)
    for _ in range(200):
        one, other = draw.randrange(10), draw.randrange(10)
        expected = stored.jaccard(known[one], known[other])
        assert compared.jaccard(packed[one], packed[other]) == expected


def test_a_text_is_shingled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An original that is compared often is decompressed once."""
    read: list[bytes] = []

    def unpack(packed: bytes) -> str:
        read.append(packed)
        return unpack_text(packed)

    monkeypatch.setattr(stored, "unpack_text", unpack)
    packer = TextPacker(1000)
    original, *others = [packer.pack(f"text number {number}") for number in range(5)]
    compared = TextSimilarity(CHARACTERS)
    for other in others:
        compared.jaccard(original, other)
    assert len(read) == 5


def test_bytes_that_are_no_text_are_damage() -> None:
    """Bytes that are not a stored text are damage, with a remedy."""
    with pytest.raises(IndexDamaged, match="remove the index directory"):
        TextSimilarity(CHARACTERS).jaccard(b"no frame", b"no frame")
