"""*Async.* Reads one partition, the changelog's, from an offset to its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import structlog
from aiokafka import TopicPartition

from streamdedup.errors import TopicError
from streamdedup.formats.arrays import has_version
from streamdedup.kafka.connection import (
    POLL_S,
    check_connection,
    new_consumer,
    stop,
    translated,
)
from streamdedup.kafka.topics import NEW_CHANGELOG
from streamdedup.settings.sections import Settings

log = structlog.get_logger(__name__)

_POLL_MS = 200
_MAX_RECORDS = 64
_LOOK_S = 1.0
"""Silence after which the brokers are asked whether they still answer, and then again."""
_MARKER_LOOKS = 50
"""Looks, ``POLL_S`` apart, for the markers of the last transaction."""


class ChangelogReader:
    """Reads the changelog topic from an offset on.

    Args:
        settings: all settings.
        patience_s: silence after which it is checked that the brokers still answer, in seconds.

    Attributes:
        first: the first offset of the partition, once started.
        end: the offset after the last one, once started; it grows while more is read.
        position: the next offset to read.
        strangers: how many of the records read another program has written.
        first_stranger: offset of the first one.
    """

    def __init__(self, settings: Settings, patience_s: float = _LOOK_S) -> None:
        self._kafka = settings.kafka
        self._partition = TopicPartition(settings.topics.changelog, 0)
        self._consumer = new_consumer(settings.kafka)
        self._patience_s = patience_s
        self._looked_at = time.monotonic()
        self.first = 0
        self.end = 0
        self.position = 0
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

        Raises:
            TopicError: the offset is not in the topic.
            BrokerUnavailable: the brokers do not answer any more.
        """
        self.seek(offset)
        end = self.end
        while self.position < end:
            for entry in await self.poll():
                yield entry

    def seek(self, offset: int) -> None:
        """Let the next :meth:`poll` begin at an offset.

        Raises:
            TopicError: the offset is not in the topic.
        """
        self.check(offset)
        self._consumer.seek(self._partition, offset)
        self.position, self._looked_at = offset, time.monotonic()

    async def poll(self) -> list[tuple[int, bytes]]:
        """Return the offsets and values of the next entries; none if none arrive in time.

        A record that is not an entry is left out, and counted in ``strangers``.

        Raises:
            BrokerUnavailable: the brokers do not answer any more.
        """
        partition = self._partition
        with translated(f"cannot read {partition.topic}"):
            fetched = await self._consumer.getmany(timeout_ms=_POLL_MS, max_records=_MAX_RECORDS)
            self.position = await self._consumer.position(partition)
        if fetched:
            self._looked_at = time.monotonic()
        elif time.monotonic() - self._looked_at > self._patience_s:
            await self._check_brokers()
            self._looked_at = time.monotonic()
        self.end = max(self.end, self._consumer.last_stable_offset(partition) or 0)
        entries = []
        for message in fetched.get(partition, ()):
            # The numbers of the documents show whether an entry is missing.
            if message.value is not None and has_version(message.value):
                entries.append((message.offset, message.value))
            else:
                if not self.strangers:
                    self.first_stranger = message.offset
                self.strangers += 1
        return entries

    async def holds_only_markers(self, offset: int) -> bool:
        """Return whether no entry follows a transaction that ends at ``offset``.

        The coordinator writes markers after it has confirmed the end of a transaction; this waits
        for them, for a moment.
        """
        looks = _MARKER_LOOKS
        while self.end <= offset and looks:
            looks -= 1
            await asyncio.sleep(POLL_S)
            with translated(f"cannot read {self._partition.topic}"):
                ends = await self._consumer.end_offsets([self._partition])
            self.end = ends[self._partition]
        if not self.first <= offset < self.end:
            return False
        async for _ in self.entries(offset):
            return False
        return True

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
