"""*Async.* Latency from the time a document was due at the producer to the receipt of its verdict.

A producer in its own process is paced by the clock. A ``read_committed`` consumer of the clean and
the duplicates topic, in this process, notes when it receives each record.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from aiokafka import AIOKafkaConsumer

from benchmarks.pipeline_parties import WORKER, Place, wait_until_ready
from benchmarks.pipeline_topics import reader
from deploy.processes import Child, ProcessEnded

_ID = re.compile(rb'"id":"(\d+)-\d+"')
_WARM_UP = (50.0, 4.0)
"""Rate and seconds of a first run that does not count."""
_PATIENCE_S = 60.0


class Latency(NamedTuple):
    """Latencies at one rate, in milliseconds."""

    rate: float
    documents: int
    p50: float
    p95: float
    p99: float
    max: float


async def latencies(
    place: Place,
    rates: list[float],
    seconds: float,
    mean_bytes: int,
    on_rate: Callable[[float], None],
) -> list[Latency]:
    """Measure a worker at several rates, one after the other."""
    await asyncio.to_thread(place.create_topics)
    outputs = [place.topics["clean"], place.topics["duplicates"]]
    with place.start(WORKER) as worker:
        await asyncio.to_thread(wait_until_ready, worker)
        async with reader(place.bootstrap, outputs) as consumer:
            found = []
            for stream, (rate, duration) in enumerate([_WARM_UP, *((r, seconds) for r in rates)]):
                on_rate(rate)
                load = _Load(rate, duration, mean_bytes, stream)
                found.append(await _at_rate(place, consumer, load))
        await asyncio.to_thread(worker.stop)
    return found[1:]


class _Load(NamedTuple):
    """The documents that a producer sends."""

    rate: float
    seconds: float
    mean_bytes: int
    stream: int

    def arguments(self) -> list[str]:
        """Return the arguments of the producer's program."""
        return [
            *["--rate", str(self.rate), "--seconds", str(self.seconds)],
            *["--bytes", str(self.mean_bytes), "--stream", str(self.stream)],
        ]


async def _at_rate(place: Place, consumer: AIOKafkaConsumer, load: _Load) -> Latency:
    program = [sys.executable, "-m", "benchmarks.pipeline_load", place.bootstrap, place.source]
    command = [*program, *load.arguments()]
    count = round(load.rate * load.seconds)
    taken_ns: list[int] = []
    with Child(command, place.folder / "load.log") as producer:
        received_at = time.monotonic()
        while len(taken_ns) < count:
            polled = await consumer.getmany(timeout_ms=200)
            now_ns = time.time_ns()
            for records in polled.values():
                received_at = time.monotonic()
                taken_ns += [now_ns - _due_ns(record.value) for record in records]
            if time.monotonic() - received_at > _PATIENCE_S:
                message = f"{len(taken_ns):,} of {count:,} verdicts arrived, then no more"
                raise ProcessEnded(f"{message}:\n{producer.tail()}")
        await asyncio.to_thread(producer.wait, _PATIENCE_S)
    milliseconds = np.array(taken_ns) / 1e6
    p50, p95, p99 = np.quantile(milliseconds, (0.5, 0.95, 0.99)).tolist()
    return Latency(load.rate, count, p50, p95, p99, float(milliseconds.max()))


def _due_ns(value: bytes) -> int:
    """Return the time in the id, which a document and a duplicate record both have first."""
    found = _ID.search(value)
    if found is None:
        raise ProcessEnded(f"a record without an id: {value[:200]!r}")
    return int(found[1])
