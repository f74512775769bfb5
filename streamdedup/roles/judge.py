"""*Async.* The judge: reads sketched ranges, and commits one transaction with their verdicts.

:mod:`streamdedup.roles.keeper` has the steps of a session. Here is what is particular to the judge.

Rule 1: a range is accepted only if it continues what was judged of its partition. Everything else
is left out and counted: an edge appends a range again after a restart, and one that was replaced
may still append. The answer to such a range is an empty one, up to which the partition is judged.
Rule 2: the order of acceptance is the order of the stream.
"""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import structlog

from streamdedup.batches import (
    DocumentColumns,
    IndexUpdate,
    Judgement,
    SketchedBatch,
    SketchedRange,
    Sketches,
)
from streamdedup.errors import BrokerUnavailable, TopicError
from streamdedup.failpoints import reach
from streamdedup.formats import changelog, sketches
from streamdedup.formats.verdicts import VerdictEncoder
from streamdedup.index.store import Index
from streamdedup.kafka.connection import unless_set
from streamdedup.kafka.messages import ClusterFacts, Messages, Outgoing, Transaction
from streamdedup.kafka.readers import SketchesReader
from streamdedup.kafka.sizes import RECORD_OVERHEAD, Additions
from streamdedup.kafka.writer import BuiltTransaction, ChangelogWriter
from streamdedup.roles.index_thread import IndexThread
from streamdedup.roles.keeper import Feed, InFlight, Keeper
from streamdedup.roles.session import Runtime, now_ms

log = structlog.get_logger(__name__)

_BATCHES = 4
"""Batches of ``batch.documents`` that the judge takes at once from a backlog: a sketch takes a
fraction of the bytes and of the time of a record."""


@dataclass(frozen=True, slots=True)
class _Read:
    """Sketched ranges that were read, and the offset behind them in their topic."""

    ranges: list[SketchedRange]
    next_offset: int


def new_judge(runtime: Runtime) -> Keeper:
    """Return the role of a judge, which judges what the edges sketch."""
    return Keeper(runtime, functools.partial(_SketchFeed, runtime))


class _SketchFeed(Feed[_Read]):
    """The sketched ranges that the edges append."""

    ahead = 2

    def __init__(
        self, runtime: Runtime, facts: ClusterFacts, writer: ChangelogWriter, index: IndexThread
    ) -> None:
        settings = runtime.settings
        self._settings, self._stop = settings, runtime.stop
        self._metrics, self._state = runtime.metrics, runtime.state
        self._writer, self._index = writer, index
        self._topics = settings.topics
        self._fingerprint = settings.fingerprint
        verdicts, needed = facts.topics[self._topics.verdicts], Additions.from_settings(settings)
        self._partitions = verdicts.partitions
        if verdicts.max_message_bytes < needed.duplicates:
            raise TopicError(
                f"topic {verdicts.name} accepts messages of {verdicts.max_message_bytes} bytes, "
                f"but the verdict on one record may take {needed.duplicates}; raise its "
                "max.message.bytes, or lower limits.id_bytes or output.max_matches"
            )
        self._entry_bytes = settings.batch.changelog_entry_bytes
        self._value_bytes = min(verdicts.max_message_bytes - RECORD_OVERHEAD, self._entry_bytes)
        self._keeps_ids = settings.output.headers == "full"
        # No documents, with sketches of the right width.
        parameters = settings.dedup.sketch_parameters()
        signatures = np.empty((0, parameters.signature_bytes), dtype=np.uint8)
        band_keys = np.empty((0, parameters.bands + 1), dtype=np.uint64)
        self._nothing = replace(DocumentColumns.empty(), sketches=Sketches(signatures, band_keys))
        self._reader = SketchesReader(settings)

    async def begin(self, _index: Index) -> tuple[IndexUpdate, BuiltTransaction] | None:
        """Read from the committed offset on."""
        await self._reader.start()
        self._state.partitions = 1
        return None

    async def read(self, queue: asyncio.Queue[_Read | None], in_flight: InFlight) -> None:
        """Read ranges, and put many of them into a batch if there is a backlog."""
        while not self._stop.is_set():
            with self._metrics.stage("poll"):
                messages = await unless_set(self._stop, self._reader.ranges())
            lag = self._reader.lag()
            self._metrics.set_gauge("pool_batches_in_flight", queue.qsize())
            self._metrics.set_gauge("sketches_lag", sum(lag.values()))
            self._state.lag, self._state.positions = lag, self._reader.positions
            if not messages:
                continue
            reach("poll")
            for batch in await asyncio.to_thread(self._decoded, messages):
                in_flight.add()
                await queue.put(batch)
            if not sum(self._reader.lag().values()):
                # There is no backlog: what arrives meanwhile makes one larger batch.
                await in_flight.none()
        await queue.put(None)

    def _decoded(self, messages: list[tuple[int, bytes]]) -> list[_Read]:
        most, batches = _BATCHES * self._settings.batch.documents, list[_Read]()
        ranges, records = list[SketchedRange](), 0
        for offset, data in messages:
            try:
                sketched = sketches.decode(data, self._fingerprint)
            except TopicError as error:
                topic = self._topics.sketches
                raise TopicError(
                    f"{topic} offset {offset}: {error}; only edges may write there; delete the "
                    "records up to this one with 'kafka-delete-records.sh', edges append again "
                    "what is not judged"
                ) from error
            if records and records + len(sketched) > most:
                batches.append(_Read(ranges, offset))
                ranges, records = [], 0
            ranges.append(sketched)
            records += len(sketched)
        return [*batches, _Read(ranges, messages[-1][0] + 1)]

    async def judge(self, batch: _Read) -> tuple[Judgement, BuiltTransaction]:
        """Judge the ranges of a batch that continue what was judged."""
        return await self._index.call(self._judge, batch)

    def _judge(self, batch: _Read) -> tuple[Judgement, BuiltTransaction]:
        accepted, refused = self._sorted(batch.ranges, self._index.opened)
        documents = DocumentColumns.concatenate(
            [self._nothing, *(each.documents for each in accepted)]
        )
        firsts = zip(_firsts(accepted), accepted, strict=True)
        sketched = SketchedBatch(
            positions=documents.positions,
            documents=documents,
            rows=np.arange(len(documents)),
            blank=frozenset(first + row for first, each in firsts for row in each.blank),
            rejections={},
            ranges=tuple(each.source for each in accepted),
        )
        judgement = self._index.judgement(sketched, now_ms())
        judgement = replace(judgement, update=replace(judgement.update, is_ahead=True))
        with self._metrics.stage("encode"):
            transaction = self._transaction(accepted, refused, judgement, batch.next_offset)
            built = self._writer.build(transaction)
        reach("judge")
        return judgement, built

    def _sorted(
        self, ranges: list[SketchedRange], index: Index
    ) -> tuple[list[SketchedRange], list[SketchedRange]]:
        """Return the ranges, or their parts, that continue what was judged of their partition.

        Each partition whose ranges are all left out gets an empty range in the second list, at the
        offset up to which it is judged.
        """
        counts = {"accepted": 0, "repeated": 0, "ahead": 0}
        ends: dict[int, int] = {}
        accepted, refused = list[SketchedRange](), dict[int, SketchedRange]()
        for sketched in ranges:
            topic, partition, start, stop = sketched.source
            if topic != self._topics.source:
                raise TopicError(
                    f"an edge sketches topic {topic}, the judge's topics.source is "
                    f"{self._topics.source}; give both the same settings"
                )
            if partition >= self._partitions:
                raise BrokerUnavailable(
                    f"partition {partition} is new: looking whether {self._topics.verdicts} has it"
                )
            judged = ends.get(partition, index.sources.next_offset(topic, partition))
            is_ahead = 0 < judged < start
            if is_ahead or stop <= judged:
                counts["ahead" if is_ahead else "repeated"] += len(sketched)
                refused[partition] = sketched.part(judged, judged)
                continue
            new = sketched if start >= judged else sketched.part(judged, stop)
            counts["repeated"] += len(sketched) - len(new)
            counts["accepted"] += len(new)
            ends[partition] = stop
            accepted.append(new)
        for result, records in counts.items():
            self._metrics.count("sketched_records_total", records, result)
        if counts["ahead"]:
            log.warning("sketched ranges are missing before others", records=counts["ahead"])
        return accepted, [each for number, each in refused.items() if number not in ends]

    def _transaction(
        self,
        accepted: list[SketchedRange],
        refused: list[SketchedRange],
        judgement: Judgement,
        next_offset: int,
    ) -> Transaction:
        encoder = VerdictEncoder(judgement.verdicts, self._value_bytes, keeps_ids=self._keeps_ids)
        topic = self._topics.verdicts
        verdicts = [
            Outgoing(topic, None, value, (), None, sketched.source.partition)
            for first, sketched in [
                *zip(_firsts(accepted), accepted, strict=True),
                *((0, empty) for empty in refused),
            ]
            for value in encoder.encode(sketched, first)
        ]
        return Transaction(
            [Messages.of(topic, verdicts)] if verdicts else [],
            changelog.encode(judgement.update, self._fingerprint, self._entry_bytes),
            {(self._topics.sketches, 0): next_offset},
        )

    def finish(self, _batch: _Read, judgement: Judgement) -> None:
        """Count the verdicts for the status pages; the metrics of the edges have them."""
        self._state.count(judgement.verdicts)

    async def close(self) -> None:
        """Stop the consumer."""
        await self._reader.close()


def _firsts(ranges: list[SketchedRange]) -> list[int]:
    """Return the row of the first document of each range in their batch."""
    return list(accumulate([len(each.documents) for each in ranges[:-1]], initial=0))[: len(ranges)]
