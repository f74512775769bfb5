"""Words: their beginnings and ends in each script."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.sketch.normalize import PROFILES
from streamdedup.sketch.shingle import pack
from streamdedup.sketch.words import CONTINUOUS, join_packed
from tests.support.builders import examples
from tests.support.words import join_words, split_words

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"

TABLE = [
    pytest.param("", [], id="empty"),
    pytest.param("?! ... --", [], id="punctuation"),
    pytest.param("one two\tthree\n", ["one", "two", "three"], id="space"),
    pytest.param("foo_bar a-b 3.14 A1", ["foo", "bar", "a", "b", "3", "14", "A1"], id="ascii"),
    pytest.param("don't 'quoted' rock'n'roll", ["don't", "quoted", "rock'n'roll"], id="quote"),
    pytest.param("a''b 'é'", ["a", "b", "é"], id="two-quotes"),
    pytest.param("l\u2019\u00e9t\u00e9", ["l'\u00e9t\u00e9"], id="typographic-apostrophe"),
    pytest.param("e\u0301te\u0301 a", ["e\u0301te\u0301", "a"], id="combining-marks"),
    pytest.param("col\u00b7lecci\u00f3", ["col\u00b7lecci\u00f3"], id="catalan-dot"),
    pytest.param("今日は晴れ。東京A1", [*"今日は晴れ東京", "A1"], id="chinese-japanese"),
    pytest.param("コーヒー・\uff76", [*"コーヒー\uff76"], id="katakana"),
    pytest.param("\U00020000\U0002a6df", ["\U00020000", "\U0002a6df"], id="rare-han"),
    pytest.param("한국어 텍스트", ["한국어", "텍스트"], id="korean"),
    pytest.param("สวัสดี 12 ๑๒", ["ส", "วั", "ส", "ดี", "12", "๑๒"], id="thai"),
    pytest.param("ສະບາຍ", ["ສ", "ະ", "ບ", "າ", "ຍ"], id="lao"),
    pytest.param("မြန်မာ", ["မြ", "န်", "မာ"], id="myanmar"),
    pytest.param("ខ្មែរ។", ["ខ្", "មែ", "រ"], id="khmer"),
    pytest.param("मानक हिन्दी।", ["मानक", "हिन्दी"], id="hindi"),
    pytest.param("نص، عربي", ["نص", "عربي"], id="arabic"),
    pytest.param("می\u200cخواهم", ["می\u200cخواهم"], id="persian-non-joiner"),  # noqa: RUF001
    pytest.param("רמב\u05f4ם", ["רמב\u05f4ם"], id="hebrew-abbreviation"),
    pytest.param("\U00011013\U00011038 x", ["\U00011013\U00011038", "x"], id="brahmi"),
    pytest.param(f"{FAMILY}hi", [FAMILY, "hi"], id="emoji-family"),
    pytest.param("👍🏽👍", ["👍🏽", "👍"], id="emoji-skin"),
    pytest.param("❤\ufe0f☀", ["❤\ufe0f", "☀"], id="emoji-variation"),
    pytest.param("🇩🇪🇫🇷", ["🇩🇪", "🇫🇷"], id="flags"),
    pytest.param("1\u20e3", ["1\u20e3"], id="keycap"),
    pytest.param("a© b™ 5€", ["a", "b", "5"], id="signs"),
    pytest.param("\u2038url\u2038", ["url"], id="mask"),
    pytest.param("\ud800a\u00e9", ["a\u00e9"], id="lone-surrogate"),
]  # fmt: skip

TEXT = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from([case.values[0] for case in TABLE]), max_size=5).map(
        lambda parts: "".join(map(str, parts))
    ),
)


@pytest.mark.parametrize(("text", "words"), TABLE)
def test_words(text: str, words: list[str]) -> None:
    """Each script is split into words, or into letters if it has no spaces."""
    assert split_words(text) == words


@given(TEXT)
@examples(500)
def test_words_are_pieces_in_order(text: str) -> None:
    """Words are in order, and no letter, digit or mark is between them."""
    rest = text.replace("\u2019", "'")
    for word in split_words(text):
        gap, found, rest = rest.partition(word)
        assert found
        assert not any(map(is_word_part, gap))
    assert not any(map(is_word_part, rest))


@given(TEXT)
@examples(300)
def test_words_are_whole(text: str) -> None:
    """A word is one word alone, and between spaces."""
    for word in split_words(text):
        assert split_words(word) == [word]
        assert split_words(f" {word} \u00e9") == [word, "\u00e9"]


@given(st.text(alphabet=st.characters(max_codepoint=127), max_size=80))
@examples(300)
def test_ascii_is_like_an_expression(text: str) -> None:
    """The words of ASCII texts match a regular expression."""
    assert split_words(text) == re.findall("[0-9A-Za-z]+(?:'[0-9A-Za-z]+)*", text)


@given(TEXT)
@examples(300)
def test_join(text: str) -> None:
    """Words are joined by spaces; a text without words is unchanged."""
    assert join_words(text) == (" ".join(split_words(text)) or text)


@given(st.lists(TEXT, max_size=5))
@examples(300)
def test_join_packed(texts: list[str]) -> None:
    """The words of each packed text are joined independently."""
    found, expected = join_packed(pack(texts)), pack([join_words(text) for text in texts])
    assert found.codes.tolist() == expected.codes.tolist()
    assert found.offsets.tolist() == expected.offsets.tolist()


@pytest.mark.parametrize("script", CONTINUOUS)
def test_scripts_without_spaces(script: str) -> None:
    """Each letter of such a script is a word, and the ranges contain no other script."""
    letters = [
        chr(point)
        for first, last in CONTINUOUS[script]
        for point in range(first, min(last, first + 600) + 1)
        if chr(point).isalpha()
    ]
    assert len(letters) > 40
    assert split_words("".join(letters)) == letters
    stems = script.upper().split(" AND ")
    names = {unicodedata.name(letter).split()[0] for letter in letters}
    related = {"HAN": {"CJK", "KANGXI", "IDEOGRAPHIC", "VERTICAL", "MASU", "HANGZHOU"}}
    allowed = {
        "HALFWIDTH",
        *stems,
        *related.get(stems[0], set()),
        "KATAKANA-HIRAGANA",
        "HENTAIGANA",
    }
    assert names <= allowed


@given(TEXT)
@examples(300)
def test_case_and_form_do_not_matter(text: str) -> None:
    """After normalisation, equivalent forms of a text have the same words."""
    plain = PROFILES["plain"]
    assert split_words(plain(unicodedata.normalize("NFD", text))) == split_words(plain(text))


def is_word_part(character: str) -> bool:
    """Tell whether a character must belong to a word."""
    # Variation selectors on plane 14 are marks, but are dropped before words are looked for.
    return (
        character.isalnum() or unicodedata.category(character)[0] == "M"
    ) and character < "\U000e0000"
