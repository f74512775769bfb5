"""*Async.* Appends messages for commands, and what every producer here has in common.

A command is not the worker: it does not use the worker's transactional id, which would fence it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

from aiokafka import AIOKafkaProducer

from streamdedup.kafka.connection import connection_options, stop, translated
from streamdedup.kafka.messages import ClusterFacts, Messages, Outgoing
from streamdedup.settings.kafka import KafkaSettings

_MAX_BATCH_BYTES = 512 * 1024


def batches(producer: AIOKafkaProducer, messages: Messages, rows: Iterable[int]) -> Iterator[Any]:
    """Yield some rows of messages in as few of aiokafka's batches as possible."""
    keys, values, headers = messages.keys, messages.values, messages.headers
    timestamps_ms = messages.timestamps_ms
    batch = producer.create_batch()
    for row in rows:
        message = {
            "timestamp": timestamps_ms[row],
            "key": keys[row],
            "value": values[row],
            "headers": list(headers[row]),
        }
        if batch.append(**message) is None:  # it is full
            yield batch
            batch = producer.create_batch()
            batch.append(**message)
    if batch.record_count():
        yield batch


def new_producer(
    settings: KafkaSettings, facts: ClusterFacts, *, compressed: bool = True, **options: Any
) -> AIOKafkaProducer:
    """Return a producer to any topic that has not been started; it may compress messages."""
    codec = settings.compression if compressed else "none"
    smallest = min(topic.max_message_bytes for topic in facts.topics.values())
    return AIOKafkaProducer(
        bootstrap_servers=list(settings.bootstrap_servers),
        acks="all",
        max_batch_size=min(_MAX_BATCH_BYTES, smallest),
        compression_type=None if codec == "none" else codec,
        **connection_options(settings),
        **options,
    )


class Appender:
    """An idempotent producer: a request that is retried does not append its messages twice."""

    def __init__(
        self, settings: KafkaSettings, facts: ClusterFacts, *, compressed: bool = True
    ) -> None:
        self._producer = new_producer(
            settings, facts, compressed=compressed, enable_idempotence=True
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
                for batch in batches(self._producer, Messages.of(topic, group), range(len(group)))
            ]
            await asyncio.gather(*delivered)

    async def close(self) -> None:
        """Stop the producer."""
        await stop(self._producer.stop())
