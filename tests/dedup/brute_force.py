"""*Blocking.* The definitions of the clock and of verdicts, in plain Python without batches."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import median_low
from typing import NamedTuple

from streamdedup.dedup import clock as clocks
from streamdedup.model import (
    NO_TIMESTAMP,
    Document,
    Outcome,
    Position,
    SketchedBatch,
    Verdict,
)
from streamdedup.settings.sections import IndexSettings, Settings
from streamdedup.settings.units import milliseconds
from streamdedup.sketch.codec import SignatureCodec
from tests.support.builders import (
    open_index,
    pass_through,
    sketched,
)

MILLISECOND = dt.timedelta(milliseconds=1)
HOUR = dt.timedelta(hours=1)
NOON = 1_700_000_000_000
Told = tuple[Outcome, tuple[tuple[Position, float, float | None], ...]]


class ClockTime(NamedTuple):
    """The time of a clock, whether it is settled, and the document and time that settled it."""

    now_ms: int
    settled: bool
    settled_with: int = 0
    settled_ms: int = 0


def clock_after(event_times_ms: Sequence[int]) -> ClockTime:
    """Return the clock after the kept documents 0, 1, ..., by the definition."""
    samples: list[int] = []
    now_ms = NO_TIMESTAMP
    settled_with = settled_ms = 0
    for number, event_time_ms in enumerate(event_times_ms):
        full = len(samples) >= clocks.RING
        if event_time_ms == NO_TIMESTAMP or (full and number % clocks.EVERY):
            continue
        samples.append(event_time_ms)
        median = median_low(samples[-clocks.RING :])
        now_ms = max(now_ms, median) if full else median
        if len(samples) == clocks.RING:
            settled_with, settled_ms = number, median
    return ClockTime(now_ms, len(samples) >= clocks.RING, settled_with, settled_ms)


def effective(event_time_ms: int, clock: ClockTime, settings: IndexSettings) -> int:
    """Return the effective time of a document, by the definition."""
    if event_time_ms == NO_TIMESTAMP:
        return clock.now_ms
    if not clock.settled:
        return event_time_ms
    earliest = clock.now_ms - milliseconds(settings.allowed_lateness)
    latest = clock.now_ms + milliseconds(settings.allowed_ahead)
    return sorted([earliest, event_time_ms, latest])[1]


def as_seen(number: int, effective_ms: int, clock: ClockTime, settings: IndexSettings) -> int:
    """Return the effective time of a kept document after the settlement, by the definition."""
    if not clock.settled or number > clock.settled_with:
        return effective_ms
    earliest = clock.settled_ms - milliseconds(settings.allowed_lateness)
    latest = clock.settled_ms + milliseconds(settings.allowed_ahead)
    return sorted([earliest, effective_ms, latest])[1]


def told(verdicts: Sequence[Verdict]) -> list[Told]:
    """Return the outcome of each verdict, and each match with its similarities."""
    return [
        (
            each.outcome,
            tuple(
                (match.position, match.jaccard_estimate, match.jaccard) for match in each.matches
            ),
        )
        for each in verdicts
    ]


def true_jaccard(first: str, second: str) -> float:
    """Return the Jaccard similarity of the sets of 3-grams, by the definition."""
    one, two = (
        {text[at : at + 3] for at in range(len(text) - 2)} or {text} for text in (first, second)
    )
    return len(one & two) / len(one | two)


def model(documents: Sequence[Document], settings: Settings, borderline: float) -> list[Told]:
    """Judge documents one by one with lists and dictionaries only."""
    threshold = settings.dedup.threshold
    batch = sketched(documents, settings)
    sketches = batch.documents.sketches
    codec = SignatureCodec.of(settings.dedup.sketch_parameters())
    kept: list[int] = []
    buckets: dict[tuple[int, int], list[int]] = defaultdict(list)
    effective_times: list[int] = []
    window = settings.index.window
    verdicts: list[Told] = []
    for row in range(len(documents)):
        now = clock_after([documents[other].event_time_ms for other in kept])
        time = effective(documents[row].event_time_ms, now, settings.index)
        keys = list(enumerate(sketches.band_keys[row].tolist()))
        newest = {n for key in keys for n in buckets[key][-settings.index.bucket_size :]}
        in_window = {
            n
            for n in newest
            if n >= len(kept) - settings.index.window_documents
            and (
                window is None
                or abs(time - as_seen(n, effective_times[n], now, settings.index))
                < window / MILLISECOND
            )
        }
        similar = []
        for number in sorted(in_window):
            other = kept[number]
            assert documents[other].namespace == documents[row].namespace
            [estimate] = codec.estimate_jaccard(
                sketches.signatures[row], sketches.signatures[other : other + 1]
            ).tolist()
            jaccard = None
            if settings.dedup.verify == "exact" and abs(estimate - threshold) <= borderline:
                jaccard = true_jaccard(documents[row].text, documents[other].text)
            best_known = estimate if jaccard is None else jaccard
            if best_known >= threshold:
                similar.append((-best_known, number, (batch.positions[other], estimate, jaccard)))
        similar.sort(key=lambda match: match[:2])
        blank = row in batch.blank
        if similar and not blank:
            best = similar[: settings.output.max_matches]
            verdicts.append((Outcome.DUPLICATE, tuple(match for *_, match in best)))
            continue
        verdicts.append((Outcome.KEPT, ()))
        if not blank:
            for key in keys:
                buckets[key].append(len(kept))
            kept.append(row)
            effective_times.append(time)
    return verdicts


def cut(documents: Sequence[Document], cuts: set[int], settings: Settings) -> list[SketchedBatch]:
    """Cut a stream into batches at the given indices."""
    edges = [0, *sorted(at for at in cuts if at < len(documents)), len(documents)]
    return [
        sketched(documents[start:stop], settings, first=start) for start, stop in pairwise(edges)
    ]


def judged(texts: Sequence[str | Document], settings: Settings) -> list[Verdict]:
    """Judge a stream in one batch, with a new index."""
    with open_index(settings) as index:
        return pass_through(index, [sketched(texts, settings)], settings)
