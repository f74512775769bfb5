"""*Async.* A lane: one partition of an edge, from its records and verdicts to its transactions.

The transactional id of a lane belongs to its partition. So a lane that starts fences the edge that
had the partition before, whatever that edge believes, and settles its open transaction. Then it
continues behind the committed offsets. There is no other recovery.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from streamdedup.columns import Positions, RecordColumns
from streamdedup.errors import TopicError
from streamdedup.failpoints import reach
from streamdedup.formats.verdicts import JudgedRange
from streamdedup.kafka.cluster import look_at_topics
from streamdedup.kafka.compose import Composer
from streamdedup.kafka.dead_letter_limit import DeadLetterLimit, OutcomeTally
from streamdedup.kafka.messages import ClusterFacts, Messages, Transaction
from streamdedup.kafka.offsets import LaneOffsets, LaneProgress
from streamdedup.kafka.pairs import Paired, VerdictPairs
from streamdedup.kafka.source import warn_of_loss, warn_of_skips
from streamdedup.kafka.source_offsets import (
    SourceOffsets,
    check_begin,
    outputs_unknown,
    reset_command,
)
from streamdedup.kafka.topics import output_names
from streamdedup.kafka.writer import BuiltTransaction, TransactionalWriter
from streamdedup.model import Rejection, SourceRange
from streamdedup.roles.session import QUIET_S, Commits, Runtime, now_ms

_LOOK_S = 1.0
"""Interval at which a lane looks whether verdicts are missing."""
_NO_LIMIT = DeadLetterLimit(run=0, ratio=0)
"""Only counts: a limit was checked before the records were sketched."""


class VerdictsMissing(Exception):  # noqa: N818 - not an error: the lane begins again
    """Records were sketched, and there are no verdicts on them."""


class OffsetLost(Exception):  # noqa: N818 - not an error: the lane begins again
    """The brokers had lost the offset of the partition; it is committed again."""


class Lane:
    """One partition of an edge; it has ``offsets`` and ``pairs`` when it is open.

    Attributes:
        sketched_to: the source offset up to which records are sketched or need not be, exclusive.
        has_written: whether it has committed records.
    """

    offsets: LaneOffsets
    pairs: VerdictPairs

    def __init__(
        self,
        runtime: Runtime,
        partition: int,
        facts: ClusterFacts,
        composer: Composer,
        commits: Commits,
    ) -> None:
        settings, topics = runtime.settings, runtime.settings.topics
        self.partition, self.sketched_to, self.has_written = partition, 0, False
        self._judged_to, self._accepted_from, self._is_refused = 0, 0, False
        self._progress: LaneProgress | None = None
        self._has_old_verdicts, self._is_checked = False, False
        self._missing: TopicError | None = None
        self._is_caught_up = asyncio.Event()
        self._source = (topics.source, partition)
        self._verdicts_topic = topics.verdicts
        self._source_id = facts.topics[topics.source].id
        self._runtime, self._settings, self._kafka = runtime, settings, settings.kafka
        self._limit = DeadLetterLimit.from_settings(settings.limits)
        self._composer, self._commits = composer, commits
        self._written, self._sketched = OutcomeTally(), OutcomeTally()
        self._changed = asyncio.Event()
        self._advanced_at = time.monotonic()
        self._writer = TransactionalWriter(
            settings, facts, topics.edge_id(partition), output_names(topics)
        )

    async def fence(self) -> None:
        """Fence the edge that had the partition before."""
        await self._writer.start()
        reach("lane")

    def open(self, offsets: LaneOffsets) -> None:
        """Begin at some offsets."""
        self.offsets = offsets
        self.pairs = VerdictPairs(offsets.source, offsets.verdicts)
        self.sketched_to = offsets.source
        self._written = self._sketched = offsets.metadata.tally

    async def begin(self) -> None:
        """Wait for the verdicts that exist already; commit the offset if no lane has done so.

        Raises:
            OffsetLost: the brokers had lost the offset, which is committed again.
            TopicError: the offset is not in the topic, or past records without a verdict.
        """
        await self._is_caught_up.wait()
        # Compare the group's offset with the progress that was written with the last outputs.
        progress, at = self._progress, self.offsets
        if progress is not None and (at.is_new or (at.is_own and progress.source > at.source)):
            topic = (await look_at_topics(self._settings)).topics.get(self._source[0])
            # The progress may be that of a topic that was recreated since.
            if topic is not None and topic.id and topic.id == progress.topic_id:
                warn_of_loss(self.partition, None if at.is_new else at.source, progress.source)
                await self._commits.commit(self._writer, self._transaction([], progress))
                raise OffsetLost
        self._is_checked = True
        if self._has_old_verdicts:
            raise outputs_unknown(self._kafka, *self._source)
        if self._missing is not None:
            raise self._missing
        begin = SourceOffsets(*self._source, at.source, self._judged_to, at.first, at.end)
        warn_of_skips(check_begin([begin], self._kafka))
        if not at.is_own:
            # From here on a judge may be ahead of the outputs.
            progress = self._progress_at(at.source, at.metadata.tally, at.verdicts)
            await self._commits.commit(self._writer, self._transaction([], progress))

    def _progress_at(self, source: int, tally: OutcomeTally, verdicts: int) -> LaneProgress:
        metadata = replace(self.offsets.metadata, tally=tally, verdicts=verdicts)
        return LaneProgress(source, self._source_id, metadata)

    def _transaction(self, outputs: list[Messages], progress: LaneProgress) -> BuiltTransaction:
        noted = progress.messages(self._verdicts_topic, self.partition)
        offsets = {self._source: progress.source}
        return self._writer.build(
            # An open transaction hides the verdicts behind its progress.
            Transaction(outputs, [], offsets, progress.metadata.encoded(), last=[noted])
        )

    def add_progress(self, progress: LaneProgress) -> None:
        """Add the progress of an earlier lane; the last one counts."""
        if not self._is_caught_up.is_set():
            self._progress = progress

    def add_verdicts(self, offset: int, judged: JudgedRange) -> None:
        """Add verdicts that follow those added before.

        Raises:
            TopicError: verdicts are missing before them; :meth:`begin` raises it, if the lane has
                not begun.
        """
        if self.offsets.is_new and offset < self.offsets.judged:
            self._has_old_verdicts = True
            return
        start, known = judged.source.start, self.pairs.judged_to
        if start > known:
            missing = TopicError(
                f"{self._source[0]} partition {self.partition}: the verdicts on offsets {known} to "
                f"{start} are missing: they were deleted, or these records were judged before mode "
                "was split and the group's offsets were moved back; to leave these records out, "
                "stop all edges, and run "
                f"{reset_command(self._kafka, *self._source, f'--to-offset {start}')}"
            )
            if self._is_checked:
                raise missing
            # Perhaps only the group's offset is lost, and the progress tells. The first gap counts:
            # later verdicts would be left out too.
            self._missing = self._missing or missing
            return
        self.pairs.add_verdicts(offset, judged)
        if judged.source.next_offset > self._judged_to:
            self._judged_to = judged.source.next_offset
            self._advanced_at = time.monotonic()
            self._changed.set()
        if self._judged_to < self._accepted_from:
            self._is_refused = True
            self._changed.set()

    def reach_verdict(self, offset: int) -> None:
        """Tell the lane the next verdict offset that will be read."""
        if offset >= self.offsets.judged and not self._is_caught_up.is_set():
            # These verdicts stand, whoever sketched the records. If the group's offset is past
            # them, the first range covers the offsets in between, which have no record to judge.
            self.sketched_to = self._accepted_from = self._judged_to or self.offsets.source
            self._is_caught_up.set()

    def add_records(self, records: RecordColumns) -> RecordColumns:
        """Add records that follow those added before; return those that have to be sketched."""
        self.pairs.add_records(records)
        self._changed.set()
        offsets = records.positions.offsets
        return records[int((offsets < self.sketched_to).sum()) :]

    def reach_record(self, offset: int) -> None:
        """Tell the lane the next source offset that will be read."""
        if offset > self.pairs.read_to:
            self.pairs.reach(offset)
            self._changed.set()

    def sketch_to(self, offset: int) -> SourceRange:
        """Return the range that is sketched next, which ends before an offset."""
        start, self.sketched_to = self.sketched_to, offset
        self._advanced_at = time.monotonic()
        return SourceRange(*self._source, start, offset)

    def has_passed(self, offset: int) -> bool:
        """Return whether offsets without a visible record, before this one, are due."""
        is_quiet = time.monotonic() - self._advanced_at > QUIET_S
        return is_quiet and offset > self.sketched_to

    def count_sketched(self, positions: Positions, rejections: Mapping[int, Rejection]) -> None:
        """Count dead letters, by offset, before they have a verdict, which cannot be undone.

        Raises:
            TooManyDeadLetters: a limit is reached.
        """
        rows = np.searchsorted(positions.offsets, np.array([*rejections], dtype=np.int64)).tolist()
        by_row = dict(zip(rows, rejections.values(), strict=True))
        self._sketched = self._limit.after(self._sketched, positions, by_row)

    async def write(self, patience_s: float) -> None:
        """Write records that have their verdicts, one transaction after another, without an end.

        Raises:
            VerdictsMissing: verdicts take longer than ``patience_s``.
            Fenced: another edge has the partition.
            BrokerUnavailable: a transaction was not committed, or its outcome is unknown.
        """
        while True:
            while not self.pairs.is_ready:
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    # Unlike wait_for() of Python 3.11, this never loses a cancellation.
                    async with asyncio.timeout(_LOOK_S):
                        await self._changed.wait()
                is_late = time.monotonic() - self._advanced_at > patience_s
                judged_to = self._judged_to or self.pairs.judged_to
                if self._is_refused or (is_late and self.sketched_to > judged_to):
                    raise VerdictsMissing
            paired = self.pairs.take(self._settings.batch.documents)
            with self._runtime.metrics.stage("encode"):
                built = await asyncio.to_thread(self._build, paired)
            reach("pair")
            with self._runtime.metrics.stage("transaction"):
                await self._commits.commit(self._writer, built)
            reach("write")
            self.has_written = True
            self._runtime.state.steps += 1
            self._runtime.count_verdicts(paired.records, paired.verdicts)

    def _build(self, paired: Paired) -> BuiltTransaction:
        records, verdicts = paired.records, paired.verdicts
        self._written = _NO_LIMIT.after(self._written, records.positions, verdicts.rejections)
        messages = self._composer.outputs(records, verdicts, now_ms())
        progress = self._progress_at(paired.next_offset, self._written, paired.verdict_offset)
        return self._transaction(messages, progress)

    async def close(self) -> None:
        """Stop the producer."""
        await self._writer.close()
