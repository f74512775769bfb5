"""ASCII texts: the kernel against Python's own methods."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.sketch.batch import collapse_ascii
from tests.support.builders import examples

ASCII = [chr(code) for code in range(128)]
CHARACTERS = st.one_of(st.sampled_from(" \t\x1cAz"), st.sampled_from(ASCII))


def expected(texts: list[str], *, fold: bool) -> list[str]:
    """Return what the kernel should, by Python's own methods."""
    return [" ".join((text.lower() if fold else text).split()) for text in texts]


@pytest.mark.parametrize("fold", [True, False])
@given(texts=st.lists(st.text(CHARACTERS, max_size=80), max_size=6))
@examples(500)
def test_like_python(fold: bool, texts: list[str]) -> None:
    """Case and white space are changed like Python's strings."""
    assert collapse_ascii(texts, fold=fold) == expected(texts, fold=fold)


@pytest.mark.parametrize("fold", [True, False])
def test_every_pair(fold: bool) -> None:
    """Every pair of characters is changed like Python's strings, alone and between letters."""
    pairs = ["".join(pair) for pair in itertools.product(ASCII, repeat=2)]
    texts = pairs + [f"x{pair}y" for pair in pairs]
    assert collapse_ascii(texts, fold=fold) == expected(texts, fold=fold)


def test_chunks() -> None:
    """Texts of several chunks come back in order."""
    texts = [f" Text  {number}" for number in range(700)] + [" x" * 200_000, "", "\n"]
    assert collapse_ascii(texts, fold=True) == expected(texts, fold=True)
