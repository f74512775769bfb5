"""*Async.* The source topic: every partition, assigned manually, read in offset order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from aiokafka import TopicPartition, errors

from streamdedup.errors import BrokerUnavailable, TopicError
from streamdedup.kafka.connection import new_consumer, stop, translated
from streamdedup.model import Position, Record
from streamdedup.settings.sections import Settings
from streamdedup.settings.units import milliseconds


class Source:
    """The source topic: every partition, assigned by hand, read in offset order."""

    def __init__(self, settings: Settings, partitions: int) -> None:
        self._topic = settings.topics.source
        self._start = settings.kafka.start
        self._most = settings.batch.documents
        self._linger_ms = milliseconds(settings.batch.linger)
        self._patience_s = settings.kafka.request_timeout.total_seconds()
        self._next_offsets: dict[int, int] = {}
        self._heard_at = time.monotonic()
        self._known = partitions
        self._consumer = new_consumer(
            settings.kafka,
            group_id=settings.kafka.group_id,
            metadata_max_age_ms=milliseconds(settings.kafka.metadata_refresh),
        )

    async def start(self, judged: Callable[[str, int], int]) -> dict[tuple[str, int], int]:
        """Take every partition at its committed offset.

        Brokers forget a group's offsets after some days without a commit. A partition without one
        goes on where the index stands, since a second verdict on a record would be one too many.

        Args:
            judged: gives the offset up to which a partition was judged, 0 where it never was.

        Returns:
            First offsets of partitions that had none committed; they must be committed before
            anything else, so that a restart begins at the same place.

        Raises:
            TopicError: a committed offset is not in the topic.
        """
        with translated("cannot start the consumer"):
            await self._consumer.start()
            partitions = [TopicPartition(self._topic, number) for number in range(self._known)]
            self._consumer.assign(partitions)
            committed = {at: await self._consumer.committed(at) for at in partitions}
            first = await self._consumer.beginning_offsets(partitions)
            end = await self._consumer.end_offsets(partitions)
        known = {
            at: judged(*at) or None if offset is None else offset
            for at, offset in committed.items()
        }
        fresh = all(offset is None for offset in known.values())
        begin = end if fresh and self._start == "latest" else first
        for at in partitions:
            offset = known[at]
            if offset is None:
                offset = begin[at]
            self._check(at, offset, first[at], end[at])
            self._next_offsets[at.partition] = offset
            self._consumer.seek(at, offset)
        return {
            (self._topic, at.partition): self._next_offsets[at.partition]
            for at in partitions
            if committed[at] is None
        }

    def _check(self, at: TopicPartition, offset: int, first: int, end: int) -> None:
        where = f"{at.topic} partition {at.partition}"
        remedy = "set the group's offsets to where it shall go on, with Kafka's own tools"
        if offset < first:
            raise TopicError(
                f"{where}: the committed offset is {offset}, the topic begins at {first}: "
                f"{first - offset} records were deleted before they were judged; {remedy}"
            )
        if offset > end:
            raise TopicError(
                f"{where}: the committed offset is {offset}, the topic ends at {end}: it was "
                "deleted and made anew; use another kafka.group_id, changelog topic and index "
                "directory, since positions are what records are known by"
            )

    async def poll(self) -> list[Record]:
        """Return the next records, partition by partition, or none after a while."""
        with translated("cannot read the source topic"):
            try:
                fetched = await self._consumer.getmany(
                    timeout_ms=self._linger_ms, max_records=self._most
                )
            except errors.OffsetOutOfRangeError as error:
                raise BrokerUnavailable("the position is no longer in the source topic") from error
            except UnicodeDecodeError as error:
                raise TopicError(
                    "a record of the source topic has a header whose name is no UTF-8, which the "
                    f"client cannot read; it lies at or after {self._next_offsets} (partition: "
                    "offset); set the group's offset behind it, with Kafka's own tools"
                ) from error
        await self._advance(any(fetched.values()))
        self._take_new_partitions()
        return [
            _record(message)
            for at in sorted(fetched, key=lambda each: each.partition)
            for message in fetched[at]
        ]

    async def _advance(self, heard: bool) -> None:
        """Note how far the consumer is; one that hears nothing for long asks whether all is well.

        A position passes what no reader gets: the marks of transactions, what they aborted, and
        what compaction took. It is asked for at once, since every partition has one.
        """
        now = time.monotonic()
        with translated("the source topic cannot be reached"):
            for at in self._consumer.assignment():
                self._next_offsets[at.partition] = await self._consumer.position(at)
            if not heard and now - self._heard_at > self._patience_s:
                # The consumer itself would wait for a lost broker without a word.
                async with asyncio.timeout(self._patience_s):
                    await self._consumer.end_offsets(list(self._consumer.assignment()))
                heard = True
        if heard:
            self._heard_at = time.monotonic()

    def _take_new_partitions(self) -> None:
        partitions = self._consumer.partitions_for_topic(self._topic) or ()
        if len(partitions) <= self._known:
            return
        # A partition made while we run is read from its beginning, whatever kafka.start says.
        for number in range(self._known, len(partitions)):
            self._next_offsets[number] = 0
        self._known = len(partitions)
        assignment = [TopicPartition(self._topic, number) for number in range(self._known)]
        self._consumer.assign(assignment)
        for at in assignment:
            self._consumer.seek(at, self._next_offsets[at.partition])

    @property
    def partitions(self) -> int:
        """How many partitions are read."""
        return self._known

    @property
    def positions(self) -> dict[int, int]:
        """The offset of each partition that is read next."""
        return dict(self._next_offsets)

    def lag(self) -> dict[int, int]:
        """Return how many records of each partition are not read yet, as far as is known."""
        behind = {}
        for partition, offset in self._next_offsets.items():
            end = self._consumer.highwater(TopicPartition(self._topic, partition))
            if end is not None:
                behind[partition] = max(0, end - offset)
        return behind

    async def close(self) -> None:
        """Stop the consumer."""
        await stop(self._consumer.stop())


def _record(message: Any) -> Record:
    return Record(
        position=Position(message.topic, message.partition, message.offset),
        value=message.value,
        key=message.key,
        headers=tuple(message.headers),
        timestamp_ms=message.timestamp,
    )
