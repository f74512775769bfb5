"""Batches are normalised like their texts, one by one."""

from __future__ import annotations

import itertools
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.sketch.batch import BatchNormaliser
from streamdedup.sketch.normalize import PROFILES, compose
from tests.sketch.normalisable import COMPOSITIONS, CRUMBS, TEXT, composed
from tests.support.builders import examples


@given(names=COMPOSITIONS, text=st.lists(CRUMBS, max_size=25).map("".join).filter(str.isascii))
@examples(500)
def test_ascii_is_like_the_rest(names: list[str], text: str) -> None:
    """The functions for ASCII texts give the same result as the steps."""
    expected = text
    for step in composed(names).steps:
        expected = step.change(expected)
    assert BatchNormaliser(composed(names))([text]) == [
        composed(names).unless_hollow(text, expected)
    ]


@given(names=COMPOSITIONS, texts=st.lists(TEXT, max_size=6))
@examples(500)
def test_a_batch_is_its_texts(names: list[str], texts: list[str]) -> None:
    """A batch has the same result as its texts one by one."""
    profile = composed(names)
    assert BatchNormaliser(profile)(texts) == [profile(text) for text in texts]


SPECIAL = [
    *" \t\u00a0\u3000\u200b\u200c\u200d\u202e\ufe0f\ud800\x00",
    *"aeiIEH=\u00df\u00e9\u00c9\u0130\u0131\u1e9e\u01f0\u03b1\u03c2\u03a3\u1fb3\u13a0\uab70",
    *"\u0301\u0307\u0308\u0316\u0323\u0327\u0331\u0334\u0344\u0345\u034f\u05b0\u064e\u0651\u0653",
    *"\u0915\u093c\u094d\u09c7\u09be\u0dd9\u0dcf\u0dca\u0f71\u0f73\u3099\uff76\uff9e",
    *"\u1100\u115f\u1160\u1161\u11a8\uac00\uac01\u3131\u314f\u2026\u00b4\ufb01\U0001d165",
]
KNOWN = [
    one
    for one in map(chr, range(sys.maxunicode + 1))
    if unicodedata.category(one) not in {"Cn", "Co"}
]
CHANGEABLE = [
    one
    for one in KNOWN
    if one.isspace()
    or one != one.casefold()
    or unicodedata.combining(one)
    or not unicodedata.is_normalized("NFKD", one)
    or not (unicodedata.is_normalized("NFKC", f"e{one}"))
]
STARTS = [names for size in range(1, 5) for names in itertools.combinations(
    ("drop_invisible", "nfkc", "casefold", "collapse_space"), size
)]  # fmt: skip


@pytest.mark.compiled
@pytest.mark.parametrize("names", STARTS, ids=str)
def test_every_character_in_a_batch(names: tuple[str, ...]) -> None:
    """The kernel changes each character as the steps do, also unassigned ones."""
    profile = compose(names)
    texts = [*KNOWN, "\u0378", "\ue000", "\U0003fffd", "\U000e0fff", "\U0010ffff"]
    assert BatchNormaliser(profile)(texts) == [*map(profile, texts)]


@pytest.mark.compiled
@pytest.mark.parametrize("special", SPECIAL, ids=ascii)
def test_every_pair_in_a_batch(special: str) -> None:
    """The kernel changes each pair of a special and a changeable character as the steps do."""
    profile = PROFILES["plain"]
    texts = [pair for one in CHANGEABLE for pair in (one + special, special + one)]
    assert BatchNormaliser(profile)(texts) == [*map(profile, texts)]


@given(
    names=COMPOSITIONS,
    texts=st.lists(
        st.lists(st.one_of(*map(st.sampled_from, (SPECIAL, SPECIAL, CHANGEABLE, KNOWN)))).map(
            "".join
        )
    ),
)
@examples(1500)
def test_marks_in_a_batch(names: list[str], texts: list[str]) -> None:
    """The kernel changes random sequences as the steps do, with marks in any order."""
    for profile in (PROFILES["plain"], composed(names)):
        assert BatchNormaliser(profile)(texts) == [profile(text) for text in texts]
