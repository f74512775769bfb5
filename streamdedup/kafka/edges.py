"""*Async.* The group of the edges, in which the brokers assign the partitions of the source."""

from __future__ import annotations

import structlog
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from streamdedup.kafka.member import GroupMember
from streamdedup.settings.sections import Settings

log = structlog.get_logger(__name__)


class EdgeGroup(GroupMember):
    """This edge's part in the group.

    Partitions stay where they are as far as possible. The group only assigns: what keeps an edge
    from writing that was not told in time is the transactional id of the partition.

    Args:
        settings: all settings.
    """

    def __init__(self, settings: Settings) -> None:
        kafka, topics = settings.kafka, settings.topics
        super().__init__(settings, kafka.group_id, topics.source, "cannot join the edges")

    async def join(self) -> None:
        """Become a member of the group.

        Raises:
            BrokerUnavailable: the brokers do not answer.
            BrokerRefused: this client may not use the group.
        """
        # The assignor keeps what it knows in its class: another member needs another class.
        await self.join_with(type("Assignor", (StickyPartitionAssignor,), {}))

    async def differs_from(self, partitions: frozenset[int]) -> None:
        """Wait until this edge has other partitions.

        Raises:
            StreamdedupError: this edge can no longer take part.
        """
        await self.wait_until(lambda: self.partitions != partitions)

    def take_note(self, partitions: frozenset[int]) -> None:
        """Log a change."""
        if partitions != self.partitions:
            log.info("partitions assigned", partitions=sorted(partitions))
