"""Records in Avro, Protobuf and JSON with a schema registry: real brokers, a real registry."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from aiokafka import ConsumerRecord
from confluent_kafka.schema_registry import AsyncSchemaRegistryClient
from confluent_kafka.schema_registry.avro import AsyncAvroDeserializer, AsyncAvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from deploy.broker.broker import Broker
from deploy.registry import PASSWORD, USER, SchemaRegistry
from tests.support.commands import CommandLine
from tests.support.patience import wait_until
from tests.support.registry import Front, avro, front, prefix
from tests.support.split import Split
from tests.support.stage import Stage
from tests.support.topics import Message

pytestmark = pytest.mark.kafka

STORY = "The council has voted last night to close the old harbour for good"
OTHER = "Prices of wheat have gone up again after the drought in the south"
THIRD = "A ferry with tourists has run aground near the lighthouse, all are safe"
FIRST_VERSION = {
    "type": "record",
    "name": "Post",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "article", "type": {"type": "record", "name": "Article", "fields": [
            {"name": "body", "type": ["null", "string", "bytes"]},
        ]}},
    ],
}  # fmt: skip
SECOND_VERSION = FIRST_VERSION | {
    "fields": [
        *FIRST_VERSION["fields"],
        {
            "name": "at",
            "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}],
            "default": None,
        },
    ]
}
PROTO = """
syntax = "proto3";
message Article { string body = 1; }
message Post { string id = 1; Article article = 2; }
"""
JSON_SCHEMA = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
NOON_MS = 1_700_000_000_000


@pytest.fixture
def gate(registry: SchemaRegistry) -> Iterator[Front]:
    """Yield a gate before the registry."""
    with front(registry) as running:
        yield running


@pytest.fixture
def stage(broker: Broker, registry: SchemaRegistry, gate: Front, tmp_path: Path) -> Stage:
    """Return a stage whose records name their schemas, and whose duplicate records are Avro."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(
        records={
            "format": "registry",
            "text_fields": ["article.body"],
            "event_time_field": "at",
        },
        registry=registry.settings(urls=[gate.url], timeout="2s"),
        output={"duplicates_format": "avro", "include_value": True},
    )
    stage.create_topics()
    return stage


@pytest.fixture
def registered(stage: Stage, capfd: pytest.CaptureFixture[str]) -> Stage:
    """Return the stage, with the schema of duplicate records in the registry."""
    output = CommandLine(capfd)(0, "topics", "schema", "--register", "--config", stage.config)
    assert output.startswith(f"{stage.topics['duplicates']}-value has the schema, with id ")
    return stage


def post(name: str, body: str | bytes, **more: Any) -> dict[str, Any]:
    """Return the content of a post."""
    return {"id": name, "article": {"body": body}, **more}


def in_protobuf(schema_id: int, name: str, body: str) -> bytes:
    """Return a post in Protobuf: the second message of its file."""
    article = b"\x0a" + bytes([len(body)]) + body.encode()
    content = b"\x0a" + bytes([len(name)]) + name.encode() + b"\x12" + bytes([len(article)])
    return prefix(schema_id) + b"\2\2" + content + article


def messages(registry: SchemaRegistry, subject: str) -> list[Message]:
    """Return records with three kinds of schemas, two versions of one, and three that are wrong."""
    first = registry.register(subject, FIRST_VERSION)
    second = registry.register(subject, SECOND_VERSION)
    proto = registry.register(f"{subject}-proto", PROTO, "PROTOBUF")
    plain = registry.register(f"{subject}-json", JSON_SCHEMA, "JSON")
    framed = avro(first, FIRST_VERSION, post("framed", THIRD))[5:]
    values = [
        avro(first, FIRST_VERSION, post("first", STORY)),
        avro(second, SECOND_VERSION, post("second", STORY.encode(), at=NOON_MS)),
        in_protobuf(proto, "proto", STORY),
        prefix(plain) + json.dumps(post("json", OTHER)).encode(),
        in_protobuf(proto, "proto again", OTHER),
        prefix(2**30) + b"what is it",
        b'{"id": "no prefix"}',
    ]
    header = ("__value_schema_id", prefix(first))
    return [
        *(Message(value, None, 0) for value in values),
        Message(framed, None, 0, [("trace", b"1"), header]),
        Message(framed, b"key", 0, [header]),
        Message(b"\1 any bytes after a one", None, 0),
    ]


EXPECTED = {
    0: "clean",
    1: "duplicates",
    2: "duplicates",
    3: "clean",
    4: "duplicates",
    5: "dead_letter",
    6: "dead_letter",
    7: "clean",
    8: "duplicates",
    9: "dead_letter",
}


def decoded(registry: SchemaRegistry, records: list[ConsumerRecord]) -> list[dict[str, Any]]:
    """Decode values with Confluent's own deserializer."""

    async def decode() -> list[dict[str, Any]]:
        options = {"url": registry.url, "basic.auth.user.info": f"{USER}:{PASSWORD}"}
        async with AsyncSchemaRegistryClient(options) as client:
            read = await AsyncAvroDeserializer(client)
            return [
                await read(each.value, SerializationContext(each.topic, MessageField.VALUE))
                for each in records
            ]

    return asyncio.run(decode())


def check_outputs(stage: Stage, registry: SchemaRegistry, sent: list[Message]) -> None:
    """Compare the outputs with what was sent."""
    records = stage.records()
    assert {offset: role for (_, offset), role in stage.outcomes().items()} == EXPECTED
    for offset in (0, 3, 7):
        clean = records[0, offset]
        assert clean.value == sent[offset].value
        assert [header for header in clean.headers if header[0] != "sd"] == list(
            sent[offset].headers
        )
    reasons = {
        record.offset: dict(record.headers)["__streamdedup.errors.exception.class.name"]
        for record in stage.read("dead_letter")
    }
    assert list(reasons.values()) == [b"UnknownSchema", b"NoSchema", b"UnknownSchema"]
    duplicates = decoded(registry, stage.read("duplicates"))
    assert [(each["id"], each["original"]) for each in duplicates] == [
        ("second", "first"),
        ("proto", "first"),
        ("proto again", "json"),
        ("framed", "framed"),
    ]
    assert duplicates[0]["event_time"].timestamp() * 1000 == NOON_MS
    assert [each["value"] for each in duplicates] == [sent[row].value for row in (1, 2, 4, 8)]
    assert duplicates[0]["matches"][0]["jaccard_estimate"] == pytest.approx(1.0)


def test_values_of_every_kind(registered: Stage, registry: SchemaRegistry, gate: Front) -> None:
    """Each is judged by its text; the clean topic gets the original bytes."""
    sent = messages(registry, f"{registered.topics['source']}-value")
    registered.produce(sent)
    gate.requests.clear()
    registered.run_until_judged(len(sent))
    check_outputs(registered, registry, sent)
    fetched = [path for path in gate.requests if path.startswith("/schemas/ids/")]
    assert len(fetched) == len(set(fetched)) == 5


def test_mode_split(registered: Stage, registry: SchemaRegistry) -> None:
    """Edges decode; the judge needs no registry."""
    registered.mode = "split"
    registered.configure()
    registered.create_topics()
    sent = messages(registry, f"{registered.topics['source']}-value")
    registered.produce(sent)
    with ExitStack() as running:
        split = Split(registered, running)
        split.start("judge-0")
        registered.wait_for(len(sent), split.start("edge-0"))
    check_outputs(registered, registry, sent)


def test_a_registry_that_is_away_stops_nothing_for_good(
    registered: Stage, registry: SchemaRegistry, gate: Front
) -> None:
    """Known schemas need no registry; a new one waits for it, and no record is refused."""
    subject = f"{registered.topics['source']}-value"
    first = registry.register(subject, FIRST_VERSION)
    registered.produce([Message(avro(first, FIRST_VERSION, post("a", STORY)), None, 0)])
    with registered.start_worker() as worker:
        registered.wait_for(1, worker)
        gate.away = True
        registered.produce([Message(avro(first, FIRST_VERSION, post("b", STORY)), None, 0)])
        registered.wait_for(2, worker)
        second = registry.register(subject, SECOND_VERSION)
        registered.produce(
            [Message(avro(second, SECOND_VERSION, post("c", STORY, at=None)), None, 0)]
        )
        wait_until(
            lambda: worker.get("/readyz")[1].startswith("waiting for registry: "),
            "the worker to wait for the registry",
        )
        assert worker.metric("degraded", reason="registry") == 1
        assert worker.get("/livez")[0] == 200
        time.sleep(1)
        assert len(registered.outcomes()) == 2
        gate.away = False
        registered.wait_for(3, worker)
        worker.wait_until_ready()
        worker.drain()
    assert set(registered.outcomes().values()) == {"clean", "duplicates"}


def test_a_start_without_the_registry_waits(registered: Stage, gate: Front) -> None:
    """As for the brokers."""
    gate.status = 503
    with registered.start_worker() as worker:
        wait_until(
            lambda: worker.get("/readyz")[1].startswith("waiting for registry: "),
            "the worker to wait for the registry",
        )
        gate.status = None
        worker.wait_until_ready()
        worker.drain()


def test_a_missing_schema_of_duplicate_records(stage: Stage) -> None:
    """One line says how to register it."""
    with stage.start_worker() as worker:
        worker.assert_ends(3, "duplicates-value", "topics schema --register")


def test_a_wrong_login(registered: Stage, registry: SchemaRegistry) -> None:
    """It ends the worker."""
    registered.configure(registry=registry.settings(username="mallory"))
    with registered.start_worker() as worker:
        worker.assert_ends(6, "refuses the login", "section registry")


def test_config_check(
    stage: Stage, registry: SchemaRegistry, gate: Front, capfd: pytest.CaptureFixture[str]
) -> None:
    """It asks the registry, in every state of it."""
    command = CommandLine(capfd)

    def findings(code: int) -> str:
        ended, output, _ = command.run("config", "check", "--config", stage.config)
        assert ended == code
        return " ".join(output.split())

    assert "the registry does not have the schema of duplicate records" in findings(3)
    command(0, "topics", "schema", "--register", "--config", stage.config)
    output = findings(0)
    assert "the registry has no subject" in output
    assert f"{stage.topics['duplicates']}-value has it, with id" in output
    registry.register(f"{stage.topics['source']}-value", FIRST_VERSION)
    assert f"the latest one of {stage.topics['source']}-value is AVRO" in findings(0)
    gate.away = True
    assert "from the registry" in findings(7)


def test_values_that_confluents_serializer_writes(
    registered: Stage, registry: SchemaRegistry
) -> None:
    """An independent writer, which registers its schema itself."""
    topic = registered.topics["source"]

    async def serialize() -> list[bytes]:
        options = {"url": registry.url, "basic.auth.user.info": f"{USER}:{PASSWORD}"}
        async with AsyncSchemaRegistryClient(options) as client:
            write = await AsyncAvroSerializer(client, json.dumps(FIRST_VERSION))
            context = SerializationContext(topic, MessageField.VALUE)
            return [await write(post(name, STORY), context) for name in ("a", "b")]

    registered.produce([Message(value, None, 0) for value in asyncio.run(serialize())])
    registered.run_until_judged(2)
    (duplicate,) = decoded(registry, registered.read("duplicates"))
    assert (duplicate["id"], duplicate["original"]) == ("b", "a")
