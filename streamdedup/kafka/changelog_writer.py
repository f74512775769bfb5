"""*Async.* The transactional producer of the process that owns the index."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiokafka import TopicPartition

from streamdedup.errors import BrokerUnavailable, TopicError
from streamdedup.kafka.connection import POLL_S
from streamdedup.kafka.messages import ClusterFacts
from streamdedup.kafka.topics import NEW_CHANGELOG, output_names
from streamdedup.kafka.writer import TransactionalWriter, end_offsets
from streamdedup.settings.sections import Settings


class ChangelogWriter(TransactionalWriter):
    """Writes changelog entries too, and checks that they continue the index.

    Args:
        settings: all settings.
        facts: the topics.
        applied: the changelog offset up to which the index is complete.
    """

    def __init__(self, settings: Settings, facts: ClusterFacts, applied: int) -> None:
        topics = settings.topics
        outputs = [topics.verdicts] if settings.mode == "split" else output_names(topics)
        super().__init__(settings, facts, topics.transactional_id, [*outputs, topics.changelog])
        self._changelog = topics.changelog
        self._applied = applied
        self._has_committed = False

    async def _is_confirmed(self, partitions: Sequence[TopicPartition]) -> bool:
        """Tell whether the index holds an entry that readers do not see yet.

        The index only takes entries whose commit was confirmed.
        """
        changelog = TopicPartition(self._changelog, 0)
        visible = await end_offsets(self._settings.kafka, partitions, "read_committed")
        if visible[changelog] >= self._applied:
            return False
        return await self._end_of_changelog("read_uncommitted") == self._applied

    async def _wait_for_markers(self) -> None:
        """Wait until readers see the whole changelog.

        The coordinator writes markers after it has confirmed the end of a transaction. Until then
        the index may be ahead of what readers see.
        """
        written = await self._end_of_changelog("read_uncommitted")
        async with asyncio.timeout(self._timeout_s):
            while await self._end_of_changelog("read_committed") < written:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)

    async def _end_of_changelog(self, isolation_level: str) -> int:
        changelog = TopicPartition(self._changelog, 0)
        ends = await end_offsets(self._settings.kafka, [changelog], isolation_level)
        return ends[changelog]

    def _logged(self, first: int, end: int) -> int:
        """Check the offsets of new entries.

        Raises:
            TopicError: the changelog is not the one that the index was built from.
            BrokerUnavailable: there may be entries in between that the index does not know.
        """
        if first < 0:
            raise BrokerUnavailable("the broker did not return the offset of the changelog entry")
        if first < self._applied:
            raise TopicError(
                f"a new entry of {self._changelog} got offset {first}, but the index is at offset "
                f"{self._applied}: the topic was deleted and recreated; {NEW_CHANGELOG}"
            )
        expected, self._applied = self._applied, end
        # Behind the entries of a transaction there is its marker.
        if self._has_committed and first > expected + 1:
            raise BrokerUnavailable(
                f"a new entry of {self._changelog} got offset {first}, not {expected + 1}: reading "
                "what is in between, after a failover usually a second transaction marker"
            )
        self._has_committed = True
        return self._applied
