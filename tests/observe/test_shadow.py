"""The shadow sample: what is sampled, what it is compared with, and what it may cost."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest

from streamdedup.batches import KEPT, REJECTED, Verdicts
from streamdedup.columns import Positions, RecordColumns
from streamdedup.model import Match, Outcome, Position, Record, Verdict
from streamdedup.observe import audit, quality
from streamdedup.observe.audit import BLOCK, Audit, is_sampled
from streamdedup.observe.quality import LiveQuality, Shadow
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import Settings
from tests.support.browser.samples import article
from tests.support.builders import verdicts_of
from tests.testkit.quality import finish

TOPIC = "documents"
TEXT = article(random.Random(1))
OTHER = article(random.Random(2))
NEAR = f"{TEXT} Some more."


def settings_of(**sections: Any) -> Settings:
    """Return settings that sample every document."""
    fields = {"records": {"namespace_field": "space", "event_time_field": "time"}}
    return load_settings(**(fields | {"quality": {"shadow_sample": 1}} | sections))


def records_of(*documents: dict[str, Any] | bytes, first: int = 0) -> RecordColumns:
    """Return records with these documents, or undecodable values."""
    return RecordColumns.of(
        [
            Record(
                Position(TOPIC, 0, first + row),
                document if isinstance(document, bytes) else json.dumps(document).encode(),
            )
            for row, document in enumerate(documents)
        ]
    )


def kept(count: int) -> Verdicts:
    """Return that many verdicts without a duplicate."""
    return verdicts_of([Verdict(Outcome.KEPT, "", Position(TOPIC, 0, row)) for row in range(count)])


def judged(*originals: int | None, first: int = 0) -> Verdicts:
    """Return verdicts: the offset of each duplicate's original, or None for a kept document."""
    return verdicts_of(
        [
            Verdict(Outcome.KEPT, "", Position(TOPIC, 0, first + row))
            if original is None
            else Verdict(
                Outcome.DUPLICATE,
                "",
                Position(TOPIC, 0, first + row),
                matches=(Match("", Position(TOPIC, 0, original), 0.9, None),),
            )
            for row, original in enumerate(originals)
        ]
    )


def results(settings: Settings, *batches: tuple[RecordColumns, Verdicts]) -> Counter[str]:
    """Return the results of batches, of which no sample is skipped."""
    one = Shadow(settings, processor_clock=lambda: 0.0)
    for batch in batches:
        one.add(*batch)
        finish(one)
    one.close()
    assert one.skipped == 0
    return one.results


def test_each_result() -> None:
    """Found and wrong duplicates, a miss, and documents without a recent repeat."""
    texts = [{"text": text} for text in (TEXT, NEAR, OTHER, NEAR, TEXT, f"{OTHER} {OTHER} {TEXT}")]
    found = results(settings_of(), (records_of(*texts), judged(None, None, None, 0, 2, 7)))
    # Row 0 and row 2 repeat nothing, row 1 should be a duplicate, rows 3 and 4 are; the original
    # of row 5 is not there.
    assert found == {"alone": 3, "missed": 1, "found": 2}
    found = results(settings_of(), (records_of(*texts[:1], texts[2]), judged(None, 0)))
    assert found == {"alone": 1, "wrong": 1}


def test_a_miss_with_a_low_estimate_is_refuted() -> None:
    """The signatures of a pair just above the threshold may show less; the bands are not at fault.

    One of many seeds gives such a signature.
    """
    words = TEXT.split()
    texts = [{"text": " ".join(words)}, {"text": " ".join([*words[:-2], "quite", "other"])}]
    threshold = _jaccard(texts[0]["text"], texts[1]["text"]) - 1e-9
    seen = Counter[str]()
    for seed in range(12):
        settings = settings_of(dedup={"threshold": threshold, "seed": seed})
        seen += results(settings, (records_of(*texts), judged(None, None)))
        exact = settings_of(dedup={"threshold": threshold, "seed": seed, "verify": "exact"})
        # The texts would decide, so a candidate would be found.
        assert "refuted" not in results(exact, (records_of(*texts), judged(None, None)))
    assert seen["missed"] > 0
    assert seen["refuted"] > 0
    assert seen["missed"] + seen["refuted"] == seen["alone"] == 12


def _jaccard(one: str, other: str) -> float:
    first, second = (
        {text.casefold()[at : at + 5] for at in range(len(text) - 4)} for text in (one, other)
    )
    return len(first & second) / len(first | second)


def test_only_earlier_kept_documents_count() -> None:
    """A later copy, a copy that is a duplicate, and one of another namespace are not repeated."""
    settings = settings_of()
    assert results(
        settings, (records_of({"text": TEXT}, {"text": TEXT}), judged(None, 9))
    ) == Counter(found=1, alone=1)
    spaces = records_of({"text": TEXT, "space": "a"}, {"text": TEXT, "space": "b"})
    assert results(settings, (spaces, kept(2))) == {"alone": 2}
    # Of two earlier copies one is a duplicate and is not held; the other one is.
    copies = [{"text": text} for text in (OTHER, TEXT)]
    first = (records_of(*copies), judged(None, 5))
    again = (records_of({"text": TEXT}, first=5), judged(None, first=5))
    assert results(settings, first, again) == {"alone": 3}


def test_the_window_by_time() -> None:
    """A kept document whose event time is too far is not repeated; without a time it is."""
    settings = settings_of(index={"window": "1h"})
    times = ["2026-01-01T00:00:00Z", "2026-01-01T02:00:00Z"]
    far = records_of(*({"text": TEXT, "time": time} for time in times))
    assert results(settings, (far, kept(2))) == {"alone": 2}
    near = records_of(*({"text": TEXT, "time": time} for time in (times[0], times[0])))
    assert results(settings, (near, kept(2))) == {"alone": 1, "missed": 1}
    unknown = records_of({"text": TEXT}, {"text": TEXT, "time": times[0]})
    assert results(settings, (unknown, kept(2))) == {"alone": 1, "missed": 1}


def test_what_cannot_be_compared_is_left_out() -> None:
    """Rejected records, and values that cannot be decoded; a blank text repeats none."""
    rejected = Verdicts(np.array([REJECTED, KEPT], dtype=np.uint8), {})
    values = records_of(b"{", b"{")
    assert results(settings_of(), (values, rejected)) == {}
    blank = records_of({"text": " "}, {"text": " "})
    assert results(settings_of(), (blank, kept(2))) == {"alone": 2}
    empty = (records_of(), Verdicts(np.empty(0, dtype=np.uint8), {}))
    assert results(settings_of(), empty) == {}


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old documents leave when there are enough newer ones, and large ones are not held."""
    monkeypatch.setattr(audit, "DOCUMENTS", 3)
    monkeypatch.setattr(quality, "DOCUMENTS", 3)
    batches = [(records_of({"text": f"{row} {OTHER}"}, first=row), kept(1)) for row in range(1, 9)]
    first = (records_of({"text": TEXT}), kept(1))
    late = (records_of({"text": TEXT}, first=10), kept(1))
    assert results(settings_of(), first, *batches[:2], late)["missed"] == 2  # of which one is TEXT
    found = results(settings_of(), first, *batches, late)
    assert found["missed"] == 7
    monkeypatch.setattr(audit, "VALUES_BYTES", 10)
    monkeypatch.setattr(quality, "VALUES_BYTES", 10)
    assert results(settings_of(), first, late) == {"alone": 2}


def test_many_bytes_displace_older_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest batch fits alone; both do not."""
    monkeypatch.setattr(audit, "VALUES_BYTES", 2 * len(TEXT))
    monkeypatch.setattr(quality, "VALUES_BYTES", 2 * len(TEXT))
    batches = [
        (records_of({"text": text}, first=row), kept(1))
        for row, text in enumerate([TEXT, OTHER, f"{OTHER} again", TEXT])
    ]
    assert results(settings_of(), *batches) == {"alone": 3, "missed": 1}


def test_one_in_many_is_sampled_by_its_position() -> None:
    """About one in N, in blocks, the same ones for every call, others in each partition."""
    offsets = np.arange(640_000)
    chosen = is_sampled(Positions((TOPIC,), np.zeros(640_000, np.int64), offsets * 0, offsets), 10)
    assert np.count_nonzero(chosen) == pytest.approx(64_000, rel=0.05)
    blocks = chosen.reshape(-1, BLOCK)
    assert (blocks.all(axis=1) | ~blocks.any(axis=1)).all()
    other = is_sampled(
        Positions((TOPIC,), np.zeros(640_000, np.int64), offsets * 0 + 1, offsets), 10
    )
    assert 0.05 < np.mean(other[chosen]) < 0.2
    assert is_sampled(Positions.of([Position(TOPIC, 3, 7)]), 1).all()


def test_a_sample_is_skipped_while_the_thread_is_busy_or_has_worked_enough() -> None:
    """The event loop never waits; what is left out is counted."""
    now, used, gate = [0.0], iter([0.0, 3.0]), threading.Event()

    def processor_clock() -> float:
        gate.wait(10.0)
        return next(used)

    one = Shadow(settings_of(), clock=lambda: now[0], processor_clock=processor_clock)
    one.add(records_of({"text": TEXT}, {"text": NEAR}), kept(2))
    one.add(records_of({"text": TEXT}, first=2), kept(1))
    assert one.skipped == 1
    gate.set()
    finish(one)
    # Three seconds of work are 2% of 150, and two seconds are free at first.
    now[0] = 49.0
    one.add(records_of({"text": TEXT}, first=3), kept(1))
    assert one.skipped == 2
    assert one.results == {"alone": 1, "missed": 1}
    now[0], used = 51.0, iter([3.0, 4.0])
    one.add(records_of({"text": TEXT}, first=4), kept(1))
    finish(one)
    # Nothing is free any more.
    now[0] = 99.0
    one.add(records_of({"text": TEXT}, first=5), kept(1))
    assert one.skipped == 3
    one.close()


def test_time_without_work_is_no_credit_beyond_two_seconds() -> None:
    """After a quiet day a burst may use two seconds, as after the start."""
    now, used = [0.0], iter([0.0, 1.9, 1.9, 2.1])
    one = Shadow(settings_of(), clock=lambda: now[0], processor_clock=lambda: next(used))
    now[0] = 86_400.0
    for row, skipped in enumerate((0, 0, 1)):
        one.add(records_of({"text": TEXT}, first=row), kept(1))
        finish(one)
        assert one.skipped == skipped
    one.close()


def test_a_failure_is_logged_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next sample is audited."""
    one = Shadow(settings_of(), processor_clock=lambda: 0.0)

    def fail(_: Audit, __: audit.Sample) -> None:
        raise ValueError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(Audit, "compare", fail)
        one.add(records_of({"text": TEXT}), kept(1))
        with pytest.raises(ValueError, match="broken"):
            finish(one)
    assert "the shadow sample failed" in capsys.readouterr().out
    one.add(records_of({"text": NEAR}, first=1), kept(1))
    finish(one)
    one.close()
    assert one.results == {"missed": 1}


def test_shares_have_intervals() -> None:
    """/status shows the results, with Wilson's intervals; without data there are no shares."""
    settings = settings_of()
    one = LiveQuality(settings, judges=False, shadow=Shadow(settings))
    assert one.described()["shadow"]["recall"] == {
        "value": None,
        "low": None,
        "high": None,
        "documents": 0,
    }
    assert one.shadow is not None
    one.shadow.results = Counter(found=90, missed=4, refuted=6, wrong=10, alone=3)
    described = one.described()
    assert described["estimate"] is None
    assert one.figures() is None
    assert described["shadow"]["documents"] == {
        "found": 90,
        "missed": 4,
        "refuted": 6,
        "wrong": 10,
        "alone": 3,
        "skipped": 0,
    }
    assert described["shadow"]["recall"]["value"] == 0.9
    assert described["shadow"]["bucket_recall"]["value"] == pytest.approx(90 / 94, abs=1e-6)
    assert described["shadow"]["precision"]["documents"] == 100
    assert described["shadow"]["recall"]["low"] == pytest.approx(0.826, abs=1e-3)
    one.close()


def test_a_short_stream_has_its_share_of_the_sample() -> None:
    """Of 60,000 documents of a partition, 56 to 64 are sampled (docs/internals/quality.md)."""
    offsets = np.arange(60_000)
    zeros = np.zeros_like(offsets)
    chosen = np.array(
        [
            is_sampled(Positions(("t",), zeros, zeros + partition, offsets), 1000)
            for partition in range(500)
        ]
    )
    counts = chosen.sum(axis=1)
    assert 56 <= counts.min() <= counts.max() <= 64
    assert np.mean(counts) == pytest.approx(60, abs=0.5)
    # Every part of a stretch has the same chance, and partitions are independent.
    by_part = chosen[:, :56_000].reshape(500, 7, 8, 1000).sum(axis=(0, 1, 3))
    assert by_part == pytest.approx(np.full(8, 3500), rel=0.15)
    stretches = chosen[:, :56_000].reshape(500 * 7, 1000, BLOCK)[:, :, 0].argmax(axis=1)
    assert abs(np.corrcoef(stretches[:-1], stretches[1:])[0, 1]) < 0.06
