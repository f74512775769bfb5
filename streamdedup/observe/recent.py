"""*Pure.* What a worker remembers for its page: the last minutes, and the latest duplicates.

Rule 1: everything here is bounded, whatever the stream does; the bounds stand below.
Rule 2: :meth:`Recent.add` runs in the event loop after each batch, so it counts and points, and
decodes and compares nothing; :func:`compare` does that, for the pairs that somebody looks at.
Rule 3: without ``status.show_text`` no value of a record is held.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from streamdedup.dedup.differences import Part, differences
from streamdedup.formats.records import Decoder
from streamdedup.model import I64, Judgement, Match, Outcome, Position, Record, Verdict
from streamdedup.settings.sections import Settings

SLOT_S = 5
"""Seconds that are counted together."""
SLOTS = 120
"""So many of them are remembered: ten minutes."""
BINS = 100
"""Bins of the histogram of similarities, from 0 to 1."""
TEXTS_BYTES = 16 * 1024**2
"""Most that the held values of kept records take: the originals of duplicates to come."""
VALUE_BYTES = 32 * 1024
"""Largest value of a record that is held."""

_OUTCOMES = tuple(Outcome)
_BANDS = 20
"""Duplicates of each twentieth of similarity are remembered apart, so that the many copies of a
stream do not crowd out the few pairs near the threshold."""
_PER_BAND, _PER_BATCH = 16, 4
"""Duplicates of a band that are remembered, and that one batch may add."""
_LOOKED_AT = 200
"""Duplicates at the end of a batch that these are chosen from."""
_SIMILARITIES = 4096
"""Most similarities of a batch that are looked at; of more than these every other one is, say, and
counts twice."""
_HELD_OVERHEAD = 256
"""Bytes that a held value takes beside its own."""
_ROUNDING = 1e-9
"""0.29 * 100 is a little less than 29."""
_EXCERPT = 400
"""Characters shown of a text that there is nothing to compare with."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A duplicate, and the original that it repeats.

    Attributes:
        number: counts the remembered duplicates, from 1.
        value: the record's value, where texts are shown and it is not too large.
        original_value: that of the original, where it was still held when the duplicate came.
    """

    number: int
    id: str
    position: Position
    original: Match
    value: bytes | None = None
    original_value: bytes | None = None

    @property
    def similarity(self) -> float:
        """The similarity that decided: of the texts where it was computed, else the estimate."""
        return _similarity(self.original)


class Recent:
    """Remembers what a page shows of the latest batches.

    Args:
        settings: all settings; ``status.show_text`` and what decoding depends on matter here.
        clock: a clock that never goes back, in seconds.

    Attributes:
        threshold: the similarity from which a document is a duplicate.
        show_text: whether texts may be shown.
        decoder: what turns held values into texts.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.threshold = settings.dedup.threshold
        self.show_text = settings.status.show_text
        self.decoder = Decoder(settings.records, settings.limits)
        self._clock = clock
        self._counts = np.zeros((SLOTS, len(_OUTCOMES)), dtype=np.int64)
        self._slot = self._now()
        self._similarities = np.zeros(BINS, dtype=np.int64)
        self._bands: dict[int, deque[Duplicate]] = defaultdict(lambda: deque(maxlen=_PER_BAND))
        self._remembered = 0
        self._held = _Held()

    def add(self, records: Sequence[Record], judgement: Judgement) -> None:
        """Take in a batch whose verdicts are committed.

        Args:
            records: the batch.
            judgement: the verdicts on it, in the order of the records.
        """
        self._advance()
        tally = Tally(verdict.outcome for verdict in judgement.verdicts)
        self._counts[self._slot % SLOTS] += [tally[outcome] for outcome in _OUTCOMES]
        self._similarities += histogram(judgement.counts.similarities)
        if self.show_text:
            self._held.add(records, judgement.verdicts)
        if tally[Outcome.DUPLICATE]:
            self._remember(records, judgement.verdicts)

    def minutes(self) -> dict[str, list[int]]:
        """Return how many records had each outcome in each slot, the current slot last."""
        self._advance()
        # The slot after the current one is the oldest: the counts go round.
        in_order = np.roll(self._counts, -(self._slot + 1) % SLOTS, axis=0)
        return {str(outcome): in_order[:, at].tolist() for at, outcome in enumerate(_OUTCOMES)}

    def similarities(self) -> list[int]:
        """Return how many candidates had a similarity in each bin since the worker's start."""
        return self._similarities.tolist()

    def duplicates(self, low: float, high: float) -> list[Duplicate]:
        """Return the remembered duplicates of these similarities, the latest first."""
        found = [
            duplicate
            for band in self._bands.values()
            for duplicate in band
            if low - _ROUNDING <= duplicate.similarity <= high + _ROUNDING
        ]
        return sorted(found, key=lambda duplicate: -duplicate.number)

    def _now(self) -> int:
        return int(self._clock() // SLOT_S)

    def _advance(self) -> None:
        """Go on to the current slot, and forget what the ones in between held a turn ago."""
        now = self._now()
        for slot in range(max(self._slot + 1, now - SLOTS + 1), now + 1):
            self._counts[slot % SLOTS] = 0
        self._slot = now

    def _remember(self, records: Sequence[Record], verdicts: Sequence[Verdict]) -> None:
        """Remember a few duplicates of each band: those whose original's text is held first."""
        by_band: dict[int, list[tuple[bool, int]]] = defaultdict(list)
        places = [place for place, verdict in enumerate(verdicts) if verdict.matches]
        for place in places[-_LOOKED_AT:]:
            original = verdicts[place].matches[0]
            band = int(_similarity(original) * _BANDS + _ROUNDING)
            by_band[band].append((original.position in self._held, place))
        chosen = {
            place: band
            for band, found in by_band.items()
            for _, place in sorted(found)[-_PER_BATCH:]
        }
        for place, band in sorted(chosen.items()):
            self._bands[band].append(self._duplicate(records[place], verdicts[place]))

    def _duplicate(self, record: Record, verdict: Verdict) -> Duplicate:
        original = verdict.original
        if original is None:
            raise ValueError(f"{verdict.position} is no duplicate")
        self._remembered += 1
        return Duplicate(
            number=self._remembered,
            id=verdict.id,
            position=verdict.position,
            original=original,
            value=record.value if self.show_text and _is_small(record) else None,
            original_value=self._held.get(original.position),
        )


class _Held:
    """The values of the latest kept records, in as many bytes as are allowed.

    They lie in two halves: when the younger one is full the older one goes, all at once.
    """

    def __init__(self) -> None:
        self._young: dict[Position, bytes] = {}
        self._old: dict[Position, bytes] = {}
        self._young_bytes = 0

    def __contains__(self, position: Position) -> bool:
        return position in self._young or position in self._old

    def get(self, position: Position) -> bytes | None:
        """Return the value at a position, or None where it is not held."""
        value = self._young.get(position)
        return self._old.get(position) if value is None else value

    def add(self, records: Sequence[Record], verdicts: Sequence[Verdict]) -> None:
        """Hold the values of the kept ones among the records."""
        young, size = self._young, self._young_bytes
        for record, verdict in zip(records, verdicts, strict=True):
            value = record.value
            if verdict.outcome is not Outcome.KEPT or value is None or len(value) > VALUE_BYTES:
                continue
            size += len(value) + _HELD_OVERHEAD
            if size > TEXTS_BYTES // 2:
                self._old, young, size = young, {}, len(value) + _HELD_OVERHEAD
            young[record.position] = value
        self._young, self._young_bytes = young, size


def histogram(similarities: Sequence[float]) -> I64:
    """Count similarities in bins; of very many every n-th is taken, and counts n times.

    Args:
        similarities: numbers from 0 to 1.

    Returns:
        ``(BINS,)`` int64; a similarity on the border of two bins is in the upper one, 1 in the
        last.
    """
    step = max(1, -(-len(similarities) // _SIMILARITIES))
    taken = np.array(similarities[::step], dtype=np.float64)
    bins = np.clip(np.floor(taken * BINS + _ROUNDING), 0, BINS - 1).astype(np.int64)
    return np.bincount(bins, minlength=BINS) * step


def compare(duplicate: Duplicate, decoder: Decoder) -> tuple[list[Part] | None, list[Part] | None]:
    """Return the texts of a duplicate and of its original, what differs marked.

    This may take a second where texts are made to be hard to compare.

    Returns:
        What to show of each; None for a text that is not held.
    """
    mine = _text(duplicate.position, duplicate.value, decoder)
    theirs = _text(duplicate.original.position, duplicate.original_value, decoder)
    if mine is not None and theirs is not None:
        return differences(mine, theirs)
    return _excerpt(mine), _excerpt(theirs)


def _text(position: Position, value: bytes | None, decoder: Decoder) -> str | None:
    return None if value is None else decoder.decode(Record(position, value)).text


def _excerpt(text: str | None) -> list[Part] | None:
    if text is None:
        return None
    words = " ".join(text.split())
    return [Part(words if len(words) <= _EXCERPT else words[:_EXCERPT] + " …", differs=False)]


def _is_small(record: Record) -> bool:
    return len(record.value or b"") <= VALUE_BYTES


def _similarity(match: Match) -> float:
    return match.jaccard_estimate if match.jaccard is None else match.jaccard
