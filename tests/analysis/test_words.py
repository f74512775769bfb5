"""The excerpts of an evaluation: two texts, cut to their differences."""

from __future__ import annotations

from dataclasses import replace

from streamdedup.analysis.corpus import Corpus
from streamdedup.analysis.evaluate import evaluate
from streamdedup.analysis.report import DocumentScore, Example
from streamdedup.analysis.words import answer, excerpt
from streamdedup.settings.sections import Settings
from streamdedup.sketch.bands import Banding
from tests.analysis.made_up import DOCUMENTS


def differing(one: str, two: str) -> list[tuple[str, list[str]]]:
    """Return the excerpt of each text, and its marked parts."""
    shown = excerpt(Example(("1", "2"), (one, two), 0.8, 0.8))
    return [
        ("".join(part.text for part in side), [part.text for part in side if part.differs])
        for side in shown.texts
    ]


def test_differences_are_marked() -> None:
    """Words that the other text lacks are marked; white space and case are ignored."""
    assert differing("The  cat sat\non mats", "the cat lay down on mats") == [
        ("The cat sat on mats", ["sat"]),
        ("the cat lay down on mats", ["lay down"]),
    ]
    assert differing("one", "") == [("one", ["one"]), ("", [])]
    assert differing("", "") == [("", []), ("", [])]


def test_differences_without_spaces() -> None:
    """If words are written without spaces, single characters are marked."""
    assert [marked for _, marked in differing("今日は晴れです", "今日は雨です")] == [
        ["晴れ"],
        ["雨"],
    ]


def test_differences_far_apart() -> None:
    """Common parts are left out in the same places, and long excerpts are cut."""
    alike = " ".join(f"w{number}" for number in range(100))
    one, two = differing(f"{alike} a {alike} b {alike}", f"{alike} c {alike} d {alike}")
    assert (one[1], two[1]) == (["a", "b"], ["c", "d"])
    assert one[0].startswith("… w92")
    assert one[0].endswith("w7 …")
    assert one[0].count("…") == two[0].count("…") == 3
    long = [f"a{number} b{number} " * 9 for number in range(1000)]
    for text, _ in differing("".join(long), "".join(long[::-1])):
        assert len(text) < 1000
        assert text.endswith(" …")


def test_the_answer_names_the_repeats_and_a_valley() -> None:
    """Numbers are readable, and without a valley it says so."""
    report = evaluate(Corpus(DOCUMENTS[:50], rejected=0), Settings(), [Banding(20, 7)])
    report.bandings[0].documents = DocumentScore(8604, 610, 602, 601, 600)
    assert answer(replace(report, valley=(0.6, 0.7))) == [
        "At 0.8, 610 of 8,604 documents repeat an earlier one (7.1%).",
        "streamdedup drops 601 of them, and 1 other document.",
        "The similarities have a valley from 0.6 to 0.7: try a threshold there.",
    ]
    assert answer(replace(report, valley=None))[-1].startswith("No valley found from 0.5 on: ")
