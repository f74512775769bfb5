"""The shingle sets of a corpus."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from streamdedup.analysis.sets import NO_SET, collect
from streamdedup.settings.load import load_settings
from streamdedup.sketch.shingle import Shingling
from streamdedup.sketch.sketcher import Sketcher
from tests.analysis.made_up import CHARACTERS, made_up_texts, shingles


def test_sets_and_their_index() -> None:
    """Sizes ascend, tokens are the shared shingles, and the inverted index leads back to them."""
    texts = ["", *made_up_texts(80, seed=2)]
    sets = collect(texts, np.zeros(len(texts), dtype=np.uint64), CHARACTERS)
    assert sets.set_of[0] == NO_SET
    for text, number in zip(texts, sets.set_of.tolist(), strict=True):
        if number != NO_SET:
            assert sets.sizes[number] == len(shingles(text, CHARACTERS))
    assert (np.diff(sets.sizes) >= 0).all()
    counts = np.diff(sets.starts)
    assert (counts > 1).all()
    assert (np.diff(counts) >= 0).all()
    for token in range(len(counts)):
        for row in range(sets.starts[token], sets.starts[token + 1]):
            assert sets.tokens[sets.offsets[sets.members[row]] + sets.indices[row]] == token


@pytest.mark.parametrize("unit", ["character", "word"])
def test_same_shingles_as_the_sketch(unit: str) -> None:
    """Two texts have the same set if and only if they have the same sketch."""
    texts = ["one, two; three-four (five)", "one two three four five", "one  two, three", "一二三"]
    texts += [text.replace("two", "2") for text in texts]
    parameters = load_settings(
        dedup={"shingle_unit": unit, "shingle_size": 2}
    ).dedup.sketch_parameters()
    shingling = Shingling(unit == "word", 2, parameters.shingle_bag, parameters.seed)
    sets = collect(texts, np.zeros(len(texts), dtype=np.uint64), shingling)
    values = Sketcher(parameters).values(texts)
    for one, two in itertools.combinations(range(len(texts)), 2):
        assert (sets.set_of[one] == sets.set_of[two]) == (values[one] == values[two]).all()


def test_namespaces_are_kept_apart() -> None:
    """The same text in two namespaces makes two sets."""
    sets = collect(["a text", "a text", "a text"], np.array([0, 7, 0], np.uint64), CHARACTERS)
    assert len(sets) == 2
    assert sets.set_of[0] == sets.set_of[2] != sets.set_of[1]
