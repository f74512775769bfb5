"""*Async.* Topics and groups of a broker, as a test or an operator changes and reads them.

Every function connects, does one thing, and disconnects.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import stamina
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.errors import CommitFailedError, KafkaError
from aiokafka.record.default_records import DefaultRecordBase, _DefaultRecordBatchBuilderPy
from aiokafka.structs import OffsetAndMetadata

from tests.support.patience import PATIENCE_S


@dataclass(frozen=True)
class Message:
    """A record to produce."""

    value: bytes | None
    key: bytes | None = b"k"
    partition: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None


async def create(
    bootstrap: str, configs: Mapping[str, dict[str, str]], partitions: int, replication: int = 1
) -> None:
    """Create topics with these configurations, by name."""
    new = [
        NewTopic(name, partitions, replication, topic_configs=config)
        for name, config in configs.items()
    ]
    async with _admin(bootstrap) as admin:
        await admin.create_topics(new)


async def delete(bootstrap: str, topic: str) -> None:
    """Delete a topic, and wait until it is gone."""
    async with _admin(bootstrap) as admin:
        await admin.delete_topics([topic])
        while topic in await admin.list_topics():  # noqa: ASYNC110 - the broker sends no event
            await asyncio.sleep(0.05)


async def delete_records(bootstrap: str, topic: str, partition: int, before: int) -> None:
    """Delete the records of a partition before an offset, as its retention would."""
    oldest = {TopicPartition(topic, partition): RecordsToDelete(before_offset=before)}
    async with _admin(bootstrap) as admin:
        await admin.delete_records(oldest)


async def add_partitions(bootstrap: str, topic: str, total: int) -> None:
    """Raise the number of partitions of a topic."""
    async with _admin(bootstrap) as admin:
        await admin.create_partitions({topic: NewPartitions(total)})


async def committed_offsets(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    """Return the offsets that a group has committed in a topic, by partition."""
    entries = await committed_entries(bootstrap, group, topic)
    return {partition: entry.offset for partition, entry in entries.items()}


async def committed_entries(bootstrap: str, group: str, topic: str) -> dict[int, OffsetAndMetadata]:
    """Return the offsets that a group has committed in a topic, with their metadata."""
    # A broker that was just started or resumed takes a moment to find its coordinator.
    attempts = stamina.retry_context(on=KafkaError, attempts=None, timeout=PATIENCE_S, wait_max=0.5)
    async for attempt in attempts:
        with attempt:
            async with _admin(bootstrap) as admin:
                offsets = await admin.list_consumer_group_offsets(group)
    return {
        partition.partition: committed
        for partition, committed in offsets.items()
        if partition.topic == topic
    }


async def commit_offsets(
    bootstrap: str, group: str, topic: str, offsets: Mapping[int, int | OffsetAndMetadata]
) -> None:
    """Set the offsets of a group; without metadata as ``kafka-consumer-groups.sh`` does.

    Waits until a member that was killed has left the group.
    """
    by_partition = {TopicPartition(topic, number): offset for number, offset in offsets.items()}
    async with _consumer(bootstrap, group_id=group) as consumer:
        consumer.assign(list(by_partition))
        async for attempt in stamina.retry_context(
            on=CommitFailedError, attempts=None, timeout=PATIENCE_S, wait_max=0.5
        ):
            with attempt:
                await consumer.commit(by_partition)


async def produce(bootstrap: str, topic: str, messages: Iterable[Message]) -> None:
    """Append messages to their partitions of a topic."""
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        linger_ms=20,
        max_batch_size=256 * 1024,
        max_request_size=100 * 1024 * 1024,
    )
    await producer.start()
    try:
        for partition, group in _by_partition(messages).items():
            # Batches, since send() refuses a record that has neither key nor value.
            batch = producer.create_batch()
            for message in group:
                if not _append(batch, message):
                    await (await producer.send_batch(batch, topic, partition=partition))
                    batch = producer.create_batch()
                    _append(batch, message)
            await (await producer.send_batch(batch, topic, partition=partition))
    finally:
        await producer.stop()


class HeaderName(str):
    """The name of a header with any bytes; those that are not UTF-8 are surrogates (PEP 383)."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "surrogateescape") -> bytes:
        """Return the bytes."""
        return super().encode(encoding, errors)


async def produce_compressed(bootstrap: str, topic: str, messages: Sequence[Message]) -> None:
    """Append messages to partition 0 as one batch of any size; names may be :class:`HeaderName`."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    try:
        batch = producer.create_batch()
        # The builder in Python calls encode() of the names.
        batch._builder = _DefaultRecordBatchBuilderPy(  # noqa: SLF001 - no public way
            magic=2,
            compression_type=DefaultRecordBase.CODEC_ZSTD,
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=2**31,
        )
        assert all(_append(batch, message) for message in messages)
        await (await producer.send_batch(batch, topic, partition=0))
    finally:
        await producer.stop()


def _by_partition(messages: Iterable[Message]) -> dict[int, list[Message]]:
    groups: dict[int, list[Message]] = {}
    for message in messages:
        groups.setdefault(message.partition, []).append(message)
    return groups


def _append(batch: Any, message: Message) -> bool:
    appended = batch.append(
        timestamp=message.timestamp_ms,
        key=message.key,
        value=message.value,
        headers=list(message.headers),
    )
    return appended is not None


async def produce_in_transaction(
    bootstrap: str, topic: str, values: Iterable[bytes], partition: int = 0, *, aborts: bool = False
) -> None:
    """Append values to a partition in one transaction, which leaves a marker behind them."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{topic}-upstream")
    await producer.start()
    try:
        await producer.begin_transaction()
        for value in values:
            await producer.send_and_wait(topic, value, partition=partition)
        await (producer.abort_transaction() if aborts else producer.commit_transaction())
    finally:
        await producer.stop()


async def produce_uncommitted(
    bootstrap: str, transactional_id: str, topic: str, value: bytes, timeout_s: float
) -> None:
    """Write one record in a transaction that is never ended."""
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        transactional_id=transactional_id,
        transaction_timeout_ms=int(timeout_s * 1000),
    )
    await producer.start()
    try:
        await producer.begin_transaction()
        await producer.send_and_wait(topic, value, partition=0)
    finally:
        await producer.stop()


async def read(bootstrap: str, topic: str) -> list[ConsumerRecord]:
    """Return all records of a topic that a ``read_committed`` consumer sees."""
    partitions = (await _partitions(bootstrap, [topic]))[topic]
    async with _consumer(
        bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=8 * 1024 * 1024,
    ) as consumer:
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        records: list[ConsumerRecord] = []
        while any([await consumer.position(part) < ends[part] for part in partitions]):
            for batch in (await consumer.getmany(timeout_ms=100)).values():
                records.extend(batch)
        return records


async def first_offsets(bootstrap: str, topic: str) -> dict[int, int]:
    """Return the first offset of each partition of a topic that is not deleted."""
    partitions = (await _partitions(bootstrap, [topic]))[topic]
    async with _consumer(bootstrap) as consumer:
        first = await consumer.beginning_offsets(partitions)
    return {part.partition: offset for part, offset in first.items()}


async def end_offsets(bootstrap: str, topics: Sequence[str]) -> dict[str, int]:
    """Return the sum of the end offsets of each topic's partitions."""
    partitions = await _partitions(bootstrap, topics)
    async with _consumer(bootstrap) as consumer:
        ends = await consumer.end_offsets([*itertools.chain(*partitions.values())])
    return {topic: sum(ends[part] for part in partitions[topic]) for topic in topics}


async def _partitions(bootstrap: str, topics: Iterable[str]) -> dict[str, list[TopicPartition]]:
    async with _admin(bootstrap) as admin:
        described = await admin.describe_topics(list(topics))
    return {
        topic["topic"]: [
            TopicPartition(topic["topic"], partition["partition"])
            for partition in topic["partitions"]
        ]
        for topic in described
    }


@contextlib.asynccontextmanager
async def _admin(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


@contextlib.asynccontextmanager
async def _consumer(bootstrap: str, **options: Any) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, **options)
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()
