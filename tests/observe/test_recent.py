"""What a worker remembers for its page: counts, and the latest duplicates."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.batches import IndexUpdate, Judgement, JudgementCounts
from streamdedup.model import Outcome, Position, Record, Verdict
from streamdedup.observe import recent
from streamdedup.observe.recent import BINS, SLOT_S, SLOTS, RecentActivity, histogram
from streamdedup.settings.sections import RecordSettings, Settings, StatusSettings
from tests.support.browser.feed import TOPIC, PageFeed, page_settings
from tests.support.browser.samples import article, edited
from tests.support.builders import columns, examples, update_of, verdicts_of

TEXT = article(random.Random(1))
NEAR = f"{TEXT} One more sentence."


def judgement(outcomes: Counter[Outcome]) -> Judgement:
    """Return a judgement with this number of verdicts per outcome, and nothing else."""
    verdicts = [
        Verdict(outcome, "", Position(TOPIC, 0, 0)) for outcome in sorted(outcomes.elements())
    ]
    nothing: IndexUpdate = update_of(columns([]), 0)
    return Judgement(verdicts_of(verdicts), nothing, JudgementCounts())


@pytest.mark.parametrize("format_", ["json", "text"])
def test_texts_are_decoded_as_records_are(format_: Any) -> None:
    """The page shows the fields that are compared, in both formats."""
    settings = Settings(
        records=RecordSettings(format=format_, text_fields=("title", "body.text")),
        status=StatusSettings(show_text=True),
    )
    document = {"title": "The title", "body": {"text": TEXT}, "secret": "not compared"}
    value = json.dumps(document).encode() if format_ == "json" else f"The title\n{TEXT}".encode()
    with PageFeed(settings) as feed:
        feed.give([value, value])
        (duplicate,) = feed.recent.duplicates(0.0, 1.0)
        parts, original_parts = recent.compare(duplicate, feed.recent.decoder)
    assert parts == original_parts
    assert parts is not None
    assert parts[0].text.startswith("The title ")
    assert "secret" not in parts[0].text


def test_exact_copies_do_not_displace_pairs_near_the_threshold() -> None:
    """Many later copies leave the near pairs in memory, and the memory is bounded."""
    settings = page_settings()
    generator = random.Random(5)
    originals = [article(generator) for _ in range(20)]
    with PageFeed(settings) as feed:
        feed.give([{"text": text} for text in originals])
        feed.give([{"text": edited(text, generator, 4)} for text in originals])
        near = feed.recent.duplicates(0.0, 0.97)
        assert near
        for _ in range(10):
            feed.give([{"text": text} for text in originals * 5])
        assert feed.recent.duplicates(0.0, 0.97) == near
        assert 4 <= len(feed.recent.duplicates(1.0, 1.0)) <= 16


def test_pairs_whose_original_is_held_are_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many duplicates in a batch, those with both texts are remembered first."""
    settings = page_settings(show_text=True)
    old = [article(random.Random(number)) for number in range(100, 140)]
    with PageFeed(settings) as feed:
        monkeypatch.setattr(recent, "VALUE_BYTES", 0)
        feed.give([{"text": text} for text in old])
        monkeypatch.undo()
        feed.give([{"text": NEAR}])
        feed.give([{"text": NEAR}, *({"text": text} for text in old)])
        latest = feed.recent.duplicates(1.0, 1.0)
    assert 1 < len(latest) < len(old)
    assert sum(duplicate.original_value is not None for duplicate in latest) == 1


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from([0, 1, 2, SLOTS - 1, SLOTS, 3 * SLOTS]),
            st.lists(st.sampled_from(tuple(Outcome)), max_size=5),
        ),
        max_size=20,
    )
)
@examples(100)
def test_the_minutes_equal_a_plain_count(
    steps: list[tuple[int, list[Outcome]]],
) -> None:
    """The counts of the last slots are right whenever batches arrive and the page is loaded."""
    slot = 1000
    remembered = RecentActivity(Settings(), lambda: slot * SLOT_S + 1.0)
    counts: dict[int, Counter[Outcome]] = {}
    for slots, outcomes in steps:
        slot += slots
        counts[slot] = counts.get(slot, Counter()) + Counter(outcomes)
        records = [Record(Position(TOPIC, 0, 0), None)] * len(outcomes)
        remembered.add(records, judgement(Counter(outcomes)).verdicts)
        expected = {
            str(outcome): [
                counts.get(number, Counter())[outcome]
                for number in range(slot - SLOTS + 1, slot + 1)
            ]
            for outcome in Outcome
        }
        assert remembered.minutes() == expected


@given(hundredths=st.lists(st.integers(0, 100), max_size=50))
@examples(50)
def test_a_similarity_on_a_border_counts_in_the_upper_bin(hundredths: list[int]) -> None:
    """The threshold itself counts among the duplicates; 1 is in the last bin."""
    counts = histogram(np.array(hundredths) / 100, np.ones(len(hundredths), dtype=np.int64))
    expected = Counter(min(number, BINS - 1) for number in hundredths)
    assert counts.tolist() == [expected[number] for number in range(BINS)]


def test_similarities_count_as_often_as_they_occur() -> None:
    """Nothing is sampled."""
    counts = histogram(np.array([0.25, 0.75, 0.751]), np.array([100_000, 0, 7]))
    assert {row: counts[row] for row in counts.nonzero()[0].tolist()} == {25: 100_000, 75: 7}


def test_refuted_pairs_are_bounded_and_the_best_candidate_is_named() -> None:
    """A kept record is paired with its most similar candidate, and old pairs are displaced."""
    settings = page_settings(show_text=True)
    generator = random.Random(6)
    far, near = edited(TEXT, generator, 14), edited(TEXT, generator, 2)
    with PageFeed(settings) as feed:
        feed.give([{"id": "far", "text": far}, {"id": "text", "text": TEXT}])
        judged = feed.give([{"id": "new", "text": edited(near, generator, 6)}])
        (pair,) = (one for one in feed.recent.pairs_with_texts(0.0, 0.8) if one.id == "new")
        assert (pair.refuted, pair.original.id) == (True, "text")
        assert judged.verdicts[0].matches == ()
        assert pair.similarity < settings.dedup.threshold
        for _ in range(200):
            feed.give([{"text": edited(TEXT, generator, 12)} for _ in range(3)])
        pairs = feed.recent.pairs_with_texts(0.0, 0.8)
        assert 16 <= len(pairs) <= 6 * 16
        assert all(pair.similarity >= 0.8 - recent.NEAR for pair in pairs)
