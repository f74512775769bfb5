"""*Async.* Election: which of several workers with the same changelog judges documents.

The workers are members of a consumer group that subscribes to the changelog, which has one
partition. The member that gets the partition is elected. It keeps the partition while it is a
member; after it, the one whose index is most advanced gets it.

The group only elects. What keeps a worker from writing that was not told in time is the
transactional id: the elected one's producer fences the others.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition, errors
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)

from streamdedup.errors import SettingsError
from streamdedup.kafka.connection import new_consumer, stop, translated
from streamdedup.settings.sections import Settings
from streamdedup.settings.units import format_duration, milliseconds

log = structlog.get_logger(__name__)

_ACTION = "cannot take part in the election"
_LOOK_MS = 1_000
"""How long a look at the state of the group waits for an error."""
_HEARTBEATS = 20
"""Heartbeats in a session timeout: a member learns from one that the group elects again."""
_LONGEST_HEARTBEAT_MS = 500
_FOR_EVER_MS = 2**31 - 1


class Election(ConsumerRebalanceListener):  # type: ignore[misc] # aiokafka has no types
    """This worker's part in the election.

    Args:
        settings: all settings.
        applied: returns the changelog offset up to which the index of this worker is complete.
    """

    def __init__(self, settings: Settings, applied: Callable[[], int]) -> None:
        self._settings = settings
        self._applied = applied
        self._is_elected = False
        self._changed = asyncio.Event()
        self._consumer: AIOKafkaConsumer | None = None
        self._watch: asyncio.Task[None] | None = None

    async def is_confirmed(self) -> bool:
        """Tell whether this worker is elected: only a present member can commit.

        One that was stopped for a while does not know yet that another worker was elected.

        Raises:
            BrokerUnavailable: the brokers do not answer.
        """
        if self._consumer is None or not self._is_elected:
            return False
        changelog = TopicPartition(self._settings.topics.changelog, 0)
        with translated(_ACTION):
            try:
                # The client would wait for a coordinator without an end.
                async with asyncio.timeout(self._settings.kafka.request_timeout.total_seconds()):
                    await self._consumer.commit({changelog: 0})
            except (errors.CommitFailedError, errors.IllegalStateError):
                return False
        return True

    async def join(self) -> None:
        """Become a member of the group.

        Raises:
            BrokerUnavailable: the brokers do not answer.
            BrokerRefused: this client may not use the group.
        """
        topics = self._settings.topics
        timeout_ms = milliseconds(self._settings.kafka.session_timeout)
        self._consumer = consumer = new_consumer(
            self._settings.kafka,
            group_id=topics.election,
            session_timeout_ms=timeout_ms,
            heartbeat_interval_ms=min(timeout_ms // _HEARTBEATS, _LONGEST_HEARTBEAT_MS),
            rebalance_timeout_ms=timeout_ms,
            max_poll_interval_ms=_FOR_EVER_MS,
            partition_assignment_strategy=(_assignor(self._claim),),
            # Nothing is read from the partition, but it gets a position.
            auto_offset_reset="latest",
        )
        with translated(_ACTION):
            await consumer.start()
        consumer.subscribe([topics.changelog], listener=self)
        self._watch = asyncio.create_task(self._look(consumer), name="election")

    async def win(self) -> None:
        """Wait until this worker is elected.

        Raises:
            StreamdedupError: this worker can no longer take part.
        """
        await self._wait(elected=True)

    async def lose(self) -> None:
        """Wait until another worker is elected.

        Raises:
            StreamdedupError: this worker can no longer take part.
        """
        await self._wait(elected=False)

    async def _wait(self, *, elected: bool) -> None:
        if self._watch is None:
            raise RuntimeError("join() comes first")
        while self._is_elected != elected:
            self._changed.clear()
            changed = asyncio.create_task(self._changed.wait())
            try:
                await asyncio.wait({changed, self._watch}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
            if self._watch.done():
                self._watch.result()

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Wait for the outcome: a member that was elected usually stays so."""

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Take note of the outcome."""
        partitions = list(assigned)
        if self._consumer is not None:
            self._consumer.pause(*partitions)
        if self._is_elected != bool(partitions):
            log.info("elected" if partitions else "another worker is elected")
        self._is_elected = bool(partitions)
        self._changed.set()

    def _claim(self) -> tuple[bool, int]:
        """Return whether this worker is elected, and up to which offset its index is complete."""
        # The group has forgotten a member without an id.
        is_member = self._consumer is not None and bool(self._consumer._coordinator.member_id)
        return self._is_elected and is_member, self._applied()

    async def _look(self, consumer: AIOKafkaConsumer) -> None:
        """Let the consumer report the errors of the group."""
        while True:
            with translated(_ACTION):
                try:
                    await consumer.getmany(timeout_ms=_LOOK_MS)
                except errors.InvalidSessionTimeoutError as error:
                    timeout = format_duration(self._settings.kafka.session_timeout)
                    raise SettingsError(
                        f"kafka.session_timeout is {timeout}, which is not between the brokers' "
                        "group.min.session.timeout.ms and group.max.session.timeout.ms"
                    ) from error

    async def leave(self) -> None:
        """Leave the group, so that another worker is elected at once."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._consumer is not None:
            await stop(self._consumer.stop())
        self._consumer, self._watch, self._is_elected = None, None, False


def _assignor(claim: Callable[[], tuple[bool, int]]) -> type[AbstractPartitionAssignor]:
    """Return an assignor whose members send their claims; :func:`choose` decides."""

    class Assignor(AbstractPartitionAssignor):  # type: ignore[misc] # aiokafka has no types
        name = "streamdedup"

        @classmethod
        def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
            return ConsumerProtocolMemberMetadata(0, list(topics), json.dumps(claim()).encode())

        @classmethod
        def assign(
            cls, _cluster: Any, members: Mapping[str, ConsumerProtocolMemberMetadata]
        ) -> dict[str, ConsumerProtocolMemberAssignment]:
            claims = {member: metadata.user_data for member, metadata in members.items()}
            [topic] = {topic for metadata in members.values() for topic in metadata.subscription}
            elected = choose(claims)
            return {
                member: ConsumerProtocolMemberAssignment(
                    0, [(topic, [0])] if member == elected else [], b""
                )
                for member in members
            }

        @classmethod
        def on_assignment(cls, assignment: ConsumerProtocolMemberAssignment) -> None:
            """Leave it to the listener."""

    return Assignor


def choose(claims: Mapping[str, bytes]) -> str:
    """Return the member that is elected: an elected one, else the one that is most advanced.

    Args:
        claims: by member: whether it is elected, and up to which changelog offset its index is
            complete, as JSON.
    """
    return max(claims, key=lambda member: (*json.loads(claims[member]), member))
