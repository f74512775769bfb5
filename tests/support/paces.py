"""*Pure.* Streams of documents at a pace, with texts that are repeated near the window's end."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from streamdedup.model import Document

HOUR = 3_600_000
DAY = 24 * HOUR
WINDOW_DAYS = 7
WINDOW = WINDOW_DAYS * DAY
START = 1_700_000_000_000


@dataclass(frozen=True)
class Event:
    """A document of a stream, and whether it must be kept; None if either is right."""

    time_ms: int
    text: str
    kept: bool | None = None
    wild: bool = False

    def document(self) -> Document:
        """Return the document, with its event time."""
        return Document(self.text, event_time_ms=self.time_ms)


def text(rng: random.Random) -> str:
    """Return a text that resembles no other."""
    return " ".join(rng.randbytes(5).hex() for _ in range(5))


def times(per_day: Sequence[int], start_ms: int = START) -> Iterator[int]:
    """Yield event times at a pace, day by day."""
    for day, count in enumerate(per_day):
        for number in range(count):
            yield start_ms + day * DAY + number * DAY // count


def stream(
    per_day: Sequence[int], *, pairs: int = 30, seed: int = 1, start_ms: int = START
) -> list[Event]:
    """Return a stream with pairs one hour inside the window, and as many one hour outside of it.

    No document of a pair is among the first of its day: after a silence these have exceptions.
    """
    rng = random.Random(seed)
    events = [Event(time_ms, text(rng)) for time_ms in times(per_day, start_ms)]
    for number in range(2 * pairs):
        inside = number % 2 == 0
        gap_ms = WINDOW - HOUR if inside else WINDOW + HOUR
        # In the last quarter of a day, after 14 documents or more at the slowest pace.
        firsts = [
            day * DAY + 18 * HOUR + minute * 60_000
            for day in range(len(per_day) - WINDOW_DAYS)
            for minute in range(60, 240, 7)
            if per_day[day] and per_day[day + WINDOW_DAYS]
        ]
        first_ms = start_ms + rng.choice(firsts)
        repeated = text(rng)
        events.append(Event(first_ms, repeated, kept=True))
        events.append(Event(first_ms + gap_ms, repeated, kept=not inside))
    return sorted(events, key=lambda event: event.time_ms)


WILD = ("ten years ahead", "1970", "random")
"""Wrong clocks."""


def wild_time(clock: str, time_ms: int, rng: random.Random) -> int:
    """Return the time that a producer with a wrong clock sends, from the true one."""
    match clock:
        case "ten years ahead":
            return time_ms + 3650 * DAY
        case "1970":
            return 0
        case _:
            return rng.randrange(2 * START)


def with_wild(events: Sequence[Event], clock: str, one_in: int, seed: int = 2) -> list[Event]:
    """Return the stream with a producer of its own texts whose clock is wrong, one of ``one_in``.

    It repeats some of its texts.
    """
    rng = random.Random(seed)
    mixed: list[Event] = []
    own = [text(rng) for _ in range(1 + len(events) // one_in // 2)]
    for event in events:
        mixed.append(event)
        if rng.randrange(one_in - 1) == 0:
            wild = Event(wild_time(clock, event.time_ms, rng), rng.choice(own), wild=True)
            mixed.append(wild)
    return mixed
