"""*Pure.* Where a partition of the source may continue, in both modes.

Rule 1: a start never skips a record that exists and has no verdict, unless ``kafka.skip_unjudged``
is set.
Rule 2: a start never hides that retention deleted records that were not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from streamdedup.errors import TopicError
from streamdedup.kafka.topics import NEW_SOURCE
from streamdedup.settings.kafka import KafkaSettings

_MOST_NAMED = 5
"""Partitions that a message names."""


class KnownOffsets(Protocol):
    """What an index knows about the source."""

    def next_offset(self, topic: str, partition: int) -> int:
        """Return the offset up to which a partition was judged, exclusive; 0 if it never was."""

    def written_offset(self, topic: str, partition: int) -> int:
        """Return the offset behind the outputs that a worker wrote last, 0 if it never did."""


class SourceOffsets(NamedTuple):
    """Offsets of one partition of the source.

    Attributes:
        begin: the offset at which to continue, from the group or from the index.
        judged: the offset up to which records have verdicts, exclusive; 0 if unknown.
        first: the first offset of the partition that is not deleted.
        end: the offset after the last one.
    """

    topic: str
    partition: int
    begin: int
    judged: int
    first: int
    end: int

    def skipped_from(self) -> int | None:
        """Return the first offset whose record exists, has no verdict, and would be skipped.

        A partition without known verdicts begins anywhere: an operator may choose the offset for a
        new group, and the changelog may have lost its entries.
        """
        unjudged = max(self.judged, self.first)
        return unjudged if self.judged and unjudged < min(self.begin, self.end) else None


def check_begin(all_offsets: Sequence[SourceOffsets], kafka: KafkaSettings) -> list[SourceOffsets]:
    """Check where partitions continue.

    Returns:
        The partitions whose start skips records without a verdict, as ``kafka.skip_unjudged`` asks.

    Raises:
        TopicError: an offset is not in the topic, or its start would skip such records.
    """
    for topic, partition, begin, _, first, end in all_offsets:
        name = f"{topic} partition {partition}"
        if begin < first:
            raise TopicError(
                f"{name}: the group continues at offset {begin}, the topic begins at {first}: "
                f"offsets {begin} to {first} were deleted before they were read; to continue "
                "without them, stop all workers and edges, and run "
                f"{reset_command(kafka, topic, partition, '--to-earliest')}"
            )
        if begin > end:
            raise TopicError(
                f"{name}: the group continues at offset {begin}, the topic ends at {end}: the "
                "topic was deleted and recreated, or lost its end, so its offsets name other "
                f"records; {NEW_SOURCE}"
            )
    skips = [offsets for offsets in all_offsets if offsets.skipped_from() is not None]
    if skips and not kafka.skip_unjudged:
        raise TopicError(_described(skips, kafka))
    return skips


def _described(skips: Sequence[SourceOffsets], kafka: KafkaSettings) -> str:
    """Describe the partitions whose start would skip records without a verdict."""
    topic, partition, *_ = skips[0]
    named = "; ".join(
        f"partition {each.partition}: committed {each.begin}, judged up to {each.skipped_from()}"
        for each in skips[:_MOST_NAMED]
    )
    more = f"; and {len(skips) - _MOST_NAMED} more" if len(skips) > _MOST_NAMED else ""
    command = reset_command(kafka, topic, partition, f"--to-offset {skips[0].skipped_from()}")
    likewise = ", and likewise for the others" if len(skips) > 1 else ""
    return (
        f"{topic}: offsets of group {kafka.group_id} are past records that have no verdict "
        f"({named}{more}): another consumer commits to this group, or the offsets were moved; to "
        "judge these records, stop the other consumer and all workers and edges, and run "
        f"{command}{likewise}; to skip them, set kafka.skip_unjudged for one start"
    )


def outputs_unknown(kafka: KafkaSettings, topic: str, partition: int) -> TopicError:
    """Return the error about records that were judged for edges, and may have been written."""
    return TopicError(
        f"{topic} partition {partition}: group {kafka.group_id} has no offset, but there are "
        "verdicts, so records may have been written; find the last record of this partition that "
        "an output topic has, stop all workers and edges, and with the offset after it run "
        f"{reset_command(kafka, topic, partition, '--to-offset OFFSET')}; if the source topic was "
        f"recreated, {NEW_SOURCE}"
    )


def reset_command(kafka: KafkaSettings, topic: str, partition: int, to: str) -> str:
    """Return the command that sets the group's offset, by a flag such as ``--to-offset 5``."""
    return (
        f"'kafka-consumer-groups.sh --bootstrap-server {kafka.bootstrap_servers[0]} --group "
        f"{kafka.group_id} --topic {topic}:{partition} --reset-offsets {to} --execute'"
    )
