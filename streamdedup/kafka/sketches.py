"""*Async.* Reads the topic of the sketches."""

from __future__ import annotations

import structlog
from aiokafka import TopicPartition

from streamdedup.formats.arrays import has_version
from streamdedup.kafka.committed import committed_offsets
from streamdedup.kafka.connection import new_consumer, stop, translated
from streamdedup.kafka.poll import Poller
from streamdedup.settings.sections import Settings

log = structlog.get_logger(__name__)


class SketchesReader:
    """Reads sketched ranges from the offset that was committed last.

    Another offset would do no harm: the judge leaves out what it has judged, and edges append again
    what it misses.

    Args:
        settings: all settings.
    """

    def __init__(self, settings: Settings) -> None:
        topic = settings.topics.sketches
        self._kafka = settings.kafka
        self._partition = TopicPartition(topic, 0)
        self._consumer = new_consumer(settings.kafka, group_id=settings.kafka.group_id)
        self._poller = Poller(self._consumer, topic, settings)

    async def start(self) -> None:
        """Connect, and seek the committed offset, or the first one."""
        partition = self._partition
        with translated(f"cannot read {partition.topic}"):
            await self._consumer.start()
            self._consumer.assign([partition])
            first = (await self._consumer.beginning_offsets([partition]))[partition]
            end = (await self._consumer.end_offsets([partition]))[partition]
            found = await committed_offsets(self._consumer, [partition], self._kafka)
        committed = found[partition].offset if partition in found else first
        begin = committed if first <= committed <= end else first
        if begin != committed:
            log.warning(
                "the committed offset is not in the topic of the sketches",
                topic=partition.topic,
                committed=committed,
                begin=begin,
            )
        self._poller.assign({0: begin})

    async def poll(self) -> list[tuple[int, bytes]]:
        """Return the offsets and values of the next ranges; none if none arrive in time.

        Raises:
            BrokerUnavailable: the brokers do not answer.
        """
        found = []
        for message in await self._poller.poll():
            if message.value is not None and has_version(message.value):
                found.append((message.offset, message.value))
            else:
                log.warning(
                    "another program writes to the topic of the sketches",
                    topic=message.topic,
                    offset=message.offset,
                )
        return found

    @property
    def positions(self) -> dict[int, int]:
        """The next offset to read, by partition."""
        return dict(self._poller.positions)

    def lag(self) -> dict[int, int]:
        """Return the number of unread messages, by partition."""
        return self._poller.lag()

    async def close(self) -> None:
        """Stop the consumer."""
        await stop(self._consumer.stop())
