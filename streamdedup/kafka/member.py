"""*Async.* A member of a consumer group that only learns its partitions, and reads nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition, errors
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor

from streamdedup.errors import SettingsError
from streamdedup.kafka.connection import new_consumer, stop, translated, unless_set
from streamdedup.settings.sections import Settings
from streamdedup.settings.units import format_duration, milliseconds

_LOOK_MS = 1_000
"""How long a look at the state of the group waits for an error."""
_HEARTBEATS = 20
"""Heartbeats in a session timeout: a member learns from one that the group assigns again."""
_LONGEST_HEARTBEAT_MS = 500
_FOR_EVER_MS = 2**31 - 1


class GroupMember(ConsumerRebalanceListener):  # type: ignore[misc] # aiokafka has no types
    """This process's part in a consumer group.

    Args:
        settings: all settings.
        group_id: the group.
        topic: the topic whose partitions the group assigns.
        action: what fails if the group cannot be used, in words that begin the message.

    Attributes:
        partitions: the numbers of the partitions that this member has.
    """

    def __init__(self, settings: Settings, group_id: str, topic: str, action: str) -> None:
        self.partitions: frozenset[int] = frozenset()
        self._settings = settings
        self._group_id = group_id
        self._topic = topic
        self._action = action
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
        """Become a member of the group.

        Raises:
            BrokerUnavailable: the brokers do not answer.
            BrokerRefused: this client may not use the group.
        """
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
        """Wait for an assignment after which a condition holds.

        Raises:
            StreamdedupError: this process can no longer take part.
        """
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
        """Take note of the outcome."""
        assigned = list(assigned)
        if self._consumer is not None:
            self._consumer.pause(*assigned)
        partitions = frozenset(partition.partition for partition in assigned)
        self.take_note(partitions)
        self.partitions = partitions
        self._changed.set()

    def take_note(self, partitions: frozenset[int]) -> None:
        """Take note of an assignment; ``self.partitions`` has the one before."""

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
