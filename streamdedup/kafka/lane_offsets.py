"""*Async.* Where an edge continues a partition: in the source, and in the topic of the verdicts.

Both offsets are committed in one transaction with the outputs: the source offset as the group's
offset, and the verdict offset in its metadata.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition

from streamdedup.kafka.connection import translated
from streamdedup.kafka.dead_letter_limit import Tally, latest_tally
from streamdedup.kafka.source import check_offset
from streamdedup.settings.sections import Settings

_VERDICTS = "verdicts-1"
"""Word before the verdict offset in the metadata; the number is the version of its format."""


@dataclass(frozen=True, slots=True)
class LaneOffsets:
    """Where to continue.

    Attributes:
        source: the next source offset.
        verdicts: the offset from which on to read verdicts.
        judged: the end of the verdicts that exist already.
        tally: the dead letters so far.
        is_new: whether the source offset is the first one of this partition, and not committed.
    """

    source: int
    verdicts: int
    judged: int
    tally: Tally
    is_new: bool


def lane_note(tally: Tally, verdicts: int) -> str:
    """Return the metadata of a committed source offset."""
    return f"{tally.note()} {_VERDICTS} {verdicts}"


def read_verdict_offset(note: str) -> int | None:
    """Return the verdict offset of :func:`lane_note`; None if there is none."""
    words = note.split(" ")
    if _VERDICTS not in words[:-1]:
        return None
    offset = words[words.index(_VERDICTS) + 1]
    return int(offset) if offset.isdecimal() else None


def next_verdict(note: str, first: int, end: int) -> int:
    """Return the verdict offset to continue at, which is in the topic.

    Args:
        note: the metadata of the committed source offset.
        first: the first offset of the topic of verdicts.
        end: its end.
    """
    offset = read_verdict_offset(note)
    if offset is None or offset > end:  # the mode was single, or the topic was recreated
        return first
    return max(offset, first)


async def find_offsets(
    source: AIOKafkaConsumer, verdicts: AIOKafkaConsumer, settings: Settings, partition: int
) -> LaneOffsets:
    """Find out where to continue a partition; its producer has fenced the predecessor before.

    Args:
        source: a consumer of the group.
        verdicts: a consumer that reads committed records.
        settings: all settings.
        partition: the partition.

    Raises:
        TopicError: the committed offset is not in the topic.
    """
    mine = TopicPartition(settings.topics.source, partition)
    theirs = TopicPartition(settings.topics.verdicts, partition)
    with translated(f"cannot read the offsets of {mine.topic}"):
        all_partitions = [
            TopicPartition(mine.topic, number)
            for number in source.partitions_for_topic(mine.topic) or {partition}
        ]
        committed = await source._coordinator.fetch_committed_offsets(all_partitions)
        first = (await source.beginning_offsets([mine]))[mine]
        end = (await source.end_offsets([mine]))[mine]
        first_verdicts = (await verdicts.beginning_offsets([theirs]))[theirs]
        judged = (await verdicts.end_offsets([theirs]))[theirs]
    if mine in committed:
        offset, note = committed[mine].offset, committed[mine].metadata
        check_offset(mine, offset, first, end)
        begin = next_verdict(note, first_verdicts, judged)
        return LaneOffsets(offset, begin, judged, latest_tally([note]), False)
    is_new_group = not any(entry.offset >= 0 for entry in committed.values())
    begin = end if is_new_group and settings.kafka.start == "latest" else first
    return LaneOffsets(begin, first_verdicts, judged, Tally(), True)
