"""``streamdedup config check`` against a live broker: what it finds, and what it leaves alone."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Int8, Int16, Int32, Schema, String

from deploy.broker import layout
from deploy.broker.broker import Broker
from deploy.broker.obtain import own_broker
from streamdedup.admin.checks import check
from streamdedup.admin.findings import Finding, Level, exit_code
from tests.support.stage import Stage, wait_until

pytestmark = pytest.mark.kafka

DOCUMENTS = [
    {"id": "first", "text": "The quick brown fox jumps over the lazy dog."},
    {"id": "second", "text": "Pack my box with five dozen liquor jugs."},
]
HOUR_MS = 3_600_000
_TOPIC, _TRANSACTIONAL_ID = 2, 5
_READ, _WRITE, _DESCRIBE, _DESCRIBE_CONFIGS = 3, 4, 8, 10
"""Kafka's numbers for what access control is about."""


def look(stage: Stage) -> list[Finding]:
    """Check the settings of a stage."""
    return asyncio.run(check(stage.settings()))


def found(stage: Stage, name: str) -> Finding:
    """Return the one finding of a check."""
    (finding,) = [one for one in look(stage) if one.check == name]
    return finding


def assert_fails(stage: Stage, name: str, code: int, *words: str) -> None:
    """Assert that a check is the first error, with this exit code and words."""
    findings = look(stage)
    assert exit_code(findings) == code, findings
    first = next(one for one in findings if one.level is Level.ERROR)
    assert first.check == name
    assert first.who
    for word in words:
        assert word in first.message


def assert_warns(stage: Stage, name: str, *words: str) -> None:
    """Assert that a check warns, and that the command would end with 0."""
    findings = look(stage)
    assert exit_code(findings) == 0, findings
    (warning,) = [one for one in findings if one.check == name]
    assert warning.level is Level.WARNING
    for word in words:
        assert word in warning.message


def test_a_worker_at_work_notices_nothing(broker: Broker, tmp_path: Path) -> None:
    """All is well beside a worker that runs; it goes on, and nothing was written."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics(2)
    stage.produce_json(DOCUMENTS)
    with stage.start_worker() as worker:
        stage.wait_until_committed({0: 2, 1: 0}, worker)
        before = stage.ends(), stage.committed()
        command = [sys.executable, "-m", "streamdedup", "config", "check", "--json"]
        ran = subprocess.run(
            [*command, "--config", str(stage.config)], capture_output=True, text=True, check=True
        )
        assert (stage.ends(), stage.committed()) == before
        stage.produce_json([{"text": "Sphinx of black quartz, judge my vow."}], partition=1)
        stage.wait_until_committed({0: 2, 1: 1}, worker)
        worker.drain()
    assert ran.stderr == ""
    told = json.loads(ran.stdout)
    assert told["ok"] is True
    by_check = {one["check"]: one for one in told["findings"]}
    assert by_check.pop("replicas")["level"] == "warning"
    by_check.pop("file system")  # of whatever the tests run on
    by_check.pop("disk room")
    assert {one["level"] for one in by_check.values()} == {"ok"}, by_check
    for name in ("index", "access", "transactional id", "changelog offsets", "group offsets"):
        assert name in by_check
    assert "2 of 2 partitions" in by_check["group offsets"]["message"]

    assert "on the disk 3 documents" in found(stage, "index").message


def test_topics_that_cannot_be_used(broker: Broker, tmp_path: Path) -> None:
    """Each ends with 5, as the worker would; asking for topics makes none."""
    stage = Stage(broker.bootstrap, tmp_path)
    assert_fails(stage, "topics", 5, *stage.topics.values())
    assert_fails(stage, "topics", 5, *stage.topics.values())
    assert found(stage, "offsets").level is Level.SKIPPED
    limits = {"cleanup.policy": "compact", "max.message.bytes": "1000"}
    stage.create_topics(1, changelog=limits, clean={"min.insync.replicas": "2"})
    told = [one.message for one in look(stage) if one.check == "topics"]
    assert len(told) == 3
    for words in ("cleanup.policy compact", "messages of 1000 bytes", "min.insync.replicas is 2"):
        assert any(words in message for message in told)


def test_asking_for_topics_makes_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Brokers that make topics on first use, as Kafka does by default, are not led to it."""
    monkeypatch.setitem(layout._SINGLE_NODE, "auto.create.topics.enable", "true")  # noqa: SLF001
    with own_broker() as careless:
        stage = Stage(careless.bootstrap, tmp_path)
        for _ in range(2):
            assert_fails(stage, "topics", 5, "missing topics", *stage.topics.values())
        with stage.start_worker() as worker:
            worker.assert_ends(5, "missing topics", *stage.topics.values())
        assert_fails(stage, "topics", 5, "missing topics", *stage.topics.values())


def test_a_changelog_that_is_kept_for_less_than_the_window(broker: Broker, tmp_path: Path) -> None:
    """The check and the worker's log warn in the same words; `topics create` does it right."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(index={"directory": str(stage.index), "window": "7d"})
    right = stage.variant("right")
    stage.create_topics(1, changelog={"retention.ms": str(HOUR_MS)})
    assert_warns(stage, "retention", f"1h (retention.ms {HOUR_MS})", "8d (index.window 7d")
    with stage.start_worker() as worker:
        worker.wait_until_ready()
        event = worker.wait_for_event("the changelog is not kept for as long as the window")
        worker.drain()
    assert event["reason"] == found(stage, "retention").message

    right.name = f"{stage.name}-right"
    right.configure()
    right.create_topics()
    kept = found(right, "retention")
    assert kept.level is Level.OK
    assert "9d" in kept.message


def test_sizes_that_do_not_agree(broker: Broker, tmp_path: Path) -> None:
    """A source that takes more than clean and dead-letter topic is told of, with what follows."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics(
        1, source={"max.message.bytes": "2000000"}, dead_letter={"max.message.bytes": "2000000"}
    )
    assert_warns(stage, "message sizes", "2000000", stage.topics["clean"], "dead-letter topic")
    tight = Stage(broker.bootstrap, tmp_path / "tight")
    tight.create_topics(1, clean={"max.message.bytes": "5000"})
    assert_fails(tight, "message sizes", 5, tight.topics["clean"], "5000")


def test_an_index_of_something_else(broker: Broker, tmp_path: Path) -> None:
    """Other parameters, or another changelog, are told as the worker would, with 11."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics()
    assert "none yet" in found(stage, "index").message
    stage.produce_json(DOCUMENTS)
    stage.run_until_judged(2)
    where = {"directory": str(stage.index)}
    seed = stage.variant("seed", dedup={"seed": 2}, index=where)
    assert_fails(seed, "index", 11, "seed 1", "say 2")
    swapped = {"changelog": stage.topics["duplicates"], "duplicates": stage.topics["changelog"]}
    log = stage.variant("log", topics=stage.topics | swapped, index=where)
    assert_fails(log, "index", 11, stage.topics["changelog"])
    texts = stage.variant("texts", dedup={"verify": "exact"}, index=where)
    assert_fails(texts, "index", 11, "dedup.verify")


def test_offsets_that_are_gone(broker: Broker, tmp_path: Path) -> None:
    """Records deleted unread end with 5; a group without its changelog is warned of."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics()
    stage.produce_json(DOCUMENTS)
    stage.run_until_judged(2)
    stage.produce_json(DOCUMENTS * 2)
    stage.delete_records("source", 5)
    assert_fails(stage, "group offsets", 5, "committed offset is 2", "begins at 5")
    stage.commit({0: 5})
    assert found(stage, "group offsets").level is Level.OK
    stage.delete_topic("changelog")
    stage.create_topics()
    assert_fails(stage, "changelog offsets", 5, stage.topics["changelog"], "made anew")
    elsewhere = stage.variant("elsewhere")
    assert_warns(elsewhere, "group offsets", "1 partitions", "changelog is empty")


def test_a_server_that_does_not_answer(broker: Broker, tmp_path: Path) -> None:
    """One of several is a warning."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(kafka={"bootstrap_servers": ["127.0.0.1:9", broker.bootstrap]})
    stage.create_topics()
    assert_warns(stage, "bootstrap servers", "127.0.0.1:9")


def test_a_transaction_that_the_brokers_would_refuse(broker: Broker, tmp_path: Path) -> None:
    """A timeout over the brokers' limit ends with 3 before anything is started."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(kafka={"transaction_timeout": "1h"})
    stage.create_topics()
    assert_fails(stage, "transaction timeout", 3, "transaction.max.timeout.ms 900000")


def test_access_control(secured_broker: Broker, tmp_path: Path) -> None:
    """What is not allowed is named, operation by operation, and for the transactional id too."""
    stage = Stage(secured_broker.bootstrap, tmp_path)
    stage.create_topics()
    assert exit_code(look(stage)) == 0
    clean, identity = stage.topics["clean"], stage.settings().kafka.transactional_id
    # Whoever is named for a topic may do what is allowed, and no more.
    asyncio.run(allow(secured_broker, _TOPIC, clean, _READ, _DESCRIBE_CONFIGS))
    wait_until(lambda: exit_code(look(stage)) == 6, "the broker to take the rule to heart")
    assert_fails(stage, "access", 6, f"not allowed: Write on {clean}")
    asyncio.run(allow(secured_broker, _TOPIC, clean, _WRITE))
    wait_until(lambda: exit_code(look(stage)) == 0, "the broker to take the rule to heart")
    asyncio.run(allow(secured_broker, _TRANSACTIONAL_ID, identity, _DESCRIBE))
    wait_until(lambda: exit_code(look(stage)) == 6, "the broker to take the rule to heart")
    assert_fails(stage, "transactional id", 6, identity)


def test_a_login_that_is_refused(secured_broker: Broker, tmp_path: Path) -> None:
    """A wrong password ends with 6, and the rest is told to be unchecked."""
    stage = Stage(secured_broker.bootstrap, tmp_path)
    security = {"protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
    login = {"sasl_username": secured_broker.doors.username, "sasl_password": "wrong"}
    server = secured_broker.sasl_bootstrap
    stage.configure(kafka={"bootstrap_servers": server, "security": security | login})
    assert_fails(stage, "bootstrap servers", 6, "Authentication")
    assert found(stage, "the rest").level is Level.SKIPPED


class _AclsCreated(Response):  # type: ignore[misc]
    API_KEY = 30
    API_VERSION = 1
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("results", Array(("error_code", Int16), ("error_message", String("utf-8")))),
    )


class _CreateAclsV1(RequestStruct):  # type: ignore[misc]
    API_KEY = 30
    API_VERSION = 1
    RESPONSE_TYPE = _AclsCreated
    SCHEMA = Schema(
        (
            "creations",
            Array(
                ("resource_type", Int8),
                ("resource_name", String("utf-8")),
                ("pattern_type", Int8),
                ("principal", String("utf-8")),
                ("host", String("utf-8")),
                ("operation", Int8),
                ("permission_type", Int8),
            ),
        )
    )


class _CreateAcls(Request[_CreateAclsV1]):  # type: ignore[misc]
    """A request that the client library does not have."""

    API_KEY = 30

    def __init__(self, creations: list[tuple[Any, ...]]) -> None:
        self._creations = creations

    def build(self, request_struct_class: type[_CreateAclsV1]) -> _CreateAclsV1:
        return request_struct_class(self._creations)


async def allow(broker: Broker, kind: int, name: str, *operations: int) -> None:
    """Allow everybody without a login some operations, and so no others."""
    literal, allowed = 3, 3
    creations = [
        (kind, name, literal, "User:ANONYMOUS", "*", operation, allowed) for operation in operations
    ]
    admin = AIOKafkaAdminClient(
        bootstrap_servers=broker.sasl_bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_plain_username=broker.doors.username,
        sasl_plain_password=broker.doors.password,
    )
    await admin.start()
    try:
        answer = await admin._send_request(_CreateAcls(creations))  # noqa: SLF001
        assert [result[0] for result in answer.results] == [0] * len(creations), answer
    finally:
        await admin.close()
