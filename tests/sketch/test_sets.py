"""Sets of shingles, against their definition in Python."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.sketch.shingle import Shingling
from streamdedup.sketch.texts import jaccard, shingle_sets, similarities
from tests.support.builders import examples

TEXTS = st.text(alphabet="ab \u00e9\u4e00", max_size=14)


def shingles(text: str, shingling: Shingling) -> Counter[str]:
    """Count the shingles of a text by the definition."""
    units = text.split() or [text] if shingling.words else list(text)
    if not text:
        return Counter()
    between = " " if shingling.words else ""
    runs = range(max(1, len(units) - shingling.size + 1))
    return Counter(between.join(units[at : at + shingling.size]) for at in runs)


@given(
    first=TEXTS,
    second=TEXTS,
    words=st.booleans(),
    size=st.integers(1, 4),
    bag=st.booleans(),
)
@examples(400)
def test_by_definition(first: str, second: str, words: bool, size: int, bag: bool) -> None:
    """The similarity is the Jaccard similarity of the sets or bags."""
    if words:
        # Scripts without spaces have a word for each letter; that is tested with words.
        first, second = (" ".join(text.replace("\u4e00", "c").split()) for text in (first, second))
    shingling = Shingling(words, size, bag, seed=7)
    one, two = shingles(first, shingling), shingles(second, shingling)
    if not bag:
        one, two = Counter(set(one)), Counter(set(two))
    union = (one | two).total()
    expected = (one & two).total() / union if union else 0.0
    sets = list(shingle_sets([first, second], shingling))
    assert jaccard(*sets) == jaccard(*sets[::-1]) == pytest.approx(expected, abs=1e-15)
    for found, counted in zip(sets, (one, two), strict=True):
        assert len(found) == counted.total()
        assert (np.diff(found.astype(object)) > 0).all()


def test_similarities_with_many_sets() -> None:
    """Each is that of the pair, unless the sizes alone keep it below the bound."""
    rng = np.random.default_rng(3)
    others = [np.unique(rng.integers(0, 60, size, dtype=np.uint64)) for size in (40, 3, 0, 55, 30)]
    mine = np.unique(rng.integers(0, 60, 45, dtype=np.uint64))
    ends = np.cumsum([len(each) for each in others])
    found = similarities(mine, np.concatenate(others), ends, 0.5)
    for one, other in zip(found, others, strict=True):
        true = jaccard(mine, other)
        ratio = min(len(mine), len(other)) / max(len(mine), len(other))
        assert one == (true if ratio >= 0.5 else 0.0)
    assert np.count_nonzero(found) == 3
    assert similarities(others[2], mine, np.array([len(mine)]), 0.0).tolist() == [0.0]
