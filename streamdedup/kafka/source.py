"""*Async.* The source topic: every partition, assigned manually, read in offset order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import structlog
from aiokafka import TopicPartition, errors

from streamdedup.columns import Positions, RecordColumns
from streamdedup.errors import BrokerUnavailable, TopicError
from streamdedup.kafka.connection import new_consumer, stop, translated
from streamdedup.kafka.topics import NEW_SOURCE
from streamdedup.model import Position, Record
from streamdedup.settings.sections import Settings
from streamdedup.settings.units import milliseconds

log = structlog.get_logger(__name__)

_FETCH_BYTES, _PARTITION_FETCH_BYTES = 50 * 1024**2, 4 * 1024**2
"""Bytes of one fetch, and of a partition in it: some batches of large records. A broker returns
larger batches of records too, one at a time."""
_AT_ONCE_S = 0.001
"""A poll that takes less returns what the consumer had fetched before."""
_MORE_MS = 5
"""How long such a poll waits for what has arrived since."""
_FIRST_LOOK = 16
"""Records that are taken first, to learn how large they are."""
_RESET_OFFSETS = "with 'kafka-consumer-groups.sh --reset-offsets'"
_MOST_NAMED = 5
"""Partitions that a message names."""


_partition, _offset, _timestamp = map(attrgetter, ("partition", "offset", "timestamp"))


class Source:
    """Reads every partition of the source topic.

    Args:
        settings: all settings.
        partitions: the number of partitions at start.
    """

    def __init__(self, settings: Settings, partitions: int) -> None:
        self._topic = settings.topics.source
        self._kafka = settings.kafka
        self._max_records = settings.batch.documents
        self._max_bytes = settings.batch.bytes
        # Taken from the consumer, for the next batch: the last one had no room for them.
        self._held: list[Any] = []
        self._linger_ms = milliseconds(settings.batch.linger)
        self._idle_timeout_s = settings.kafka.request_timeout.total_seconds()
        self._committed: dict[TopicPartition, int | None] = {}
        self._next_offsets: dict[int, int] = {}
        self._answered_at = time.monotonic()
        self._partitions = partitions
        self._consumer = new_consumer(
            settings.kafka,
            group_id=settings.kafka.group_id,
            metadata_max_age_ms=milliseconds(settings.kafka.metadata_refresh),
            fetch_max_bytes=min(_FETCH_BYTES, settings.batch.bytes),
            max_partition_fetch_bytes=min(_PARTITION_FETCH_BYTES, settings.batch.bytes),
        )

    async def start(self) -> None:
        """Connect, assign every partition, and read the committed offsets."""
        with translated("cannot start the consumer"):
            await self._consumer.start()
            partitions = self._topic_partitions()
            self._consumer.assign(partitions)
            self._committed = {
                partition: await self._consumer.committed(partition) for partition in partitions
            }

    async def begin(self, judged: Callable[[str, int], int]) -> dict[tuple[str, int], int]:
        """Seek each partition to its committed offset.

        Brokers delete a group's offsets after some days without a commit. A partition without a
        committed offset continues at the offset of the index: no record gets a second verdict.

        Args:
            judged: returns the offset up to which a (topic, partition) was judged, 0 if it never
                was.

        Returns:
            First offsets of the partitions that had no committed offset, or whose offset
            ``kafka.skip_unjudged`` accepts, by (topic, partition). Commit them before anything
            else, and let the index count what is before them as judged, so that a restart begins at
            the same offsets.

        Raises:
            TopicError: a committed offset is not in the topic, or past records without a verdict.
        """
        committed, partitions = self._committed, self._topic_partitions()
        with translated("cannot read the offsets of the source topic"):
            first = await self._consumer.beginning_offsets(partitions)
            end = await self._consumer.end_offsets(partitions)
        skipped = _skipped(committed, first, end, judged)
        if skipped and not self._kafka.skip_unjudged:
            raise TopicError(self._skips(skipped, committed))
        for partition, offset in skipped.items():
            log.warning(
                "skipping records that were not judged",
                partition=partition.partition,
                begin=offset,
                end=committed[partition],
            )
        begin = self._begin_offsets(committed, first, end, judged)
        for partition, offset in begin.items():
            _check_offset(partition, offset, first[partition], end[partition])
            self._next_offsets[partition.partition] = offset
            self._consumer.seek(partition, offset)
        return {
            (partition.topic, partition.partition): begin[partition]
            for partition, offset in committed.items()
            if offset is None or partition in skipped
        }

    def _skips(
        self, skipped: Mapping[TopicPartition, int], committed: Mapping[TopicPartition, int | None]
    ) -> str:
        """Describe the committed offsets that are past records without a verdict."""
        kafka = self._kafka
        named = "; ".join(
            f"partition {partition.partition}: committed {committed[partition]}, judged up to "
            f"{offset}"
            for partition, offset in list(skipped.items())[:_MOST_NAMED]
        )
        numbers = ",".join(str(partition.partition) for partition in skipped)
        more = f"; and {len(skipped) - _MOST_NAMED} more" if len(skipped) > _MOST_NAMED else ""
        return (
            f"{self._topic}: offsets of group {kafka.group_id} are past records that have no "
            f"verdict ({named}{more}): another consumer commits to this group, or the offsets were "
            "moved; to judge these records, stop the other consumer and run "
            f"'kafka-consumer-groups.sh --bootstrap-server {kafka.bootstrap_servers[0]} --group "
            f"{kafka.group_id} --topic {self._topic}:{numbers} --delete-offsets'; to skip them, "
            "set kafka.skip_unjudged for one start"
        )

    async def notes(self) -> list[str]:
        """Return the metadata that was committed with the offset of each partition."""
        with translated("cannot read the committed offsets"):
            committed = await self._consumer._coordinator.fetch_committed_offsets(
                self._topic_partitions()
            )
        return [offset.metadata for offset in committed.values()]

    def _begin_offsets(
        self,
        committed: Mapping[TopicPartition, int | None],
        first: Mapping[TopicPartition, int],
        end: Mapping[TopicPartition, int],
        judged: Callable[[str, int], int],
    ) -> dict[TopicPartition, int]:
        """Choose the offset at which to begin: committed, else judged, else by ``kafka.start``.

        ``kafka.start: latest`` applies only if no partition was ever read. Later it would skip
        records of a partition that is new to the group.
        """
        known = {
            partition: (judged(*partition) or None) if offset is None else offset
            for partition, offset in committed.items()
        }
        is_new = all(offset is None for offset in known.values())
        default = end if is_new and self._kafka.start == "latest" else first
        return {
            partition: default[partition] if offset is None else offset
            for partition, offset in known.items()
        }

    def _topic_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self._topic, number) for number in range(self._partitions)]

    async def poll(self) -> RecordColumns:
        """Return the next records, ordered by partition; none if none arrive in time.

        They are at most ``batch.documents``, and have at most ``batch.bytes`` unless there is only
        one.

        Raises:
            BrokerUnavailable: the brokers do not answer, or the next offset was deleted.
        """
        batch: list[Any] = []
        size, wanted, timeout_ms = 0, _FIRST_LOOK, self._linger_ms
        began_at, may_wait = time.monotonic(), False
        while wanted:
            if not (self._held or await self._take(wanted, timeout_ms)):
                if not may_wait:
                    break
                timeout_ms, may_wait = _MORE_MS, False
                continue
            if not batch:
                # The consumer had them. It asks for more only now, and there may be some.
                may_wait = time.monotonic() - began_at < _AT_ONCE_S
            size += self._move_into(batch, self._max_bytes - size)
            if self._held:  # no room
                break
            # As many more as there is room for, if they are as large as the ones before.
            room = (self._max_bytes - size) * len(batch) // (size or 1)
            wanted = max(0, min(self._max_records - len(batch), room, 4 * len(batch)))
            timeout_ms = 0
        await self._update_offsets(bool(batch))
        self._assign_new_partitions()
        batch.sort(key=_partition)
        return as_columns(self._topic, batch)

    def _move_into(self, batch: list[Any], room_bytes: int) -> int:
        """Move held records into a batch, as many as fit; return their bytes."""
        held = self._held
        sizes = np.cumsum([_size(message) for message in held[: self._max_records - len(batch)]])
        count = int(np.searchsorted(sizes, room_bytes, side="right"))
        if not batch:
            count = max(count, 1)
        batch += held[:count]
        self._held = held[count:]
        return int(sizes[count - 1]) if count else 0

    async def _take(self, wanted: int, timeout_ms: int) -> bool:
        """Take fetched records from the consumer; return whether there are any."""
        with translated("cannot read the source topic"):
            try:
                fetched = await self._consumer.getmany(
                    timeout_ms=timeout_ms, max_records=min(wanted, self._max_records)
                )
            except errors.OffsetOutOfRangeError as error:
                raise BrokerUnavailable(
                    "the next offset is no longer in the source topic"
                ) from error
        self._held = [message for taken in fetched.values() for message in taken]
        return bool(self._held)

    async def _update_offsets(self, has_records: bool) -> None:
        """Read the consumer's positions; after a long silence, check that a broker answers.

        A position also passes offsets that no reader gets: transaction markers, aborted records,
        and records that compaction removed. Every assigned partition has a position, so this does
        not wait.
        """
        answered = has_records
        with translated("the source topic cannot be reached"):
            for partition in self._consumer.assignment():
                position = await self._consumer.position(partition)
                self._next_offsets[partition.partition] = position
            if not answered and time.monotonic() - self._answered_at > self._idle_timeout_s:
                # The consumer itself would silently wait for a lost broker.
                async with asyncio.timeout(self._idle_timeout_s):
                    await self._consumer.end_offsets(list(self._consumer.assignment()))
                answered = True
        if answered:
            self._answered_at = time.monotonic()

    def _assign_new_partitions(self) -> None:
        """Read partitions that were added since the start from their first offset.

        ``kafka.start`` does not apply to them: all of their records came after the start.
        """
        partitions = self._consumer.partitions_for_topic(self._topic) or ()
        if len(partitions) <= self._partitions:
            return
        for number in range(self._partitions, len(partitions)):
            self._next_offsets[number] = 0
        self._partitions = len(partitions)
        assignment = self._topic_partitions()
        self._consumer.assign(assignment)
        for partition in assignment:
            self._consumer.seek(partition, self._next_offsets[partition.partition])

    @property
    def partitions(self) -> int:
        """The number of partitions that are read."""
        return self._partitions

    @property
    def positions(self) -> dict[int, int]:
        """The next offset to read, by partition."""
        return dict(self._next_offsets)

    def lag(self) -> dict[int, int]:
        """Return the number of unread records, for each partition whose end is known."""
        lag = {}
        for partition, offset in self._next_offsets.items():
            end = self._consumer.highwater(TopicPartition(self._topic, partition))
            if end is not None:
                lag[partition] = max(0, end - offset)
        return lag

    async def close(self) -> None:
        """Stop the consumer."""
        await stop(self._consumer.stop())


def _skipped(
    committed: Mapping[TopicPartition, int | None],
    first: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    judged: Callable[[str, int], int],
) -> dict[TopicPartition, int]:
    """Return, by partition, the first existing offset that was not judged and would be skipped.

    A partition that the index does not know begins at its committed offset: an operator may choose
    it for a new group, and the changelog may have lost its entries.
    """
    unjudged = {
        partition: max(judged(*partition), first[partition])
        for partition in committed
        if judged(*partition)
    }
    return {
        partition: offset
        for partition, offset in unjudged.items()
        if offset < min(committed[partition] or 0, end[partition])
    }


def _check_offset(partition: TopicPartition, offset: int, first: int, end: int) -> None:
    """Raise TopicError if an offset is not in the topic."""
    name = f"{partition.topic} partition {partition.partition}"
    if offset < first:
        raise TopicError(
            f"{name}: the committed offset is {offset}, the topic begins at {first}: "
            f"{first - offset} records were deleted before they were judged; set the group's "
            f"offsets to continue {_RESET_OFFSETS}"
        )
    if offset > end:
        raise TopicError(
            f"{name}: the committed offset is {offset}, the topic ends at {end}: the topic was "
            f"deleted and recreated, so its offsets name other records; {NEW_SOURCE}"
        )


def as_record(message: Any) -> Record:
    """Return a message of aiokafka as a record."""
    return Record(
        position=Position(message.topic, message.partition, message.offset),
        value=message.value,
        key=message.key,
        headers=tuple(message.headers),
        timestamp_ms=message.timestamp,
    )


def as_columns(topic: str, messages: Sequence[Any]) -> RecordColumns:
    """Return messages of aiokafka, which come from one topic, as columns."""
    count = len(messages)
    partitions = np.fromiter(map(_partition, messages), dtype=np.int64, count=count)
    offsets = np.fromiter(map(_offset, messages), dtype=np.int64, count=count)
    return RecordColumns(
        Positions((topic,), np.zeros(count, dtype=np.int64), partitions, offsets),
        [message.value for message in messages],
        [message.key for message in messages],
        [message.headers for message in messages],
        np.fromiter(map(_timestamp, messages), dtype=np.int64, count=count),
    )


def _size(message: Any) -> int:
    size = len(message.value or b"") + len(message.key or b"")
    if message.headers:
        size += sum(len(name) + len(value or b"") for name, value in message.headers)
    return size
