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
from aiokafka import TopicPartition, errors
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)

from streamdedup.kafka.connection import translated
from streamdedup.kafka.member import GroupMember
from streamdedup.settings.sections import Settings

log = structlog.get_logger(__name__)

_ACTION = "cannot take part in the election"


class Election(GroupMember):
    """This worker's part in the election.

    Args:
        settings: all settings.
        applied: returns the changelog offset up to which the index of this worker is complete.
    """

    def __init__(self, settings: Settings, applied: Callable[[], int]) -> None:
        topics = settings.topics
        super().__init__(settings, topics.election, topics.changelog, _ACTION)
        self._applied = applied

    @property
    def _is_elected(self) -> bool:
        return bool(self.partitions)

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
        await self.join_with(_assignor(self._claim))

    async def win(self) -> None:
        """Wait until this worker is elected.

        Raises:
            StreamdedupError: this worker can no longer take part.
        """
        await self.wait_until(lambda: self._is_elected)

    async def lose(self) -> None:
        """Wait until another worker is elected.

        Raises:
            StreamdedupError: this worker can no longer take part.
        """
        await self.wait_until(lambda: not self._is_elected)

    def take_note(self, partitions: frozenset[int]) -> None:
        """Log a change."""
        if bool(partitions) != self._is_elected:
            log.info("elected" if partitions else "another worker is elected")

    def _claim(self) -> tuple[bool, int]:
        """Return whether this worker is elected, and up to which offset its index is complete."""
        return self._is_elected and self.is_member, self._applied()


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
