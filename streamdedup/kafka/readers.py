"""*Async.* Readers of topics: the changelog, the sketches, and any topic for commands."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import structlog
from aiokafka import TopicPartition

from streamdedup.errors import TopicError
from streamdedup.formats.arrays import has_version
from streamdedup.kafka.connection import POLL_S, check_connection, new_consumer, stop, translated
from streamdedup.kafka.decoding import MOST_BYTES, is_withheld
from streamdedup.kafka.offsets import bounds, committed_offsets
from streamdedup.kafka.poll import Poller
from streamdedup.kafka.topics import NEW_CHANGELOG
from streamdedup.model import Position, Record
from streamdedup.settings.kafka import KafkaSettings
from streamdedup.settings.sections import Settings

log = structlog.get_logger(__name__)

_POLL_MS = 200
_BRIEF_MS = 20
"""How long a poll takes up to a known end, and how long brokers hold a request for what follows."""
_MAX_ENTRIES, _MAX_RECORDS = 64, 500
_LOOK_S = 1.0
"""Silence after which the brokers are asked whether they still answer, and then again."""
_MARKER_LOOKS = 50
"""Looks, ``POLL_S`` apart, for the markers of the last transaction."""


class ChangelogReader:
    """Reads the changelog topic from an offset on.

    After a silence of ``patience_s`` it checks that the brokers still answer.

    Attributes:
        first, end: the bounds of the partition, once started; the end grows while more is read.
        position: the next offset to read.
        strangers, first_stranger: how many of the records read another program has written, and
            the offset of the first one.
    """

    def __init__(self, settings: Settings, patience_s: float = _LOOK_S) -> None:
        self._kafka = settings.kafka
        self._partition = TopicPartition(settings.topics.changelog, 0)
        self._consumer = new_consumer(settings.kafka)
        self._patience_s, self._looked_at = patience_s, time.monotonic()
        self.first = self.end = self.position = self.strangers = 0
        self.first_stranger = -1

    async def start(self) -> None:
        """Connect, and read the first offset and the end offset."""
        partition = self._partition
        with translated(f"cannot read {partition.topic}"):
            await self._consumer.start()
            self._consumer.assign([partition])
            self.first, self.end = await bounds(self._consumer, partition)

    async def entries(self, offset: int) -> AsyncIterator[tuple[int, bytes]]:
        """Yield the offset and the value of each entry from ``offset`` to the end.

        Raises what :meth:`seek` and :meth:`poll` raise.
        """
        self.seek(offset)
        end = self.end
        while self.position < end:
            # A poll passes markers only when its time is over.
            for entry in await self.poll(_BRIEF_MS):
                yield entry

    def seek(self, offset: int) -> None:
        """Let the next :meth:`poll` begin at an offset, after :meth:`check`."""
        self.check(offset)
        self._consumer.seek(self._partition, offset)
        self.position, self._looked_at = offset, time.monotonic()

    async def poll(self, timeout_ms: int = _POLL_MS) -> list[tuple[int, bytes]]:
        """Return the offsets and values of the next entries; none if none arrive in time.

        A record that is not an entry is left out, and counted in ``strangers``.

        Raises:
            BrokerUnavailable: the brokers do not answer any more.
        """
        partition = self._partition
        with translated(f"cannot read {partition.topic}"):
            fetched = await self._consumer.getmany(timeout_ms=timeout_ms, max_records=_MAX_ENTRIES)
            self.position = await self._consumer.position(partition)
        if fetched:
            self._looked_at = time.monotonic()
        elif time.monotonic() - self._looked_at > self._patience_s:
            # The consumer would silently wait for a lost broker.
            await check_connection(self._kafka)
            with translated(f"cannot read {partition.topic}"):
                async with asyncio.timeout(self._kafka.request_timeout.total_seconds()):
                    await self._consumer.end_offsets([partition])
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
        for _ in range(_MARKER_LOOKS):
            if self.end > offset:
                break
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


class SketchesReader(Poller):
    """Reads sketched ranges from the offset that was committed last.

    Another offset would do no harm: the judge leaves out what it has judged, and edges append again
    what it misses.
    """

    def __init__(self, settings: Settings) -> None:
        self._kafka = settings.kafka
        consumer = new_consumer(settings.kafka, group_id=settings.kafka.group_id)
        super().__init__(consumer, settings.topics.sketches, settings)

    async def start(self) -> None:
        """Connect, and seek the committed offset, or the first one."""
        partition = TopicPartition(self.topic, 0)
        with translated(f"cannot read {partition.topic}"):
            await self.consumer.start()
            self.consumer.assign([partition])
            first, end = await bounds(self.consumer, partition)
            found = await committed_offsets(self.consumer, [partition], self._kafka)
        committed = found[partition].offset if partition in found else first
        begin = committed if first <= committed <= end else first
        if begin != committed:
            log.warning(
                "the committed offset is not in the topic of the sketches",
                topic=partition.topic,
                committed=committed,
                begin=begin,
            )
        self.assign({0: begin})

    async def ranges(self) -> list[tuple[int, bytes]]:
        """Return the offsets and values of the next ranges; none if none arrive in time.

        Raises what :meth:`poll` raises.
        """
        found = []
        for message in await self.poll():
            if message.value is not None and has_version(message.value):
                found.append((message.offset, message.value))
            else:
                log.warning(
                    "another program writes to the topic of the sketches",
                    topic=message.topic,
                    offset=message.offset,
                )
        return found


class Reader:
    """Reads committed records, as often as it is asked, and commits no offsets."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._consumer = new_consumer(
            settings, group_id=settings.group_id, fetch_max_wait_ms=_BRIEF_MS
        )

    async def start(self) -> None:
        """Connect."""
        with translated("cannot start the consumer"):
            await self._consumer.start()

    async def records(self, topic: str, partitions: int) -> AsyncIterator[Record]:
        """Yield the records of a topic, up to its present end; partition by partition."""
        for number in range(partitions):
            async for record in self._read(TopicPartition(topic, number)):
                yield record

    async def at(self, position: Position) -> Record | None:
        """Return the record at a position of an existing partition; None if there is none."""
        topic, partition, offset = position
        async for record in self._read(TopicPartition(topic, partition), offset):
            return record
        return None

    async def judged(self, topic: str, partition: int) -> int:
        """Return the offset up to which the worker has judged a partition: that of its group."""
        with translated("cannot read the committed offsets"):
            mine = TopicPartition(topic, partition)
            found = await committed_offsets(self._consumer, [mine], self._settings)
        return found[mine].offset if mine in found else 0

    async def _read(
        self, partition: TopicPartition, only: int | None = None
    ) -> AsyncIterator[Record]:
        """Yield the records of a partition up to its present end, or ``only`` that at an offset."""
        name, consumer = f"{partition.topic} partition {partition.partition}", self._consumer
        action = f"cannot read {partition.topic}"
        with translated(action):
            offset, end = await bounds(consumer, partition)
        if only is not None:
            if not offset <= only < end:
                return
            offset, end = only, only + 1
        consumer.assign([partition])
        consumer.seek(partition, offset)
        while offset < end:
            with translated(action):
                fetched = await consumer.getmany(timeout_ms=_BRIEF_MS, max_records=_MAX_RECORDS)
                offset = await consumer.position(partition)
            for message in fetched.get(partition, ()):
                if message.offset >= end:
                    return
                if is_withheld(message.headers):
                    raise TopicError(
                        f"{name} offset {message.offset}: its batch expands to more than "
                        f"{MOST_BYTES >> 20} MiB, which is not read"
                    )
                yield Record(
                    Position(message.topic, message.partition, message.offset),
                    message.value,
                    message.key,
                    tuple(message.headers),
                    message.timestamp,
                )

    async def close(self) -> None:
        """Stop the consumer."""
        await stop(self._consumer.stop())
