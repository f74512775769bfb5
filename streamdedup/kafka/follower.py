"""*Async.* Reads partitions of a topic that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from streamdedup.kafka.connection import unless_set
from streamdedup.kafka.poll import Poller


class Follower:
    """Reads some partitions, each from its own offset on, while others are added and removed.

    Args:
        poller: reads them.
    """

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
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

    def positions(self) -> dict[int, int]:
        """Return the next offset to read of each partition."""
        positions = self._poller.positions.items()
        return {number: offset for number, offset in positions if self._is_read(number)}

    def lag(self) -> dict[int, int]:
        """Return the number of unread messages, for each partition whose end is known."""
        lag = self._poller.lag().items()
        return {number: messages for number, messages in lag if self._is_read(number)}

    def _is_read(self, partition: int) -> bool:
        """Tell whether messages of a partition are those that it was added for last."""
        return partition in self._partitions and partition not in self._begin

    async def run(
        self,
        deliver: Callable[[list[Any]], Awaitable[None]],
        room: Callable[[], Awaitable[bool]],
    ) -> None:
        """Poll without an end.

        Args:
            deliver: takes the messages of a poll, ordered by partition; also if there are none.
            room: returns True when there is room for more messages.
        """
        while True:
            self._assign()
            if not self._partitions:
                await self._changed.wait()
            elif await unless_set(self._changed, room()):
                messages = await unless_set(self._changed, self._poller.poll())
                if messages is not None and self._changed.is_set():
                    messages = [each for each in messages if self._is_read(each.partition)]
                if messages is not None:
                    await deliver(messages)

    def _assign(self) -> None:
        if self._changed.is_set():
            self._changed.clear()
            positions = self._poller.positions | self._begin
            self._begin = {}
            self._poller.assign({number: positions[number] for number in self._partitions})
