"""*Async.* Reads topics for commands: all records of a topic, or the record at a position."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from aiokafka import TopicPartition

from streamdedup.errors import TopicError
from streamdedup.kafka.committed import committed_offsets
from streamdedup.kafka.connection import new_consumer, stop, translated
from streamdedup.kafka.decoding import MOST_BYTES, is_withheld
from streamdedup.kafka.source import as_record
from streamdedup.model import Position, Record
from streamdedup.settings.kafka import KafkaSettings

_POLL_MS = 200
_MAX_RECORDS = 500


class Reader:
    """Reads committed records, as often as it is asked, and commits no offsets."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._consumer = new_consumer(settings, group_id=settings.group_id)

    async def start(self) -> None:
        """Connect."""
        with translated("cannot start the consumer"):
            await self._consumer.start()

    async def records(self, topic: str, partitions: int) -> AsyncIterator[Record]:
        """Yield the records of a topic, up to its present end; partition by partition."""
        for number in range(partitions):
            first, end = await self._bounds(TopicPartition(topic, number))
            async for record in self._from(TopicPartition(topic, number), first, end):
                yield record

    async def at(self, position: Position) -> Record | None:
        """Return the record at a position of an existing partition; None if there is none."""
        partition = TopicPartition(position.topic, position.partition)
        first, end = await self._bounds(partition)
        if first <= position.offset < end:
            async for record in self._from(partition, position.offset, position.offset + 1):
                return record
        return None

    async def judged(self, topic: str, partition: int) -> int:
        """Return the offset up to which the worker has judged a partition: that of its group."""
        with translated("cannot read the committed offsets"):
            mine = TopicPartition(topic, partition)
            found = await committed_offsets(self._consumer, [mine], self._settings)
        return found[mine].offset if mine in found else 0

    async def _bounds(self, partition: TopicPartition) -> tuple[int, int]:
        with translated(f"cannot read {partition.topic}"):
            first = await self._consumer.beginning_offsets([partition])
            end = await self._consumer.end_offsets([partition])
        return first[partition], end[partition]

    async def _from(
        self, partition: TopicPartition, offset: int, end: int
    ) -> AsyncIterator[Record]:
        """Yield the records of a partition from an offset to before another one."""
        self._consumer.assign([partition])
        self._consumer.seek(partition, offset)
        while True:
            for record in await self._poll(partition):
                if record.position.offset >= end:
                    return
                yield record
            with translated(f"cannot read {partition.topic}"):
                if await self._consumer.position(partition) >= end:
                    return

    async def _poll(self, partition: TopicPartition) -> Sequence[Record]:
        with translated(f"cannot read {partition.topic}"):
            try:
                fetched = await self._consumer.getmany(
                    timeout_ms=_POLL_MS, max_records=_MAX_RECORDS
                )
            except UnicodeDecodeError as error:
                raise TopicError(
                    f"a record of {partition.topic} partition {partition.partition} has a header "
                    "name that is not valid UTF-8, which the client cannot read"
                ) from error
        records = [as_record(message) for message in fetched.get(partition, ())]
        for record in records:
            if is_withheld(record.headers):
                raise TopicError(
                    f"{partition.topic} partition {partition.partition} offset "
                    f"{record.position.offset}: its batch expands to more than "
                    f"{MOST_BYTES >> 20} MiB, which is not read"
                )
        return records

    async def close(self) -> None:
        """Stop the consumer."""
        await stop(self._consumer.stop())
