"""What the topics hold: bytes untouched, verdicts beside them, and the verdicts' order."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from jsonschema import Draft202012Validator

from deploy.broker.broker import Broker
from tests.support.paths import ROOT
from tests.support.stage import Message, Stage, wait_until

pytestmark = pytest.mark.kafka

SCHEMA = ROOT / "docs" / "schemas" / "duplicate-record.schema.json"
STORY = "The council has voted last night to close the old harbour for good"
OTHER = "Prices of wheat have gone up again after the drought in the south"
NOON_MS = 1_700_000_000_000


def message(partition: int = 0, key: bytes | None = None, **fields: Any) -> Message:
    """Return a record with a JSON document."""
    return Message(json.dumps(fields).encode(), key, partition)


def ours(headers: Sequence[tuple[str, bytes | None]]) -> dict[str, str]:
    """Return the headers that streamdedup has added, without their prefix."""
    prefix = "streamdedup-"
    return {
        name.removeprefix(prefix): (value or b"").decode()
        for name, value in headers
        if name.startswith(prefix)
    }


def hash_of(*parts: object) -> str:
    """Return a text that resembles no other."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


async def produce_in_transactions(bootstrap: str, topic: str) -> None:
    """Write one transaction that is committed, one that is aborted, and one more of each."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{topic}-source")
    await producer.start()
    try:
        for word in ("committed", "aborted", "committed again", "aborted again"):
            await producer.begin_transaction()
            for number in range(3):
                text = f"{hash_of(word, number)} {hash_of(number, word)}"
                value = json.dumps({"id": f"{word} {number}", "text": text})
                await producer.send_and_wait(topic, value.encode(), partition=1)
            if "aborted" in word:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
    finally:
        await producer.stop()


def test_records_keep_what_they_brought_and_gain_a_verdict(broker: Broker, tmp_path: Path) -> None:
    """Bytes, key, headers and timestamp stay; matches name earlier kept documents, best first."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(
        output={"include_value": True, "max_matches": 2},
        records={"namespace_field": "site", "event_time_field": "meta.at"},
        dedup={"threshold": 0.5},
    )
    stage.create_topics(3)
    headers = [("trace", b"\x00\xff"), ("trace", b"again"), ("empty", b""), ("none", None)]
    full = Message(
        b'  {"text" : "%s", "id": "first", "meta": {"at": "2023-11-14T22:13:20Z"}}\n'
        % STORY.encode(),
        b"\xfe\xffkey",
        0,
        headers,
        NOON_MS,
    )
    in_order = [
        full,
        message(id="twin", text=STORY, meta={"at": NOON_MS // 1000 + 90}),
        message(id="near", text=STORY + " and ever", meta={"at": NOON_MS - 500}),
        message(id="elsewhere", text=STORY, site="b"),
        message(id="again elsewhere", text=STORY, site="b"),
        message(key=b"\xc3\xa9-key", text=OTHER),
        message(text=OTHER),
        message(id=12, text="A number names this document, and that is fine too"),
    ]
    stage.produce(in_order)
    asyncio.run(produce_in_transactions(broker.bootstrap, stage.topics["source"]))
    far = [message(partition=2, id="far", text=STORY), message(partition=2, text="x" * 40)]
    with stage.start_worker() as worker:
        stage.wait_until_committed({0: 8, 1: 11, 2: 0}, worker)
        stage.produce(far)
        stage.wait_until_committed({0: 8, 1: 11, 2: 2}, worker)
        wait_until(lambda: all_read(worker.get("/status")[1]), "the lag to reach 0")
        worker.drain()

    clean = {ours(record.headers)["id"]: record for record in stage.read("clean")}
    duplicates = {json.loads(record.value)["id"]: record for record in stage.read("duplicates")}
    source = stage.topics["source"]
    aborted_appear_nowhere = {
        f"{word} {number}" for word in ("committed", "committed again") for number in range(3)
    }
    assert set(clean) == aborted_appear_nowhere | {
        *("first", "elsewhere", "\xe9-key", "12", f"{source}:2:1")
    }
    assert set(duplicates) == {"twin", "near", "again elsewhere", f"{source}:0:6", "far"}

    first = clean["first"]
    assert (first.value, first.key, first.timestamp) == (full.value, full.key, NOON_MS)
    assert first.headers[:4] == tuple(headers)
    assert ours(first.headers) == {
        "verdict": "kept",
        "id": "first",
        "topic": source,
        "partition": "0",
        "offset": "0",
        "fingerprint": stage.settings().dedup.sketch_parameters().fingerprint(),
    }
    # Without a key a record keeps its partition.
    assert clean["elsewhere"].partition == 0
    assert clean["committed 0"].partition == 1
    assert clean[f"{source}:2:1"].partition == 2
    assert duplicates["far"].partition == 2

    contents = {name: json.loads(record.value) for name, record in duplicates.items()}
    validator = Draft202012Validator(json.loads(SCHEMA.read_text()))
    for content in contents.values():
        validator.validate(content)
    assert contents["twin"]["value"] == in_order[1].value.decode()  # type: ignore[union-attr]
    assert [(match["id"], match["age_s"]) for match in contents["twin"]["matches"]] == [
        ("first", 90.0)
    ]
    assert contents["twin"]["event_time"] == "2023-11-14T22:14:50.000Z"
    assert contents["near"]["matches"][0]["age_s"] == -0.5
    assert contents["near"]["matches"][0]["jaccard_estimate"] < 1
    assert contents["again elsewhere"]["original"] == "elsewhere"
    assert contents[f"{source}:0:6"]["original"] == "\xe9-key"
    assert contents["far"]["matches"][0]["position"] == {
        "topic": source,
        "partition": 0,
        "offset": 0,
    }


def all_read(status: str) -> bool:
    """Tell whether the lag of every partition is 0; marks of transactions do not count."""
    lag = json.loads(status)["lag"]
    return len(lag) == 3 and not any(lag.values())


def test_annotated_records_all_go_to_the_clean_topic(broker: Broker, tmp_path: Path) -> None:
    """The verdict stands in headers; bare text is a format too; the window forgets the oldest."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(
        output={"route": "annotate", "max_matches": 1},
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

    found = {int(ours(each.headers)["offset"]): each for each in stage.read("clean")}
    verdicts = [ours(found[offset].headers)["verdict"] for offset in range(7)]
    kept, duplicate = "kept", "duplicate"
    assert verdicts == [kept, kept, duplicate, kept, kept, kept, duplicate]
    source = stage.topics["source"]
    first, last = ours(found[2].headers), ours(found[6].headers)
    assert (first["id"], first["original"]) == (f"{source}:1:2", f"{source}:1:0")
    assert (last["id"], last["original"], last["jaccard-estimate"]) == (
        f"{source}:1:6",
        "key-5",
        "1.000000",
    )
    assert json.loads(last["matches"])[0]["position"]["offset"] == 5
    assert [found[offset].value for offset in range(7)] == [text.encode() for text in texts[:7]]
