"""*Async.* The topics of the pipeline's benchmark: filled, watched, read and deleted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

import numpy as np
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from benchmarks.pipeline_check import place
from streamdedup.columns import I64
from streamdedup.formats.outputs import SOURCE_HEADER

PARTITIONS = 3
PRODUCER_BYTES = 64 * 1024
"""Batch size of the producer that fills a source topic."""
WATCH_S = 0.02
"""Interval between two looks at the committed offsets."""
_FETCH_BYTES = 4 * 1024**2


async def fill(
    bootstrap: str,
    topic: str,
    values: Iterable[bytes],
    compression: str,
    on_sent: Callable[[int], None],
) -> None:
    """Append values to a topic, to its partitions in turn, in batches as of a busy producer."""
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        max_batch_size=PRODUCER_BYTES,
        compression_type=None if compression == "none" else compression,
    )
    await producer.start()
    try:
        batches = [producer.create_batch() for _ in range(PARTITIONS)]
        now_ms = time.time_ns() // 1_000_000
        for number, value in enumerate(values):
            partition = number % PARTITIONS
            if not _append(batches[partition], value, now_ms):
                await producer.send_batch(batches[partition], topic, partition=partition)
                on_sent(number)
                batches[partition] = producer.create_batch()
                now_ms = time.time_ns() // 1_000_000
                _append(batches[partition], value, now_ms)
        for partition, batch in enumerate(batches):
            if batch.record_count():
                await producer.send_batch(batch, topic, partition=partition)
        await producer.flush()
    finally:
        await producer.stop()


def _append(batch: Any, value: bytes, time_ms: int) -> bool:
    return batch.append(timestamp=time_ms, key=None, value=value) is not None


class Offsets:
    """Reads the offsets that a group has committed in a topic, with one request for each look."""

    def __init__(self, admin: AIOKafkaAdminClient, group: str, topic: str) -> None:
        self._admin = admin
        self._group = group
        self._topic = topic
        self._coordinator: int | None = None

    async def committed(self) -> int:
        """Return the sum of the committed offsets; 0 while the group is unknown."""
        try:
            if self._coordinator is None:
                self._coordinator = await self._admin.find_coordinator(self._group)
            offsets = await self._admin.list_consumer_group_offsets(self._group, self._coordinator)
        except KafkaError:
            self._coordinator = None
            return 0
        return sum(
            max(0, committed.offset)
            for partition, committed in offsets.items()
            if partition.topic == self._topic
        )


@contextlib.asynccontextmanager
async def administration(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    """Connect a client that deletes topics and reads offsets."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


@contextlib.asynccontextmanager
async def reader(bootstrap: str, topics: Sequence[str]) -> AsyncIterator[AIOKafkaConsumer]:
    """Connect a ``read_committed`` consumer to all partitions of topics, at their beginning."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=_FETCH_BYTES,
    )
    await consumer.start()
    try:
        consumer.assign([TopicPartition(name, part) for name in topics for part in _parts()])
        yield consumer
    finally:
        await consumer.stop()


async def count_records(bootstrap: str, topic: str) -> int:
    """Count the records of a topic that a ``read_committed`` consumer sees."""
    return sum([len(records) async for records in _all_records(bootstrap, topic)])


async def clean_places(bootstrap: str, topic: str) -> I64:
    """Return the place in the source of each record of the clean topic."""
    places = [
        place(*_clean_position(record), PARTITIONS)
        async for records in _all_records(bootstrap, topic)
        for record in records
    ]
    return np.array(places, dtype=np.int64)


async def duplicate_places(bootstrap: str, topic: str) -> I64:
    """Return the place in the source of each record of the duplicates topic."""
    positions = [
        json.loads(record.value)["position"]
        async for records in _all_records(bootstrap, topic)
        for record in records
    ]
    places = [place(one["partition"], one["offset"], PARTITIONS) for one in positions]
    return np.array(places, dtype=np.int64)


def _clean_position(record: ConsumerRecord) -> tuple[int, int]:
    headers = dict(record.headers)
    partition, offset = headers[SOURCE_HEADER].split(b":")
    return int(partition), int(offset)


async def _all_records(bootstrap: str, topic: str) -> AsyncIterator[list[ConsumerRecord]]:
    partitions = [TopicPartition(topic, number) for number in _parts()]
    async with reader(bootstrap, [topic]) as consumer:
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(one) < ends[one] for one in partitions]):
            for records in (await consumer.getmany(timeout_ms=100)).values():
                yield records


async def delete(admin: AIOKafkaAdminClient, topics: Sequence[str]) -> None:
    """Delete topics, and wait until they are gone."""
    await admin.delete_topics(list(topics))
    while set(topics) & set(await admin.list_topics()):  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0.05)


def _parts() -> range:
    return range(PARTITIONS)
