"""*Async.* What every process with an index does: sessions, standby, replay, commits in order.

Read :meth:`Keeper.run` first. It runs one session after another. Each session takes the same steps
in the same order, after a start, a crash or an outage of the brokers:

1. look at the topics,
2. open the index (once),
3. with ``standby.enabled``: apply the changelog as it grows, until this process is elected,
4. start the producer, which fences a predecessor,
5. replay the end of the changelog into the index,
6. let the feed find its place: read committed offsets,
7. for each batch of the feed: judge it, commit one transaction, update the index,
8. close.

Where batches come from, and what is written of them, is the feed's: a worker's
(:mod:`streamdedup.roles.worker`) or a judge's (:mod:`streamdedup.roles.judge`).
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Generic, TypeVar

import structlog

from streamdedup.admin.clients import started
from streamdedup.batches import IndexUpdate, Judgement
from streamdedup.errors import Fenced, StreamdedupError, TopicError
from streamdedup.failpoints import reach
from streamdedup.formats import changelog
from streamdedup.index.store import Index
from streamdedup.kafka.claim import claim
from streamdedup.kafka.groups import Election
from streamdedup.kafka.messages import ClusterFacts
from streamdedup.kafka.readers import ChangelogReader
from streamdedup.kafka.topics import (
    checkpoint_interval,
    recreated_topics,
    retention_warning,
    topic_notes,
)
from streamdedup.kafka.writer import BuiltTransaction, ChangelogWriter
from streamdedup.kernels import spare_collector
from streamdedup.model import IndexStats
from streamdedup.observe.state import WorkerState
from streamdedup.roles.index_thread import IndexThread
from streamdedup.roles.preparing import Preparing
from streamdedup.roles.session import (
    Commits,
    Runtime,
    decisive,
    reach_brokers,
    reporting_replay,
    run_sessions,
)

log = structlog.get_logger(__name__)

Batch = TypeVar("Batch")


class InFlight:
    """The batches that are read and not committed; the state shows whether there are any."""

    def __init__(self, state: WorkerState) -> None:
        self._state = state
        self._count = 0
        self._idle = asyncio.Event()
        state.busy = False

    def add(self) -> None:
        """Count a batch that is read."""
        self._count += 1
        self._idle.clear()
        self._state.busy = True

    def remove(self) -> None:
        """Count a batch that is committed."""
        self._count -= 1
        self._state.steps += 1
        self._state.busy = bool(self._count)
        if not self._count:
            self._idle.set()

    async def none(self) -> None:
        """Wait until no batch is in flight."""
        if self._count:
            await self._idle.wait()


class Feed(ABC, Generic[Batch]):
    """Where the batches of one session come from, and what becomes of their verdicts."""

    ahead: int
    """How many batches may wait for their judgement."""

    @abstractmethod
    async def begin(self, index: Index) -> tuple[IndexUpdate, BuiltTransaction] | None:
        """Find the offsets to read from; the index holds all that was committed.

        Returns an update and its transaction, if they come before the first batch.
        """

    @abstractmethod
    async def read(self, queue: asyncio.Queue[Batch | None], in_flight: InFlight) -> None:
        """Put batches into the queue until the process is asked to stop, and then None."""

    @abstractmethod
    async def judge(self, batch: Batch) -> tuple[Judgement, BuiltTransaction]:
        """Judge a batch; meanwhile the one before it may be committed."""

    @abstractmethod
    def finish(self, batch: Batch, judgement: Judgement) -> None:
        """Remember that a batch is committed, and in the index."""

    @abstractmethod
    async def close(self) -> None:
        """Close what :meth:`begin` has opened."""


class Keeper:
    """The role of a process with an index: judges the batches of one feed after another.

    ``make_feed`` makes the feed of a session. The pool, if a feed needs it, starts when the index
    is open.
    """

    def __init__(
        self,
        runtime: Runtime,
        make_feed: Callable[[ClusterFacts, ChangelogWriter, IndexThread], Feed[Any]],
        preparing: Preparing | None = None,
    ) -> None:
        settings, state = runtime.settings, runtime.state
        self._runtime, self._settings = runtime, settings
        self._metrics, self._state = runtime.metrics, state
        self._make_feed = make_feed
        self._preparing = preparing
        self._transactions = Commits(runtime)
        self._fingerprint = settings.fingerprint
        self._index = IndexThread(runtime)
        self._notes: dict[str, bytes] = {}
        self._checkpoint_interval_s = 0.0
        self._commits = asyncio.Lock()
        self._passed = -1
        self._election = (
            Election(settings, lambda: state.applied_offset) if settings.standby.enabled else None
        )

    async def run(self) -> None:
        """Run one session after another until a stop, or an error that retrying cannot fix."""
        try:
            stands_by = self._settings.standby.enabled
            await run_sessions(self._run_session, self._runtime, stands_by=stands_by)
        finally:
            if self._election is not None:
                await self._election.leave()

    async def close(self) -> None:
        """Close the index, after its thread has finished its work."""
        if self._preparing is not None:
            await self._preparing.close()
        await self._index.close()

    async def _run_session(self) -> None:
        # A failed transaction leaves the lock of its session locked.
        self._commits = asyncio.Lock()
        reach_registry = self._preparing.reach if self._preparing is not None else None
        facts = await reach_brokers(self._runtime, reach_registry)
        index = await self._open_index(facts)
        await claim(self._settings)
        log_facts = facts.topics[self._settings.topics.changelog]
        self._checkpoint_interval_s = checkpoint_interval(log_facts).total_seconds()
        if self._election is not None and not await self._stand_by(index, self._election):
            return
        try:
            async with AsyncExitStack() as resources:
                applied = await self._index.call(lambda: index.applied)
                writer = ChangelogWriter(self._settings, facts, applied)
                await resources.enter_async_context(started(writer))
                reach("start")
                stats = await self._replay(index, applied)
                feed = self._make_feed(facts, writer, self._index)
                resources.push_async_callback(feed.close)
                if first := await feed.begin(index):
                    update, transaction = first
                    if applied := await writer.commit(transaction):
                        await self._index.call(index.apply, update, applied, self._notes)
                spare_collector()
                self._runtime.enter("running")
                log.info("running", partitions=self._state.partitions, documents=stats.documents)
                await self._process(feed, writer)
                self._runtime.enter("draining")
                with contextlib.suppress(StreamdedupError):  # everything is committed
                    await self._pass_last_markers()
        finally:
            await self._index.discard_staged()

    async def _stand_by(self, index: Index, election: Election) -> bool:
        """Apply the changelog as it grows, until this worker is elected; return False on ``stop``.

        A worker that is still elected after a failed session does not wait.
        """
        if await election.is_confirmed():
            return True
        await election.leave()
        silence_s = self._settings.kafka.request_timeout.total_seconds()
        reader, caught_up = ChangelogReader(self._settings, silence_s), asyncio.Event()
        try:
            async with started(reader), asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._win(election, caught_up)),
                    group.create_task(self._runtime.stop.wait()),
                    group.create_task(self._follow(index, reader, caught_up)),
                    group.create_task(self._keep_up()),
                ]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
            return not self._runtime.stop.is_set()
        except BaseExceptionGroup as errors:
            raise decisive(errors) from errors

    async def _win(self, election: Election, caught_up: asyncio.Event) -> None:
        # An elected worker that has to replay first would delay one that is caught up.
        async with reporting_replay(self._state):
            await caught_up.wait()
        self._state.partitions, self._state.lag, self._state.positions = 0, {}, {}
        self._metrics.forget_partitions()
        self._runtime.enter("standby")
        log.info("standing by")
        await election.join()
        await election.win()

    async def _follow(
        self, index: Index, reader: ChangelogReader, caught_up: asyncio.Event
    ) -> None:
        """Apply the changelog, without an end."""
        state = self._state
        applied = await self._index.call(lambda: index.applied)
        begin, end = self._first_offset(index, reader, applied), reader.end
        state.replay_done, state.replay_total = begin, end
        self._runtime.enter("replaying")
        log.info("following the changelog", begin=begin, end=end)
        reader.seek(begin)
        while True:
            before, entries = reader.position, await reader.poll()
            for offset, data in entries:
                await self._apply(index, data, offset + 1)
            if reader.position > before:
                await self._pass_markers(reader.position)
                await self._index.show()
            state.replay_done, state.replay_total = reader.position, reader.end
            if reader.position >= end and not caught_up.is_set():
                reader.warn_of_strangers()
                caught_up.set()

    async def _open_index(self, facts: ClusterFacts) -> Index:
        if not self._index.is_open:
            changelog_topic = self._settings.topics.changelog
            if warning := retention_warning(self._settings, facts.topics[changelog_topic]):
                log.warning("the changelog is not kept for as long as the window", reason=warning)
            await self._index.open(facts.log(changelog_topic))
            if self._preparing is not None:
                # The processes load their kernels during the replay. A start that fails before this
                # need not wait for them.
                self._preparing.warm()
        index = self._index.opened
        for problem in recreated_topics(self._settings, facts.topics, index.note):
            raise TopicError(problem)
        self._notes = topic_notes(self._settings, facts.topics)
        return index

    async def _replay(self, index: Index, applied: int) -> IndexStats:
        """Apply the changelog to the index, from the offset it has applied to the end."""
        async with started(ChangelogReader(self._settings)) as reader:
            begin = self._first_offset(index, reader, applied)
            self._runtime.enter("replaying")
            self._state.replay_done, self._state.replay_total = begin, reader.end
            log.info("replaying the changelog", begin=begin, end=reader.end)
            async with reporting_replay(self._state):
                async for offset, data in reader.entries(begin):
                    await self._apply(index, data, offset + 1)
            reader.warn_of_strangers()
            await self._pass_markers(reader.position)
        return await self._index.show()

    async def _pass_markers(self, end: int) -> None:
        """Let the index count the changelog as applied up to its end, past transaction markers.

        When retention deletes all entries, and the markers behind them, the topic begins there. An
        index that stayed before them would look as if it had missed entries.
        """
        index = self._index.opened
        update = IndexUpdate.empty(await self._index.call(lambda: index.next_number))
        await self._index.call(index.apply, update, end, self._notes)
        self._state.replay_done = self._passed = end

    async def _pass_last_markers(self) -> None:
        """Pass the markers of the last transaction, if only they follow what the index holds.

        If this process was paused, another one may have taken over and appended entries.
        """
        async with self._commits:
            index = self._index.opened
            applied = await self._index.call(lambda: index.applied)
            if applied == self._passed:
                return
            async with started(ChangelogReader(self._settings)) as reader:
                if await reader.holds_only_markers(applied):
                    await self._pass_markers(reader.end)

    def _first_offset(self, index: Index, reader: ChangelogReader, applied: int) -> int:
        """Return the changelog offset at which an index that is complete up to one continues."""
        if not index.is_new:
            return applied
        if reader.first and self._settings.index.window is None:
            log.warning(
                "the changelog has lost its beginning, and copies of its documents pass as new",
                topic=self._settings.topics.changelog,
                begin=reader.first,
            )
        return reader.first

    async def _apply(self, index: Index, data: bytes, applied: int) -> None:
        def apply() -> None:
            index.apply(changelog.decode(data, self._fingerprint), applied, self._notes)
            reach("replay")

        await self._index.call(apply)
        self._metrics.count("replayed_entries_total")
        self._state.replay_done = applied
        self._state.steps += 1

    async def _process(self, feed: Feed[Batch], writer: ChangelogWriter) -> None:
        """Read ahead in a second task, judge in this one, commit in a third, until ``stop``."""
        queue: asyncio.Queue[Batch | None] = asyncio.Queue(maxsize=feed.ahead)
        in_flight = InFlight(self._state)

        async def finish(batch: Batch, judgement: Judgement, transaction: BuiltTransaction) -> None:
            """Commit the transaction of a staged batch, and confirm its update."""
            with self._metrics.stage("transaction"):
                applied = await self._transactions.commit(writer, transaction)
            reach("commit")
            await self._index.call(self._index.opened.confirm, applied, self._notes)
            reach("confirm")
            self._commits.release()
            in_flight.remove()
            self._metrics.count_comparisons(judgement.counts)
            if self._state.quality is not None:
                self._state.quality.add_comparisons(judgement.counts, len(judgement.verdicts))
            if self._state.recent is not None:
                self._state.recent.add_comparisons(judgement.counts)
            feed.finish(batch, judgement)
            await self._index.show()

        async def give_way(election: Election) -> None:
            await election.lose()
            raise Fenced("another worker with the same topics.changelog was elected")

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(feed.read(queue, in_flight))
                upkeep = [group.create_task(self._keep_up())]
                if self._election is not None:
                    upkeep.append(group.create_task(give_way(self._election)))
                while (batch := await queue.get()) is not None:
                    try:
                        judgement, transaction = await feed.judge(batch)
                    except StreamdedupError:
                        async with self._commits:  # what was judged before is not affected
                            raise
                    # Held until the transaction is committed.
                    await self._commits.acquire()
                    with self._metrics.stage("index"):
                        await self._index.call(self._index.opened.stage, judgement.update)
                    reach("stage")
                    group.create_task(finish(batch, judgement, transaction))
                async with self._commits:
                    for task in upkeep:
                        task.cancel()
        except BaseExceptionGroup as errors:
            raise decisive(errors) from errors

    async def _keep_up(self) -> None:
        """Renew the claim at intervals, and write the index to disk unless it does so by itself.

        The index flushes full deltas, which may take a slow stream longer than the changelog's
        retention.
        """
        durable = applied = -1
        while True:
            await asyncio.sleep(self._checkpoint_interval_s)
            await claim(self._settings)
            stats = await self._index.show()
            if applied == stats.applied:  # a quiet stream
                await self._pass_last_markers()
                stats = await self._index.show()
            applied = stats.applied
            if durable == stats.durable < stats.applied:
                async with self._commits:
                    await self._index.call(self._index.opened.flush)
                stats = await self._index.show()
            durable = stats.durable
