"""*Async.* The worker: reads the source topic, and commits one transaction per batch.

Read :meth:`Worker.run` first. It runs one session after another. Each session takes the same steps
in the same order, after a start, a crash or an outage of the brokers:

1. look at the topics,
2. open the index (once),
3. with ``standby.enabled``: apply the changelog as it grows, until this worker is elected,
4. start the producer, which fences a predecessor,
5. replay the end of the changelog into the index,
6. read the source from its committed offsets,
7. for each batch: prepare it in the pool, judge it, commit one transaction, update the index,
8. close.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace

import structlog

from streamdedup.batches import IndexUpdate, Judgement, SketchedBatch
from streamdedup.columns import RecordColumns
from streamdedup.dedup.resolve import Rule, resolve
from streamdedup.engine.pool import PendingBatch, SketchPool
from streamdedup.errors import BrokerUnavailable, Fenced, StreamdedupError, TopicError
from streamdedup.failpoints import reach
from streamdedup.formats import changelog
from streamdedup.index.store import Index
from streamdedup.kafka.claim import claim
from streamdedup.kafka.compose import Composer
from streamdedup.kafka.dead_letter_limit import latest_tally
from streamdedup.kafka.election import Election
from streamdedup.kafka.log import ChangelogReader
from streamdedup.kafka.messages import ClusterFacts, Transaction
from streamdedup.kafka.source import Source
from streamdedup.kafka.topics import (
    checkpoint_interval,
    recreated_topics,
    retention_warning,
    topic_notes,
)
from streamdedup.kafka.writer import BuiltTransaction, TransactionalWriter
from streamdedup.kernels import spare_collector
from streamdedup.model import IndexStats, SourceRange
from streamdedup.observe.metrics import Metrics
from streamdedup.observe.recent import Recent
from streamdedup.observe.state import WorkerState
from streamdedup.roles.index_thread import IndexThread
from streamdedup.roles.session import (
    Phases,
    TimeoutLimit,
    decisive,
    reach_brokers,
    reporting_replay,
    run_sessions,
)
from streamdedup.settings.sections import Settings

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Polled:
    """A batch in the pool, and when it was polled, in seconds of the performance counter."""

    pending: PendingBatch
    polled_at: float


class Worker:
    """Judges the documents of the source topic until it is stopped.

    Args:
        settings: all settings.
        pool: the sketch processes.
        metrics: receives counts and timings.
        state: the state on the status pages, which this worker writes.
        stop: set by the caller to drain and end the worker.
    """

    def __init__(
        self,
        settings: Settings,
        pool: SketchPool,
        metrics: Metrics,
        state: WorkerState,
        stop: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._metrics = metrics
        self._state = state
        self._phases = Phases(state, metrics)
        self._timeouts = TimeoutLimit(settings.kafka)
        self._state.recent = Recent(settings, time.monotonic) if settings.status.page else None
        self._stop = stop
        self._parameters = settings.dedup.sketch_parameters()
        self._fingerprint = self._parameters.fingerprint()
        self._rule = Rule.from_settings(settings)
        self._index = IndexThread(settings, metrics, state)
        self._notes: dict[str, bytes] = {}
        self._checkpoint_interval_s = 0.0
        self._warming: asyncio.Task[float] | None = None
        self._commits = asyncio.Lock()
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._election = (
            Election(settings, lambda: state.applied_offset) if settings.standby.enabled else None
        )

    async def run(self) -> None:
        """Run one session after another; wait while no broker answers.

        Raises:
            StreamdedupError: an error that retrying cannot fix.
        """
        try:
            await run_sessions(
                self._run_session,
                self._phases,
                self._stop,
                stands_by=self._settings.standby.enabled,
            )
        finally:
            if self._election is not None:
                await self._election.leave()

    async def close(self) -> None:
        """Close the index, after its thread has finished its work."""
        if self._warming is not None:
            await asyncio.gather(self._warming, return_exceptions=True)
        await self._index.close()

    async def _run_session(self) -> None:
        facts = await reach_brokers(self._settings, self._phases)
        index = await self._open_index(facts)
        await claim(self._settings)
        log_facts = facts.topics[self._settings.topics.changelog]
        self._checkpoint_interval_s = checkpoint_interval(log_facts).total_seconds()
        if self._election is not None and not await self._stand_by(index, self._election):
            return
        try:
            async with self._session(facts, index) as (writer, source, composer):
                await self._process(writer, source, composer)
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
            await reader.start()
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._win(election, caught_up)),
                    group.create_task(self._stop.wait()),
                    group.create_task(self._follow(index, reader, caught_up)),
                    group.create_task(self._keep_up()),
                ]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
            return not self._stop.is_set()
        except* StreamdedupError as errors:
            raise decisive(errors) from errors
        finally:
            await reader.close()

    async def _win(self, election: Election, caught_up: asyncio.Event) -> None:
        # An elected worker that has to replay first would keep one waiting that need not.
        await caught_up.wait()
        self._state.partitions, self._state.lag, self._state.positions = 0, {}, {}
        self._metrics.forget_partitions()
        self._phases.enter("standby")
        log.info("standing by")
        await election.join()
        await election.win()

    async def _follow(
        self, index: Index, reader: ChangelogReader, caught_up: asyncio.Event
    ) -> None:
        """Apply the changelog, without an end."""
        state = self._state
        applied = await self._index.call(lambda: index.applied)
        begin = reader.first if index.is_new else applied
        end = reader.end
        state.replay_done, state.replay_total = begin, end
        self._phases.enter("replaying")
        log.info("following the changelog", begin=begin, end=end)
        reader.seek(begin)
        while True:
            entries = await reader.poll()
            for offset, data in entries:
                await self._apply(index, data, offset + 1)
            if entries:
                await self._index.show()
            state.replay_done, state.replay_total = reader.position, reader.end
            if reader.position >= end:
                caught_up.set()

    @contextlib.asynccontextmanager
    async def _session(
        self, facts: ClusterFacts, index: Index
    ) -> AsyncIterator[tuple[TransactionalWriter, Source, Composer]]:
        """Take steps 4 to 6, yield what step 7 needs, and close."""
        async with contextlib.AsyncExitStack() as resources:
            writer = TransactionalWriter(self._settings, facts)
            resources.push_async_callback(writer.close)
            applied = await self._index.call(lambda: index.applied)
            await writer.start(applied)
            reach("start")
            stats = await self._replay(index, applied)
            partitions = facts.topics[self._settings.topics.source].partitions
            source = Source(self._settings, partitions)
            resources.push_async_callback(source.close)
            await source.start()
            first_offsets = await source.begin(index.next_offset)
            if first_offsets:
                await self._commit_first(writer, index, first_offsets)
            tally = latest_tally(await source.notes())
            spare_collector()
            self._phases.enter("running")
            log.info("running", partitions=partitions, documents=stats.documents)
            yield writer, source, Composer(self._settings, facts, self._fingerprint, tally)
            self._phases.enter("draining")

    async def _commit_first(
        self, writer: TransactionalWriter, index: Index, offsets: dict[tuple[str, int], int]
    ) -> None:
        """Commit the offsets at which partitions begin, also to the changelog.

        The brokers may delete the group's offsets; the index still knows where to continue.
        """
        ranges = tuple(
            SourceRange(*partition, offset, offset)
            for partition, offset in offsets.items()
            if offset > index.next_offset(*partition)
        )
        if not ranges:
            await writer.commit(writer.build(Transaction([], [], offsets)))
            return
        update = replace(IndexUpdate.empty(index.next_number), ranges=ranges)
        entries = changelog.encode(
            update, self._fingerprint, self._settings.batch.changelog_entry_bytes
        )
        applied = await writer.commit(writer.build(Transaction([], entries, offsets)))
        await self._index.call(index.apply, update, applied, self._notes)

    async def _open_index(self, facts: ClusterFacts) -> Index:
        if not self._index.is_open:
            changelog_topic = self._settings.topics.changelog
            if warning := retention_warning(self._settings, facts.topics[changelog_topic]):
                log.warning("the changelog is not kept for as long as the window", reason=warning)
            await self._index.open(facts.log(changelog_topic))
            # The processes load their kernels during the replay. A start that fails before this
            # need not wait for them.
            self._warming = asyncio.create_task(asyncio.to_thread(self._pool.warm))
        index = self._index.opened
        for problem in recreated_topics(self._settings, facts.topics, index.note):
            raise TopicError(problem)
        self._notes = topic_notes(self._settings, facts.topics)
        return index

    async def _replay(self, index: Index, applied: int) -> IndexStats:
        """Apply the changelog to the index, from the offset it has applied to the end."""
        reader = ChangelogReader(self._settings)
        try:
            await reader.start()
            begin = reader.first if index.is_new else applied
            self._phases.enter("replaying")
            self._state.replay_done, self._state.replay_total = begin, reader.end
            log.info("replaying the changelog", begin=begin, end=reader.end)
            async with reporting_replay(self._state):
                async for offset, data in reader.entries(begin):
                    await self._apply(index, data, offset + 1)
            reader.warn_of_strangers()
            # The last offsets hold transaction markers.
            self._state.replay_done = reader.end
        finally:
            await reader.close()
        return await self._index.show()

    async def _apply(self, index: Index, data: bytes, applied: int) -> None:
        await self._index.call(self._apply_entry, index, data, applied)
        self._metrics.count_replayed()
        self._state.replay_done = applied
        self._state.steps += 1

    def _apply_entry(self, index: Index, data: bytes, applied: int) -> None:
        index.apply(changelog.decode(data, self._fingerprint), applied, self._notes)
        reach("replay")

    async def _process(
        self, writer: TransactionalWriter, source: Source, composer: Composer
    ) -> None:
        """Read ahead in a second task, judge in this one, commit in a third, until ``stop``."""
        # One batch may wait for each pool process, and one for its judgement.
        queue: asyncio.Queue[_Polled | None] = asyncio.Queue(maxsize=self._pool.size + 1)
        self._commits, self._in_flight, self._idle = asyncio.Lock(), 0, asyncio.Event()
        self._state.busy = False
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read(source, composer, queue))
                upkeep = [group.create_task(self._keep_up())]
                if self._election is not None:
                    upkeep.append(group.create_task(self._give_way(self._election)))
                while (polled := await queue.get()) is not None:
                    judgement, transaction = await self._judgement(polled, composer, writer)
                    # Held until the transaction is committed.
                    await self._commits.acquire()
                    with self._metrics.stage("index"):
                        await self._index.call(self._index.opened.stage, judgement.update)
                    reach("stage")
                    finishing = self._finish(polled, judgement, transaction, writer)
                    group.create_task(finishing)
                async with self._commits:
                    for task in upkeep:
                        task.cancel()
        except* StreamdedupError as errors:
            raise decisive(errors) from errors

    async def _give_way(self, election: Election) -> None:
        await election.lose()
        raise Fenced("another worker with the same topics.changelog was elected")

    async def _keep_up(self) -> None:
        """Renew the claim at intervals, and write the index to disk unless it does so by itself.

        The index flushes full deltas, which may take a slow stream longer than the changelog's
        retention.
        """
        durable = -1
        while True:
            await asyncio.sleep(self._checkpoint_interval_s)
            await claim(self._settings)
            stats = await self._index.show()
            if durable == stats.durable < stats.applied:
                async with self._commits:
                    await self._index.call(self._index.opened.flush)
                stats = await self._index.show()
            durable = stats.durable

    async def _read(
        self, source: Source, composer: Composer, queue: asyncio.Queue[_Polled | None]
    ) -> None:
        while not self._stop.is_set():
            with self._metrics.stage("poll"):
                records = await self._poll(source)
            self._observe(source, queue.qsize())
            if records:
                self._in_flight += 1
                self._idle.clear()
                self._state.busy = True
                reach("poll")
                self._metrics.count_received(records)
                refused = await asyncio.to_thread(composer.refused, records, _now_ms())
                pending = self._pool.submit(records, refused)
                await queue.put(_Polled(pending, time.perf_counter()))
                if sum(source.lag().values()) < len(records):
                    # There is no backlog. Records that arrive meanwhile make one larger batch:
                    # several small ones would wait for each other's transactions.
                    await self._idle.wait()
        await queue.put(None)

    async def _poll(self, source: Source) -> RecordColumns:
        """Poll until ``stop`` is set: a long ``batch.linger`` must leave the drain its budget."""
        polling = asyncio.create_task(source.poll())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({polling, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return polling.result() if polling.done() else RecordColumns.of([])
        finally:
            polling.cancel()
            stopping.cancel()

    async def _judgement(
        self, polled: _Polled, composer: Composer, writer: TransactionalWriter
    ) -> tuple[Judgement, BuiltTransaction]:
        """Judge a batch from the pool; meanwhile the one before it may be committed."""
        batch = await self._prepared(polled.pending)
        self._metrics.observe_stage("sketch", time.perf_counter() - polled.polled_at)
        records = polled.pending.records
        try:
            return await self._index.call(self._judge, records, batch, composer, writer)
        except StreamdedupError:
            async with self._commits:  # what was judged before is not affected
                raise

    async def _finish(
        self,
        polled: _Polled,
        judgement: Judgement,
        transaction: BuiltTransaction,
        writer: TransactionalWriter,
    ) -> None:
        """Commit the transaction of a staged batch, and confirm its update."""
        records = polled.pending.records
        with self._metrics.stage("transaction"):
            applied = await self._commit(writer, transaction)
        reach("commit")
        await self._index.call(self._index.opened.confirm, applied, self._notes)
        reach("confirm")
        self._commits.release()
        self._in_flight -= 1
        self._state.steps += 1
        self._state.busy = bool(self._in_flight)
        if not self._in_flight:
            self._idle.set()
        self._metrics.count_judgement(judgement, records, _now_ms())
        if self._state.recent is not None:
            self._state.recent.add(records, judgement)
        await self._index.show()

    async def _commit(self, writer: TransactionalWriter, transaction: BuiltTransaction) -> int:
        try:
            applied = await writer.commit(transaction)
        except (Fenced, BrokerUnavailable) as error:
            self._metrics.count_transaction("fenced" if isinstance(error, Fenced) else "unknown")
            self._timeouts.count(error)
            raise
        self._timeouts.count(None)
        self._metrics.count_transaction("committed")
        return applied

    async def _prepared(self, pending: PendingBatch) -> SketchedBatch:
        """Wait for the pool to prepare a batch; recover it if its process dies or hangs."""
        future = asyncio.wrap_future(pending.future)
        done, _ = await asyncio.wait({future}, timeout=self._pool.patience_s)
        try:
            if done:
                return future.result()
            self._state.recovery = "a sketch process does not answer"
        except BrokenProcessPool:
            self._state.recovery = "a sketch process died"
        log.warning("recovering a batch", reason=self._state.recovery)
        self._metrics.observe_ready(self._state.ready)
        try:
            return await asyncio.to_thread(self._pool.recover, pending)
        finally:
            self._state.recovery = ""

    def _judge(
        self,
        records: RecordColumns,
        batch: SketchedBatch,
        composer: Composer,
        writer: TransactionalWriter,
    ) -> tuple[Judgement, BuiltTransaction]:
        index = self._index.opened
        with self._metrics.stage("probe"):
            candidates = index.probe(batch.documents)
        with self._metrics.stage("resolve"):
            now_ms = _now_ms()
            latest_ms = now_ms if self._settings.index.clock == "record" else None
            judgement = resolve(
                batch, candidates, self._rule, index.next_number, index.clock, latest_ms
            )
        with self._metrics.stage("encode"):
            transaction = composer.compose(records, judgement.verdicts, judgement.update, now_ms)
            built = writer.build(transaction)
        reach("judge")
        return judgement, built

    def _observe(self, source: Source, waiting: int) -> None:
        self._state.partitions = source.partitions
        lag = source.lag()
        self._metrics.observe_lag(lag)
        self._metrics.observe_queue(waiting)
        self._state.lag = lag
        self._state.positions = source.positions


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
