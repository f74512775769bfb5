"""Normalisation: what each profile makes the same, and that doing it twice changes nothing."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.sketch.normalize import PROFILES
from tests.builders import examples

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"

TABLE = [
    pytest.param("plain", "  Two\t\n words ", "two words", id="space"),
    pytest.param("plain", "a\u00a0b\u3000c\u2028d", "a b c d", id="unicode-space"),
    pytest.param("plain", "STRASSE", "strasse", id="ascii-case"),
    pytest.param("plain", "Stra\u00dfe", "strasse", id="sharp-s"),
    pytest.param("plain", "\u0398\u0391\u03a3 \u03b8\u03b1\u03c2", "θασ θασ", id="final-sigma"),
    pytest.param("plain", "Cafe\u0301", "caf\u00e9", id="combining-accent"),
    pytest.param("plain", "e\u200b\u0301", "\u00e9", id="accent-behind-zero-width"),
    pytest.param("plain", "\uff21\uff22\uff23 \ufb01", "abc fi", id="width-and-ligature"),
    pytest.param("plain", "\uff76\uff9e", "\u30ac", id="half-width-katakana"),
    pytest.param("plain", "\u4eca\u65e5\u306f\u3000\u6674\u308c", "今日は 晴れ", id="cjk"),
    pytest.param("plain", "\u1112\u1161\u11ab", "\ud55c", id="hangul-jamo"),
    pytest.param("plain", FAMILY, FAMILY, id="emoji-joiners-stay"),
    pytest.param("plain", "\u2764\ufe0f", "\u2764\ufe0f", id="emoji-variation-stays"),
    pytest.param("plain", "\u0645\u06cc\u200c\u062e", "\u0645\u06cc\u200c\u062e", id="non-joiner"),
    pytest.param(
        "plain", "\u202eabc\u202c \u200f\u05e9\u05dd", "abc \u05e9\u05dd", id="bidi-controls"
    ),
    pytest.param("plain", "soft\u00adhyphen \ufeffmark", "softhyphen mark", id="invisible"),
    pytest.param("plain", "", "", id="empty"),
    pytest.param("plain", " \u200b\ufeff\n", "", id="nothing-visible"),
    pytest.param("plain", "https://x.y/Z", "https://x.y/z", id="plain-keeps-links"),
    pytest.param("news", "See HTTPS://Ex.org/a?b=1 now", "see \u2038url\u2038 now", id="link"),
    pytest.param("news", "www.example.org", "\u2038url\u2038", id="bare-link"),
    pytest.param("news", "@desk: update", "@desk: update", id="news-keeps-handles"),
    pytest.param("post", "RT @Some_One: hello", "hello", id="retweet"),
    pytest.param("post", "rt @a RT @b: hello", "hello", id="retweet-of-retweet"),
    pytest.param("post", "smart @a thing", "smart \u2038user\u2038 thing", id="handle"),
    pytest.param("post", "write to joe@example.org", "write to joe@example.org", id="e-mail"),
    pytest.param("post", "\uff20name hi", "\u2038user\u2038 hi", id="full-width-handle"),
    pytest.param(
        "post", "https://t.co/a1今日は晴れ", "\u2038url\u2038今日は晴れ", id="link-before-cjk"
    ),
    pytest.param("post", "今日は@name晴れ", "今日は\u2038user\u2038晴れ", id="handle-in-cjk"),
    pytest.param(
        "post", "http://\u044f.\u0444", "\u2038url\u2038\u044f.\u0444", id="link-not-ascii"
    ),
    pytest.param("forum", "> quoted\nanswer\n | more\nend", "answer end", id="quoted-lines"),
    pytest.param("forum", "\uff1e quoted\r\nanswer", "answer", id="full-width-quote"),
    pytest.param("forum", "text\n-- \nJoe\nhis motto", "text", id="signature"),
    pytest.param("forum", "a -- b\n--- \nc", "a -- b --- c", id="dashes-that-are-none"),
    pytest.param("forum", "> all\n> quoted", "", id="all-quoted"),
]


@pytest.mark.parametrize(("profile", "text", "expected"), TABLE)
def test_profile(profile: str, text: str, expected: str) -> None:
    """A profile gives the text that its description promises."""
    assert PROFILES[profile](text) == expected


CRUMBS = st.sampled_from(
    [
        "RT @", "rt ", "@", ":", "https://", "HTTP://", "www.", "t.co/x", "> ", "| ", "--", "-- ",
        "\n", "\r\n", "\r", "\t", " ", "\u00a0", "\u2028", "\x0b", "\x85", "\u200b", "\u200d",
        "\ufeff", "\u202e", "\u0301", "\u0345", "\u0316", "\u0344", "\uff9e", "\uff1e", "\uff20",
        "\u2038url\u2038", "\u00df", "\u0130", "\u1e9e", "\u03a3", "\ufb03", "\u1fb3", "\u00b4",
        "\U0001f468", "\ufe0f", "\u1100", "\u1161", "\u11a8", "\ud800", "今", "日", "ش", "ה",
        "word", "Word", "1", "_", ".",
    ]
)  # fmt: skip
TEXT = st.one_of(
    st.lists(CRUMBS, max_size=25).map("".join),
    st.text(max_size=40),
    st.text(alphabet=st.characters(min_codepoint=0x300, max_codepoint=0x36F), max_size=80),
)


@pytest.mark.parametrize("profile", sorted(PROFILES))
@given(text=TEXT)
@examples(400)
def test_idempotent(profile: str, text: str) -> None:
    """A normalised text is its own normalised form."""
    once = PROFILES[profile](text)
    assert PROFILES[profile](once) == once


@pytest.mark.parametrize("profile", sorted(PROFILES))
@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
@given(text=st.lists(CRUMBS, max_size=25).map("".join))
@examples(60)
def test_equivalent_forms(profile: str, form: str, text: str) -> None:
    """Unicode's equivalent forms of a text are the same text."""
    normalise = PROFILES[profile]
    assert normalise(unicodedata.normalize(form, text)) == normalise(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "pattern", ["\u0301\u0316", "\uff9e\u0301", "\u0344\u0316", "\u200b\u0301\u0316"], ids=ascii
)
def test_marks_are_limited(pattern: str) -> None:
    """Marks beyond thirty in a row go, for sorting a megabyte of them would take minutes."""
    normalised = PROFILES["plain"]("a" + pattern * 200_000 + "b")
    assert len(normalised) <= 32
    assert normalised.endswith("b")


def test_ordinary_marks_stay() -> None:
    """Thirty marks on one letter, more than any language has, are left alone."""
    text = "z" + "\u0334" * 30 + " and more"
    assert PROFILES["plain"](text) == text


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_names_and_versions(profile: str) -> None:
    """A profile is filed under its own name, and versioned from one."""
    assert PROFILES[profile].name == profile
    assert PROFILES[profile].version >= 1
