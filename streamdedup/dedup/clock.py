"""*Pure.* The times of documents: which are believed, and when a kept document is out of reach.

Two documents are compared by their own event times. A Kafka record has a timestamp, which brokers
can bound and which is the same at every replay. :func:`believed_ms` replaces an event time that is
too far from it. In files the event time stands.

The *clock of the stream* decides about expiry only. It is the largest value so far of the third
smallest of the last 16 event times, so 14 documents of 16 must agree before it advances. A kept
document gets an *effective time*, which is its event time within the allowances around the clock.
It is out of reach once the clock has passed that time by the window and ``allowed_lateness``. This
rule is part of the verdict, so that verdicts do not depend on what is removed.

The clock depends only on the documents and their order, never on batches (guarantee 4). Its state
is stored with each update of the index, so that a rebuild reads it and computes nothing.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, Self

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from streamdedup.columns import I64
from streamdedup.errors import REMEDY, IndexDamaged
from streamdedup.model import NO_TIMESTAMP
from streamdedup.settings.sections import IndexSettings
from streamdedup.settings.units import milliseconds

RECENT = 16
"""Number of event times that the clock looks at."""
RANK = 2
"""Index of the one that it shows, in ascending order: 2 may be too early, 13 too late."""


class Allowances(NamedTuple):
    """How far a time may be from another one, in milliseconds; None for no limit."""

    lateness_ms: int | None = None
    ahead_ms: int | None = None

    @classmethod
    def from_settings(cls, settings: IndexSettings) -> Self:
        """Return the allowances of the settings."""
        lateness, ahead = settings.lateness(), settings.ahead()
        return cls(
            None if lateness is None else milliseconds(lateness),
            None if ahead is None else milliseconds(ahead),
        )


UNLIMITED = Allowances()
"""Allowances that believe every time."""


_Time = Annotated[int, msgspec.Meta(le=2**63 - 1)]
"""Milliseconds since the epoch; MessagePack has larger integers than int64."""


class ClockState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """The stored state of a clock: its time, and the last event times, oldest first."""

    now_ms: _Time
    recent_ms: list[_Time]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(ClockState)


class Clock:
    """The clock of the stream."""

    __slots__ = ("_recent_ms", "now_ms")

    def __init__(self, now_ms: int = NO_TIMESTAMP, recent_ms: ArrayLike = ()) -> None:
        self.now_ms = now_ms
        """The time in milliseconds since the epoch; ``NO_TIMESTAMP`` before the 16th time."""
        self._recent_ms = np.array(recent_ms, dtype=np.int64)

    def advance(self, event_times_ms: I64) -> I64:
        """Take in the event times, ``(n,)``, of documents that are judged for the first time.

        Return the clock when each is judged, before its own time counts: ``(n,)`` int64.
        """
        known = event_times_ms != NO_TIMESTAMP
        stream = np.concatenate([self._recent_ms, event_times_ms[known]])
        after_ms = np.full(len(stream), NO_TIMESTAMP, dtype=np.int64)
        if len(stream) >= RECENT:
            recent = np.lib.stride_tricks.sliding_window_view(stream, RECENT)
            after_ms[RECENT - 1 :] = np.partition(recent, RANK, axis=1)[:, RANK]
        # Entry i: the clock after i of the known times.
        after_ms = np.concatenate([[self.now_ms], after_ms[len(self._recent_ms) :]])
        after_ms = np.maximum.accumulate(after_ms)
        before_ms: I64 = after_ms[np.cumsum(known) - known]
        self.now_ms, self._recent_ms = int(after_ms[-1]), stream[-RECENT:]
        return before_ms

    def copy(self) -> Clock:
        """Return an independent copy of the clock."""
        return Clock(self.now_ms, self._recent_ms)

    def state(self) -> bytes:
        """Return the state of the clock as bytes."""
        return _ENCODER.encode(ClockState(self.now_ms, self._recent_ms.tolist()))

    @classmethod
    def from_state(cls, state: bytes) -> Clock:
        """Return the clock with this state, a new one if empty; IndexDamaged if invalid."""
        if not state:
            return cls()
        try:
            stored = _DECODER.decode(state)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise IndexDamaged(f"the clock cannot be read: {error}; {REMEDY}") from error
        if len(stored.recent_ms) > RECENT:
            raise IndexDamaged(f"the clock has {len(stored.recent_ms)} times; {REMEDY}")
        return cls(stored.now_ms, stored.recent_ms)


def effective_ms(event_times_ms: I64, now_ms: I64, allowances: Allowances) -> I64:
    """Return the effective times of ``(n,)`` documents, by the clock when each is judged."""
    bounded = event_times_ms
    if allowances.lateness_ms is not None:
        bounded = np.maximum(bounded, now_ms - allowances.lateness_ms)
    if allowances.ahead_ms is not None:
        bounded = np.minimum(bounded, now_ms + allowances.ahead_ms)
    bounded = np.where(now_ms == NO_TIMESTAMP, event_times_ms, bounded)
    return np.where(event_times_ms == NO_TIMESTAMP, now_ms, bounded)


def compared_ms(event_times_ms: I64, effective_times_ms: I64) -> I64:
    """Return the times by which documents are compared: their event times, where they have any."""
    return np.where(event_times_ms == NO_TIMESTAMP, effective_times_ms, event_times_ms)


def believed_ms(event_times_ms: I64, records_ms: I64, allowances: Allowances) -> I64:
    """Return the event times that are within the allowances around their records' timestamps.

    Both are ``(n,)``. The timestamp replaces each other time. ``NO_TIMESTAMP`` means unknown.
    """
    late_ms = records_ms - event_times_ms
    unbelieved = event_times_ms == NO_TIMESTAMP
    if allowances.lateness_ms is not None:
        unbelieved |= late_ms > allowances.lateness_ms
    if allowances.ahead_ms is not None:
        unbelieved |= late_ms < -allowances.ahead_ms
    return np.where(unbelieved & (records_ms != NO_TIMESTAMP), records_ms, event_times_ms)


def bounded_ms(event_times_ms: I64, latest_ms: int, allowances: Allowances) -> I64:
    """Return event times, ``(n,)``, of which those too far ahead of the latest one are replaced."""
    if allowances.ahead_ms is None:
        return event_times_ms
    return np.where(event_times_ms > latest_ms + allowances.ahead_ms, latest_ms, event_times_ms)
