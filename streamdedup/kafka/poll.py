"""*Async.* Reads partitions of one topic, assigned manually, within limits of records and bytes.

:class:`Follower` reads partitions that come and go.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

import numpy as np
from aiokafka import AIOKafkaConsumer, TopicPartition, errors

from streamdedup.errors import BrokerUnavailable
from streamdedup.kafka.connection import stop, translated, unless_set
from streamdedup.settings.sections import Settings
from streamdedup.settings.units import milliseconds

_AT_ONCE_S = 0.001
"""A poll that takes less returns what the consumer had fetched before."""
_MORE_MS = 5
"""How long such a poll waits for what has arrived since."""
_FIRST_LOOK = 16
"""Records that are taken first, to learn how large they are."""

_partition = attrgetter("partition")


class Poller:
    """Reads partitions of a topic in order of offset, by a consumer without a subscription.

    ``positions`` has the next offset to read, by partition; it is replaced, never changed.
    """

    def __init__(self, consumer: AIOKafkaConsumer, topic: str, settings: Settings) -> None:
        self.consumer, self.topic = consumer, topic
        self.positions: dict[int, int] = {}
        self._max_records = settings.batch.documents
        self._max_bytes = settings.batch.bytes
        self._linger_ms = milliseconds(settings.batch.linger)
        self._idle_timeout_s = settings.kafka.request_timeout.total_seconds()
        # Taken from the consumer, for the next batch: the last one had no room for them.
        self._held: list[Any] = []
        self._answered_at = time.monotonic()

    def topic_partitions(self, numbers: Iterable[int]) -> list[TopicPartition]:
        """Return partitions of the topic by their numbers."""
        return [TopicPartition(self.topic, number) for number in numbers]

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions, and no others, from these offsets on."""
        self.positions = dict(offsets)
        self._held = []
        partitions = self.topic_partitions(offsets)
        self.consumer.assign(partitions)
        for partition in partitions:
            self.consumer.seek(partition, offsets[partition.partition])

    async def poll(self) -> list[Any]:
        """Return the next messages, ordered by partition; none if none arrive in time.

        They are at most ``batch.documents``, and have at most ``batch.bytes`` unless there is only
        one. After a cancelled poll, :meth:`assign` must come before the next one.

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
        positions = await self._new_positions(bool(batch))
        # The last step, so that a cancelled poll has read nothing.
        self.positions = positions
        batch.sort(key=_partition)
        return batch

    def _move_into(self, batch: list[Any], room_bytes: int) -> int:
        """Move held messages into a batch, as many as fit; return their bytes."""
        held = self._held
        sizes = np.cumsum(
            [
                len(each.value or b"")
                + len(each.key or b"")
                # Most records have no headers.
                + (sum(len(k) + len(v or b"") for k, v in each.headers) if each.headers else 0)
                for each in held[: self._max_records - len(batch)]
            ]
        )
        count = int(np.searchsorted(sizes, room_bytes, side="right"))
        if not batch:
            count = max(count, 1)
        batch += held[:count]
        self._held = held[count:]
        return int(sizes[count - 1]) if count else 0

    async def _take(self, wanted: int, timeout_ms: int) -> bool:
        """Take fetched messages from the consumer; return whether there are any."""
        with translated(f"cannot read {self.topic}"):
            try:
                fetched = await self.consumer.getmany(
                    timeout_ms=timeout_ms, max_records=min(wanted, self._max_records)
                )
            except errors.OffsetOutOfRangeError as error:
                raise BrokerUnavailable(
                    f"the next offset is no longer in topic {self.topic}"
                ) from error
        self._held = [message for taken in fetched.values() for message in taken]
        return bool(self._held)

    async def _new_positions(self, has_messages: bool) -> dict[int, int]:
        """Return the positions; after a long silence, check that a broker answers.

        The consumer's position also passes offsets that no reader gets: transaction markers,
        aborted records, and records that compaction removed. Every assigned partition has a
        position, so this does not wait.
        """
        answered, positions = has_messages, dict[int, int]()
        with translated(f"{self.topic} cannot be reached"):
            for partition in self.consumer.assignment():
                positions[partition.partition] = await self.consumer.position(partition)
            for message in reversed(self._held):
                positions[message.partition] = message.offset
            if not answered and time.monotonic() - self._answered_at > self._idle_timeout_s:
                # The consumer itself would silently wait for a lost broker.
                async with asyncio.timeout(self._idle_timeout_s):
                    await self.consumer.end_offsets(list(self.consumer.assignment()))
                answered = True
        if answered:
            self._answered_at = time.monotonic()
        return positions

    def lag(self) -> dict[int, int]:
        """Return the number of unread messages, for each partition whose end is known."""
        return {
            partition: max(0, end - offset)
            for partition, offset in self.positions.items()
            if (end := self.consumer.highwater(TopicPartition(self.topic, partition))) is not None
        }

    async def close(self) -> None:
        """Stop the consumer."""
        await stop(self.consumer.stop())


class Follower(Poller):
    """Reads some partitions, each from its own offset on, while others are added and removed."""

    def __init__(self, consumer: AIOKafkaConsumer, topic: str, settings: Settings) -> None:
        super().__init__(consumer, topic, settings)
        self._partitions: set[int] = set()
        self._begin: dict[int, int] = {}
        self._changed = asyncio.Event()

    def add(self, partition: int, offset: int) -> None:
        """Read a partition from an offset on."""
        self._partitions.add(partition)
        self._begin[partition] = offset
        self._changed.set()

    def remove(self, partition: int) -> None:
        """Read a partition no longer."""
        self._partitions.discard(partition)
        self._begin.pop(partition, None)
        self._changed.set()

    def current(self) -> dict[int, int]:
        """Return the next offset to read of each partition that is read."""
        return {number: at for number, at in self.positions.items() if self._is_read(number)}

    def lag(self) -> dict[int, int]:
        """Return the number of unread messages, for each partition that is read."""
        return {number: lag for number, lag in super().lag().items() if self._is_read(number)}

    def _is_read(self, partition: int) -> bool:
        """Return whether messages of a partition are those that it was added for last."""
        return partition in self._partitions and partition not in self._begin

    async def run(
        self, deliver: Callable[[list[Any]], Awaitable[None]], room: Callable[[], Awaitable[bool]]
    ) -> None:
        """Poll without an end, whenever ``room`` returns True for more messages.

        ``deliver`` takes the messages of a poll, ordered by partition; also if there are none.
        """
        while True:
            if self._changed.is_set():
                self._changed.clear()
                positions = self.positions | self._begin
                self._begin = {}
                self.assign({number: positions[number] for number in self._partitions})
            if not self._partitions:
                await self._changed.wait()
            elif await unless_set(self._changed, room()):
                messages = await unless_set(self._changed, self.poll())
                if messages is not None and self._changed.is_set():
                    messages = [each for each in messages if self._is_read(each.partition)]
                if messages is not None:
                    await deliver(messages)
