"""*Async.* Reads one partition, the changelog's, from an offset to its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import structlog
from aiokafka import TopicPartition

from streamdedup.errors import TopicError
from streamdedup.formats import changelog
from streamdedup.kafka.connection import check_connection, new_consumer, stop, translated
from streamdedup.kafka.topics import NEW_CHANGELOG
from streamdedup.settings.sections import Settings

log = structlog.get_logger(__name__)

_POLL_MS = 200
_MAX_RECORDS = 64
_LOOK_S = 1.0
"""Silence after which the brokers are asked whether they still answer, and then again."""


class ChangelogReader:
    """Reads the changelog topic from an offset to the end that it had at the start.

    Attributes:
        first: the first offset of the partition, once started.
        end: the offset after the last one, once started.
        strangers: how many of the records read another program has written.
        first_stranger: offset of the first one.
    """

    def __init__(self, settings: Settings) -> None:
        self._kafka = settings.kafka
        self._partition = TopicPartition(settings.topics.changelog, 0)
        self._consumer = new_consumer(settings.kafka)
        self.first = 0
        self.end = 0
        self.strangers = 0
        self.first_stranger = -1

    async def start(self) -> None:
        """Connect, and read the first offset and the end offset."""
        partition = self._partition
        with translated(f"cannot read {partition.topic}"):
            await self._consumer.start()
            self._consumer.assign([partition])
            self.first = (await self._consumer.beginning_offsets([partition]))[partition]
            self.end = (await self._consumer.end_offsets([partition]))[partition]

    async def entries(self, offset: int) -> AsyncIterator[tuple[int, bytes]]:
        """Yield the offset and the value of each entry from ``offset`` to the end.

        A record that is not an entry is left out, and counted in ``strangers``.

        Raises:
            TopicError: the offset is not in the topic.
            BrokerUnavailable: the brokers do not answer any more.
        """
        self.check(offset)
        partition = self._partition
        self._consumer.seek(partition, offset)
        looked_at = time.monotonic()
        while True:
            with translated(f"cannot read {partition.topic}"):
                if await self._consumer.position(partition) >= self.end:
                    return
                fetched = await self._consumer.getmany(
                    timeout_ms=_POLL_MS, max_records=_MAX_RECORDS
                )
            if fetched:
                looked_at = time.monotonic()
            elif time.monotonic() - looked_at > _LOOK_S:
                await self._check_brokers()
                looked_at = time.monotonic()
            for message in fetched.get(partition, ()):
                if message.value is not None and changelog.is_entry(message.value):
                    yield message.offset, message.value
                else:
                    if not self.strangers:
                        self.first_stranger = message.offset
                    self.strangers += 1

    def warn_of_strangers(self) -> None:
        """Log a warning if records of another program were left out."""
        if self.strangers:
            log.warning(
                "another program writes to the changelog",
                topic=self._partition.topic,
                offset=self.first_stranger,
                records=self.strangers,
            )

    async def _check_brokers(self) -> None:
        """Raise BrokerUnavailable if no broker answers; the consumer would silently wait for it."""
        await check_connection(self._kafka)
        with translated(f"cannot read {self._partition.topic}"):
            async with asyncio.timeout(self._kafka.request_timeout.total_seconds()):
                await self._consumer.end_offsets([self._partition])

    def check(self, offset: int) -> None:
        """Check that an index that is complete up to an offset can continue from there.

        Raises:
            TopicError: the offset is not in the topic.
        """
        topic = self._partition.topic
        if offset > self.end:
            raise TopicError(
                f"the index is at offset {offset} of {topic}, which ends at {self.end}: the topic "
                f"was deleted and recreated; {NEW_CHANGELOG}"
            )
        if offset < self.first:
            raise TopicError(
                f"the index is at offset {offset} of {topic}, which begins at {self.first}: the "
                "entries in between were deleted; remove the index directory to rebuild the index "
                "from the remaining entries"
            )

    async def close(self) -> None:
        """Stop the consumer."""
        await stop(self._consumer.stop())
