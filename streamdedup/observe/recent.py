"""*Pure.* What a worker remembers for its page: the last minutes, and the latest pairs.

Rule 1: the memory is bounded; the constants below are the bounds.
Rule 2: :meth:`RecentActivity.add` runs in the event loop after each batch. It only counts and
stores references. :func:`compare` decodes and compares texts, for the shown pairs only.
Rule 3: without ``status.show_text`` no value of a record is held, and no refuted pair remembered.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamdedup.batches import DUPLICATE, KEPT, JudgedVerdicts, JudgementCounts, Verdicts
from streamdedup.columns import F64, I64
from streamdedup.dedup.differences import TextPart, differences
from streamdedup.formats.records import Decoder
from streamdedup.formats.schemas import NO_SCHEMAS, Schema
from streamdedup.model import Match, Outcome, Position, Record
from streamdedup.settings.sections import Settings
from streamdedup.settings.units import format_duration

SLOT_S = 5
"""Length of a slot in seconds; the verdicts of a slot are counted together."""
SLOTS = 120
"""Slots that are remembered: ten minutes."""
BINS = 100
"""Bins of the histogram of similarities, from 0 to 1."""
TEXTS_BYTES = 16 * 1024**2
"""Most bytes of held values of kept records, which are the originals of later duplicates."""
VALUE_BYTES = 32 * 1024
"""Size in bytes of the largest value that is held."""
_OUTCOMES = tuple(Outcome)
_INTERVALS = 20
"""Equal intervals of similarity, each with its own lists of pairs: the many exact copies of a
stream must not displace the few pairs near the threshold."""
NEAR = 0.25
"""Largest distance below the threshold at which refuted pairs are remembered."""
_PER_INTERVAL, _PER_BATCH = 16, 4
"""Duplicates of an interval that are remembered, and how many of them one batch may add; and as
many refuted pairs."""
_CHOICE = 200
"""Duplicates at the end of a batch from which the remembered ones are chosen, and refuted pairs."""
_HELD_OVERHEAD = 256  # bytes of a held value's key and objects
_ROUNDING = 1e-9  # added before rounding down: 0.29 * 100 is a little less than 29
_EXCERPT = 400  # most characters shown of a text that is not compared


@dataclass(frozen=True, slots=True)
class Pair:
    """A document and the earlier one that decided about it."""

    number: int  # sequence number of the remembered pair, from 1
    id: str
    position: Position
    original: Match  # of a duplicate; else the best candidate, which was refuted
    refuted: bool = False  # the similarity is below the threshold
    value: bytes | None = None  # None if it is too large, or texts are not shown
    original_value: bytes | None = None  # None if it was not held any more

    @property
    def similarity(self) -> float:
        """The similarity that decided: that of the texts if it was computed, else the estimate."""
        return _similarity(self.original)


class RecentActivity:
    """Remembers what the page shows of the latest batches.

    The clock is monotonic, in seconds. The schemas of the values, by prefix, may grow.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], float],
        schemas: Mapping[bytes, Schema] = NO_SCHEMAS,
    ) -> None:
        self.threshold = settings.dedup.threshold
        self.show_text = settings.status.show_text
        self.fingerprint = settings.fingerprint
        self.pipeline = _pipeline(settings)
        self.decoder = Decoder(settings.records, settings.limits, schemas)
        self._clock = clock
        self._counts = np.zeros((SLOTS, len(_OUTCOMES)), dtype=np.int64)
        self._slot = self._now()
        self._similarities = np.zeros(BINS, dtype=np.int64)
        self._latest: _Intervals = defaultdict(_new_interval)
        self._latest_refuted: _Intervals = defaultdict(_new_interval)
        self._remembered = 0
        self._held = _Held(self.decoder)

    def add(self, records: Sequence[Record], verdicts: Verdicts) -> None:
        """Count and remember a batch whose verdicts, in its order, are committed."""
        self._advance()
        tally = verdicts.tally()
        self._counts[self._slot % SLOTS] += [tally[outcome] for outcome in _OUTCOMES]
        if self.show_text:
            self._held.add(records, verdicts.rows_with(KEPT))
        if tally[Outcome.DUPLICATE]:
            rows = verdicts.rows_with(DUPLICATE)[-_CHOICE:]
            originals = {row: verdicts[row].matches[0] for row in rows}
            self._remember(self._latest, records, verdicts, originals, refuted=False)
        # Verdicts that a judge has sent to an edge do not name refuted candidates.
        if self.show_text and isinstance(verdicts, JudgedVerdicts):
            rows = verdicts.rows_refuted(self.threshold - NEAR)[-_CHOICE:]
            candidates = {row: verdicts.refuted(row)[0] for row in rows}
            self._remember(self._latest_refuted, records, verdicts, candidates, refuted=True)

    def add_comparisons(self, counts: JudgementCounts) -> None:
        """Count the candidates of a judgement by their similarity."""
        self._similarities += histogram(counts.similarities, counts.by_similarity)

    def minutes(self) -> dict[str, list[int]]:
        """Return the number of records with each outcome in each slot, the current slot last."""
        self._advance()
        # The counts are a ring: the slot after the current one is the oldest.
        in_order = np.roll(self._counts, -(self._slot + 1) % SLOTS, axis=0)
        return {
            str(outcome): counts.tolist()
            for outcome, counts in zip(_OUTCOMES, in_order.T, strict=True)
        }

    def similarities(self) -> list[int]:
        """Return the number of candidates in each bin of similarity since the worker's start."""
        return self._similarities.tolist()

    def duplicates(self, low: float, high: float) -> list[Pair]:
        """Return the remembered duplicates from ``low`` to ``high`` inclusive, latest first."""
        return _select(self._latest, low, high)

    def pairs_with_texts(self, low: float, high: float) -> list[Pair]:
        """Return the duplicates and refuted pairs whose two texts are held, in no given order."""
        both = _select(self._latest, low, high) + _select(self._latest_refuted, low, high)
        return [pair for pair in both if None not in (pair.value, pair.original_value)]

    def pair(self, number: int) -> Pair | None:
        """Return a remembered pair, or None if later ones have displaced it."""
        both = _select(self._latest, 0.0, 1.0) + _select(self._latest_refuted, 0.0, 1.0)
        return next((pair for pair in both if pair.number == number), None)

    def _now(self) -> int:
        return int(self._clock() // SLOT_S)

    def _advance(self) -> None:
        """Move to the current slot, and reset the slots in between to zero."""
        now = self._now()
        for slot in range(max(self._slot + 1, now - SLOTS + 1), now + 1):
            self._counts[slot % SLOTS] = 0
        self._slot = now

    def _remember(
        self,
        intervals: _Intervals,
        records: Sequence[Record],
        verdicts: Verdicts,
        originals: Mapping[int, Match],
        *,
        refuted: bool,
    ) -> None:
        """Remember a few rows of each interval in order, best those whose original is held."""
        by_interval: dict[int, list[tuple[bool, int]]] = defaultdict(list)
        for row, original in originals.items():
            interval = int(_similarity(original) * _INTERVALS + _ROUNDING)
            by_interval[interval].append((original.position in self._held, row))
        chosen = sorted(
            (row, interval)
            for interval, choice in by_interval.items()
            for _, row in sorted(choice)[-_PER_BATCH:]
        )
        for row, interval in chosen:
            self._remembered += 1
            record, original = records[row], originals[row]
            is_shown = self.show_text and len(record.value or b"") <= VALUE_BYTES
            pair = Pair(
                number=self._remembered,
                id=verdicts[row].id,
                position=record.position,
                original=original,
                refuted=refuted,
                value=self.decoder.portable(record) if is_shown else None,
                original_value=self._held.get(original.position),
            )
            intervals[interval].append(pair)


def _pipeline(settings: Settings) -> dict[str, Any]:
    """Return what the page says about the settings of its worker."""
    topics, profile, window = settings.topics, settings.dedup.profile, settings.index.window
    return {
        "source": topics.source,
        "clean": topics.clean,
        "duplicates": topics.duplicates,
        "profile": profile if isinstance(profile, str) else ", ".join(profile),
        "window_documents": settings.index.window_documents,
        "window": None if window is None else format_duration(window),
    }


_Intervals = dict[int, deque[Pair]]  # remembered pairs by interval of similarity


def _new_interval() -> deque[Pair]:
    return deque(maxlen=_PER_INTERVAL)


def _select(intervals: _Intervals, low: float, high: float) -> list[Pair]:
    """Return the pairs from ``low`` to ``high`` inclusive, latest first."""
    selected = [
        pair
        for interval in intervals.values()
        for pair in interval
        if low - _ROUNDING <= pair.similarity <= high + _ROUNDING
    ]
    return sorted(selected, key=lambda pair: -pair.number)


class _Held:
    """The values of the latest kept records, up to ``TEXTS_BYTES``.

    There are two generations of half the size. When the young one is full, it replaces the old one.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._young: dict[Position, bytes] = {}
        self._old: dict[Position, bytes] = {}
        self._young_bytes = 0

    def __contains__(self, position: Position) -> bool:
        return position in self._young or position in self._old

    def get(self, position: Position) -> bytes | None:
        """Return the value at a position, or None if it is not held."""
        value = self._young.get(position)
        return self._old.get(position) if value is None else value

    def add(self, records: Sequence[Record], kept: Sequence[int]) -> None:
        """Hold the values of the kept records, which are given by their rows."""
        young, size = self._young, self._young_bytes
        for row in kept:
            record = records[row]
            value = self._decoder.portable(record)
            if value is None or len(value) > VALUE_BYTES:
                continue
            size += len(value) + _HELD_OVERHEAD
            if size > TEXTS_BYTES // 2:
                self._old, young, size = young, {}, len(value) + _HELD_OVERHEAD
            young[record.position] = value
        self._young, self._young_bytes = young, size


def histogram(similarities: F64, counts: I64) -> I64:
    """Count similarities, ``(k,)``, in bins from 0 to 1: ``(BINS,)`` int64.

    Each occurs ``counts`` times, ``(k,)``. A border belongs to the upper bin, 1 to the last one.
    """
    bins = np.clip(np.floor(similarities * BINS + _ROUNDING), 0, BINS - 1).astype(np.int64)
    return np.bincount(bins, counts, minlength=BINS).astype(np.int64)


def compare(
    pair: Pair, decoder: Decoder, *, whole: bool = False
) -> tuple[list[TextPart] | None, list[TextPart] | None]:
    """Return the parts to show of a document and of its original; None for a text not held.

    Texts are shortened to their differences, unless they are to be ``whole``.

    This may take a second if the texts were made to be hard to compare.
    """
    text = _text(pair.position, pair.value, decoder)
    original_text = _text(pair.original.position, pair.original_value, decoder)
    if text is not None and original_text is not None:
        return differences(text, original_text, whole=whole)
    return _excerpt(text), _excerpt(original_text)


def _text(position: Position, value: bytes | None, decoder: Decoder) -> str | None:
    return None if value is None else decoder.decode(Record(position, value)).text


def _excerpt(text: str | None) -> list[TextPart] | None:
    if text is None:
        return None
    words = " ".join(text.split())
    return [TextPart(words if len(words) <= _EXCERPT else words[:_EXCERPT] + " …", differs=False)]


def _similarity(match: Match) -> float:
    return match.jaccard_estimate if match.jaccard is None else match.jaccard
