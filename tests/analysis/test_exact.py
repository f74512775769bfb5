"""The exact join, against brute force and against independent lists of pairs."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import re
import unicodedata
from collections.abc import Sequence

import numpy as np
import pytest

from streamdedup.analysis.sets import NO_SET, collect
from streamdedup.analysis.truth import similar_pairs
from streamdedup.errors import InputError
from streamdedup.files.docstrings import docstrings
from streamdedup.sketch.shingle import Shingling
from tests.analysis.made_up import CHARACTERS, WORDS, made_up_texts, shingles
from tests.support.corpora import DATA

FIVE = CHARACTERS._replace(size=5)
Pairs = dict[tuple[int, int], float]


def pairs_of_texts(
    texts: Sequence[str], floor: float, shingling: Shingling
) -> dict[tuple[int, int], float]:
    """Return the pairs of texts that the join finds, copies included."""
    sets = collect(texts, np.zeros(len(texts), dtype=np.uint64), shingling)
    found = similar_pairs(sets, floor, 10**6)
    texts_of: dict[int, list[int]] = {}
    for text, number in enumerate(sets.set_of.tolist()):
        texts_of.setdefault(number, []).append(text)
    texts_of.pop(NO_SET, None)
    pairs = {pair: 1.0 for group in texts_of.values() for pair in itertools.combinations(group, 2)}
    for first, second, jaccard in zip(*(column.tolist() for column in found), strict=True):
        for one, two in itertools.product(texts_of[first], texts_of[second]):
            assert (min(one, two), max(one, two)) not in pairs
            pairs[min(one, two), max(one, two)] = jaccard
    return pairs


@pytest.mark.parametrize("floor", [0.1, 0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize(
    "shingling",
    [CHARACTERS, WORDS, CHARACTERS._replace(bag=True), WORDS._replace(bag=True)],
    ids=["characters", "words", "bag of characters", "bag of words"],
)
def test_join_against_brute_force(floor: float, shingling: Shingling) -> None:
    """The join finds the pairs of a brute-force comparison, with the same similarities."""
    texts = made_up_texts(220, seed=int(floor * 10))
    sets = [shingles(text, shingling) for text in texts]
    expected = {}
    for one, two in itertools.combinations(range(len(texts)), 2):
        union = len(sets[one] | sets[two])
        jaccard = len(sets[one] & sets[two]) / union if union else 0.0
        if jaccard >= floor:
            expected[one, two] = jaccard
    assert len(expected) > 20
    assert pairs_of_texts(texts, floor, shingling) == pytest.approx(expected)


@pytest.mark.parametrize("texts", [[], [""], ["", "one text"]], ids=str)
def test_nothing_to_join(texts: list[str]) -> None:
    """A corpus without shingles has no similar pairs."""
    sets = collect(texts, np.zeros(len(texts), dtype=np.uint64), CHARACTERS)
    assert len(similar_pairs(sets, 0.5, 10)) == 0


def test_too_many_pairs() -> None:
    """More pairs than the caller accepts are an error."""
    texts = [f"one and the same long sentence, number {number}" for number in range(40)]
    sets = collect(texts, np.zeros(len(texts), dtype=np.uint64), CHARACTERS)
    with pytest.raises(InputError, match="more than 100 pairs"):
        similar_pairs(sets, 0.5, 100)


def test_progress_reaches_the_end() -> None:
    """Progress is reported up to the last set."""
    texts = made_up_texts(600, seed=5)
    sets = collect(texts, np.zeros(len(texts), dtype=np.uint64), CHARACTERS)
    calls: list[tuple[int, int]] = []
    similar_pairs(sets, 0.5, 10**6, lambda _, done, total: calls.append((done, total)))
    assert calls[-1] == (len(sets), len(sets))
    assert calls == sorted(calls)


def listed(name: str) -> tuple[list[str], Pairs]:
    """Return the normalised texts of a corpus, and its list of pairs."""
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        documents = [json.loads(line) for line in lines]
    texts = [
        re.sub(r"\s+", " ", unicodedata.normalize("NFKC", one["text"]).casefold()).strip()
        for one in documents
    ]
    number_of = {one["id"]: number for number, one in enumerate(documents)}
    with gzip.open(DATA / f"{name}.pairs.tsv.gz", "rt", encoding="utf-8") as lines:
        return texts, {
            (number_of[row["id_a"]], number_of[row["id_b"]]): float(row["jaccard"])
            for row in csv.DictReader(lines, delimiter="\t")
        }


def compared_one_by_one() -> tuple[list[str], Pairs]:
    """Return documentation strings, and their pairs by brute force."""
    texts = [text for _, text in itertools.islice(docstrings(), 700)]
    sets = [shingles(text, FIVE) for text in texts]
    similarities = {
        (a, b): len(sets[a] & sets[b]) / len(sets[a] | sets[b])
        for a, b in itertools.combinations(range(len(sets)), 2)
    }
    return texts, {pair: jaccard for pair, jaccard in similarities.items() if jaccard >= 0.5}


def test_the_pairs_of_real_text() -> None:
    """The join finds exactly the known pairs of a real corpus."""
    texts, expected = listed("news_reuters") if DATA.is_dir() else compared_one_by_one()
    found = pairs_of_texts(texts, 0.5, FIVE)
    assert len(expected) > 5
    assert found.keys() == expected.keys()
    assert max(abs(found[pair] - expected[pair]) for pair in expected) < 1e-6
