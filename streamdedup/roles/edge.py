"""*Async.* An edge: sketches the records of some partitions, and writes them when they are judged.

Read :meth:`Edge._run_session` first. The brokers assign partitions to the edges. An edge has a lane
for each of its partitions (:mod:`streamdedup.roles.lane`). Five tasks work at the same time:

1. one reads records of all lanes, and gives those without a verdict to the pool,
2. one appends what the pool has sketched to the topic of the sketches,
3. one reads the verdicts of all lanes,
4. each lane writes the records that have a verdict,
5. one begins and ends lanes as the group assigns partitions.

An error other than the loss of a partition ends the session, and the next one begins with the
committed offsets.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import structlog

from streamdedup.admin.clients import started
from streamdedup.batches import SketchedBatch, SketchedRange
from streamdedup.columns import Positions, RecordColumns
from streamdedup.engine.pool import PendingBatch, SketchPool
from streamdedup.errors import BrokerUnavailable, Fenced, TopicError
from streamdedup.failpoints import reach
from streamdedup.formats import sketches, verdicts
from streamdedup.formats.arrays import has_version
from streamdedup.kafka.append import Appender
from streamdedup.kafka.compose import Composer
from streamdedup.kafka.connection import new_consumer, translated
from streamdedup.kafka.groups import EdgeGroup
from streamdedup.kafka.messages import ClusterFacts, Outgoing
from streamdedup.kafka.offsets import LaneProgress, find_offsets
from streamdedup.kafka.poll import Follower
from streamdedup.kafka.source import as_columns, source_consumer
from streamdedup.kernels import spare_collector
from streamdedup.model import SourceRange
from streamdedup.roles.lane import Lane, OffsetLost, VerdictsMissing
from streamdedup.roles.preparing import Preparing
from streamdedup.roles.session import (
    Commits,
    Runtime,
    decisive,
    now_ms,
    reach_brokers,
    run_sessions,
)

log = structlog.get_logger(__name__)

_AHEAD = 3
"""Batches that an edge may hold beside those in the pool: one is appended, one is judged, and one
is written."""
_LOOK_S = 0.02
"""Interval of looks at how many records wait."""
_PATIENCE_S, _LONGEST_PATIENCE_S = 10.0, 300.0
"""How long verdicts may take before a lane begins again; twice as long each time, up to a limit."""
_FENCED_PAUSE_S = 2.0
"""Pause of a lane that was fenced: if the partition was assigned to another edge, the group tells
this one within that time."""


@dataclass(frozen=True, slots=True)
class _Part:
    """How many records of a batch in the pool a lane has, and the range that they cover."""

    lane: Lane
    source: SourceRange
    count: int


class Edge:
    """Reads, sketches and writes the records of its partitions, until it is stopped."""

    def __init__(self, runtime: Runtime, pool: SketchPool) -> None:
        self._runtime = runtime
        self._preparing = Preparing(runtime, pool)
        self._group = EdgeGroup(runtime.settings)
        self._commits = defaultdict[int, Commits](lambda: Commits(runtime))
        self._warming = self._preparing.warm()

    async def run(self) -> None:
        """Run one session after another until a stop, or an error that retrying cannot fix."""
        try:
            await run_sessions(self._run_session, self._runtime, stands_by=False)
        finally:
            await self._group.leave()

    async def close(self) -> None:
        """Wait for what may still run."""
        await self._preparing.close()

    async def _run_session(self) -> None:
        facts = await reach_brokers(self._runtime, self._preparing.reach)
        if not self._group.is_member:
            await self._group.leave()
            # Partitions of an edge that cannot sketch yet would wait.
            await asyncio.wait({self._warming})
            await self._group.join()
        session = _Session(self._runtime, self._preparing, facts, self._group, self._commits)
        async with started(session):
            spare_collector()
            self._runtime.enter("running")
            log.info("running", partitions=len(self._group.partitions))
            await session.run()
            self._runtime.enter("draining")


class _Session:
    """The lanes of one session, and what they share."""

    def __init__(
        self,
        runtime: Runtime,
        preparing: Preparing,
        facts: ClusterFacts,
        group: EdgeGroup,
        commits: Mapping[int, Commits],
    ) -> None:
        settings = runtime.settings
        self._runtime, self._settings = runtime, settings
        self._metrics, self._state = runtime.metrics, runtime.state
        self._preparing, self._facts = preparing, facts
        self._group, self._commits = group, commits
        self._fingerprint = settings.fingerprint
        self._composer = Composer(settings, facts)
        self._appender = Appender(settings.kafka, facts, compressed=False)
        topics = settings.topics
        self._source = Follower(source_consumer(settings), topics.source, settings)
        self._verdicts = Follower(new_consumer(settings.kafka), topics.verdicts, settings)
        self._lanes: dict[int, Lane] = {}
        self._most_waiting = settings.batch.documents * (preparing.size + _AHEAD)
        self._most_bytes = settings.batch.bytes * (preparing.size + _AHEAD)
        # Batches in the pool, their parts, and when they were given to it (performance counter).
        self._queue = asyncio.Queue[tuple[PendingBatch, list[_Part], float]](preparing.size + 1)
        self._stopping = False

    async def start(self) -> None:
        """Connect."""
        with translated("cannot read the source topic and the verdicts"):
            await self._source.consumer.start()
            await self._verdicts.consumer.start()
        await self._appender.start()

    async def close(self) -> None:
        """Disconnect."""
        await asyncio.gather(self._source.close(), self._verdicts.close(), self._appender.close())

    async def run(self) -> None:
        """Work until the role is stopped, and then until what was read is written."""

        async def at_once() -> bool:
            return True

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._source.run(self._take_records, self._room)),
                    group.create_task(self._append()),
                    group.create_task(self._verdicts.run(self._take_verdicts, at_once)),
                    group.create_task(self._keep_lanes()),
                ]
                await self._runtime.stop.wait()
                self._stopping = True
                while self._waiting()[0]:  # noqa: ASYNC110 - this happens once
                    await asyncio.sleep(_LOOK_S)
                for task in tasks:
                    task.cancel()
        except BaseExceptionGroup as errors:
            raise decisive(errors) from errors
        finally:
            self._state.busy = False

    def _waiting(self) -> tuple[int, int]:
        """Return how many records wait for their verdicts, and their bytes."""
        pairs = [lane.pairs for lane in self._lanes.values()]
        return sum(map(len, pairs)), sum(each.size for each in pairs)

    async def _room(self) -> bool:
        """Wait until the edge may hold more records."""
        while True:
            records, size = self._waiting()
            if records < self._most_waiting and size < self._most_bytes and not self._stopping:
                return True
            await asyncio.sleep(_LOOK_S)

    async def _take_records(self, messages: list[Any]) -> None:
        """Give records to their lanes, and those without a verdict to the pool."""
        self._observe()
        parts = list[_Part]()
        records = as_columns(self._settings.topics.source, messages)
        new, positions = [records[:0]], self._source.current()
        if messages:
            self._metrics.count_received(records)
            reach("poll")
            partitions = records.positions.partitions  # in ascending order
            bounds = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(records)]
            for first, last in itertools.pairwise(bounds):
                lane = self._lanes[int(partitions[first])]
                if unjudged := lane.add_records(records[first:last]):
                    source = lane.sketch_to(positions[lane.partition])
                    parts.append(_Part(lane, source, len(unjudged)))
                    new.append(unjudged)
        for partition, offset in positions.items():
            lane = self._lanes[partition]
            lane.reach_record(offset)
            if lane.has_passed(offset):
                parts.append(_Part(lane, lane.sketch_to(offset), 0))
        if parts:
            # Usually all records are new.
            count = sum(map(len, new))
            batch = records if count == len(records) else RecordColumns.concatenate(new)
            refused = await asyncio.to_thread(self._composer.refused, batch, now_ms())
            pending = await self._preparing.submit(batch, refused)
            self._state.busy = True
            await self._queue.put((pending, parts, time.perf_counter()))

    async def _append(self) -> None:
        """Append sketched ranges in the order in which their records were read."""
        topic = self._settings.topics.sketches
        while True:
            pending, parts, began_at = await self._queue.get()
            sketched = await self._preparing.result(pending)
            self._metrics.observe_stage("sketch", time.perf_counter() - began_at)
            current = []
            for part, positions, each in _ranges(sketched, parts):
                part.lane.count_sketched(positions, each.rejections)
                if self._lanes.get(part.lane.partition) is part.lane:
                    current.append(each)
            with self._metrics.stage("encode"):
                values = await asyncio.to_thread(self._encode, current)
            await self._appender.append((0, Outgoing(topic, None, v, (), None)) for v in values)
            reach("append")
            self._state.steps += 1
            self._state.busy = not self._queue.empty()

    def _encode(self, ranges: list[SketchedRange]) -> list[bytes]:
        most_bytes = self._settings.batch.changelog_entry_bytes
        return [
            value
            for each in ranges
            for value in sketches.encode(each, self._fingerprint, most_bytes)
        ]

    async def _take_verdicts(self, messages: list[Any]) -> None:
        """Give verdicts to their lanes."""
        for message in messages:
            if (progress := LaneProgress.read(message)) is not None:
                self._lanes[message.partition].add_progress(progress)
                continue
            if not has_version(message.value or b""):
                log.warning(
                    "another program writes to the topic of the verdicts",
                    topic=message.topic,
                    partition=message.partition,
                    offset=message.offset,
                )
                continue
            try:
                judged = verdicts.decode(message.value)
            except TopicError as error:
                place = f"{message.topic} partition {message.partition} offset {message.offset}"
                raise TopicError(
                    f"{place}: {error}; only judge and edges may write there; restore the topic"
                ) from error
            self._lanes[message.partition].add_verdicts(message.offset, judged)
        for partition, offset in self._verdicts.current().items():
            self._lanes[partition].reach_verdict(offset)

    async def _keep_lanes(self) -> None:
        """Begin and end lanes as the group assigns partitions."""
        running: dict[int, asyncio.Task[None]] = {}
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    wanted = self._group.partitions
                    for partition in running.keys() - wanted:
                        running.pop(partition).cancel()
                    for partition in wanted - running.keys():
                        running[partition] = group.create_task(self._live(partition))
                    await self._group.differs_from(wanted)
        except BaseExceptionGroup as errors:
            raise decisive(errors) from errors

    async def _live(self, partition: int) -> None:
        """Run one lane after another for a partition, while it is assigned to this edge."""
        patience_s, pause_s = _PATIENCE_S, 0.0
        while True:
            await asyncio.sleep(pause_s)
            commits = self._commits[partition]
            lane = Lane(self._runtime, partition, self._facts, self._composer, commits)
            try:
                await self._run_lane(lane, patience_s)
            except VerdictsMissing:
                if lane.has_written:
                    patience_s = _PATIENCE_S
                log.warning(
                    "no verdicts on sketched records: appending them again",
                    partition=partition,
                    offset=lane.pairs.judged_to,
                    waited_s=patience_s,
                )
                patience_s = min(2 * patience_s, _LONGEST_PATIENCE_S)
                pause_s = 0.0
            except OffsetLost:
                pause_s = 0.0
            except Fenced:
                log.info("another edge has the partition", partition=partition)
                patience_s, pause_s = _PATIENCE_S, _FENCED_PAUSE_S
            finally:
                await self._end_lane(lane)

    async def _run_lane(self, lane: Lane, patience_s: float) -> None:
        partition = lane.partition
        verdicts_topic = self._facts.topics[self._settings.topics.verdicts]
        if partition >= verdicts_topic.partitions:
            raise BrokerUnavailable(
                f"partition {partition} is new: looking whether {verdicts_topic.name} has it"
            )
        await lane.fence()
        source, verdicts = self._source.consumer, self._verdicts.consumer
        lane.open(await find_offsets(source, verdicts, self._settings, partition))
        self._lanes[partition] = lane
        self._verdicts.add(partition, lane.offsets.verdicts)
        await lane.begin()
        self._source.add(partition, lane.offsets.source)
        log.info("lane begins", partition=partition, offset=lane.offsets.source)
        await lane.write(patience_s)

    async def _end_lane(self, lane: Lane) -> None:
        if self._lanes.get(lane.partition) is lane:
            del self._lanes[lane.partition]
            self._source.remove(lane.partition)
            self._verdicts.remove(lane.partition)
            self._metrics.forget_partitions()
            self._observe()
        await lane.close()

    def _observe(self) -> None:
        lag = self._source.lag()
        self._metrics.observe_lag(lag)
        self._metrics.set_gauge("pool_batches_in_flight", self._queue.qsize())
        self._metrics.set_gauge("awaiting_verdict", self._waiting()[0])
        self._state.partitions = len(self._lanes)
        self._state.lag, self._state.positions = lag, self._source.current()


def _ranges(
    batch: SketchedBatch, parts: list[_Part]
) -> Iterator[tuple[_Part, Positions, SketchedRange]]:
    """Yield each part of a batch, the positions of its records, and what was sketched of them."""
    first = 0
    for part in parts:
        last = first + part.count
        begin, end = np.searchsorted(batch.rows, [first, last]).tolist()
        rejections = {
            int(batch.positions.offsets[row]): rejection
            for row, rejection in batch.rejections.items()
            if first <= row < last
        }
        documents = batch.documents.take(slice(begin, end))
        blank = frozenset(row - begin for row in batch.blank if begin <= row < end)
        sketched = SketchedRange(part.source, documents, blank, rejections)
        yield part, batch.positions[first:last], sketched
        first = last
