"""*Async.* Drains a prefilled topic with one party, and measures from outside.

The time begins with the first output that is committed, and ends with the last one, so that it has
no loading, compiling or connecting. The committed offsets of the group tell both.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from aiokafka.admin import AIOKafkaAdminClient

from benchmarks.measured import Cost, Resident, busy_seconds, cost_of, resident_of
from benchmarks.pipeline_check import Check, check
from benchmarks.pipeline_parties import Party, Place, Samples, stages
from benchmarks.pipeline_topics import (
    WATCH_S,
    Offsets,
    clean_places,
    count_records,
    delete,
    duplicate_places,
)
from deploy.processes import Child, ProcessEnded
from tests.testkit.documents import Plan

_PATIENCE_S = 300.0
"""Longest time without a commit; the first start on a machine compiles kernels."""

OnCommitted = Callable[[int, Child], None]


@dataclass(frozen=True)
class Drain:
    """One drain of a topic by one party.

    Attributes:
        party: name of the party.
        documents_per_s: documents per second between the first and the last commit.
        start_s: from the start of the process to its first commit.
        timed_s: from the first to the last commit.
        main_us: processor time of the process per document, in microseconds.
        loop_us: the part of the thread with the event loop.
        children_us: of its child processes.
        broker_us: of the broker; None if its process is not known.
        other_load: number of processors that were busy with anything else.
        resident: memory at the end, and the peaks.
        records_per_transaction: mean of the worker; None for a copy.
        stages_us: time of the worker's batches in each stage, per document.
        check: what the worker's outputs say; None for a copy.
    """

    party: str
    documents_per_s: float
    start_s: float
    timed_s: float
    main_us: float
    loop_us: float
    children_us: float
    broker_us: float | None
    other_load: float
    resident: Resident
    records_per_transaction: float | None
    stages_us: dict[str, float]
    check: Check | None

    @property
    def all_us(self) -> float:
        """Processor time of all processes of the party per document, without the broker's."""
        return self.main_us + self.children_us


class _Moment(NamedTuple):
    """What was measured when a number of documents was committed; times in seconds."""

    documents: int
    at: float
    party: Cost
    broker: float
    own: float
    machine: float
    samples: Samples


async def drain(
    admin: AIOKafkaAdminClient,
    place: Place,
    party: Party,
    planned: Plan,
    broker_pid: int | None,
    on_committed: OnCommitted,
) -> Drain:
    """Let a party drain the source, check its outputs, and delete them.

    Args:
        admin: a connected client.
        place: where the run takes place; its source is filled.
        party: the program.
        planned: the plan of the source.
        broker_pid: the broker's process, if it is known.
        on_committed: called with the number of committed documents and the process.

    Raises:
        ProcessEnded: the party stopped too early, or its output is wrong.
    """
    await asyncio.to_thread(place.create_topics)
    with place.start(party) as child:
        watch = _Watch(Offsets(admin, place.group, place.source), child, broker_pid, on_committed)
        first = await watch.moment(1)
        last = await watch.moment(len(planned.originals))
        resident = resident_of(child.pid)
        await asyncio.to_thread(child.stop)
    checked = await _checked(place, party, planned)
    await delete(admin, list(place.topics.values()))
    return _measured(party, child.started_at, (first, last), resident, checked)


class _Watch:
    """Looks at the progress of a party at short intervals."""

    def __init__(
        self, offsets: Offsets, child: Child, broker_pid: int | None, on_committed: OnCommitted
    ) -> None:
        self._offsets = offsets
        self._child = child
        self._broker_pid = broker_pid
        self._on_committed = on_committed
        self._committed = 0

    async def moment(self, documents: int) -> _Moment:
        """Wait until a number of documents is committed, and measure."""
        changed_at = time.perf_counter()
        while self._committed < documents:
            await asyncio.sleep(WATCH_S)
            committed = await self._offsets.committed()
            if committed > self._committed:
                self._committed, changed_at = committed, time.perf_counter()
                self._on_committed(committed, self._child)
            elif time.perf_counter() - changed_at > _PATIENCE_S:
                raise ProcessEnded(f"{committed:,} documents were committed, then no more")
            self._child.check()
        return await self._now()

    async def _now(self) -> _Moment:
        at = time.perf_counter()
        party, broker = cost_of(self._child.pid), 0.0
        if self._broker_pid is not None:
            broker = cost_of(self._broker_pid).main
        own, machine = cost_of(os.getpid()).main, busy_seconds()
        samples = await asyncio.to_thread(Samples.of, self._child)
        return _Moment(self._committed, at, party, broker, own, machine, samples)


async def _checked(place: Place, party: Party, planned: Plan) -> Check | None:
    """Check the outputs of a party."""
    bootstrap, topics = place.bootstrap, place.topics
    if party.records is not None:
        copied = await count_records(bootstrap, topics["clean"])
        if copied != len(planned.originals):
            raise ProcessEnded(f"{party.name}: {copied:,} records of {len(planned.originals):,}")
        return None
    checked = check(
        planned,
        await clean_places(bootstrap, topics["clean"]),
        await duplicate_places(bootstrap, topics["duplicates"]),
    )
    if not checked.exactly_once:
        raise ProcessEnded(f"{party.name}: source records are not exactly once: {checked}")
    return checked


def _measured(
    party: Party,
    started_at: float,
    between: tuple[_Moment, _Moment],
    resident: Resident,
    checked: Check | None,
) -> Drain:
    first, last = between
    documents, timed_s = last.documents - first.documents, last.at - first.at
    if not documents:
        raise ProcessEnded(f"{party.name}: one look saw all commits; use more documents")
    per_document = 1e6 / documents
    cost = last.party.since(first.party)
    broker, own = last.broker - first.broker, last.own - first.own
    known = cost.main + cost.children + broker + own
    judged, transactions = (
        last.samples.sum(name) - first.samples.sum(name)
        for name in ("documents_total", "transactions_total")
    )
    return Drain(
        party=party.name,
        documents_per_s=documents / timed_s,
        start_s=first.at - started_at,
        timed_s=timed_s,
        main_us=cost.main * per_document,
        loop_us=cost.loop * per_document,
        children_us=cost.children * per_document,
        broker_us=broker * per_document if last.broker else None,
        other_load=max(0.0, last.machine - first.machine - known) / timed_s,
        resident=resident,
        records_per_transaction=judged / transactions if transactions else None,
        stages_us=stages(first.samples, last.samples, round(judged)) if judged else {},
        check=checked,
    )
