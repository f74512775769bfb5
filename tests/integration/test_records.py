"""The output topics: original bytes, verdicts, and the order of judgement."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, ConsumerRecord
from jsonschema import Draft202012Validator

from deploy.broker.broker import Broker
from tests.support.paths import ROOT
from tests.support.patience import wait_until
from tests.support.stage import Stage
from tests.support.topics import Message

pytestmark = pytest.mark.kafka

SCHEMA = ROOT / "docs" / "schemas" / "duplicate-record.schema.json"
STORY = "The council has voted last night to close the old harbour for good"
OTHER = "Prices of wheat have gone up again after the drought in the south"
NOON_MS = 1_700_000_000_000


def message(partition: int = 0, key: bytes | None = None, **fields: Any) -> Message:
    """Return a record with a JSON document."""
    return Message(json.dumps(fields).encode(), key, partition)


FIRST = Message(
    b'  {"text" : "%s", "id": "first", "meta": {"at": "2023-11-14T22:13:20Z"}}\n' % STORY.encode(),
    b"\xfe\xffkey",
    0,
    [("trace", b"\x00\xff"), ("trace", b"again"), ("empty", b""), ("none", None)],
    NOON_MS,
)
"""A document with unusual bytes, key, headers and timestamp."""

TWIN = message(id="twin", text=STORY, meta={"at": NOON_MS // 1000 + 90})

BATCH = [
    FIRST,
    TWIN,
    message(id="near", text=f"{STORY} and ever", meta={"at": NOON_MS - 500}),
    message(id="elsewhere", text=STORY, site="b"),
    message(id="again elsewhere", text=STORY, site="b"),
    message(key=b"\xc3\xa9-key", text=OTHER),
    message(text=OTHER),
    message(id=12, text="A number names this document, and that is fine too"),
]
"""Records of partition 0: exact and near copies, two namespaces, and ids from several fields."""

LATER = [message(partition=2, id="far", text=STORY), message(partition=2, text="x" * 40)]
"""Records of partition 2, produced after the batch was judged."""


def added_headers(record: ConsumerRecord) -> dict[str, str]:
    """Return the headers that streamdedup has added, without their prefix."""
    prefix = "streamdedup-"
    return {
        name.removeprefix(prefix): (value or b"").decode()
        for name, value in record.headers
        if name.startswith(prefix)
    }


def hash_of(*parts: object) -> str:
    """Return a text that is similar to no other."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


async def produce_in_transactions(bootstrap: str, topic: str) -> None:
    """Write two committed and two aborted transactions to partition 1."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{topic}-source")
    await producer.start()
    try:
        for name in ("committed", "aborted", "committed again", "aborted again"):
            await producer.begin_transaction()
            for number in range(3):
                text = f"{hash_of(name, number)} {hash_of(number, name)}"
                value = json.dumps({"id": f"{name} {number}", "text": text})
                await producer.send_and_wait(topic, value.encode(), partition=1)
            if "aborted" in name:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
    finally:
        await producer.stop()


def judge_all(stage: Stage) -> None:
    """Run a worker over the batch, the transactions and the later records."""
    stage.produce(BATCH)
    asyncio.run(produce_in_transactions(stage.bootstrap, stage.topics["source"]))
    with stage.start_worker() as worker:
        stage.wait_until_committed({0: 8, 1: 16, 2: 0}, worker)
        stage.produce(LATER)
        stage.wait_until_committed({0: 8, 1: 16, 2: 2}, worker)
        wait_until(lambda: all_read(worker.get("/status")[1]), "the lag to reach 0")
        worker.drain()


def all_read(status: str) -> bool:
    """Tell whether the lag of every partition is 0; transaction markers do not count."""
    lag = json.loads(status)["lag"]
    return len(lag) == 3 and not any(lag.values())


def test_records_stay_unchanged_and_get_a_verdict(broker: Broker, tmp_path: Path) -> None:
    """Bytes, key, headers and timestamp stay; matches name earlier kept documents, best first."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(
        output={"include_value": True, "headers": "full", "max_matches": 2},
        records={"namespace_field": "site", "event_time_field": "meta.at"},
        dedup={"threshold": 0.5},
    )
    stage.create_topics(3)
    judge_all(stage)

    source = stage.topics["source"]
    clean = {added_headers(record)["id"]: record for record in stage.read("clean")}
    duplicates = {json.loads(record.value)["id"]: record for record in stage.read("duplicates")}
    committed = {f"{name} {row}" for name in ("committed", "committed again") for row in range(3)}
    others = {"first", "elsewhere", "\xe9-key", "12", f"{source}:2:1"}
    assert set(clean) == committed | others
    assert set(duplicates) == {"twin", "near", "again elsewhere", f"{source}:0:6", "far"}
    assert_unchanged(clean["first"], stage)
    assert_source_partitions(clean, duplicates, source)
    contents = {name: json.loads(record.value) for name, record in duplicates.items()}
    assert_valid(contents)
    assert_matches(contents, source)


def assert_unchanged(record: ConsumerRecord, stage: Stage) -> None:
    """Check that the clean record of ``FIRST`` only gained headers."""
    assert (record.value, record.key, record.timestamp) == (FIRST.value, FIRST.key, NOON_MS)
    assert record.headers[:4] == tuple(FIRST.headers)
    assert added_headers(record) == {
        "verdict": "kept",
        "id": "first",
        "topic": stage.topics["source"],
        "partition": "0",
        "offset": "0",
        "fingerprint": stage.settings().fingerprint,
    }


def assert_source_partitions(
    clean: Mapping[str, ConsumerRecord], duplicates: Mapping[str, ConsumerRecord], source: str
) -> None:
    """Check that records without a key keep their partition."""
    assert clean["elsewhere"].partition == 0
    assert clean["committed 0"].partition == 1
    assert clean[f"{source}:2:1"].partition == 2
    assert duplicates["far"].partition == 2


def assert_valid(contents: Mapping[str, dict[str, Any]]) -> None:
    """Check that the duplicate records follow the published schema."""
    validator = Draft202012Validator(json.loads(SCHEMA.read_text()))
    for content in contents.values():
        validator.validate(content)


def assert_matches(contents: Mapping[str, dict[str, Any]], source: str) -> None:
    """Check the originals, ages, similarities and positions in the duplicate records."""
    twin, near, far = contents["twin"], contents["near"], contents["far"]
    assert TWIN.value is not None
    assert twin["value"] == TWIN.value.decode()
    assert [(match["id"], match["age_s"]) for match in twin["matches"]] == [("first", 90.0)]
    assert twin["event_time"] == "2023-11-14T22:14:50.000Z"
    assert near["matches"][0]["age_s"] == -0.5
    assert near["matches"][0]["jaccard_estimate"] < 1
    assert contents["again elsewhere"]["original"] == "elsewhere"
    assert contents[f"{source}:0:6"]["original"] == "\xe9-key"
    assert far["matches"][0]["position"] == {"topic": source, "partition": 0, "offset": 0}


def test_annotated_records_all_go_to_the_clean_topic(broker: Broker, tmp_path: Path) -> None:
    """Headers carry the verdict, records may be plain text, and the window drops the oldest."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(
        output={"route": "annotate", "headers": "full", "max_matches": 1},
        records={"format": "text"},
        index={"window_documents": 3},
        batch={"documents": 2},
    )
    stage.create_topics(2)
    texts = [STORY, OTHER, STORY, "one more text for the window", "and another of them", STORY]
    texts += [STORY.upper(), "\xff\xfe"]
    stage.produce(
        Message(text.encode("latin-1"), b"key-%d" % number if number % 2 else None, 1)
        for number, text in enumerate(texts)
    )
    stage.run_until_committed({0: 0, 1: len(texts)})
    assert stage.read("duplicates") == []
    [bad] = stage.read("dead_letter")
    assert bad.value == b"\xff\xfe"

    clean = {int(added_headers(record)["offset"]): record for record in stage.read("clean")}
    verdicts = [added_headers(clean[offset])["verdict"] for offset in range(7)]
    kept, duplicate = "kept", "duplicate"
    assert verdicts == [kept, kept, duplicate, kept, kept, kept, duplicate]
    source = stage.topics["source"]
    first, last = added_headers(clean[2]), added_headers(clean[6])
    assert (first["id"], first["original"]) == (f"{source}:1:2", f"{source}:1:0")
    assert (last["id"], last["original"], last["jaccard-estimate"]) == (
        f"{source}:1:6",
        "key-5",
        "1.000000",
    )
    assert json.loads(last["matches"])[0]["position"]["offset"] == 5
    assert [clean[offset].value for offset in range(7)] == [text.encode() for text in texts[:7]]
