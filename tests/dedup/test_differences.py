"""Differences: what is marked, and how long texts are shortened."""

from __future__ import annotations

import pytest

from streamdedup.dedup.differences import TextPart, differences


def marked(parts: list[TextPart]) -> str:
    """Return the text with brackets around what differs."""
    return "".join(f"[{part.text}]" if part.differs else part.text for part in parts)


WORDS = " ".join(f"w{number}" for number in range(100))
TABLE = [
    pytest.param("", "", "", "", id="empty"),
    pytest.param("a b c", "a x c", "a [b] c", "a [x] c", id="one-word"),
    pytest.param("A  b\nC", "a b c", "A b C", "a b c", id="case-and-space"),
    pytest.param("a b", "a b c", "a b", "a b [c]", id="more-at-the-end"),
    pytest.param("x a b", "a b", "[x a] b", "[a] b", id="more-at-the-beginning"),
    pytest.param("今日は晴れ", "今日は雨", "今日は[晴れ]", "今日は[雨]", id="no-spaces"),
]


@pytest.mark.parametrize(("left", "right", "one", "two"), TABLE)
def test_differences(left: str, right: str, one: str, two: str) -> None:
    """What one text has and the other lacks is marked."""
    assert tuple(map(marked, differences(left, right))) == (one, two)


@pytest.mark.parametrize(("left", "right", "one", "two"), TABLE)
def test_whole_texts_have_the_same_marks(left: str, right: str, one: str, two: str) -> None:
    """Short texts are whole anyway."""
    assert tuple(map(marked, differences(left, right, whole=True))) == (one, two)


def test_whole_texts_are_not_shortened() -> None:
    """Every word is there, also those behind the compared ones, which are not marked."""
    long = " ".join(f"w{number}" for number in range(2000))
    one, two = differences(f"{long} x {long}", f"{long} {long} y", whole=True)
    assert "".join(part.text for part in one) == f"{long} x {long}"
    assert "".join(part.text for part in two) == f"{long} {long} y"
    assert "[x] w0" in marked(one)
    assert marked(two) == f"{long} {long} y"


def test_common_parts_are_shortened() -> None:
    """Eight words next to a difference stay."""
    one, two = differences(f"{WORDS} x {WORDS}", f"{WORDS} y {WORDS}")
    assert marked(one) == marked(two).replace("[y]", "[x]")
    assert marked(one).startswith("… w92 w93")
    assert "w99 [x] w0 w1" in marked(one)
    assert marked(one).endswith("w7 …")


def test_long_differences_are_shortened() -> None:
    """Thirty words of a difference are shown, and no difference after 400 characters."""
    one, two = differences(WORDS, "x")
    assert marked(one) == f"[{' '.join(WORDS.split()[:30])} …]"
    assert marked(two) == "[x]"
    many = [f"{'same' * 5} old{number}" for number in range(60)]
    one, _ = differences(" ".join(many), " ".join(many).replace("old", "new"))
    assert 400 < len(marked(one)) < 600
    assert marked(one).endswith(" …")


@pytest.mark.parametrize(("common", "shortened"), [(17, False), (18, True)])
def test_a_common_part_is_shortened_if_two_words_are_saved(common: int, shortened: bool) -> None:
    """Eight words stay on each side, and an ellipsis takes the place of a word."""
    middle = " ".join(WORDS.split()[:common])
    one, _ = differences(f"a {middle} b", f"x {middle} y")
    assert ("…" in marked(one)) is shortened
