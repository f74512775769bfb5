"""Normalisation: the result of each profile, and that it is idempotent."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from operator import attrgetter
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.sketch.batch import BatchNormaliser
from streamdedup.sketch.normalize import MARK, PROFILES, STEPS, Change, compose, resolve
from tests.sketch.normalisable import COMPOSITIONS, CRUMBS, TEXT, composed
from tests.support.builders import examples

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
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
    pytest.param("plain", "\u2764\ufe0f 1\ufe0f\u20e3", "\u2764 1\u20e3", id="emoji-variation"),
    pytest.param("plain", "\u845b\U000e0100", "\u845b", id="ideographic-variation"),
    pytest.param("plain", "\u0130STANBUL \u0131 I i", "istanbul i i i", id="turkish-i"),
    pytest.param("plain", "\uac00\u11a8 \uffa0\u3164x", "\uac01 x", id="hangul-tail-and-filler"),
    pytest.param("plain", "สวัสดี\u200b ครับ", "สวัสดี ครับ", id="thai"),
    pytest.param("plain", "क्\u200dष", "क्\u200dष", id="devanagari-joiner"),
    pytest.param("plain", "\uff8a\uff9f\uff9d \u3313", "パン ギルダー", id="half-width-and-square"),
    pytest.param(
        "plain", "\u1e9e \ufb06 \u017f\u212a", "ss st sk", id="capital-sharp-s-and-long-s"
    ),
    pytest.param("plain", "a\x1cb\x1f\x0bc\x00", "a b c\x00", id="control-characters"),
    pytest.param("plain", "\u0645\u06cc\u200c\u062e", "\u0645\u06cc\u200c\u062e", id="non-joiner"),
    pytest.param("plain", "\u202eabc\u202c \u200fשלום", "abc שלום", id="bidi-controls"),  # noqa: RUF001
    pytest.param("plain", "soft\u00adhyphen \ufeffmark", "softhyphen mark", id="invisible"),
    pytest.param("plain", "", "", id="empty"),
    pytest.param("plain", " \u200b\ufeff\n", "", id="nothing-visible"),
    pytest.param("plain", "https://x.y/Z", "https://x.y/z", id="plain-keeps-links"),
    pytest.param("news", "See HTTPS://Ex.org/a?b=1 now", "see \u2038url\u2038 now", id="link"),
    pytest.param("news", "see www.example.org", "see \u2038url\u2038", id="bare-link"),
    pytest.param(
        "news", "see hTtPs://a.b wWw.c.d", "see \u2038url\u2038 \u2038url\u2038", id="link-case"
    ),
    pytest.param(
        "news", "see (https://a.b/c_(d)).", "see (\u2038url\u2038)).", id="link-in-brackets"
    ),
    pytest.param("news", '<a href="ftp://a/b">x</a>', '<a href="\u2038url\u2038">x</a>', id="html"),
    pytest.param("news", "now. w.x http:// ://a", "now. w.x http:// ://a", id="no-links"),
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
    pytest.param("post", "http://пример.рф/ф, да", "\u2038url\u2038, да", id="link-not-ascii"),
    pytest.param("post", "hi @a@b.social!", "hi \u2038user\u2038!", id="handle-with-server"),
    pytest.param("post", "\u4eca RT @a: b", "\u4eca rt \u2038user\u2038: b", id="rt-inside"),
    pytest.param("forum", "> quoted\nanswer\n | more\nend", "answer end", id="quoted-lines"),
    pytest.param("forum", "\uff1e quoted\r\nanswer", "answer", id="full-width-quote"),
    pytest.param("forum", "text\n-- \nJoe\nhis motto", "text", id="signature"),
    pytest.param("forum", "a -- b\n--- \nc", "a -- b --- c", id="dashes-that-are-none"),
    pytest.param("forum", "> all\n> quoted", "", id="all-quoted"),
]


@pytest.mark.parametrize(("profile", "text", "expected"), TABLE)
def test_profile(profile: str, text: str, expected: str) -> None:
    """A profile gives the documented result."""
    assert PROFILES[profile](text) == expected


@pytest.mark.parametrize("profile", sorted(PROFILES))
@given(text=TEXT)
@examples(400)
def test_idempotent(profile: str, text: str) -> None:
    """A normalised text is its own normalised form."""
    once = PROFILES[profile](text)
    assert PROFILES[profile](once) == once


@given(names=COMPOSITIONS, text=TEXT)
@examples(1000)
def test_compositions_are_idempotent(names: list[str], text: str) -> None:
    """Every composed profile is idempotent."""
    profile = composed(names)
    once = profile(text)
    assert profile(once) == once


def every_character() -> Iterator[str]:
    """Yield texts that together contain every character, alone and after a letter."""
    known = [chr(point) for point in range(0x30000) if unicodedata.category(chr(point)) != "Cn"]
    for start in range(0, len(known), 500):
        yield " ".join(f"{one} i{one}" for one in known[start : start + 500])


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_idempotent_for_every_character(profile: str) -> None:
    """A normalised character is its own normalised form, alone and after a letter."""
    normalise = PROFILES[profile]
    for text in every_character():
        once = normalise(text)
        assert normalise(once) == once


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
@given(names=COMPOSITIONS, text=TEXT.filter(lambda text: len(text) < 31))
@examples(500)
def test_equivalent_forms(form: Form, names: list[str], text: str) -> None:
    """Unicode's equivalent forms of a text become equal, if nfkc is among the steps."""
    profile = composed([*{*names, "nfkc", "drop_invisible"}])
    assert profile(unicodedata.normalize(form, text)) == profile(text)


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_equivalent_forms_of_every_character(form: Form) -> None:
    """The equivalent forms of every character become equal."""
    normalise = PROFILES["post"]
    for text in every_character():
        assert normalise(unicodedata.normalize(form, text)) == normalise(text)


@pytest.mark.parametrize("change", [str.upper, str.lower, str.title, str.swapcase], ids=str)
@given(text=st.lists(CRUMBS, max_size=25).map("".join).filter(str.isascii))
@examples(200)
def test_case_breaks_no_mask(change: Change, text: str) -> None:
    """Links, handles and retweets are masked in any case."""
    for profile in PROFILES.values():
        assert profile(change(text)) == profile(text)
    unfolded = compose(["drop_retweet", "mask_urls", "mask_handles", "mask_numbers"])
    assert unfolded(change(text)).casefold() == unfolded(text).casefold()


ADVERSARIAL = {
    "spaces": " ",
    "http": "http://",
    "dots behind a link": "http://......",
    "colons": "://",
    "www": "www.",
    "at": "@",
    "handle parts": "@a.@-",
    "retweets": "rt @a:",
    "retweets without end": "rt ",
    "digits": "1",
    "number parts": "1.",
    "quotes": "> ",
    "dashes": "--\n-",
    "lines": "\r\n|",
    "marks": "\u0301",
    "dots over i": "i\u0307\u0307",
    "selectors": "\ufe0f\u200d",
    "jamo": "\u1112\u1161\u11ab",
    "long compatibility": "\ufdfa",
    "sigma": "\u03a3",
}


@pytest.mark.compiled
@pytest.mark.parametrize("crumb", ADVERSARIAL.values(), ids=ADVERSARIAL.keys())
@pytest.mark.parametrize("profile", ["post", "all"])
def test_a_long_text_of_anything(profile: str, crumb: str) -> None:
    """No text makes a step backtrack; with quadratic time this test would not end."""
    names = [name for name in STEPS if name != "drop_retweet"]
    normalise = PROFILES.get(profile) or compose(names)
    text = crumb * (200_000 // len(crumb))
    for whole in (f"rt @{text}", f"http://{text} \u00e9"):
        assert len(normalise(whole)) <= 18 * len(whole)
        assert BatchNormaliser(normalise)([whole, "\u00e9"]) == [normalise(whole), "\u00e9"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "at least one step"),
        (["colapse_space"], "unknown step 'colapse_space'; did you mean collapse_space?"),
        (["xyz"], "unknown step 'xyz'; expected one of: casefold, "),
        (["nfkc", "nfkc"], "step nfkc is listed twice"),
        (
            ["nfkc", "collapse_space", "drop_quoted_lines"],
            "drop_quoted_lines must come before collapse_space; write [nfkc, drop_quoted_lines, ",
        ),
        (["drop_retweet", "drop_mail_signature"], "drop_retweet and drop_mail_signature exclude"),
    ],
    ids=str,
)
def test_senseless_compositions(names: list[str], message: str) -> None:
    """An invalid list is refused in one line that names the fix."""
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        compose(names)
    assert "\n" not in str(caught.value)


def test_why_retweets_and_lines_exclude_each_other() -> None:
    """A second pass would drop a quoted line that follows a retweet prefix."""
    steps = ("drop_retweet", "drop_quoted_lines")
    assert STEPS[steps[0]].change(STEPS[steps[1]].change("rt @a: > b")) == "> b"


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_a_profile_can_be_written_and_read(profile: str) -> None:
    """The stored form of a profile gives the profile back."""
    found = PROFILES[profile]
    assert (
        resolve(profile) == resolve(str(found)) == compose([*map(attrgetter("name"), found.steps)])
    )
    assert str(found).startswith(f"{profile} (drop_invisible/1 nfkc/1 casefold/1 ")


def test_a_composed_profile_can_be_written_and_read() -> None:
    """The stored form of a custom profile gives the profile back."""
    found = compose(["nfkc", "mask_numbers"])
    assert str(found) == "custom (nfkc/1 mask_numbers/2)"
    assert resolve(str(found)) == resolve(["nfkc", "mask_numbers"]) == found


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("pst", "unknown profile 'pst'; did you mean post? expected one of: forum, news, plain"),
        ("plain (nfkc/1)", "profile plain (nfkc/1) is now custom (nfkc/1)"),
        ("custom (nfkc/2)", "profile custom (nfkc/2) is now custom (nfkc/1)"),
    ],
)
def test_unknown_profiles(profile: str, message: str) -> None:
    """Unknown profiles and old versions are refused."""
    with pytest.raises(ValueError, match=re.escape(message)):
        resolve(profile)


@pytest.mark.parametrize(
    "pattern", ["\u0301\u0316", "\uff9e\u0301", "\u0344\u0316", "\u200b\u0301\u0316"], ids=ascii
)
def test_marks_are_limited(pattern: str) -> None:
    """Marks after the thirtieth in a row are dropped; sorting a megabyte would take minutes."""
    normalised = PROFILES["plain"]("a" + pattern * 200_000 + "b")
    assert len(normalised) <= 32
    assert normalised.endswith("b")


def test_ordinary_marks_stay() -> None:
    """Thirty marks on one letter, more than any language has, are kept."""
    text = "z" + "\u0334" * 30 + " and more"
    assert PROFILES["plain"](text) == text


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_names_and_versions(profile: str) -> None:
    """A profile is found by its own name, and versions start at one."""
    assert PROFILES[profile].name == profile
    assert PROFILES[profile].version >= 1


@pytest.mark.parametrize(
    ("profile", "first", "second"),
    [
        ("post", "https://t.co/a1", "https://t.co/b2"),
        ("post", "RT @desk: @joe \U0001f602", "@ann \U0001f602"),
        ("news", "www.ex.org/a", "www.ex.org/b"),
        ("forum", "> why?\nhttps://ex.org/a", "> why?\nhttps://ex.org/b"),
        ("numbers", "1,250", "1,251"),
    ],
)
def test_a_text_that_masks_would_empty_is_not_masked(profile: str, first: str, second: str) -> None:
    """Different links alone are different texts; beside a word they are the same."""
    normalise = PROFILES.get(profile) or compose(["casefold", "mask_numbers", "collapse_space"])
    assert normalise(first) != normalise(second)
    assert MARK not in normalise(first) + normalise(second)
    assert normalise(f"{first} rain") == normalise(f"{second} rain").replace("ann", "joe")
    batch = BatchNormaliser(normalise)([first, f"{first} rain", f"{first} \u65e5"])
    assert [MARK in text for text in batch] == [False, True, True]
