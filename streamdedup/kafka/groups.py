"""*Async.* Groups of consumers that only assign partitions: the edges', and the election's.

A member reads nothing. A process that was not told in time is fenced: by the producer of the
elected worker, or by that of the partition's new edge.

**Election**: which of several workers with the same changelog judges documents. They are members of
a group that subscribes to the changelog, which has one partition. The member that gets the
partition is elected. It keeps the partition while it is a member; after it, the one whose index is
most advanced gets it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition, errors
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)

from streamdedup.errors import SettingsError
from streamdedup.kafka.connection import new_consumer, stop, translated, unless_set
from streamdedup.settings.sections import Settings
from streamdedup.settings.units import format_duration, milliseconds

log = structlog.get_logger(__name__)

_LOOK_MS = 1_000
"""How long a look at the state of the group waits for an error."""
_HEARTBEATS = 20
"""Heartbeats in a session timeout: a member learns from one that the group assigns again."""
_LONGEST_HEARTBEAT_MS = 500
_FOR_EVER_MS = 2**31 - 1


class GroupMember(ConsumerRebalanceListener):  # type: ignore[misc] # aiokafka has no types
    """This process's part in a consumer group, which assigns the ``partitions`` of a topic.

    Errors begin with ``action``. Every method raises :class:`BrokerUnavailable` if the brokers do
    not answer, and :class:`BrokerRefused` if this client may not use the group.
    """

    def __init__(self, settings: Settings, group_id: str, topic: str, action: str) -> None:
        self.partitions: frozenset[int] = frozenset()
        self._settings, self._action = settings, action
        self._group_id, self._topic = group_id, topic
        self._changed = asyncio.Event()
        self._consumer: AIOKafkaConsumer | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def is_member(self) -> bool:
        """Whether this process has joined, and the group has not forgotten it."""
        if self._consumer is None or self._watch is None or self._watch.done():
            return False
        return bool(self._consumer._coordinator.member_id)

    async def join_with(self, assignor: type[AbstractPartitionAssignor]) -> None:
        """Become a member of the group."""
        timeout_ms = milliseconds(self._settings.kafka.session_timeout)
        self._consumer = consumer = new_consumer(
            self._settings.kafka,
            group_id=self._group_id,
            session_timeout_ms=timeout_ms,
            heartbeat_interval_ms=min(timeout_ms // _HEARTBEATS, _LONGEST_HEARTBEAT_MS),
            rebalance_timeout_ms=timeout_ms,
            max_poll_interval_ms=_FOR_EVER_MS,
            metadata_max_age_ms=milliseconds(self._settings.kafka.metadata_refresh),
            partition_assignment_strategy=(assignor,),
            # Nothing is read from the partitions, but they get a position.
            auto_offset_reset="latest",
        )
        with translated(self._action):
            await consumer.start()
        consumer.subscribe([self._topic], listener=self)
        self._watch = asyncio.create_task(self._look(consumer), name=f"member of {self._group_id}")

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for an assignment after which a condition holds."""
        if self._watch is None:
            raise RuntimeError("the group was not joined")
        while not condition():
            self._changed.clear()
            await unless_set(self._changed, asyncio.shield(self._watch))
            if self._watch.done():
                self._watch.result()

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Wait for the outcome: a member usually keeps most of its partitions."""

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Remember the outcome."""
        assigned = list(assigned)
        if self._consumer is not None:
            self._consumer.pause(*assigned)
        partitions = frozenset(partition.partition for partition in assigned)
        self.take_note(partitions)
        self.partitions = partitions
        self._changed.set()

    def take_note(self, partitions: frozenset[int]) -> None:
        """Remember an assignment; ``self.partitions`` has the one before."""

    async def _look(self, consumer: AIOKafkaConsumer) -> None:
        """Let the consumer report the errors of the group."""
        while True:
            with translated(self._action):
                try:
                    await consumer.getmany(timeout_ms=_LOOK_MS)
                except errors.InvalidSessionTimeoutError as error:
                    timeout = format_duration(self._settings.kafka.session_timeout)
                    raise SettingsError(
                        f"kafka.session_timeout is {timeout}, which is not between the brokers' "
                        "group.min.session.timeout.ms and group.max.session.timeout.ms"
                    ) from error

    async def leave(self) -> None:
        """Leave the group, so that its partitions are assigned again at once."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._consumer is not None:
            await stop(self._consumer.stop())
        self._consumer, self._watch, self.partitions = None, None, frozenset()


class EdgeGroup(GroupMember):
    """This edge's part in the group; partitions stay where they are as far as possible."""

    def __init__(self, settings: Settings) -> None:
        kafka, topics = settings.kafka, settings.topics
        super().__init__(settings, kafka.group_id, topics.source, "cannot join the edges")

    async def join(self) -> None:
        """Become a member of the group."""
        # The assignor keeps what it knows in its class: another member needs another class.
        await self.join_with(type("Assignor", (StickyPartitionAssignor,), {}))

    async def differs_from(self, partitions: frozenset[int]) -> None:
        """Wait until this edge has other partitions."""
        await self.wait_until(lambda: self.partitions != partitions)

    def take_note(self, partitions: frozenset[int]) -> None:
        """Log a change."""
        if partitions != self.partitions:
            log.info("partitions assigned", partitions=sorted(partitions))


class Election(GroupMember):
    """This worker's part in the election; ``applied`` returns the changelog offset of its index."""

    def __init__(self, settings: Settings, applied: Callable[[], int]) -> None:
        topics = settings.topics
        action = "cannot take part in the election"
        super().__init__(settings, topics.election, topics.changelog, action)
        self._applied = applied

    async def is_confirmed(self) -> bool:
        """Return whether this worker is elected: only a present member can commit.

        One that was stopped for a while does not know yet that another worker was elected.
        """
        if self._consumer is None or not self.partitions:
            return False
        changelog = TopicPartition(self._settings.topics.changelog, 0)
        with translated(self._action):
            try:
                # The client would wait for a coordinator without an end.
                async with asyncio.timeout(self._settings.kafka.request_timeout.total_seconds()):
                    await self._consumer.commit({changelog: 0})
            except (errors.CommitFailedError, errors.IllegalStateError):
                return False
        return True

    async def join(self) -> None:
        """Become a member of the group."""
        await self.join_with(
            _assignor(lambda: (bool(self.partitions) and self.is_member, self._applied()))
        )

    async def win(self) -> None:
        """Wait until this worker is elected."""
        await self.wait_until(lambda: bool(self.partitions))

    async def lose(self) -> None:
        """Wait until another worker is elected."""
        await self.wait_until(lambda: not self.partitions)

    def take_note(self, partitions: frozenset[int]) -> None:
        """Log a change."""
        if bool(partitions) != bool(self.partitions):
            log.info("elected" if partitions else "another worker is elected")


def _assignor(claim: Callable[[], tuple[bool, int]]) -> type[AbstractPartitionAssignor]:
    """Return an assignor that elects a member by their claims: an elected one, else the latest.

    A claim is whether a member is elected, and the changelog offset of its index.
    """

    class Assignor(AbstractPartitionAssignor):  # type: ignore[misc] # aiokafka has no types
        name = "streamdedup"

        @classmethod
        def metadata(cls, topics: Iterable[str]) -> ConsumerProtocolMemberMetadata:
            return ConsumerProtocolMemberMetadata(0, list(topics), json.dumps(claim()).encode())

        @classmethod
        def assign(
            cls, _cluster: Any, members: Mapping[str, ConsumerProtocolMemberMetadata]
        ) -> dict[str, ConsumerProtocolMemberAssignment]:
            claims = {name: json.loads(metadata.user_data) for name, metadata in members.items()}
            [topic] = {topic for metadata in members.values() for topic in metadata.subscription}
            elected = max(claims, key=lambda member: (*claims[member], member))
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
