"""The window by time through Kafka: records with their own timestamps, and a backfill."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from deploy.broker.broker import Broker
from tests.support.paces import DAY, HOUR, WILD, WINDOW, Event, text, times, wild_time
from tests.support.stage import Stage
from tests.support.topics import Message

pytestmark = pytest.mark.kafka

KEEP = {"retention.ms": "-1", "message.timestamp.type": "CreateTime"}
"""Old records stay in the topics, with the producers' timestamps."""
PACE = [8] * 10 + [0] * 30 + [8] * 10
"""A silence of 30 days between two slow streams."""


def pairs(start_ms: int, rng: random.Random) -> list[Event]:
    """Return texts that are repeated one hour inside the window and one hour outside of it.

    Some of the first ones come in the first hours of the stream, and after the silence.
    """
    events = []
    for first_ms in (start_ms + HOUR, start_ms + 2 * DAY, start_ms + 40 * DAY + HOUR):
        for gap_ms in (WINDOW - HOUR, WINDOW + HOUR):
            repeated = text(rng)
            events.append(Event(first_ms, repeated, kept=True))
            events.append(Event(first_ms + gap_ms, repeated, kept=gap_ms > WINDOW))
    return events


def sent(events: Sequence[Event], stamps_ms: Sequence[int]) -> list[Message]:
    """Return the messages of documents, with event times and record timestamps."""
    return [
        Message(json.dumps({"text": each.text, "at": each.time_ms}).encode(), timestamp_ms=stamp_ms)
        for each, stamp_ms in zip(events, stamps_ms, strict=True)
    ]


def judge(stage: Stage, messages: Sequence[Message]) -> list[bool]:
    """Run a worker over the messages; tell which are kept."""
    stage.create_topics(source=KEEP, clean=KEEP, duplicates=KEEP)
    stage.produce(messages)
    stage.run_until_committed({0: len(messages)})
    outcomes = stage.outcomes()
    return [outcomes[0, offset] == "clean" for offset in range(len(messages))]


@pytest.mark.parametrize("clock", ["record", "event"])
def test_the_window_by_time(clock: str, broker: Broker, tmp_path: Path) -> None:
    """Each copy inside the window is a duplicate and each one outside of it is kept.

    By record, brokers have stamped the records when they came, and half of them are of a producer
    whose event times are wrong. By event, it is a backfill that was stamped just now.
    """
    now_ms = time.time_ns() // 1_000_000
    start_ms, rng = now_ms - 60 * DAY, random.Random(1)
    events = [Event(time_ms, text(rng)) for time_ms in times(PACE, start_ms)]
    events += pairs(start_ms, rng)
    if clock == "record":
        stamped = [(event.time_ms, event) for event in events]
        for number, event in enumerate(events):
            wrong_ms = wild_time(WILD[number % len(WILD)], event.time_ms, rng)
            stamped.append((event.time_ms, Event(wrong_ms, text(rng), wild=True)))
        stamped.sort(key=lambda each: each[0])
    else:
        stamped = [(now_ms, each) for each in sorted(events, key=lambda event: event.time_ms)]
        # In a backfill the first 14 documents after a long silence have exceptions.
        stamped = [each for each in stamped if each[1].time_ms < start_ms + 40 * DAY]
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(
        index={"window": "7d", "clock": clock},
        records={"event_time_field": "at"},
        batch={"documents": 50},
    )
    found = judge(stage, sent([event for _, event in stamped], [stamp for stamp, _ in stamped]))
    expected = [(event.time_ms, event.kept) for _, event in stamped if event.kept is not None]
    told = [
        (event.time_ms, is_kept)
        for (_, event), is_kept in zip(stamped, found, strict=True)
        if event.kept is not None
    ]
    assert told == expected
    assert sum(is_kept is False for _, is_kept in told) == (3 if clock == "record" else 2)
