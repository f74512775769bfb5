"""*Pure.* The clock of the stream: what time it is, by the documents themselves.

The clock is the running median of the event times of kept documents. It rests on a ring of the last
1,001 *samples*. Documents are those that get a number; one without an event time is never a sample.

1. Until the ring is full every kept document is a sample. The clock is the median of what is there
   (of an even number of samples the earlier of the two in the middle), and may go back.
2. With the 1,001st sample the ring is full. From then on only the kept documents whose number is a
   multiple of 4 are samples, each takes the place of the oldest one, and the clock is the latest
   median so far: it never goes back.
3. A clock that was advanced from outside (of an index rebuilt from a changelog that has lost its
   beginning) stands there until the ring is full, and never goes back either.

The *effective time* of a document, by which the window goes, is told before it may become a sample:

- while the clock may go back, its event time as it is;
- from then on the event time, but no earlier than the clock less ``allowed_lateness``, and no later
  than the clock and ``allowed_ahead``;
- without an event time, what the clock says; ``NO_TIMESTAMP`` while there is no clock.

With the 1,001st sample the early ones, taken as they came, are seen in its light too: the effective
time of a document that was judged before is, from then on, no further from what the clock said then
than the allowances. That is the *settlement*, and it does not change again.

So a producer with a wild clock moves nothing while it brings less than half of the kept documents:
it can neither let the index expire nor fill it with documents that never leave.

All of this depends on the documents and their order alone, never on batches (guarantee 4).
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
"""Samples that the median is taken of; odd, so that it is one of them."""
EVERY = 4
"""With a full ring, one kept document in so many is a sample: 4,004 documents fill the ring anew,
and a document costs a quarter of a sample."""


class Settlement(NamedTuple):
    """How documents that were judged before the clock settled are seen afterwards.

    Attributes:
        number: of the first document after them; 0 for none.
        floor_ms: their earliest effective time.
        ceiling_ms: their latest.
    """

    number: int = 0
    floor_ms: int = 0
    ceiling_ms: int = 0

    def seen_ms(self, number: int, effective_ms: int) -> int:
        """Return the effective time of a document, as it counts now."""
        if number >= self.number:
            return effective_ms
        return min(max(effective_ms, self.floor_ms), self.ceiling_ms)

    def all_seen_ms(self, first_number: int, effective_ms: I64) -> I64:
        """Return how the effective times of consecutive documents, ``(n,)``, count now."""
        early = max(0, self.number - first_number)
        seen = effective_ms.copy()
        seen[:early] = np.clip(seen[:early], self.floor_ms, self.ceiling_ms)
        return seen


class ClockState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A clock as it is stored: what it says, whether it may no longer go back, and its samples.

    Attributes:
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
    """The running median of event times, and the effective times that follow from it.

    Args:
        allowed_lateness_ms: how far behind the clock an event time is believed.
        allowed_ahead_ms: how far ahead of it.
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
        """Return a new clock with the settings' allowances."""
        return cls(milliseconds(settings.allowed_lateness), milliseconds(settings.allowed_ahead))

    @property
    def now_ms(self) -> int:
        """What the clock says, in milliseconds since the epoch; ``NO_TIMESTAMP`` for nothing."""
        return self._now_ms

    @property
    def oldest_ms(self) -> int | None:
        """The earliest effective time that a document can get from now on; None for any."""
        return self._now_ms - self._lateness_ms if self._settled else None

    def effective_ms(self, event_time_ms: int) -> int:
        """Return the effective time of a document that is judged now."""
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
        """Take in that a document was kept under a number. Numbers must ascend."""
        if len(self._ring) == RING:
            if not number % EVERY and event_time_ms != NO_TIMESTAMP:
                self._replace(event_time_ms)
        elif event_time_ms != NO_TIMESTAMP:
            self._add(number, event_time_ms)

    def advance(self, first_number: int, event_times_ms: I64) -> None:
        """Take in that documents were kept, one after the other.

        Args:
            first_number: the number of the first one; the others follow on.
            event_times_ms: their event times, ``(n,)``, ``NO_TIMESTAMP`` where there is none.
        """
        count = len(event_times_ms)
        at = 0
        while at < count and len(self._ring) < RING:
            # No step of more than what the ring lacks can overfill it.
            stop = at + RING - len(self._ring)
            numbered = enumerate(event_times_ms[at:stop].tolist(), first_number + at)
            for number, event_time_ms in numbered:
                if event_time_ms != NO_TIMESTAMP:
                    self._add(number, event_time_ms)
            at = min(stop, count)
        first_sample = at + -(first_number + at) % EVERY
        for event_time_ms in event_times_ms[first_sample::EVERY].tolist():
            if event_time_ms != NO_TIMESTAMP:
                self._replace(event_time_ms)

    def advance_to(self, now_ms: int) -> None:
        """Put the clock forward to what another one said; it does not go back.

        Where this clock says so much already nothing changes, not even that it may go back: a
        rebuild from a whole changelog ends with the clock of the index that wrote it.
        """
        if now_ms != NO_TIMESTAMP and (now_ms > self._now_ms or self._now_ms == NO_TIMESTAMP):
            self._now_ms = now_ms
            self._settled = True

    def copy(self) -> Clock:
        """Return a clock that goes its own way from here."""
        clock = Clock(self._lateness_ms, self._ahead_ms)
        clock._now_ms = self._now_ms
        clock._settled = self._settled
        clock._ring = self._ring.copy()
        clock._sorted = self._sorted.copy()
        clock.settlement = self.settlement
        return clock

    def state(self) -> bytes:
        """Return the clock as bytes; the allowances are no part of them."""
        return _ENCODER.encode(
            ClockState(self._now_ms, self._settled, list(self._ring), self.settlement)
        )

    @classmethod
    def from_state(cls, state: bytes, settings: IndexSettings) -> Clock:
        """Return the clock of which :meth:`state` gave the bytes.

        Raises:
            IndexDamaged: the bytes are no clock.
        """
        try:
            found = _DECODER.decode(state)
        except msgspec.MsgspecError as error:
            raise IndexDamaged(f"the clock cannot be read: {error}; {REMEDY}") from error
        if len(found.samples) > RING or (len(found.samples) == RING and not found.settled):
            raise IndexDamaged(f"the clock contradicts itself; {REMEDY}")
        clock: Clock = cls.from_settings(settings)
        clock._now_ms = found.now_ms
        clock._settled = found.settled
        clock._ring = deque(found.samples)
        clock._sorted = sorted(found.samples)
        clock.settlement = found.settlement
        return clock

    def _add(self, number: int, event_time_ms: int) -> None:
        """Take a sample, of the document with a number, while the ring is not full."""
        self._ring.append(event_time_ms)
        insort(self._sorted, event_time_ms)
        if len(self._ring) == RING:
            self._tell_median()
            if not self._settled:
                self._settle(number + 1)
        elif not self._settled:
            self._now_ms = self._sorted[(len(self._sorted) - 1) // 2]

    def _settle(self, number: int) -> None:
        self._settled = True
        self.settlement = Settlement(
            number, self._now_ms - self._lateness_ms, self._now_ms + self._ahead_ms
        )

    def _replace(self, event_time_ms: int) -> None:
        """Put a sample in the place of the oldest one."""
        gone = self._ring.popleft()
        self._ring.append(event_time_ms)
        del self._sorted[bisect_left(self._sorted, gone)]
        insort(self._sorted, event_time_ms)
        self._tell_median()

    def _tell_median(self) -> None:
        median = self._sorted[RING // 2]
        if not self._settled or median > self._now_ms:
            self._now_ms = median
