"""*Async.* The committed offsets of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition, errors
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.structs import OffsetAndMetadata

from streamdedup.kafka.connection import POLL_S
from streamdedup.settings.kafka import KafkaSettings

_ELSEWHERE = (errors.NotCoordinatorForGroupError, errors.GroupCoordinatorNotAvailableError)


async def committed_offsets(
    consumer: AIOKafkaConsumer, partitions: Iterable[TopicPartition], kafka: KafkaSettings
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets that the consumer's group has committed, with their metadata.

    A coordinator that still loads the group answers with an error and without partitions. aiokafka
    ignores that error, so that a group would seem to have no offsets.

    Args:
        consumer: a consumer of the group that was started.
        partitions: the partitions; those without an offset are left out of the result.
        kafka: has the time after which the request fails.

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
                return await _fetch(coordinator, topics)
            except errors.KafkaError as error:
                if not error.retriable:
                    raise
                if isinstance(error, _ELSEWHERE):
                    coordinator.coordinator_dead()
            await asyncio.sleep(POLL_S)


async def _fetch(
    coordinator: Any, topics: list[tuple[str, list[int]]]
) -> dict[TopicPartition, OffsetAndMetadata]:
    answer = await coordinator._send_req(OffsetFetchRequest(coordinator.group_id, topics))
    check_answer(answer, coordinator.group_id)
    return {
        TopicPartition(topic, partition): OffsetAndMetadata(offset, metadata)
        for topic, parts in answer.topics
        for partition, offset, metadata, _ in parts
        if offset >= 0
    }


def check_answer(answer: Any, group: str) -> None:
    """Check the answer to a request about the offsets of a group.

    Raises:
        KafkaError: the request failed, for the whole group or for a partition.
    """
    codes = [partition[-1] for _, partitions in answer.topics for partition in partitions]
    for code in [getattr(answer, "error_code", 0), *codes]:
        if code:
            raise errors.for_code(code)(f"group {group}")
