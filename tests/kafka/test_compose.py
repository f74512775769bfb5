"""Transactions composed from verdicts: routes, limits of topics, and omitted parts."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from streamdedup.errors import TopicError
from streamdedup.formats import changelog
from streamdedup.kafka.compose import Composer
from streamdedup.kafka.messages import ClusterFacts, Outgoing, TopicFacts
from streamdedup.kafka.topics import topic_names
from streamdedup.model import NO_TIMESTAMP, Match, Outcome, Position, Record, Rejection, Verdict
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import Settings
from tests.support.builders import columns, update_of, verdicts_of

FINGERPRINT = Settings().fingerprint
NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
KIB = 1024
ORIGINAL = Match("first", Position("documents", 0, 0), 0.9, None, 1.0)


def noise(kib: int) -> bytes:
    """Return bytes that cannot be compressed."""
    return random.Random(1).randbytes(kib * KIB)


def composer(settings: Settings | None = None, **limits: int) -> Composer:
    """Return a composer; ``limits`` are the message sizes of topics, by role."""
    settings = settings or Settings()
    sizes = {getattr(settings.topics, role): limit for role, limit in limits.items()}
    topics = {
        name: TopicFacts(name, 3, sizes.get(name, 1_048_588), 2 * DAY_MS, DAY_MS)
        for name in topic_names(settings)
    }
    return Composer(settings, ClusterFacts("cluster", topics))


def record(value: bytes | None = b"{}", **fields: Any) -> Record:
    """Return a record of partition 2."""
    return Record(Position("documents", 2, 7), value, **fields)


def verdict(outcome: Outcome, **fields: Any) -> Verdict:
    """Return the verdict on that record."""
    return Verdict(outcome, "second", Position("documents", 2, 7), **fields)


DUPLICATE = verdict(Outcome.DUPLICATE, matches=(ORIGINAL,))
REJECTED = verdict(Outcome.REJECTED, rejection=Rejection("decode", "InvalidJson", "why"))


def composed(with_: Composer, original: Record, outcome: Verdict) -> Outgoing:
    """Return the message of a batch with one record."""
    transaction = with_.compose(
        [original], verdicts_of([outcome]), update_of(columns([]), 0), NOW_MS
    )
    (messages,) = transaction.messages
    (fields,) = zip(
        messages.keys,
        messages.values,
        messages.headers,
        messages.timestamps_ms,
        messages.source_partitions.tolist(),
        strict=True,
    )
    return Outgoing(messages.topic, *fields)


@pytest.mark.parametrize(
    ("outcome", "route", "role"),
    [
        (verdict(Outcome.KEPT), "split", "clean"),
        (DUPLICATE, "split", "duplicates"),
        (REJECTED, "split", "dead_letter"),
        (DUPLICATE, "annotate", "clean"),
        (REJECTED, "annotate", "dead_letter"),
    ],
    ids=lambda value: value.outcome if isinstance(value, Verdict) else value,
)
def test_the_verdict_chooses_the_topic(outcome: Verdict, route: str, role: str) -> None:
    """Each record becomes one message with its key, timestamp and source partition."""
    settings = load_settings(output={"route": route})
    original = record(key=b"key", timestamp_ms=NOW_MS)
    message = composed(composer(settings), original, outcome)
    assert message.topic == getattr(settings.topics, role)
    assert (message.key, message.timestamp_ms, message.source_partition) == (b"key", NOW_MS, 2)
    if role != "duplicates":
        assert message.value == original.value


@pytest.mark.parametrize(("form", "added"), [("compact", 1), ("full", 6), ("none", 0)])
def test_the_settings_choose_the_form_of_the_headers(form: str, added: int) -> None:
    """The record's own headers come first."""
    settings = load_settings(output={"headers": form})
    original = record(headers=(("h", b"v"),))
    headers = composed(composer(settings), original, verdict(Outcome.KEPT)).headers
    assert headers[0] == ("h", b"v")
    assert len(headers) == 1 + added


def test_a_transaction_has_the_entry_and_the_offsets() -> None:
    """The changelog entry decodes to the update, and the offsets are the next ones to read."""
    update = update_of(columns([[1] * 9, [2] * 9], first_offset=5), 0)
    transaction = composer().compose([], verdicts_of([]), update, NOW_MS)
    (entry,) = transaction.changelog
    assert changelog.decode(entry, FINGERPRINT).documents.ids == update.documents.ids
    assert transaction.offsets == {("documents", 0): 7}


@pytest.mark.parametrize(
    ("timestamp_ms", "reason"),
    [
        (NOW_MS, None),
        (NO_TIMESTAMP, None),
        (NOW_MS + DAY_MS, None),
        (NOW_MS + DAY_MS + 1, "TimestampInFuture"),
        (NOW_MS - 2 * DAY_MS, None),
        (NOW_MS - 2 * DAY_MS - 1, "TimestampInPast"),
    ],
)
def test_timestamps_beyond_the_limits_are_refused(timestamp_ms: int, reason: str | None) -> None:
    """The limits themselves, and records without timestamp, are accepted."""
    rejections = composer().refused([record(), record(timestamp_ms=timestamp_ms)], NOW_MS)
    assert {row: rejection.reason for row, rejection in rejections.items()} == (
        {} if reason is None else {1: reason}
    )


def test_records_too_large_for_the_clean_topic_are_refused() -> None:
    """Value, key and headers count, with room for the added headers."""
    large = noise(60)
    records = [
        record(large),
        record(key=large),
        record(headers=(("h", large),)),
        record(noise(40)),
    ]
    rejections = composer(clean=64 * KIB).refused(records, NOW_MS)
    assert {row: rejection.reason for row, rejection in rejections.items()} == dict.fromkeys(
        range(3), "RecordTooLarge"
    )


def test_compressed_records_are_judged_by_what_they_take() -> None:
    """A value that is larger than the limit goes to its topic if it fits compressed."""
    text = json.dumps({"text": "the same words again and again " * 10_000}).encode()
    small = composer(clean=64 * KIB, dead_letter=64 * KIB)
    assert small.refused([record(text), record(noise(100))], NOW_MS).keys() == {1}
    for outcome in (verdict(Outcome.KEPT), REJECTED):
        assert composed(small, record(text), outcome).value == text
    plain = load_settings(kafka={"compression": "none"})
    assert composer(plain, clean=64 * KIB).refused([record(text)], NOW_MS).keys() == {0}


def test_a_timestamp_that_a_topic_refuses_is_omitted() -> None:
    """The duplicate record then gets the time of sending."""
    old = record(timestamp_ms=NOW_MS - 3 * DAY_MS)
    assert composed(composer(), old, DUPLICATE).timestamp_ms is None


@pytest.mark.parametrize(
    ("original", "has_value", "has_headers", "has_key"),
    [
        (record(key=b"k", headers=(("h", b"v"),)), True, True, True),
        (record(noise(100), key=b"k", headers=(("h", b"v"),)), False, True, True),
        (record(key=b"k", headers=(("h", noise(100)),)), False, False, True),
        (record(key=noise(100), headers=(("h", b"v"),)), False, False, False),
    ],
    ids=["fits", "large value", "large header", "large key"],
)
def test_a_duplicate_record_omits_parts_that_do_not_fit(
    original: Record, has_value: bool, has_headers: bool, has_key: bool
) -> None:
    """The value goes first, then the headers, then the key; the matches stay."""
    settings = load_settings(output={"include_value": True})
    message = composed(composer(settings, duplicates=64 * KIB), original, DUPLICATE)
    content = json.loads(message.value or b"")
    assert content["original"] == "first"
    assert ("value" in content, bool(message.headers), message.key is not None) == (
        has_value,
        has_headers,
        has_key,
    )


@pytest.mark.parametrize(
    ("original", "has_value", "has_key"),
    [
        (record(b"bad", key=b"k"), True, True),
        (record(noise(100), key=b"k"), False, True),
        (record(b"bad", key=noise(100)), False, False),
    ],
    ids=["fits", "large value", "large key"],
)
def test_a_dead_letter_omits_parts_that_do_not_fit(
    original: Record, has_value: bool, has_key: bool
) -> None:
    """A header then has the size of the original value."""
    message = composed(composer(dead_letter=64 * KIB), original, REJECTED)
    assert (message.value is not None, message.key is not None) == (has_value, has_key)
    omitted = dict(message.headers).get("__streamdedup.errors.value.omitted")
    assert omitted == (None if has_value else str(len(original.value or b"")).encode())


@pytest.mark.parametrize("role", ["clean", "duplicates", "dead_letter"])
def test_a_topic_without_room_for_the_additions_is_an_error(role: str) -> None:
    """The message names the topic and the settings."""
    with pytest.raises(TopicError, match=r"max\.message\.bytes.*limits\.id_bytes") as caught:
        composer(None, **{role: 4 * KIB - 1})
    assert getattr(Settings().topics, role) in str(caught.value)


def test_a_header_name_that_cannot_be_written_is_refused() -> None:
    """The message has its bytes in a readable form, those of the first invalid name."""
    names = [name.decode("utf-8", "surrogateescape") for name in (b"a", b"\xff", b"\xfe")]
    headers = tuple((name, b"") for name in names)
    rejections = composer().refused([record(headers=headers[:1]), record(headers=headers)], NOW_MS)
    [(row, rejection)] = rejections.items()
    assert (row, rejection.stage, rejection.reason) == (1, "produce", "InvalidHeaderName")
    assert "the header name '\\\\xff' is not valid UTF-8" in rejection.message


@pytest.mark.parametrize(
    ("timestamp_ms", "words"),
    [
        (NOW_MS + 2 * DAY_MS, "ahead of the clock than the clean topic's message.timestamp.after."),
        (NOW_MS - 3 * DAY_MS, "behind the clock than the clean topic's message.timestamp.before."),
    ],
)
def test_a_refused_timestamp_names_the_limit(timestamp_ms: int, words: str) -> None:
    """So that an operator can raise the limit of the topic."""
    [rejection] = composer().refused([record(timestamp_ms=timestamp_ms)], NOW_MS).values()
    assert words in rejection.message
    assert str(timestamp_ms) in rejection.message
