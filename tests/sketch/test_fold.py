"""The kernels against Python's own methods; test_normalize.py has the profiles."""

from __future__ import annotations

import itertools
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.sketch.ascii import collapse_ascii
from streamdedup.sketch.fold import rewrite
from streamdedup.sketch.fold_table import make_table
from tests.support.builders import examples

ASCII = [chr(code) for code in range(128)]
CHARACTERS = st.one_of(st.sampled_from(" \t\x1cAz"), st.sampled_from(ASCII))


def expected(texts: list[str], *, fold: bool) -> list[str]:
    """Do with Python's own methods what the kernel does."""
    return [" ".join((text.lower() if fold else text).split()) for text in texts]


@pytest.mark.parametrize("fold", [True, False])
@given(texts=st.lists(st.text(CHARACTERS, max_size=80), max_size=6))
@examples(500)
def test_like_python(fold: bool, texts: list[str]) -> None:
    """Case and white space are those of Python's strings."""
    assert collapse_ascii(texts, fold=fold) == expected(texts, fold=fold)


@pytest.mark.parametrize("fold", [True, False])
def test_every_pair(fold: bool) -> None:
    """So they are for every pair of characters, alone and between letters."""
    pairs = ["".join(pair) for pair in itertools.product(ASCII, repeat=2)]
    texts = pairs + [f"x{pair}y" for pair in pairs]
    assert collapse_ascii(texts, fold=fold) == expected(texts, fold=fold)


def test_chunks() -> None:
    """Texts of more than one chunk come back in order."""
    texts = [f" Text  {number}" for number in range(700)] + [" x" * 200_000, "", "\n"]
    assert collapse_ascii(texts, fold=True) == expected(texts, fold=True)


def nfkc_casefold(text: str) -> str:
    """Do what the table of the tests below says."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


TABLE = make_table(nfkc_casefold, composes=True, collapses=True)


def left(text: str) -> str:
    """Stand for the plain way."""
    return f"left: {text}"


@pytest.mark.parametrize(
    "text",
    [
        "\u201cIt wasn\u2019t  the first time\u2026\u201d",
        "Stra\u00dfe \u00dcbung \u00a0 \ufb01n\n",
        "\u042d\u0442\u043e\u0439 \u0412\u0435\u0441\u043d\u043e\u0439",
        "\u4eca\u5e74\uff0c\u6c34\u3002\u3000\uff21",
        "\u091c\u093c\u094d\u092f\u093e\u0926\u093e \u0928\u0939\u0940\u0902 \u0928\u093c",
        "\u0643\u064e\u0651\u0627\u0646 \u0627\u0644\u0622 \u0627\u0653",
        "\u0995\u09be\u09c7\u09be\u0981",
        "\u1112\u1161\u11ab \ud55c\uae00 \u1112\u1161",
        "Ha\u0302\u0301t Cafe\u0301 I\u0307 \u304b\u3099",
        "\U0001f468\u200d\U0001f469 \U0001f44d\U0001f3fd \u2764",
        "\x00\ud800\U0010ffff \x00",
    ],
    ids=ascii,
)
def test_ordinary_texts_are_not_left(text: str) -> None:
    """What languages are written with, in composed and in decomposed letters, is for the kernel."""
    assert rewrite([text], TABLE, left) == [" ".join(nfkc_casefold(text).split())]


def test_odd_texts_are_left() -> None:
    """The texts beside one that is left to the plain way are not."""
    odd = "a" + "\u0301" * 31
    long = "\ufdfa" * 1000
    texts = ["\u00c9 ", odd, "\u00df", "", long, "\u00c9\x00"]
    assert rewrite(texts, TABLE, left) == ["\u00e9", left(odd), "ss", "", left(long), "\u00e9\x00"]


def test_many_others() -> None:
    """Texts of more than one chunk come back in order, however long one is."""
    texts = [f" \u00c4  {number}" for number in range(700)] + ["\u2026" * 300_000, "", "\u00df"]
    assert rewrite(texts[:700], TABLE, left) == [f"\u00e4 {number}" for number in range(700)]
    assert rewrite(texts[700:], TABLE, nfkc_casefold) == ["." * 900_000, "", "ss"]
