"""*Async.* The committed offsets of a group, and where an edge continues a partition.

An edge continues in the source and in the topic of the verdicts. Both offsets are committed in one
transaction with the outputs: the source offset as the group's offset, and the verdict offset in its
metadata. The same transaction writes them to the topic of the verdicts, since a broker may lose a
group's offsets, or answer with earlier ones, after it was killed (:class:`LaneProgress`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Self

from aiokafka import AIOKafkaConsumer, TopicPartition, errors
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.structs import OffsetAndMetadata

from streamdedup.kafka.connection import POLL_S, translated
from streamdedup.kafka.dead_letter_limit import OutcomeTally, latest_tally
from streamdedup.kafka.messages import Messages, Outgoing
from streamdedup.settings.kafka import KafkaSettings
from streamdedup.settings.sections import Settings

_ELSEWHERE = (errors.NotCoordinatorForGroupError, errors.GroupCoordinatorNotAvailableError)
_VERDICTS = "verdicts-1"
"""Word before the verdict offset in the metadata; the number is the version of its format."""
_PROGRESS = "streamdedup-progress"
"""Header of the record of a lane's progress; its value is the next source offset."""
_SOURCE_ID = "streamdedup-source-id"
"""Header with the id of the source topic, in hexadecimal: a recreated topic has another one."""
_PARTITIONS = "partitions-1"
"""Word before the number of partitions at the first start in the metadata."""


async def committed_offsets(
    consumer: AIOKafkaConsumer, partitions: Iterable[TopicPartition], kafka: KafkaSettings
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets that the consumer's group has committed, if any, with their metadata.

    A coordinator that still loads the group answers with an error and without partitions. aiokafka
    ignores that error, so that a group would seem to have no offsets.

    Raises:
        KafkaError: the brokers refuse the request.
        TimeoutError: the coordinator did not answer in time.
    """
    coordinator = consumer._coordinator
    topics = [
        (topic, [each.partition for each in parts])
        for topic, parts in groupby(sorted(partitions), lambda each: each.topic)
    ]
    async with asyncio.timeout(kafka.request_timeout.total_seconds()):
        while True:
            await coordinator.ensure_coordinator_known()
            try:
                request = OffsetFetchRequest(coordinator.group_id, topics)
                answer = await coordinator._send_req(request)
                check_answer(answer, coordinator.group_id)
                return {
                    TopicPartition(topic, partition): OffsetAndMetadata(offset, metadata)
                    for topic, parts in answer.topics
                    for partition, offset, metadata, _ in parts
                    if offset >= 0
                }
            except errors.KafkaError as error:
                if not error.retriable:
                    raise
                if isinstance(error, _ELSEWHERE):
                    coordinator.coordinator_dead()
            await asyncio.sleep(POLL_S)


def check_answer(answer: Any, group: str) -> None:
    """Check the answer to a request about the offsets of a group.

    Raises:
        KafkaError: the request failed, for the whole group or for a partition.
    """
    codes = [partition[-1] for _, partitions in answer.topics for partition in partitions]
    for code in [getattr(answer, "error_code", 0), *codes]:
        if code:
            raise errors.for_code(code)(f"group {group}")


async def bounds(consumer: AIOKafkaConsumer, partition: TopicPartition) -> tuple[int, int]:
    """Return the first offset of a partition, and the offset after the last one."""
    first = await consumer.beginning_offsets([partition])
    end = await consumer.end_offsets([partition])
    return first[partition], end[partition]


@dataclass(frozen=True, slots=True)
class Metadata:
    """What is committed with a source offset.

    Attributes:
        verdicts: the offset of the next verdicts; None if it is unknown.
        first_partitions: partitions of the source topic at the group's first start; 0 if unknown.
    """

    tally: OutcomeTally = field(default_factory=OutcomeTally)
    verdicts: int | None = None
    first_partitions: int = 0

    def encoded(self) -> str:
        """Return the metadata as text."""
        numbers = f"{_VERDICTS} {self.verdicts} {_PARTITIONS} {self.first_partitions}"
        return f"{self.tally.note()} {numbers}"

    @classmethod
    def read(cls, text: str) -> Metadata:
        """Read metadata; what another program or mode has written has fewer parts."""
        partitions = _number_after(text, _PARTITIONS)
        return cls(latest_tally([text]), _number_after(text, _VERDICTS), partitions or 0)


@dataclass(frozen=True, slots=True)
class LaneProgress:
    """What a lane has committed, as a record in its partition of the topic of the verdicts.

    Attributes:
        source: the next source offset.
        topic_id: of the source topic; empty if the brokers do not report it.
    """

    source: int
    topic_id: bytes
    metadata: Metadata

    def messages(self, topic: str, partition: int) -> Messages:
        """Return the record."""
        topic_id = self.topic_id.hex().encode()
        headers = [(_PROGRESS, str(self.source).encode()), (_SOURCE_ID, topic_id)]
        value = self.metadata.encoded().encode()
        return Messages.of(topic, [Outgoing(topic, None, value, headers, None, partition)])

    @classmethod
    def read(cls, message: Any) -> Self | None:
        """Return the progress in a record of the topic of the verdicts, None if it has verdicts."""
        headers = dict(message.headers)
        source = headers.get(_PROGRESS)
        if source is None or not source.isdigit():
            return None
        try:
            topic_id = bytes.fromhex((headers.get(_SOURCE_ID) or b"").decode())
        except ValueError:
            topic_id = b""
        metadata = Metadata.read((message.value or b"").decode("utf-8", "replace"))
        return cls(int(source), topic_id, metadata)


def is_by_edge(text: str) -> bool:
    """Return whether metadata is that of an edge."""
    return Metadata.read(text).verdicts is not None


def _number_after(text: str, word: str) -> int | None:
    """Return the number after a word, None if there is none."""
    words = text.split(" ")
    if word not in words[:-1]:
        return None
    number = words[words.index(word) + 1]
    return int(number) if number.isdecimal() else None


@dataclass(frozen=True, slots=True)
class LaneOffsets:
    """Where to continue.

    Attributes:
        source, first, end: the next source offset, and the bounds of the source partition.
        verdicts, judged: the next verdict offset, and the end of the verdicts that exist already.
        metadata: what is committed with the next source offset, apart from the progress.
        is_new: whether the source offset is the first one of this partition, and not committed.
        is_own: whether a lane has committed the source offset, not an operator or mode single.
    """

    source: int
    first: int
    end: int
    verdicts: int
    judged: int
    metadata: Metadata
    is_new: bool
    is_own: bool


def next_verdict(committed: int | None, first: int, end: int) -> int:
    """Return the verdict offset to continue at, from the one in the metadata and the bounds."""
    if committed is None or committed > end:  # the mode was single, or the topic was recreated
        return first
    return max(committed, first)


async def find_offsets(
    source: AIOKafkaConsumer, verdicts: AIOKafkaConsumer, settings: Settings, partition: int
) -> LaneOffsets:
    """Find out where to continue a partition; its producer has fenced the predecessor before.

    The consumers are one of the group, and one that reads committed records.
    """
    mine = TopicPartition(settings.topics.source, partition)
    theirs = TopicPartition(settings.topics.verdicts, partition)
    with translated(f"cannot read the offsets of {mine.topic}"):
        all_partitions = [
            TopicPartition(mine.topic, number)
            for number in source.partitions_for_topic(mine.topic) or {partition}
        ]
        committed = await committed_offsets(source, all_partitions, settings.kafka)
        first, end = await bounds(source, mine)
        first_verdicts, judged = await bounds(verdicts, theirs)
    notes = {part: Metadata.read(entry.metadata) for part, entry in committed.items()}
    known = [note.first_partitions for note in notes.values()]
    metadata = Metadata(first_partitions=max(known, default=len(all_partitions)))
    if mine in committed:
        note, offset = notes[mine], committed[mine].offset
        begin = next_verdict(note.verdicts, first_verdicts, judged)
        metadata, is_own = replace(metadata, tally=note.tally), note.verdicts is not None
        return LaneOffsets(offset, first, end, begin, judged, metadata, is_new=False, is_own=is_own)
    # Each partition begins on its own, so an offset of another one does not say that this one is
    # new to the group.
    is_old = not known or partition < metadata.first_partitions
    offset = end if is_old and settings.kafka.start == "latest" else first
    return LaneOffsets(
        offset, first, end, first_verdicts, judged, metadata, is_new=True, is_own=False
    )
