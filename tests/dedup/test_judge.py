"""The kernels of the verdicts, where the streams of the other tests do not reach."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from streamdedup.batches import SketchedBatch, Sketches
from streamdedup.dedup import judge
from streamdedup.dedup.resolve import Rule, resolve
from streamdedup.model import Document
from streamdedup.sketch.codec import SignatureCodec
from tests.dedup.brute_force import NOON
from tests.support.builders import (
    COLUMNS,
    columns,
    open_index,
    sketched,
    small_settings,
    update_of,
)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("num_perm", [8, 64, 67, 256])
def test_unequal_values(bits: int, num_perm: int) -> None:
    """Each value counts once, however many of its bits differ; padding never counts."""
    codec = SignatureCodec(num_perm, bits)
    rng = np.random.default_rng(num_perm)
    values = rng.integers(0, 2**63, (2, num_perm), dtype=np.uint64)
    values[1, ::3] = values[0, ::3]
    signatures = codec.pack(values)
    words = judge.words_of(signatures)
    stored = codec.unpack(signatures)
    found = int(judge.unequal(words[0], words, 1, bits))
    assert found == np.count_nonzero(stored[0] != stored[1])
    estimate = codec.estimate_jaccard(signatures[0], signatures[1:])[0]
    assert codec.estimates()[found] == estimate


def test_the_best_matches(tmp_path: Path) -> None:
    """Of more candidates than a verdict may name, it names the best, ties by number."""
    equal_values = [20, 28, 24, 28, 32, 20]
    settings = small_settings(tmp_path, threshold=0.1)
    kept = columns([[1 << 40] * COLUMNS] * len(equal_values))
    signatures = np.zeros((len(equal_values), 16), dtype=np.uint8)
    for row, equal in enumerate(equal_values):
        signatures[row, equal // 2 :] = 0xFF  # two values of four bits in each byte
    kept = replace(kept, sketches=Sketches(signatures, kept.sketches.band_keys))
    new = columns([[1 << 40] * COLUMNS], first_offset=len(kept))
    rows = np.zeros(1, dtype=np.int64)
    batch = SketchedBatch(new.positions, new, rows, frozenset(), {}, ())
    with open_index(settings) as index:
        index.apply(update_of(kept, 0), 1)
        for most, expected in [(1, [4]), (3, [4, 1, 3]), (100, [4, 1, 3, 2, 0, 5])]:
            rule = replace(Rule.from_settings(settings), max_matches=most)
            probed = index.probe(new)
            judgement = resolve(batch, probed, rule, index.next_number, index.clock)
            [verdict] = judgement.verdicts
            assert [match.position.offset for match in verdict.matches] == expected
            assert judgement.counts.verified == judgement.counts.candidates == len(equal_values)


def test_the_wall_clock_bounds_event_times(tmp_path: Path) -> None:
    """A time that is too far ahead of it counts as this time, also for the clock of the stream."""
    hour = dt.timedelta(hours=1)
    settings = small_settings(tmp_path, window=hour, allowed_ahead=hour)
    times = [NOON, NOON + 3_600_000, NOON + 3_600_001]
    texts = ["the first", "another", "something else"]
    documents = [
        Document(text, event_time_ms=time) for text, time in zip(texts, times, strict=True)
    ]
    batch = sketched(documents, settings)
    rule = Rule.from_settings(settings)
    with open_index(settings) as index:
        probed = index.probe(batch.documents)
        judgement = resolve(batch, probed, rule, 0, index.clock, latest_ms=NOON)
    told = [verdict.event_time_ms for verdict in judgement.verdicts]
    assert told == judgement.update.documents.event_times_ms.tolist() == [*times[:2], NOON]
