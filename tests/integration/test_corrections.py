"""Commands that correct outcomes: list and replay dead letters, reinstate a dropped document."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from aiokafka import ConsumerRecord

from deploy.broker.broker import Broker
from streamdedup.admin.corrections import MOST_REPLAYS
from tests.support import topics
from tests.support.commands import CommandLine
from tests.support.stage import Stage
from tests.support.topics import Message

pytestmark = pytest.mark.kafka

NOW_MS = time.time_ns() // 1_000_000
HOUR_MS = 3_600_000
ERRORS = "__streamdedup.errors."
LARGE = random.Random(2).randbytes(100_000).hex().encode()
"""Text of 200 kB, of which compression leaves no less than half."""


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """Return the command line."""
    return CommandLine(capfd)


def added(record: ConsumerRecord, message: Message) -> dict[str, str]:
    """Check that a record is a message with more headers, and return these."""
    assert (record.value, record.key) == (message.value, message.key)
    assert record.headers[: len(message.headers)] == tuple(message.headers)
    if message.timestamp_ms is not None:
        assert record.timestamp == message.timestamp_ms
    return {name: value.decode() for name, value in record.headers[len(message.headers) :]}


def listed(command: CommandLine, stage: Stage, *arguments: object) -> dict[str, Any]:
    """Return what `dlq list` prints."""
    output = command(0, "dlq", "list", "-c", stage.config, "--json", *arguments)
    facts: dict[str, Any] = json.loads(output)
    return facts


def replayed(command: CommandLine, stage: Stage, *arguments: object) -> dict[str, Any]:
    """Return what `dlq replay` prints."""
    output = command(0, "dlq", "replay", "-c", stage.config, "--yes", "--json", *arguments)
    facts: dict[str, Any] = json.loads(output)
    return facts


def test_dead_letters_are_listed_and_replayed(
    broker: Broker, tmp_path: Path, command: CommandLine
) -> None:
    """The original record returns to its partition; one that fails again is counted.

    The value of a large record comes from the source, if the source still has it.

    This is one long test, because each step needs the outcome of the step before it.
    """
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics(2, dead_letter={"max.message.bytes": "65536"})
    fixable = Message(
        b'{"id": "a", "body": "A story that a wrong setting refused."}',
        b"key",
        partition=1,
        headers=[("h", b"v"), (ERRORS + "topic", b"another system's")],
        timestamp_ms=NOW_MS - HOUR_MS,
    )
    large = Message(b'{"id": "b", "body": "%s"}' % LARGE, None, partition=1)
    lost = Message(large.value)
    poison = Message(b"{", b"p")
    tombstone = Message(None, None)
    stage.produce([fixable, large, lost, poison, tombstone])
    stage.run_until_committed({0: 3, 1: 2})
    source = stage.topics["source"]

    letters = listed(command, stage)
    assert letters["dead_letters"] == 5
    assert letters["reasons"] == {"MissingText": 3, "InvalidJson": 1, "NullValue": 1}
    assert letters["newest"][0]["position"] == f"{source}:1:0"
    assert {one["reason"]: one["value_omitted"] for one in letters["newest"][1:]} == {
        "MissingText": True,
        "InvalidJson": False,
        "NullValue": False,
    }
    assert len(listed(command, stage, "--limit", 1)["newest"]) == 1
    assert listed(command, stage, "--reason", "NullValue")["dead_letters"] == 1
    table = command(0, "dlq", "list", "-c", stage.config)
    assert f"{source}:1:0" in table
    assert "MissingText: the document has no text field 'text'" in table

    # The setting is fixed, and all are replayed.
    stage.configure(records={"text_fields": ["body"]})
    assert "give --yes" in command(3, "dlq", "replay", "-c", stage.config)
    stage.delete_records("source", 1, partition=0)
    facts = {"replayed": 4, "replayed_too_often": 0, "lost": [f"{source}:0:0"]}
    assert replayed(command, stage) == facts
    with stage.start_worker() as worker:
        stage.wait_until_committed({0: 5, 1: 4}, worker)
        again = {(record.partition, record.offset): record for record in stage.read("source")}
        headers = {"streamdedup-replayed-from": f"{source}:1:0", "streamdedup-replays": "1"}
        assert added(again[1, 2], fixable) == headers
        assert added(again[1, 3], large)["streamdedup-replayed-from"] == f"{source}:1:1"
        assert {record.value for record in stage.read("clean")} == {fixable.value, large.value}

        # A record that fails again is one dead letter, which is not replayed without an end.
        invalid = ("--reason", "InvalidJson")
        for replays in range(1, MOST_REPLAYS):
            (letter,) = listed(command, stage, *invalid)["newest"]
            assert letter["replays"] == replays
            assert replayed(command, stage, *invalid)["replayed"] == 1
            stage.wait_until_committed({0: 5 + replays, 1: 4}, worker)
        worker.drain()
    (letter,) = listed(command, stage, *invalid)["newest"]
    assert letter["replays"] == MOST_REPLAYS
    refused = {"replayed": 0, "replayed_too_often": 1, "lost": []}
    assert replayed(command, stage, *invalid) == refused
    named = ("--position", letter["position"])
    assert replayed(command, stage, *named)["replayed"] == 1
    unknown = ("dlq", "replay", "-c", stage.config, "--position", f"{source}:0:77")
    assert "no dead letter of" in command(4, *unknown)


def test_a_dropped_document_is_reinstated(
    broker: Broker, tmp_path: Path, command: CommandLine
) -> None:
    """It gets the headers of a kept document, and one that says so; other positions are refused."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics(1)
    text = "A story that is told twice, word for word, although both are wanted."
    messages = [
        Message(
            json.dumps({"id": name, "text": text}).encode(),
            b"key",
            headers=[("h", b"v")],
            timestamp_ms=NOW_MS - HOUR_MS + number,
        )
        for number, name in enumerate("ab")
    ]
    stage.produce(messages)
    stage.run_until_committed({0: 2})
    assert stage.outcomes() == {(0, 0): "clean", (0, 1): "duplicates"}
    stage.produce(messages[:1])
    source = stage.topics["source"]
    reinstating = ("reinstate", "-c", stage.config, f"{source}:0:1")
    assert "give --yes" in command(3, *reinstating)
    for wrong in (f"{source}:0:9", f"{source}:7:0", f"{stage.topics['clean']}:0:0"):
        assert f"{wrong} is not a record of the source" in command(4, *reinstating, wrong, "--yes")
    assert "not judged yet" in command(4, *reinstating, f"{source}:0:2", "--yes")
    assert len(stage.read("clean")) == 1

    named_twice = f"{source}:0:1"
    output = command(0, *reinstating, named_twice, "--yes")
    assert output == f"reinstated 1 records on {stage.topics['clean']}\n"
    _, record = stage.read("clean")
    headers = added(record, messages[1])
    assert headers.pop("streamdedup-reinstated").endswith("Z")
    assert headers == {"sd": "0:1"}


def test_headers_of_a_producer_hide_no_dead_letter(
    broker: Broker, tmp_path: Path, command: CommandLine
) -> None:
    """A record can claim to be a replay, and letters of another source may be in the topic."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics()
    source = stage.topics["source"]
    claim = [
        ("streamdedup-replayed-from", f"{source}:0:0".encode()),
        ("streamdedup-replays", b"3"),
    ]
    forged = Message(b'{"id": "b", "text": 6}', headers=claim)
    stage.produce([Message(b'{"id": "a", "text": 5}'), forged])
    stage.run_until_committed({0: 2})
    letters = stage.read("dead_letter")
    upstream = Message(
        letters[0].value,
        headers=[(ERRORS + "topic", b"upstream"), *letters[0].headers[1:]],
    )
    asyncio.run(topics.produce(broker.bootstrap, stage.topics["dead_letter"], [upstream]))

    found = listed(command, stage)["newest"]
    assert sorted((one["position"], one["replays"]) for one in found) == [
        (f"{source}:0:0", 0),
        (f"{source}:0:1", 0),
    ]
    assert replayed(command, stage)["replayed"] == 2
    again = {record.value: record for record in stage.read("source")[2:]}
    headers = {"streamdedup-replayed-from": f"{source}:0:1", "streamdedup-replays": "1"}
    assert added(again[forged.value], forged) == headers
