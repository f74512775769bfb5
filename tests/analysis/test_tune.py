"""The options for bands and rows, and the pick."""

from __future__ import annotations

from streamdedup.analysis.tune import Plan, advise
from streamdedup.settings.load import load_settings
from streamdedup.sketch.bands import Banding

PLAN = Plan(
    threshold=0.8,
    recall=0.99,
    num_perm=256,
    corpus=10_000_000,
    background=0.05,
    signature_bytes=128,
)


def test_pick_is_explained() -> None:
    """The pick is the first with less than one random candidate, and the sentence says so."""
    advice = advise(PLAN)
    assert advice.pick.banding == (20, 7)
    assert [option.banding.rows for option in advice.options] == list(range(1, 9))
    assert advice.reason.startswith("20 bands of 7 rows, because they find 99.10%")
    assert "6 rows would find 2.5" in advice.reason
    assert advice.reason.count(".") > 1
    assert advice.reason.endswith(".")


def test_pick_that_cannot_be_good_enough() -> None:
    """If no option has less than one random candidate, the sentence says so."""
    plan = Plan(0.5, 0.99, 256, 10_000_000, 0.05, 128)
    advice = advise(plan)
    assert advice.pick.random_candidates > 1
    assert "more than one" in advice.reason


def test_bytes_per_document() -> None:
    """A posting takes 8 bytes, with one for the exact copy; signature and id come on top."""
    assert advise(PLAN).pick.bytes_per_document == 8 * 21 + 128 + 36


def test_settings_choose_as_the_command_does() -> None:
    """Corpus size and background change the bands that are used, not only the table."""
    small = load_settings(dedup={"corpus_documents": 1000, "background": 0.1})
    assert small.dedup.banding() == Banding(9, 4)
