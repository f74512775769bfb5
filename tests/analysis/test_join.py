"""The kernels of the exact join."""

from __future__ import annotations

import numpy as np
import pytest

from streamdedup.analysis.sets import collect, jaccards
from tests.analysis.made_up import CHARACTERS, made_up_texts, shingles


def test_jaccards_of_given_pairs() -> None:
    """The similarity of single pairs is that of their sets, also below any floor."""
    texts = [text for text in made_up_texts(80, seed=3) if text]
    sets = collect(texts, np.zeros(len(texts), dtype=np.uint64), CHARACTERS)
    first, second = np.random.default_rng(1).integers(0, len(texts), (2, 500))
    found = jaccards(sets, sets.set_of[first], sets.set_of[second])
    for one, two, jaccard in zip(first.tolist(), second.tolist(), found.tolist(), strict=True):
        a, b = shingles(texts[one], CHARACTERS), shingles(texts[two], CHARACTERS)
        assert jaccard == pytest.approx(len(a & b) / len(a | b))
