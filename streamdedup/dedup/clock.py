"""*Pure.* The clock of the stream: a running median of the event times of kept documents.

The median is taken over a ring of the last 1,001 *samples*. Only kept documents, which have a
number, are samples. A document without an event time is never a sample.

1. Until the ring is full, every kept document is a sample. The clock is the lower median of the
   samples, and may go back.
2. The 1,001st sample fills the ring and *settles* the clock. From then on only kept documents whose
   number is a multiple of 4 are samples, and each replaces the oldest one. The clock is the
   maximum of the medians, so that it never goes back.
3. A clock can also be advanced from outside, if an index is rebuilt from a changelog without its
   beginning. It then stays at that time until the ring is full, and never goes back.

The window uses the *effective time* of a document, which is computed before the document may become
a sample:

- before the clock is settled, it is the event time;
- afterwards it is the event time, limited to the range from the clock minus ``allowed_lateness`` to
  the clock plus ``allowed_ahead``;
- without an event time it is the time of the clock, ``NO_TIMESTAMP`` if the clock has none.

When the ring is full, the same limits around the clock apply to all documents that were judged
before. That is the *settlement*; it does not change again.

A producer with wrong event times therefore cannot move the clock while it sends less than half of
the kept documents. It can neither expire the index nor fill it with documents that never expire.

The clock depends only on the documents and their order, never on batches (guarantee 4).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import NamedTuple

import msgspec
import numpy as np

from streamdedup.errors import REMEDY, IndexDamaged
from streamdedup.model import I64, NO_TIMESTAMP
from streamdedup.settings.sections import IndexSettings
from streamdedup.settings.units import milliseconds

RING = 1001
"""Number of samples; odd, so that the median is one of them."""
EVERY = 4
"""With a full ring, one of this many kept documents is a sample. 4,004 documents then replace the
ring, and the cost per document is a quarter of that of a sample."""


class Settlement(NamedTuple):
    """The limits of the effective times of documents that were judged before the clock settled.

    Attributes:
        number: number of the first document after them; 0 if there are none.
        floor_ms: their earliest effective time.
        ceiling_ms: their latest effective time.
    """

    number: int = 0
    floor_ms: int = 0
    ceiling_ms: int = 0

    def seen_ms(self, number: int, effective_ms: int) -> int:
        """Return the effective time of a document within the limits."""
        if number >= self.number:
            return effective_ms
        return min(max(effective_ms, self.floor_ms), self.ceiling_ms)

    def all_seen_ms(self, first_number: int, effective_ms: I64) -> I64:
        """Return the effective times of consecutive documents within the limits, ``(n,)`` int64."""
        early = max(0, self.number - first_number)
        seen = effective_ms.copy()
        seen[:early] = np.clip(seen[:early], self.floor_ms, self.ceiling_ms)
        return seen


class ClockState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """The stored state of a clock.

    Attributes:
        now_ms: its time.
        settled: whether it can no longer go back.
        samples: event times in ms, the oldest sample first; at most ``RING``.
        settlement: see :class:`Settlement`.
    """

    now_ms: int
    settled: bool
    samples: list[int]
    settlement: Settlement


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(ClockState)


class Clock:
    """The running median of event times, and the effective times computed from it.

    Args:
        allowed_lateness_ms: how far an effective time may be behind the clock.
        allowed_ahead_ms: how far it may be ahead of the clock.
    """

    __slots__ = (
        "_ahead_ms",
        "_lateness_ms",
        "_now_ms",
        "_ring",
        "_settled",
        "_sorted",
        "settlement",
    )

    def __init__(self, allowed_lateness_ms: int, allowed_ahead_ms: int) -> None:
        self._lateness_ms = allowed_lateness_ms
        self._ahead_ms = allowed_ahead_ms
        self._now_ms = NO_TIMESTAMP
        self._settled = False
        self._ring: deque[int] = deque()
        self._sorted: list[int] = []
        self.settlement = Settlement()

    @classmethod
    def from_settings(cls, settings: IndexSettings) -> Clock:
        """Return a new clock with the limits of the settings."""
        return cls(milliseconds(settings.allowed_lateness), milliseconds(settings.allowed_ahead))

    @property
    def now_ms(self) -> int:
        """The time in milliseconds since the epoch; ``NO_TIMESTAMP`` before the first sample."""
        return self._now_ms

    @property
    def oldest_ms(self) -> int | None:
        """The earliest effective time of any document from now on; None if there is no limit."""
        return self._now_ms - self._lateness_ms if self._settled else None

    def effective_ms(self, event_time_ms: int) -> int:
        """Return the effective time of the next document."""
        if event_time_ms == NO_TIMESTAMP:
            return self._now_ms
        if not self._settled:
            return event_time_ms
        ahead_ms = event_time_ms - self._now_ms
        if ahead_ms > self._ahead_ms:
            return self._now_ms + self._ahead_ms
        if ahead_ms < -self._lateness_ms:
            return self._now_ms - self._lateness_ms
        return event_time_ms

    def keep(self, number: int, event_time_ms: int) -> None:
        """Record that a document was kept under a number. Numbers must ascend."""
        if len(self._ring) == RING:
            if not number % EVERY and event_time_ms != NO_TIMESTAMP:
                self._replace(event_time_ms)
        elif event_time_ms != NO_TIMESTAMP:
            self._add(number, event_time_ms)

    def advance(self, first_number: int, event_times_ms: I64) -> None:
        """Record that documents with consecutive numbers were kept.

        Args:
            first_number: number of the first document.
            event_times_ms: event times, ``(n,)`` int64, ``NO_TIMESTAMP`` for none.
        """
        count = len(event_times_ms)
        start = 0
        while start < count and len(self._ring) < RING:
            # At most as many documents as the ring has free places, so that it does not overflow.
            stop = start + RING - len(self._ring)
            numbered = enumerate(event_times_ms[start:stop].tolist(), first_number + start)
            for number, event_time_ms in numbered:
                if event_time_ms != NO_TIMESTAMP:
                    self._add(number, event_time_ms)
            start = min(stop, count)
        first_sample = start + -(first_number + start) % EVERY
        for event_time_ms in event_times_ms[first_sample::EVERY].tolist():
            if event_time_ms != NO_TIMESTAMP:
                self._replace(event_time_ms)

    def advance_to(self, now_ms: int) -> None:
        """Advance the clock to the time of another clock, and settle it.

        If that time is not later, nothing changes: the clock does not settle. A rebuild from a
        complete changelog therefore gives the clock of the index that wrote the changelog.
        """
        if now_ms != NO_TIMESTAMP and (now_ms > self._now_ms or self._now_ms == NO_TIMESTAMP):
            self._now_ms = now_ms
            self._settled = True

    def copy(self) -> Clock:
        """Return an independent copy of the clock."""
        clock = Clock(self._lateness_ms, self._ahead_ms)
        clock._now_ms = self._now_ms
        clock._settled = self._settled
        clock._ring = self._ring.copy()
        clock._sorted = self._sorted.copy()
        clock.settlement = self.settlement
        return clock

    def state(self) -> bytes:
        """Return the state of the clock as bytes, without its limits."""
        return _ENCODER.encode(
            ClockState(self._now_ms, self._settled, list(self._ring), self.settlement)
        )

    @classmethod
    def from_state(cls, state: bytes, settings: IndexSettings) -> Clock:
        """Return the clock with a state from :meth:`state`.

        Raises:
            IndexDamaged: the bytes are not a valid state.
        """
        try:
            stored = _DECODER.decode(state)
        except msgspec.MsgspecError as error:
            raise IndexDamaged(f"the clock cannot be read: {error}; {REMEDY}") from error
        if len(stored.samples) > RING or (len(stored.samples) == RING and not stored.settled):
            raise IndexDamaged(
                f"the clock has {len(stored.samples)} samples and is "
                f"{'' if stored.settled else 'not '}settled, which is impossible; {REMEDY}"
            )
        clock: Clock = cls.from_settings(settings)
        clock._now_ms = stored.now_ms
        clock._settled = stored.settled
        clock._ring = deque(stored.samples)
        clock._sorted = sorted(stored.samples)
        clock.settlement = stored.settlement
        return clock

    def _add(self, number: int, event_time_ms: int) -> None:
        """Add a sample while the ring is not full; ``number`` is that of its document."""
        self._ring.append(event_time_ms)
        insort(self._sorted, event_time_ms)
        if len(self._ring) == RING:
            self._update_now()
            if not self._settled:
                self._settle(number + 1)
        elif not self._settled:
            self._now_ms = self._sorted[(len(self._sorted) - 1) // 2]

    def _settle(self, number: int) -> None:
        """Settle the clock; ``number`` is the first one after the documents that this limits."""
        self._settled = True
        self.settlement = Settlement(
            number, self._now_ms - self._lateness_ms, self._now_ms + self._ahead_ms
        )

    def _replace(self, event_time_ms: int) -> None:
        """Replace the oldest sample."""
        oldest = self._ring.popleft()
        self._ring.append(event_time_ms)
        del self._sorted[bisect_left(self._sorted, oldest)]
        insort(self._sorted, event_time_ms)
        self._update_now()

    def _update_now(self) -> None:
        """Set the time to the median of a full ring, unless a settled clock would go back."""
        median = self._sorted[RING // 2]
        if not self._settled or median > self._now_ms:
            self._now_ms = median
