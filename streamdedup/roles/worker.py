"""*Async.* The worker: reads the source topic, and commits one transaction per batch.

:mod:`streamdedup.roles.keeper` has the steps of a session. Here is what is particular to the
worker: it prepares batches in the pool, and writes all outputs itself.
"""

from __future__ import annotations

import asyncio
import functools
import time
from dataclasses import dataclass, replace

import structlog

from streamdedup.admin.clients import started
from streamdedup.batches import IndexUpdate, Judgement, SketchedBatch
from streamdedup.columns import RecordColumns
from streamdedup.engine.pool import PendingBatch, SketchPool
from streamdedup.failpoints import reach
from streamdedup.formats import changelog
from streamdedup.index.store import Index
from streamdedup.kafka.compose import Composer
from streamdedup.kafka.connection import unless_set
from streamdedup.kafka.dead_letter_limit import OutcomeTally, latest_tally
from streamdedup.kafka.messages import ClusterFacts, Transaction
from streamdedup.kafka.source import Source
from streamdedup.kafka.topics import output_names
from streamdedup.kafka.writer import BuiltTransaction, ChangelogWriter, TransactionalWriter
from streamdedup.model import SourceRange
from streamdedup.roles.index_thread import IndexThread
from streamdedup.roles.keeper import Feed, InFlight, Keeper
from streamdedup.roles.preparing import Preparing
from streamdedup.roles.session import QUIET_S, Runtime, now_ms

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Polled:
    """A batch in the pool, its source ranges, and when it was polled (performance counter)."""

    pending: PendingBatch
    ranges: tuple[SourceRange, ...]
    polled_at: float


def new_worker(runtime: Runtime, pool: SketchPool) -> Keeper:
    """Return the role of a worker, which judges the documents of the source topic."""
    preparing = Preparing(runtime, pool)
    return Keeper(runtime, functools.partial(_SourceFeed, runtime, preparing), preparing)


class _SourceFeed(Feed[_Polled]):
    """The records of the source topic."""

    def __init__(
        self,
        runtime: Runtime,
        preparing: Preparing,
        facts: ClusterFacts,
        writer: ChangelogWriter,
        index: IndexThread,
    ) -> None:
        settings = runtime.settings
        # One batch may wait for each pool process, and one for its judgement.
        self.ahead = preparing.size + 1
        self._runtime, self._settings, self._stop = runtime, settings, runtime.stop
        self._metrics, self._state = runtime.metrics, runtime.state
        self._preparing, self._facts = preparing, facts
        self._writer, self._index = writer, index
        self._source = Source(settings, facts.topics[settings.topics.source].partitions)
        self._composer = Composer(settings, facts)

    async def begin(self, index: Index) -> tuple[IndexUpdate, BuiltTransaction] | None:
        """Read the committed offsets; commit those at which partitions begin."""
        source = self._source
        await source.start()
        if source.follows_edges():
            # Fence edges, and end the transactions that they may have left open. An edge that was
            # paused would write records again. And readers see nothing behind an open transaction
            # until the brokers abort it.
            settings, topics = self._settings, self._settings.topics
            log.info("ending what edges may have left open", partitions=source.partitions)
            for name in topics.edge_ids(source.partitions):
                writer = TransactionalWriter(settings, self._facts, name, output_names(topics))
                async with started(writer):
                    self._state.steps += 1
            await source.read_committed()
        first_offsets = await source.begin(index.sources)
        tally = latest_tally(source.notes())
        self._composer.resume(tally)
        self._state.partitions = source.partitions
        return self._first(index, first_offsets, tally) if first_offsets else None

    def _first(
        self, index: Index, offsets: dict[tuple[str, int], int], tally: OutcomeTally
    ) -> tuple[IndexUpdate, BuiltTransaction]:
        """Return the transaction that commits first offsets, also to the changelog.

        The brokers may delete the group's offsets; the index still knows where to continue.
        """
        ranges = tuple(
            SourceRange(*partition, offset, offset)
            for partition, offset in offsets.items()
            if offset != index.sources.written_offset(*partition)
        )
        update = replace(IndexUpdate.empty(index.next_number), ranges=ranges)
        most_bytes = self._settings.batch.changelog_entry_bytes
        entries = changelog.encode(update, self._settings.fingerprint, most_bytes) if ranges else []
        return update, self._writer.build(Transaction([], entries, offsets, tally.note()))

    async def read(self, queue: asyncio.Queue[_Polled | None], in_flight: InFlight) -> None:
        """Poll, and let the pool prepare each batch."""
        source, read_at = self._source, time.monotonic()
        while not self._stop.is_set():
            with self._metrics.stage("poll"):
                # A long batch.linger must leave the drain its budget.
                records = await unless_set(self._stop, source.records())
            lag = source.lag()
            self._metrics.observe_lag(lag)
            self._metrics.set_gauge("pool_batches_in_flight", queue.qsize())
            self._state.partitions = source.partitions
            self._state.lag, self._state.positions = lag, source.positions
            if records is None:
                break
            is_quiet = not records and time.monotonic() - read_at > QUIET_S
            if records or (is_quiet and source.has_passed()):
                in_flight.add()
                reach("poll")
                read_at = time.monotonic()
                self._metrics.count_received(records)
                ranges = source.take_passed()
                refused = await asyncio.to_thread(self._composer.refused, records, now_ms())
                pending = await self._preparing.submit(records, refused)
                await queue.put(_Polled(pending, ranges, time.perf_counter()))
                if records and sum(source.lag().values()) < len(records):
                    # There is no backlog. Records that arrive meanwhile make one larger batch:
                    # several small ones would wait for each other's transactions.
                    await in_flight.none()
        await queue.put(None)

    async def judge(self, batch: _Polled) -> tuple[Judgement, BuiltTransaction]:
        """Judge a batch from the pool."""
        sketched = await self._preparing.result(batch.pending)
        sketched = replace(sketched, ranges=batch.ranges)
        self._metrics.observe_stage("sketch", time.perf_counter() - batch.polled_at)
        return await self._index.call(self._judge, batch.pending.records, sketched)

    def _judge(
        self, records: RecordColumns, batch: SketchedBatch
    ) -> tuple[Judgement, BuiltTransaction]:
        now = now_ms()
        judgement = self._index.judgement(batch, now)
        with self._metrics.stage("encode"):
            composed = self._composer.compose(records, judgement.verdicts, judgement.update, now)
            built = self._writer.build(composed)
        reach("judge")
        return judgement, built

    def finish(self, batch: _Polled, judgement: Judgement) -> None:
        """Count the verdicts."""
        self._runtime.count_verdicts(batch.pending.records, judgement.verdicts)

    async def close(self) -> None:
        """Stop the consumer."""
        await self._source.close()
