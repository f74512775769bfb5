"""Invalid records: each gets its documented outcome, and none stops the worker."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import ConsumerRecord

from deploy.broker.broker import Broker
from tests.support.stage import Stage
from tests.support.topics import HeaderName, Message, produce_compressed

pytestmark = pytest.mark.kafka

MIB = 1024**2
DAY_MS = 86_400_000
NOW_MS = time.time_ns() // 1_000_000
REASON = "__streamdedup.errors.exception.class.name"
OMITTED = "__streamdedup.errors.value.omitted"
LARGE = {"max.message.bytes": str(64 * MIB)}
NOISE = random.Random(7).randbytes(4 * MIB)
"""Bytes that cannot be compressed, more than a topic accepts by default."""
ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1)}


@dataclass(frozen=True)
class Case:
    """A record, the role of the topic that gets it, and the reason in the dead-letter topic."""

    message: Message
    outcome: str
    reason: str = ""


def kept(value: bytes, **fields: Any) -> Case:
    """Return a record that goes to the clean topic."""
    return Case(replace(Message(value), **fields), "clean")


def dead(reason: str, value: bytes | None, **fields: Any) -> Case:
    """Return a record that goes to the dead-letter topic."""
    return Case(replace(Message(value), **fields), "dead_letter", reason)


JSON_CASES = {
    "good": kept(b'{"id": "good", "text": "a good text in the middle of bad ones"}'),
    "invalid-utf8": dead("InvalidUtf8", b'{"text": "\xff\xfe"}'),
    "invalid-json": dead("InvalidJson", b'{"text": '),
    "no-bytes": dead("InvalidJson", b""),
    "raw-nul": dead("InvalidJson", b'{"text": "a raw \x00 in JSON"}'),
    "not-an-object": dead("NotAnObject", b'["text"]'),
    "missing-text": dead("MissingText", b'{"id": "x", "body": "elsewhere"}'),
    "null-text": dead("MissingText", b'{"text": null}'),
    "number-text": dead("TextNotString", b'{"text": 7}'),
    "list-id": dead("IdNotString", b'{"id": ["x"], "text": "t"}'),
    "surrogate-id": dead("IdNotUnicode", b'{"id": "\\ud800", "text": "t"}'),
    "list-namespace": dead("NamespaceNotString", b'{"site": [], "text": "t"}'),
    "no-time": dead("InvalidEventTime", b'{"at": "yesterday", "text": "t"}'),
    "endless-time": dead("InvalidEventTime", b'{"at": 1e300, "text": "t"}'),
    "tombstone": dead("NullValue", None, key=b"user-1"),
    "nothing-at-all": dead("NullValue", None, key=None),
    "empty-text": kept(b'{"text": ""}'),
    "empty-again": kept(b'{"text": " \\u200b\\n "}'),
    "long-text": dead("TextTooLarge", b'{"text": "%s"}' % (b"long " * 60_000)),
    "large-value": dead("ValueTooLarge", b'{"x": "%s", "text": "t"}' % (b"x" * 600_000)),
    "larger-than-clean": dead("RecordTooLarge", NOISE),
    "fifty-megabytes": dead("ValueTooLarge", b'{"text": "%s"}' % (b"fifty " * 8_333_333)),
    "deep": dead("InvalidJson", b'{"text": "t", "x": %s1%s}' % (b"[" * 100_000, b"]" * 100_000)),
    "deep-and-open": dead("InvalidJson", b'{"text": ' + b"[" * 100_000),
    "surrogate": kept(b'{"text": "a lone \\ud800 surrogate is judged like all others"}'),
    "escaped-nul": kept(b'{"text": "the character \\u0000 has been escaped in this one"}'),
    "huge-number": kept(
        b'{"x": 1e999, "text": "a number too large for a float stands beside this text"}'
    ),
    "huge-key": kept(b'{"id": "k", "text": "my key has many bytes"}', key=b"\x80" * 300_000),
    "huge-key-as-id": dead("IdTooLarge", b'{"text": "t"}', key=b"k" * 1000),
    "many-headers": kept(
        b'{"id": "h", "text": "my headers are many"}',
        headers=[(f"h{number}", b"\x00" * 1000) for number in range(300)],
    ),
    "huge-headers": dead("RecordTooLarge", b'{"text": "t"}', headers=[("h", NOISE)]),
    "far-future": dead("TimestampInFuture", b'{"text": "t"}', timestamp_ms=NOW_MS + 900 * DAY_MS),
    "year-60000": dead("TimestampInFuture", b'{"text": "t"}', timestamp_ms=2**50),
    "far-past": dead("TimestampInPast", b'{"text": "t"}', timestamp_ms=NOW_MS - 900 * DAY_MS),
    "copy": Case(
        Message(b'{"id": "copy", "text": "a good text in the middle of bad ones"}'), "duplicates"
    ),
}

TEXT_CASES = {
    "good": kept(b"a good text that a record holds as it is"),
    "raw-nul": kept(b"a raw \x00 in the middle of a text does no harm"),
    "fifty-megabytes": kept(b"fifty million characters " * 2_000_000),
    "empty": dead("EmptyText", b""),
    "blank": dead("EmptyText", " \u200b \n".encode()),
    "invalid-utf8": dead("InvalidUtf8", b"\xff" * 100),
    "compressed": dead("InvalidUtf8", b"\xff" * 200_000),
    "omitted": dead("InvalidUtf8", b"\xff" + NOISE[:200_000]),
    "omitted-headers": dead("InvalidUtf8", b"\xff", headers=[("h", NOISE[:200_000])]),
    "epoch": kept(b"a text of the year 1970, or of a broken clock", timestamp_ms=0),
    "no-time": kept(b"a text that was never given a time", timestamp_ms=-1),
    "before-all-time": kept(b"a text from before the beginning", timestamp_ms=-2_000),
    "copy-of-old": Case(
        Message(b"a good text that a record holds as it is", timestamp_ms=NOW_MS - 900 * DAY_MS),
        "duplicates",
    ),
    "copy-with-headers": Case(
        Message(b"a good text that a record holds as it is", headers=[("h", NOISE[:200_000])]),
        "duplicates",
    ),
    "copy": Case(Message(b"a good text that a record holds as it is"), "duplicates"),
}


def run_through(stage: Stage, cases: dict[str, Case]) -> dict[str, ConsumerRecord]:
    """Run a worker over the cases, check their outcomes, and return the output records by name."""
    stage.produce([case.message for case in cases.values()])
    stage.run_until_committed({0: len(cases)})
    outcomes = stage.outcomes()
    by_name = {name: outcomes.get((0, offset)) for offset, name in enumerate(cases)}
    assert by_name == {name: case.outcome for name, case in cases.items()}
    records = stage.records()
    return {name: records[0, offset] for offset, name in enumerate(cases)}


def assert_untouched(record: ConsumerRecord, message: Message) -> None:
    """Check that a record has all contents of the source record, before any added headers."""
    assert record.value == message.value
    assert record.key == message.key
    assert record.headers[: len(message.headers)] == tuple(message.headers)
    if message.timestamp_ms is not None:
        assert record.timestamp == message.timestamp_ms


def reason(record: ConsumerRecord) -> str:
    """Return the reason in a dead letter, empty for other records."""
    return str(dict(record.headers).get(REASON, b""), "utf-8")


def test_each_invalid_json_record_gets_its_reason(broker: Broker, tmp_path: Path) -> None:
    """A bad record gets its reason and keeps its bytes; the good records around it are judged."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics(
        source=LARGE | ANY_TIME,
        clean={"message.timestamp.before.max.ms": str(365 * DAY_MS)},
        dead_letter=LARGE | ANY_TIME,
    )
    stage.configure(
        records={"event_time_field": "at", "namespace_field": "site"},
        limits={"text_bytes": 200_000, "value_bytes": 500_000},
    )
    records = run_through(stage, JSON_CASES)
    reasons = {name: reason(record) for name, record in records.items()}
    assert reasons == {name: case.reason for name, case in JSON_CASES.items()}
    for name, case in JSON_CASES.items():
        if case.outcome != "duplicates":
            assert_untouched(records[name], case.message)


def test_records_as_large_as_the_source_accepts(broker: Broker, tmp_path: Path) -> None:
    """Whether its producer compressed them or not, the clean topic gets them."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics()
    stage.configure(
        records={"format": "text"}, limits={"text_bytes": "4MiB", "value_bytes": "4MiB"}
    )

    def text(seed: int, size: int) -> bytes:
        words = [f"{number:x}" for number in random.Random(seed).sample(range(16**5, 16**6), 3000)]
        return " ".join(random.Random(seed).choices(words, k=size // 7 + 1))[:size].encode()

    for seed, size in enumerate((1_500_000, 2_000_000)):
        compressed = [Message(text(seed, size))]
        asyncio.run(produce_compressed(broker.bootstrap, stage.topics["source"], compressed))
    # Characters in no order do not compress to half.
    noise = bytes(random.Random(9).choices(range(0x20, 0x7F), k=1_048_400))
    stage.produce([Message(text(2, 1_048_400)), Message(noise)])
    stage.run_until_committed({0: 4})
    assert sorted(len(record.value or b"") for record in stage.read("clean")) == [
        *(1_048_400, 1_048_400),
        *(1_500_000, 2_000_000),
    ]


def test_parts_too_large_for_a_topic_are_omitted(broker: Broker, tmp_path: Path) -> None:
    """A header reports the omission; the source still has the original record."""
    stage = Stage(broker.bootstrap, tmp_path)
    small = {"max.message.bytes": "65536", "message.timestamp.before.max.ms": str(365 * DAY_MS)}
    stage.create_topics(source=LARGE, clean=LARGE, duplicates=small, dead_letter=small)
    stage.configure(
        records={"format": "text"},
        dedup={"empty_text": "reject"},
        limits={"text_bytes": "64MiB", "value_bytes": "64MiB"},
        output={"include_value": True},
    )
    records = run_through(stage, TEXT_CASES)
    reasons = {name: reason(record) for name, record in records.items()}
    assert reasons == {name: case.reason for name, case in TEXT_CASES.items()}
    omitted = {"omitted", "omitted-headers"}
    for name, case in TEXT_CASES.items():
        if case.outcome != "duplicates" and name not in omitted:
            assert_untouched(records[name], case.message)
    assert records["omitted"].value is None
    assert dict(records["omitted"].headers)[OMITTED] == b"200001"
    assert dict(records["omitted-headers"].headers)[OMITTED] == b"1"
    for name in ("copy", "copy-with-headers", "copy-of-old"):
        assert b'"original":"k"' in records[name].value
    assert "h" not in dict(records["copy-with-headers"].headers)


def test_header_names_that_are_not_utf_8(broker: Broker, tmp_path: Path) -> None:
    """Records with such a header name are dead letters; all others around them are judged."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics()
    stage.configure(records={"format": "text"})
    good = [Message(b"text number %d has no copy" % number, b"k") for number in range(9)]
    odd = HeaderName(b"h\xff\xc3\xa9".decode("utf-8", "surrogateescape"))
    bad = [
        Message(b"a text", b"k", headers=[("h\u00e9", b"v"), (odd, b"\xff")], timestamp_ms=NOW_MS),
        Message(b"another", None, headers=[(odd, None)]),
    ]
    stage.produce(good[:3])
    mixed = [*good[3:5], bad[0], good[5], bad[1], *good[6:7]]
    asyncio.run(produce_compressed(broker.bootstrap, stage.topics["source"], mixed))
    stage.produce(good[7:])
    stage.run_until_committed({0: 11})
    rejected = {(0, 5): "dead_letter", (0, 7): "dead_letter"}
    judged = {(0, offset): "clean" for offset in range(11)}
    assert stage.outcomes() == judged | rejected
    records = stage.records()
    record = records[0, 5]
    assert reason(record) == "InvalidHeaderName"
    assert (record.value, record.key, record.timestamp) == (b"a text", b"k", NOW_MS)
    assert record.headers[:2] == (("h\u00e9", b"v"), ("h\\xff\u00e9", b"\xff"))
    assert [stage.records()[0, offset].value for offset in (3, 10)] == [
        good[3].value,
        good[8].value,
    ]


def test_a_batch_that_expands_too_far(broker: Broker, tmp_path: Path) -> None:
    """Its records are dead letters, without the value; what surrounds them is judged."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics(source={"max.message.bytes": str(10**7)})
    stage.configure(records={"format": "text"})
    bomb = [Message(b"a" * 50_000_000, b"k")] * 3
    stage.produce([Message(b"the first")])
    asyncio.run(produce_compressed(broker.bootstrap, stage.topics["source"], bomb))
    stage.produce([Message(b"the last one")])
    stage.run_until_committed({0: 5})
    records = stage.records()
    assert stage.outcomes() == {
        (0, offset): "dead_letter" if offset in {1, 2, 3} else "clean" for offset in range(5)
    }
    for offset in (1, 2, 3):
        assert reason(records[0, offset]) == "BatchTooLarge"
        assert records[0, offset].value is None


def test_batches_are_bounded_in_bytes(broker: Broker, tmp_path: Path) -> None:
    """What one compressed batch of the producer expands to is judged in many small batches."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics()
    stage.configure(records={"format": "text"}, batch={"bytes": "100KiB"})
    texts = [random.Random(number).randbytes(20_000).hex() for number in range(40)]
    large = [Message(text.encode(), b"k") for text in [*texts[:20], texts[20] * 4, *texts[21:]]]
    small = [Message(b"a small text, number %d" % number, b"k") for number in range(100)]
    messages = [*small, *large]
    asyncio.run(produce_compressed(broker.bootstrap, stage.topics["source"], messages))
    with stage.start_worker() as worker:
        stage.wait_until_committed({0: len(messages)}, worker)
        batches = worker.metric("transactions_total", result="committed")
        worker.drain()
    outcomes = stage.outcomes()
    assert len(outcomes) == len(messages)
    assert {outcomes[0, offset] for offset in range(len(small), len(messages))} == {"clean"}
    assert batches >= sum(len(message.value or b"") for message in large) / 102_400
