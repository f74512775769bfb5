"""*Async.* The judge alone: prepared sketches in, verdicts out."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import numpy as np
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from benchmarks.measured import cost_of, resident_of
from benchmarks.pipeline_parties import Place, Samples, stages
from benchmarks.pipeline_topics import Offsets, delete
from benchmarks.planted_stream import Stream
from benchmarks.progress import Steps
from deploy.processes import Child, ProcessEnded, worker
from streamdedup.batches import SketchedRange
from streamdedup.columns import Positions
from streamdedup.formats import sketches
from streamdedup.model import NO_TIMESTAMP, SourceRange
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import Settings

_RANGE = 2000
"""Documents in a sketched range."""
_DUPLICATES = 0.1
_LOOK_S = 0.2
_PATIENCE_S = 120.0
_MEMORY_LINES = 8
_MB = 1024**2


async def judge_alone(
    admin: AIOKafkaAdminClient, place: Place, documents: int, steps: Steps
) -> None:
    """Prepare sketches, let a judge read them, and print its speed and its memory."""
    steps.say(f"\nthe judge alone: {documents:,} sketches, {_DUPLICATES:.0%} duplicates")
    await asyncio.to_thread(place.create_topics)
    settings = load_settings(place.config)
    steps.begin("writing sketches", documents)
    await _fill(place, settings, documents, steps)
    with Child(worker(place.config, "--role", "judge"), place.folder / "log") as child:
        ranges = -(-documents // _RANGE)
        await _watch(Offsets(admin, place.group, settings.topics.sketches), child, ranges, steps)
        samples = await asyncio.to_thread(Samples.of, child)
    kept = samples.sum("index_documents")
    accepted = samples.by_label("sketched_records_total").get("accepted", 0.0)
    steps.say(
        f"accepted {accepted:,.0f}, kept {kept:,.0f} ({1 - kept / documents:.2%} duplicates), "
        f"candidates {samples.sum('candidates_total'):,.0f}"
    )
    parts = stages(Samples(), samples, documents)
    steps.say("us a document: " + ", ".join(f"{name} {us:.1f}" for name, us in parts.items() if us))
    await delete(admin, [place.source, *place.topics.values()])


async def _watch(offsets: Offsets, child: Child, ranges: int, steps: Steps) -> None:
    steps.begin("judging", ranges)
    looks: list[tuple[float, int, float]] = []
    lines, changed_at, committed = 1, time.perf_counter(), 0
    while committed < ranges:
        await asyncio.sleep(_LOOK_S)
        now_committed = await offsets.committed()
        now = time.perf_counter()
        if now_committed > committed:
            committed, changed_at = now_committed, now
            cost = cost_of(child.pid)
            looks.append((now, committed, cost.main + cost.children))
            steps.reach(committed)
            if committed * _MEMORY_LINES >= ranges * lines:
                resident = resident_of(child.pid)
                steps.say(
                    f"  {committed * _RANGE:>10,} documents: {resident.main / _MB:,.0f} MB "
                    f"resident, {resident.main_anonymous / _MB:,.0f} MB of them anonymous"
                )
                lines = committed * _MEMORY_LINES // ranges + 1
        elif now - changed_at > _PATIENCE_S:
            raise ProcessEnded(f"{committed} ranges were committed, then no more")
        child.check()
    (began, first, cost_before), (ended, last, cost_after) = looks[0], looks[-1]
    judged = (last - first) * _RANGE
    steps.say(
        f"{judged / (ended - began):,.0f} documents/s, "
        f"{(cost_after - cost_before) / judged * 1e6:.1f} us of processor time a document"
    )


async def _fill(place: Place, settings: Settings, documents: int, steps: Steps) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=place.bootstrap, acks="all")
    await producer.start()
    fingerprint = settings.fingerprint
    try:
        stream = Stream(documents, _DUPLICATES)
        for start in range(0, documents, _RANGE):
            stop = min(start + _RANGE, documents)
            prepared = _sketched(stream, settings.topics.source, start, stop)
            for value in sketches.encode(prepared, fingerprint, 10**9):
                await producer.send(settings.topics.sketches, value, partition=0)
            steps.reach(start)
        await producer.flush()
    finally:
        await producer.stop()


def _sketched(stream: Stream, source: str, start: int, stop: int) -> SketchedRange:
    """Return a part of the stream as a range of one partition."""
    batch = stream.batch(start, stop - start)
    zeros = np.zeros_like(batch.places)
    documents = replace(
        batch.documents,
        positions=Positions((source,), zeros, zeros, batch.places),
        event_times_ms=np.full_like(batch.places, NO_TIMESTAMP),
    )
    return SketchedRange(SourceRange(source, 0, start, stop), documents, frozenset(), {})
