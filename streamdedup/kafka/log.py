"""*Async.* Reads the changelog topic from an offset to its end."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiokafka import TopicPartition

from streamdedup.errors import IndexDamaged, TopicError
from streamdedup.kafka.connection import new_consumer, stop, translated
from streamdedup.settings.sections import Settings


class ChangelogReader:
    """Reads the changelog topic once, from an offset to its end."""

    def __init__(self, settings: Settings) -> None:
        self._at = TopicPartition(settings.topics.changelog, 0)
        self._consumer = new_consumer(settings.kafka)
        self.first = 0
        self.end = 0

    async def start(self) -> None:
        """Learn where the changelog begins and ends."""
        with translated("cannot read the changelog"):
            await self._consumer.start()
            self._consumer.assign([self._at])
            self.first = (await self._consumer.beginning_offsets([self._at]))[self._at]
            self.end = (await self._consumer.end_offsets([self._at]))[self._at]

    async def entries(self, offset: int) -> AsyncIterator[tuple[int, bytes]]:
        """Yield the entries from an offset on, each with its own offset.

        Raises:
            TopicError: the offset is not in the topic.
            IndexDamaged: an entry has no content.
        """
        self.check(offset)
        self._consumer.seek(self._at, offset)
        while True:
            with translated("cannot read the changelog"):
                if await self._consumer.position(self._at) >= self.end:
                    return
                fetched = await self._consumer.getmany(timeout_ms=200, max_records=64)
            for message in fetched.get(self._at, ()):
                if message.value is None:
                    raise IndexDamaged(
                        f"offset {message.offset} of the changelog holds no entry; another "
                        "program writes to this topic"
                    )
                yield message.offset, message.value

    def check(self, offset: int) -> None:
        """Check that an index that stands at an offset can go on from there.

        Raises:
            TopicError: the offset is not in the topic.
        """
        topic = self._at.topic
        if offset > self.end:
            raise TopicError(
                f"the index stands at offset {offset} of {topic}, which ends at {self.end}: the "
                "topic was deleted and made anew; remove the index directory, or restore the topic"
            )
        if offset < self.first:
            raise TopicError(
                f"the index stands at offset {offset} of {topic}, which begins at {self.first}: "
                "entries between were deleted; remove the index directory to rebuild it from "
                "what is left"
            )

    async def close(self) -> None:
        """Stop the consumer."""
        await stop(self._consumer.stop())
