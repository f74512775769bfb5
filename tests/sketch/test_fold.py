"""Rewriting by a table: which texts the kernel handles; test_batch.py compares the results."""

from __future__ import annotations

import unicodedata
from functools import partial

import numpy as np
import pytest

from streamdedup.sketch import fold
from streamdedup.sketch.fold import make_table, rewrite
from streamdedup.sketch.normalize import STEPS, apply_changes, changes_of


def nfkc_casefold(text: str) -> str:
    """Apply the change that ``TABLE`` describes."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


TABLE = make_table(nfkc_casefold, composes=True, collapses=True)


def left(text: str) -> str:
    """Mark a text that the kernel leaves to the plain function."""
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
    """The kernel handles ordinary text, in composed and in decomposed letters."""
    assert rewrite([text], TABLE, left) == [" ".join(nfkc_casefold(text).split())]


def test_odd_texts_are_left() -> None:
    """Only the odd texts of a batch go to the plain function."""
    odd = "a" + "\u0301" * 31
    long = "\ufdfa" * 1000
    texts = ["\u00c9 ", odd, "\u00df", "", long, "\u00c9\x00"]
    assert rewrite(texts, TABLE, left) == ["\u00e9", left(odd), "ss", "", left(long), "\u00e9\x00"]


def test_many_others() -> None:
    """Texts of several chunks come back in order, also very long ones."""
    texts = [f" \u00c4  {number}" for number in range(700)] + ["\u2026" * 300_000, "", "\u00df"]
    assert rewrite(texts[:700], TABLE, left) == [f"\u00e4 {number}" for number in range(700)]
    assert rewrite(texts[700:], TABLE, nfkc_casefold) == ["." * 900_000, "", "ss"]


@pytest.mark.parametrize(
    "names", [("drop_invisible",), ("drop_invisible", "nfkc", "casefold")], ids=" ".join
)
def test_planes_that_are_left_out(names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is that of all planes."""
    change = partial(apply_changes, changes_of([STEPS[name] for name in names]))
    table = make_table(change, composes="nfkc" in names, collapses=True)
    monkeypatch.setattr(fold, "_PLANES", range(17))
    whole = make_table(change, composes="nfkc" in names, collapses=True)
    for found, expected in zip(table, whole, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        pytest.param("x\u0301\u0334", {}, id="mark-before-one-that-may-compose"),
        pytest.param("a", {"a": "\u0301x"}, id="changed-to-a-mark"),
        pytest.param("e\u0301", {"\u00e9": "\u0301x"}, id="composite-changed-to-a-mark"),
        pytest.param("Q\u0323", {"Q": "\u00e9"}, id="mark-before-that-of-the-changed-base"),
    ],
)
def test_sequences_that_the_kernel_does_not_handle(text: str, changes: dict[str, str]) -> None:
    """Such a text is left, also if only another version of Unicode has such changes."""

    def change(some: str) -> str:
        return changes.get(unicodedata.normalize("NFKC", some), unicodedata.normalize("NFKC", some))

    table = make_table(change, composes=True, collapses=False)
    assert rewrite([text], table, left) == [left(text)]


def test_long_expansions_are_left() -> None:
    """A character that becomes very many makes its text odd."""
    table = make_table(lambda some: some.replace("a", "b" * 40), composes=False, collapses=False)
    assert rewrite(["xay", "x"], table, left) == [left("xay"), "x"]
