"""*Async.* Appends messages for commands, and what every producer here has in common.

A command is not the worker: it does not use the worker's transactional id, which would fence it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.partitioner import DefaultPartitioner

from streamdedup.kafka.connection import connection_options, stop, translated
from streamdedup.kafka.messages import ClusterFacts, Outgoing
from streamdedup.settings.kafka import KafkaSettings

_MAX_BATCH_BYTES = 512 * 1024
_partitioner = DefaultPartitioner()


def output_partition(message: Outgoing, count: int) -> int:
    """Choose one of ``count`` partitions by the key, or without a key by the source partition."""
    if message.key is None:
        return message.source_partition % count
    partitions = list(range(count))
    return int(_partitioner(message.key, partitions, partitions))


def add_to(batch: Any, message: Outgoing) -> bool:
    """Add a message to a batch of aiokafka; return whether it had room."""
    appended = batch.append(
        timestamp=message.timestamp_ms,
        key=message.key,
        value=message.value,
        headers=list(message.headers),
    )
    return appended is not None


class Appender:
    """An idempotent producer: a request that is retried does not append its messages twice."""

    def __init__(self, settings: KafkaSettings, facts: ClusterFacts) -> None:
        smallest = min(topic.max_message_bytes for topic in facts.topics.values())
        self._producer = AIOKafkaProducer(
            bootstrap_servers=list(settings.bootstrap_servers),
            enable_idempotence=True,
            acks="all",
            max_batch_size=min(_MAX_BATCH_BYTES, smallest),
            compression_type=None if settings.compression == "none" else settings.compression,
            **connection_options(settings),
        )

    async def start(self) -> None:
        """Connect."""
        with translated("cannot start the producer"):
            await self._producer.start()

    async def append(self, messages: Iterable[tuple[int, Outgoing]]) -> None:
        """Append messages in order, each to its partition, and wait until all are written.

        Raises:
            BrokerRefused: the broker refuses access.
            ClockWrong: the broker refuses a timestamp.
        """
        groups: dict[tuple[str, int], list[Outgoing]] = {}
        for partition, message in messages:
            groups.setdefault((message.topic, partition), []).append(message)
        with translated("cannot write"):
            delivered = [
                await self._producer.send_batch(batch, topic, partition=partition)
                for (topic, partition), group in groups.items()
                for batch in self._batches(group)
            ]
            await asyncio.gather(*delivered)

    def _batches(self, messages: Iterable[Outgoing]) -> Iterator[Any]:
        """Yield the messages in as few batches as possible."""
        batch = self._producer.create_batch()
        for message in messages:
            if not add_to(batch, message):
                yield batch
                batch = self._producer.create_batch()
                add_to(batch, message)
        yield batch

    async def close(self) -> None:
        """Stop the producer."""
        await stop(self._producer.stop())
