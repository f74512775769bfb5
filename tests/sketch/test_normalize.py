"""Normalisation: what each profile makes the same, and that doing it twice changes nothing."""

from __future__ import annotations

import itertools
import re
import sys
import unicodedata
from collections.abc import Iterator
from operator import attrgetter
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.sketch.batch import BatchNormaliser
from streamdedup.sketch.normalize import PROFILES, STEPS, Change, Profile, compose, resolve
from tests.support.builders import examples
from tests.support.paths import ROOT

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
    pytest.param("news", "www.example.org", "\u2038url\u2038", id="bare-link"),
    pytest.param("news", "hTtPs://a.b wWw.c.d", "\u2038url\u2038 \u2038url\u2038", id="link-case"),
    pytest.param("news", "(https://a.b/c_(d)).", "(\u2038url\u2038)).", id="link-in-brackets"),
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
    """A profile gives the text that its description promises."""
    assert PROFILES[profile](text) == expected


CRUMBS = st.sampled_from(
    [
        "RT @", "rt ", "@", ":", "https://", "HTTP://", "www.", "t.co/x", "> ", "| ", "--", "-- ",
        "\n", "\r\n", "\r", "\t", " ", "\u00a0", "\u2028", "\x0b", "\x85", "\u200b", "\u200d",
        "\ufeff", "\u202e", "\u0301", "\u0345", "\u0316", "\u0344", "\uff9e", "\uff1e", "\uff20",
        "\u2038url\u2038", "\u00df", "\u0130", "\u1e9e", "\u03a3", "\ufb03", "\u1fb3", "\u00b4",
        "\U0001f468", "\ufe0f", "\u1100", "\u1161", "\u11a8", "\ud800", "今", "日", "ش", "ה",
        "word", "Word", "1", "_", ".", "@b.c", "www.a", "23", "1,5", "\u0663", "\u00bd", "\u2038",
        "\u0307", "\u0131", "i", "I", "\u3164", "\uffa0", "\u00e9", "\ufe0f", "\u180e",
        '"', ">", "<",
    ]
)  # fmt: skip
TEXT = st.one_of(
    st.lists(CRUMBS, max_size=25).map("".join),
    st.text(max_size=40),
    st.text(alphabet=st.characters(min_codepoint=0x300, max_codepoint=0x36F), max_size=80),
)


COMPOSITIONS = st.lists(st.sampled_from(list(STEPS)), min_size=1, unique=True).filter(
    lambda names: "drop_retweet" not in names or not any(STEPS[name].of_lines for name in names)
)


def composed(names: list[str]) -> Profile:
    """Return the profile of these steps, put in order."""
    return compose(sorted(names, key=list(STEPS).index))


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
    """Whatever steps are put together, to do them twice changes nothing."""
    profile = composed(names)
    once = profile(text)
    assert profile(once) == once


def every_character() -> Iterator[str]:
    """Yield texts that together hold every character, alone and behind a letter."""
    known = [chr(point) for point in range(0x30000) if unicodedata.category(chr(point)) != "Cn"]
    for start in range(0, len(known), 500):
        yield " ".join(f"{one} i{one}" for one in known[start : start + 500])


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_idempotent_for_every_character(profile: str) -> None:
    """A normalised character is its own normalised form, alone and behind a letter."""
    normalise = PROFILES[profile]
    for text in every_character():
        once = normalise(text)
        assert normalise(once) == once


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
@given(names=COMPOSITIONS, text=TEXT.filter(lambda text: len(text) < 31))
@examples(500)
def test_equivalent_forms(form: Form, names: list[str], text: str) -> None:
    """Unicode's equivalent forms of a text are the same text, if nfkc is among the steps."""
    profile = composed([*{*names, "nfkc", "drop_invisible"}])
    assert profile(unicodedata.normalize(form, text)) == profile(text)


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_equivalent_forms_of_every_character(form: Form) -> None:
    """No character has an equivalent form that is another text."""
    normalise = PROFILES["post"]
    for text in every_character():
        assert normalise(unicodedata.normalize(form, text)) == normalise(text)


@pytest.mark.parametrize("change", [str.upper, str.lower, str.title, str.swapcase], ids=str)
@given(text=st.lists(CRUMBS, max_size=25).map("".join).filter(str.isascii))
@examples(200)
def test_case_breaks_no_mask(change: Change, text: str) -> None:
    """However a link, a handle or a retweet is written, it is masked."""
    for profile in PROFILES.values():
        assert profile(change(text)) == profile(text)
    unfolded = compose(["drop_retweet", "mask_urls", "mask_handles", "mask_numbers"])
    assert unfolded(change(text)).casefold() == unfolded(text).casefold()


@given(names=COMPOSITIONS, text=st.lists(CRUMBS, max_size=25).map("".join).filter(str.isascii))
@examples(500)
def test_ascii_is_like_the_rest(names: list[str], text: str) -> None:
    """The quick way of ASCII does what the steps do."""
    expected = text
    for step in composed(names).steps:
        expected = step.change(expected)
    assert BatchNormaliser(composed(names))([text]) == [expected]


@given(names=COMPOSITIONS, texts=st.lists(TEXT, max_size=6))
@examples(500)
def test_a_batch_is_its_texts(names: list[str], texts: list[str]) -> None:
    """A batch is normalised as its texts are one by one, whatever stands beside them."""
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


@pytest.mark.parametrize("names", STARTS, ids=str)
def test_every_character_in_a_batch(names: tuple[str, ...]) -> None:
    """The kernel does with each character, known to Unicode or not, what the steps do."""
    profile = compose(names)
    texts = [*KNOWN, "\u0378", "\ue000", "\U0003fffd", "\U000e0fff", "\U0010ffff"]
    assert BatchNormaliser(profile)(texts) == [*map(profile, texts)]


@pytest.mark.parametrize("special", SPECIAL, ids=ascii)
def test_every_pair_in_a_batch(special: str) -> None:
    """So it does with each pair of a special character and one that some step changes."""
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
    """So it does with whatever stands together, in whatever order marks come."""
    for profile in (PROFILES["plain"], composed(names)):
        assert BatchNormaliser(profile)(texts) == [profile(text) for text in texts]


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


@pytest.mark.parametrize("crumb", ADVERSARIAL.values(), ids=ADVERSARIAL.keys())
@pytest.mark.parametrize("profile", ["post", "all"])
def test_a_long_text_of_anything(profile: str, crumb: str) -> None:
    """No text makes a step backtrack: what took the square of its length would never end."""
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
        (["colapse_space"], "unknown step 'colapse_space', did you mean collapse_space?"),
        (["xyz"], "unknown step 'xyz'; there are: casefold, "),
        (["nfkc", "nfkc"], "step nfkc is there twice"),
        (
            ["nfkc", "collapse_space", "drop_quoted_lines"],
            "drop_quoted_lines must come before collapse_space; write [nfkc, drop_quoted_lines, ",
        ),
        (["drop_retweet", "drop_mail_signature"], "drop_retweet and drop_mail_signature exclude"),
    ],
    ids=str,
)
def test_senseless_compositions(names: list[str], message: str) -> None:
    """A list that makes no sense is refused in one line that says what to write."""
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        compose(names)
    assert "\n" not in str(caught.value)


def test_why_retweets_and_lines_exclude_each_other() -> None:
    """A quotation that a retweet introduces would be found by a second pass only."""
    steps = ("drop_retweet", "drop_quoted_lines")
    assert STEPS[steps[0]].change(STEPS[steps[1]].change("rt @a: > b")) == "> b"


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_a_profile_can_be_written_and_read(profile: str) -> None:
    """What an index remembers of a profile is the profile, by its name or by its steps."""
    found = PROFILES[profile]
    assert (
        resolve(profile) == resolve(str(found)) == compose([*map(attrgetter("name"), found.steps)])
    )
    assert str(found).startswith(f"{profile} (drop_invisible/1 nfkc/1 casefold/1 ")


def test_a_composed_profile_can_be_written_and_read() -> None:
    """So is one that has no name of its own."""
    found = compose(["nfkc", "mask_numbers"])
    assert str(found) == "custom (nfkc/1 mask_numbers/1)"
    assert resolve(str(found)) == resolve(["nfkc", "mask_numbers"]) == found


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("pst", "unknown profile 'pst', did you mean post? there are: forum, news, plain, post"),
        ("plain (nfkc/1)", "profile plain (nfkc/1) is now custom (nfkc/1)"),
        ("custom (nfkc/2)", "profile custom (nfkc/2) is now custom (nfkc/1)"),
    ],
)
def test_unknown_profiles(profile: str, message: str) -> None:
    """A profile that is not, or no longer, there is refused."""
    with pytest.raises(ValueError, match=re.escape(message)):
        resolve(profile)


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


PAGE = (ROOT / "docs" / "profiles.md").read_text(encoding="utf-8")


def cells(line: str) -> list[str]:
    """Return the cells of a table's row, with the characters that its escapes stand for."""
    row = [cell.strip(" ") for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
    texts = [cell[1:-1] if cell.startswith("`") else cell for cell in row]
    return [
        re.sub(r"\\(u[0-9a-f]{4}|[nt|])", lambda found: ESCAPES.get(found[1]) or chr(
            int(found[1][1:], 16)
        ), text)
        for text in texts
    ]  # fmt: skip


ESCAPES = {"n": "\n", "t": "\t", "|": "|"}


def test_the_page_shows_every_step() -> None:
    """docs/profiles.md lists the steps in order, and each does what its example shows."""
    rows = [cells(line) for line in PAGE.splitlines() if line.count(" | ") == 4]
    shown = {row[0]: row for row in rows if row[0] in STEPS}
    assert list(shown) == list(STEPS)
    for name, version, _, before, after in shown.values():
        assert version == str(STEPS[name].version)
        assert STEPS[name].change(before) == after
        assert before != after


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_the_page_shows_every_profile(profile: str) -> None:
    """docs/profiles.md has each profile's version and steps, and examples that are real."""
    found = PROFILES[profile]
    section = PAGE.split(f"### `{profile}`, version {found.version}\n")[1].split("\n#")[0]
    assert f"Steps: {', '.join(f'`{step.name}`' for step in found.steps)}.\n" in section
    rows = [cells(line) for line in section.splitlines() if line.startswith("| `")]
    assert rows
    for before, after in rows:
        assert found(before) == after
