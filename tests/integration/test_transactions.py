"""Transactions that do not fit, late markers, and brokers that list fewer settings."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.commit import OffsetFetchResponse_v3

from deploy.broker.broker import Broker
from streamdedup.admin.checks import check
from streamdedup.admin.findings import Severity
from streamdedup.errors import BrokerUnavailable, ProducerForgotten, SettingsError, TopicError
from streamdedup.formats import verdicts
from streamdedup.kafka.cluster import inspect
from streamdedup.kafka.compose import Composer
from streamdedup.kafka.connection import new_consumer
from streamdedup.kafka.messages import Transaction
from streamdedup.kafka.offsets import LaneOffsets, LaneProgress, Metadata, committed_offsets
from streamdedup.kafka.readers import ChangelogReader
from streamdedup.kafka.writer import ChangelogWriter
from streamdedup.model import SourceRange
from streamdedup.observe.metrics import Metrics
from streamdedup.observe.state import WorkerState
from streamdedup.roles.app import run_role
from streamdedup.roles.lane import Lane, OffsetLost
from streamdedup.roles.session import Commits, Runtime
from tests.support import topics
from tests.support.corpora import documents
from tests.support.stage import Stage
from tests.support.topics import Message

pytestmark = pytest.mark.kafka


async def test_a_start_waits_until_the_changelog_is_visible(broker: Broker, tmp_path: Path) -> None:
    """The end for readers may be behind the index until an open transaction has its marker."""
    stage = Stage(broker.bootstrap, tmp_path)
    await asyncio.to_thread(stage.create_topics)
    log, settings = stage.topics["changelog"], stage.settings()
    other = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=f"{log}-other")
    await other.start()
    await other.begin_transaction()
    await other.send_and_wait(log, b"open", partition=0)
    await topics.produce(broker.bootstrap, log, [Message(b"behind it")])
    writer = ChangelogWriter(settings, await inspect(settings), 2)
    reader = ChangelogReader(settings)

    async def start() -> None:
        await writer.start()
        await reader.start()
        reader.check(2)

    starting = asyncio.create_task(start())
    try:
        # Without the wait, the start ends before the commit.
        await asyncio.wait({starting}, timeout=2)
        await other.commit_transaction()
        await starting
    finally:
        await other.stop()
        await writer.close()
        await reader.close()


async def test_a_group_that_its_coordinator_still_loads(broker: Broker, tmp_path: Path) -> None:
    """Its offsets are asked for again. The client would take the answer for a group without any."""
    stage = Stage(broker.bootstrap, tmp_path)
    await asyncio.to_thread(stage.create_topics)
    await asyncio.to_thread(stage.commit, {0: 7})
    kafka, mine = stage.settings().kafka, TopicPartition(stage.topics["source"], 0)
    consumer = new_consumer(kafka, group_id=kafka.group_id)
    await consumer.start()
    coordinator = consumer._coordinator  # noqa: SLF001 - the answers of a broker that restarts
    send, codes = coordinator._send_req, [14, 15, 16]  # noqa: SLF001

    async def answer(request: object) -> object:
        if codes:
            return OffsetFetchResponse_v3(0, [], codes.pop(0))
        return await send(request)

    try:
        coordinator._send_req = answer  # noqa: SLF001
        found = await committed_offsets(consumer, [mine], kafka)
    finally:
        await consumer.stop()
    assert {part: entry.offset for part, entry in found.items()} == {mine: 7}
    assert not codes


async def test_a_producer_that_the_brokers_have_forgotten(broker: Broker, tmp_path: Path) -> None:
    """A session ends before the next transaction of an idle producer, so that none fails."""
    stage = Stage(broker.bootstrap, tmp_path)
    await asyncio.to_thread(stage.create_topics)
    settings = stage.settings()
    writer = ChangelogWriter(settings, await inspect(settings), 0)
    try:
        await writer.start()
        empty = writer.build(Transaction([], [], {}, ""))
        writer._used_at -= 60  # noqa: SLF001 - instead of a minute
        await writer.commit(empty)
        manager = writer._producer._txn_manager  # noqa: SLF001 - brokers forget after a week
        manager.transactional_id = f"{stage.name}-forgotten"
        await writer.commit(empty)
        writer._used_at -= 60  # noqa: SLF001 - instead of a minute
        with pytest.raises(ProducerForgotten, match=r"after 60 s .*transactional\.id\.expiration"):
            await writer.commit(empty)
    finally:
        await writer.close()


async def test_brokers_without_metadata(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client asserts that it knows a broker; the session waits for one."""
    stage = Stage(broker.bootstrap, tmp_path)
    await asyncio.to_thread(stage.create_topics)
    settings = stage.settings()
    writer = ChangelogWriter(settings, await inspect(settings), 2)
    monkeypatch.setattr(AIOKafkaClient, "get_random_node", lambda _: None)
    try:
        with pytest.raises(BrokerUnavailable, match="have no metadata yet"):
            await writer.start()
    finally:
        await writer.close()


@pytest.mark.parametrize("progress", [None, 20])
async def test_verdicts_that_arrive_before_a_lane_begins(
    progress: int | None, broker: Broker, tmp_path: Path
) -> None:
    """They follow verdicts that are not read, if the brokers have lost the group's offset."""
    stage = Stage(broker.bootstrap, tmp_path, mode="split")
    await asyncio.to_thread(stage.create_topics)
    await topics.produce(stage.bootstrap, stage.topics["source"], [Message(b"{}")] * 30)
    settings = stage.settings()
    facts = await inspect(settings)
    runtime = Runtime(settings, Metrics(), WorkerState(), asyncio.Event())
    lane = Lane(runtime, 0, facts, Composer(settings, facts), Commits(runtime))
    await lane.fence()
    try:
        lane.open(LaneOffsets(0, 0, 30, 0, 5, Metadata(), is_new=True, is_own=False))
        if progress is not None:
            topic_id = facts.topics[stage.topics["source"]].id
            lane.add_progress(LaneProgress(progress, topic_id, Metadata(verdicts=5)))
        for offset, start in ((6, 20), (7, 25)):
            source = SourceRange(stage.topics["source"], 0, start, start + 5)
            row = verdicts.VerdictRow(verdicts.VERSION, source)
            judged = verdicts.decode(msgspec.msgpack.encode(row))
            lane.add_verdicts(offset, judged)
        lane.reach_verdict(8)
        if progress is None:
            with pytest.raises(TopicError, match="the verdicts on offsets 0 to 20 are missing"):
                await lane.begin()
            assert await asyncio.to_thread(stage.committed) == {}
        else:
            with pytest.raises(OffsetLost):
                await lane.begin()
            assert await asyncio.to_thread(stage.committed) == {0: 20}
    finally:
        await lane.close()


async def test_transactions_that_never_fit_their_timeout(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker ends with 3 instead of an endless loop, and names the settings."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(kafka={"transaction_timeout": "1s"})
    await asyncio.to_thread(stage.create_topics)
    await asyncio.to_thread(stage.produce_json, documents(0, 3))

    send_batch = AIOKafkaProducer.send_batch

    async def send_slowly(self: AIOKafkaProducer, batch: Any, topic: str, **options: Any) -> Any:
        if topic == stage.topics["clean"]:
            await asyncio.Event().wait()
        return await send_batch(self, batch, topic, **options)

    monkeypatch.setattr(AIOKafkaProducer, "send_batch", send_slowly)
    with pytest.raises(SettingsError, match="3 transactions in a row did not fit") as caught:
        await run_role(stage.settings(), "worker")
    assert caught.value.exit_code == 3


async def test_brokers_that_list_fewer_settings(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some only speak Kafka's protocol: a worker can start, and the check says what is unknown."""
    stage = Stage(broker.bootstrap, tmp_path)
    await asyncio.to_thread(stage.create_topics)
    describe = AIOKafkaAdminClient.describe_configs
    hidden = {"min.insync.replicas", "retention.ms"}

    async def describe_less(self: AIOKafkaAdminClient, resources: Any) -> Any:
        answers = await describe(self, resources)
        for answer in answers:
            for resource in answer.resources:
                resource[4][:] = [entry for entry in resource[4] if entry[0] not in hidden]
        return answers

    monkeypatch.setattr(AIOKafkaAdminClient, "describe_configs", describe_less)
    facts = await inspect(stage.settings())
    assert {topic.unlisted for topic in facts.topics.values()} == {frozenset(hidden)}
    findings = {finding.check: finding for finding in await check(stage.settings())}
    assert findings["topic settings"].level is Severity.WARNING
    assert "not listed by these brokers: min.insync" in findings["topic settings"].message
    assert findings["retention"].level is Severity.SKIPPED
    assert all(finding.level is not Severity.ERROR for finding in findings.values())
