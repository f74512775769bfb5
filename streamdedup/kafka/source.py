"""*Async.* The source topic: every partition, assigned manually, read in offset order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from streamdedup.columns import Positions, RecordColumns
from streamdedup.kafka.connection import new_consumer, translated
from streamdedup.kafka.dead_letter_limit import is_by_worker
from streamdedup.kafka.offsets import committed_offsets, is_by_edge
from streamdedup.kafka.poll import Poller
from streamdedup.kafka.source_offsets import (
    KnownOffsets,
    SourceOffsets,
    check_begin,
    outputs_unknown,
)
from streamdedup.model import SourceRange
from streamdedup.settings.sections import Settings
from streamdedup.settings.units import milliseconds

log = structlog.get_logger(__name__)

_FETCH_BYTES, _PARTITION_FETCH_BYTES = 50 * 1024**2, 4 * 1024**2
"""Bytes of one fetch, and of a partition in it: some batches of large records. A broker returns
larger batches of records too, one at a time."""

_partition, _offset, _timestamp = map(attrgetter, ("partition", "offset", "timestamp"))


def source_consumer(settings: Settings) -> AIOKafkaConsumer:
    """Return a consumer of the source topic that has not been started."""
    return new_consumer(
        settings.kafka,
        group_id=settings.kafka.group_id,
        metadata_max_age_ms=milliseconds(settings.kafka.metadata_refresh),
        fetch_max_bytes=min(_FETCH_BYTES, settings.batch.bytes),
        max_partition_fetch_bytes=min(_PARTITION_FETCH_BYTES, settings.batch.bytes),
    )


class Source(Poller):
    """Reads every partition of the source topic; ``partitions`` is their number."""

    def __init__(self, settings: Settings, partitions: int) -> None:
        super().__init__(source_consumer(settings), settings.topics.source, settings)
        self.partitions = partitions
        self._kafka = settings.kafka
        self._committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._passed: dict[int, int] = {}

    async def start(self) -> None:
        """Connect, assign every partition, and read the committed offsets."""
        with translated("cannot start the consumer"):
            await self.consumer.start()
            self.consumer.assign(self.topic_partitions(range(self.partitions)))
        await self.read_committed()

    async def read_committed(self) -> None:
        """Read the committed offsets."""
        with translated("cannot read the committed offsets"):
            self._committed = await committed_offsets(
                self.consumer, self.topic_partitions(range(self.partitions)), self._kafka
            )

    def follows_edges(self) -> bool:
        """Return whether edges have committed offsets: they may have left transactions open."""
        return any(is_by_edge(found.metadata) for found in self._committed.values())

    async def begin(self, known: KnownOffsets) -> dict[tuple[str, int], int]:
        """Seek each partition to its committed offset.

        Brokers delete a group's offsets after some days without a commit. A partition without a
        committed offset continues at the offset of the index: no record gets a second verdict.

        Returns:
            By (topic, partition) the first offsets that no worker has committed, that the brokers
            have lost, or that ``kafka.skip_unjudged`` accepts. Commit them before anything else,
            and let the index count what is before them as judged. Then a restart begins at the
            same offsets.

        Raises:
            TopicError: a committed offset is not in the topic, or past records without a verdict,
                or there is none and edges may have written records.
        """
        partitions = self.topic_partitions(range(self.partitions))
        lost = self._lost(known)
        committed = {
            part: self._committed[part].offset if part in self._committed else None
            for part in partitions
        } | lost
        for part, found in committed.items():
            if found is None and known.written_offset(*part) < known.next_offset(*part):
                raise outputs_unknown(self._kafka, *part)
        with translated("cannot read the offsets of the source topic"):
            first = await self.consumer.beginning_offsets(partitions)
            end = await self.consumer.end_offsets(partitions)
        # Committed, else judged, else by kafka.start: ``latest`` applies only if no partition was
        # ever read. Later it would skip records of a partition that is new to the group.
        chosen = {
            part: (known.next_offset(*part) or None) if offset is None else offset
            for part, offset in committed.items()
        }
        is_new = all(offset is None for offset in chosen.values())
        default = end if is_new and self._kafka.start == "latest" else first
        begin = {part: default[part] if at is None else at for part, at in chosen.items()}
        offsets = [
            SourceOffsets(
                part.topic,
                part.partition,
                begin[part],
                known.next_offset(*part),
                first[part],
                end[part],
            )
            for part in partitions
        ]
        skips = check_begin(offsets, self._kafka)
        warn_of_skips(skips)
        skipped = {each.partition for each in skips}
        self.assign({partition.partition: offset for partition, offset in begin.items()})
        self._passed = self.positions
        return {
            (part.topic, part.partition): begin[part]
            for part, offset in committed.items()
            if offset is None
            or part.partition in skipped
            or part in lost
            or not is_by_worker(self._committed[part].metadata)
        }

    def _lost(self, known: KnownOffsets) -> dict[TopicPartition, int]:
        """Return where the index continues, of partitions whose committed offset the brokers lost.

        A worker commits an offset, with metadata, and its changelog entry in one transaction. So an
        earlier offset with its metadata is an old one. An offset that an operator has set has no
        metadata, and that of an edge has more.
        """
        lost = {
            part: known.written_offset(*part)
            for part, found in self._committed.items()
            if found.offset < known.written_offset(*part) and is_by_worker(found.metadata)
        }
        for part, offset in lost.items():
            warn_of_loss(part.partition, self._committed[part].offset, offset)
        return lost

    def notes(self) -> list[str]:
        """Return the metadata that was committed with the offset of each partition."""
        return [offset.metadata for offset in self._committed.values()]

    async def records(self) -> RecordColumns:
        """Return the next records, ordered by partition; none if none arrive in time.

        Partitions that were added since the start are read from their first offset. ``kafka.start``
        does not apply to them: all of their records came after the start.

        Raises:
            BrokerUnavailable: the brokers do not answer, or the next offset was deleted.
        """
        messages = await self.poll()
        count = len(self.consumer.partitions_for_topic(self.topic) or ())
        if count > self.partitions:
            added = dict.fromkeys(range(self.partitions, count), 0)
            self.partitions = count
            self.assign(self.positions | added)
        return as_columns(self.topic, messages)

    def has_passed(self) -> bool:
        """Return whether offsets were passed since the last :meth:`take_passed`."""
        return self.positions != self._passed

    def take_passed(self) -> tuple[SourceRange, ...]:
        """Return the ranges that were passed since the last call, ordered by partition.

        A range ends behind the transaction markers and the aborted records that follow its last
        record. If the group's offset stayed before them, its lag would never be zero.
        And when retention deletes them, it would look as if unread records were deleted.
        """
        before, self._passed = self._passed, self.positions
        return tuple(
            SourceRange(self.topic, partition, before.get(partition, 0), offset)
            for partition, offset in sorted(self._passed.items())
            if offset > before.get(partition, 0)
        )


def warn_of_loss(partition: int, found: int | None, offset: int) -> None:
    """Log that the brokers have lost the group's offset of a partition, or have an earlier one."""
    log.warning(
        "the brokers have lost the offset of the group: committing it again",
        partition=partition,
        found=found,
        offset=offset,
    )


def warn_of_skips(skips: Iterable[SourceOffsets]) -> None:
    """Log a warning for each partition whose start skips records without a verdict."""
    for offsets in skips:
        log.warning(
            "skipping records that were not judged",
            partition=offsets.partition,
            begin=offsets.skipped_from(),
            end=offsets.begin,
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
