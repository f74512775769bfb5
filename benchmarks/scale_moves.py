"""*Async.* How long records wait when a role moves: to a standby, and to other edges."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from benchmarks.pipeline_parties import Place, Samples
from benchmarks.pipeline_topics import Offsets, delete
from benchmarks.progress import Steps
from deploy.processes import Child, ProcessEnded, worker
from streamdedup.formats.outputs import SOURCE_HEADER
from tests.testkit.documents import POST_BYTES, Documents, plan

PARTITIONS = 8
"""Of the topic whose edges come and go."""
_START_S = 120.0
_LOOK_S = 0.02
_TICK_S = 0.05
_PHASE_S = 8.0
"""How long a number of edges stays after all have partitions."""


class Processes:
    """Roles of one place, each with its log; all are stopped at the end."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._count = 0
        self.running: list[Child] = []

    def start(self, *flags: str) -> Child:
        """Start ``streamdedup run`` with more flags."""
        self._count += 1
        command = worker(self._place.config, *flags)
        child = Child(command, self._place.folder / f"log-{self._count}")
        self.running.append(child)
        return child

    def stop(self, child: Child) -> None:
        """Stop one, and wait for its end."""
        self.running.remove(child)
        child.stop()

    def close(self) -> None:
        """Stop all."""
        for child in [*self.running]:
            self.stop(child)


async def takeovers(
    admin: AIOKafkaAdminClient, place: Place, documents: int, rounds: int, steps: Steps
) -> None:
    """Print how long a standby takes until it judges, after SIGTERM and after SIGKILL."""
    steps.say(f"\ntakeovers of a worker with a standby, {documents:,} documents in the index")
    await asyncio.to_thread(place.create_topics)
    await _append(place, documents, 3)
    roles = Processes(place)
    folders = [str(place.folder / name) for name in ("first", "second")]
    try:
        pair = [roles.start("--index", folder) for folder in folders]
        offsets = Offsets(admin, place.group, place.source)
        steps.begin("filling the index", documents)
        while (committed := await offsets.committed()) < documents:
            steps.reach(committed)
            for child in pair:
                child.check()
            await asyncio.sleep(0.2)
        for signal in ("SIGTERM", "SIGKILL"):
            steps.begin(f"takeovers after {signal}", rounds)
            found = [await _takeover(roles, pair, folders, signal) for _ in range(rounds)]
            steps.say(f"{signal} to running: {', '.join(f'{s:.1f} s' for s in found)}")
    finally:
        await asyncio.to_thread(roles.close)
    await delete(admin, [place.source, *place.topics.values()])


async def _takeover(
    roles: Processes, pair: list[Child], folders: Sequence[str], signal: str
) -> float:
    while (active := _number_of_active(pair)) is None:  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0.2)
    standby = pair[1 - active]
    turns = _runs(standby)
    began = time.monotonic()
    ending = pair[active]
    if signal == "SIGKILL":
        ending.kill()
    else:
        ending.terminate()
    while _runs(standby) == turns:
        standby.check()
        if time.monotonic() - began > _START_S:
            raise ProcessEnded("the standby does not take over")
        await asyncio.sleep(_LOOK_S)
    took_s = time.monotonic() - began
    await asyncio.to_thread(roles.stop, ending)
    pair[active] = roles.start("--index", folders[active])
    return took_s


def _number_of_active(pair: Sequence[Child]) -> int | None:
    """Return which of a pair judges, once the other one stands by and lacks nothing."""
    pages = [Samples.of(one) for one in pair]
    active = [page.sum("active") == 1 for page in pages]
    ready = [page.sum("ready") == 1 for page in pages]
    return active.index(True) if all(ready) and active.count(True) == 1 else None


def _has_partitions(edge: Child) -> Callable[[], bool]:
    return lambda: '"lane begins"' in edge.log()


def _runs(child: Child) -> int:
    return child.log().count('"event": "running"')


async def edges_come_and_go(
    admin: AIOKafkaAdminClient, place: Place, rate: int, steps: Steps
) -> None:
    """Print the longest pause of a partition while there are 1, 4 and then 2 edges."""
    steps.say(f"\nedges 1, 4, 2 with {rate} posts/s in {PARTITIONS} partitions")
    await asyncio.to_thread(place.create_topics, PARTITIONS)
    roles = Processes(place)
    stop = asyncio.Event()
    sent: list[int] = []
    pauses = _Pauses(place)
    try:
        judge = roles.start("--role", "judge")
        edges = [roles.start("--role", "edge")]
        await asyncio.to_thread(judge.wait_for, lambda: _runs(judge) > 0, _START_S, "the judge")
        producing = asyncio.create_task(_produce(place, rate, stop, sent))
        reading = asyncio.create_task(pauses.read())
        while len(pauses.latest) < PARTITIONS:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(_LOOK_S)
        for count in (1, 4, 2):
            steps.begin(f"{count} edges")
            pauses.begin()
            while len(edges) < count:
                edges.append(roles.start("--role", "edge"))
            while len(edges) > count:
                await asyncio.to_thread(roles.stop, edges.pop(0))
            for edge in edges:
                await asyncio.to_thread(edge.wait_for, _has_partitions(edge), _START_S, "an edge")
            await asyncio.sleep(_PHASE_S)
            steps.say(
                f"{count} edges: longest pause of a partition {pauses.longest_s:.1f} s, "
                f"{sum(sent) - pauses.seen} records on their way"
            )
        stop.set()
        await producing
        began = time.monotonic()
        while pauses.seen < sum(sent):
            judge.check()
            if time.monotonic() - began > _START_S:
                raise ProcessEnded(f"{sum(sent) - pauses.seen} records are not written")
            await asyncio.sleep(_LOOK_S)
        steps.say(f"lag 0, {time.monotonic() - began:.1f} s after the last record")
        reading.cancel()
    finally:
        await asyncio.to_thread(roles.close)
    await delete(admin, [place.source, *place.topics.values()])


class _Pauses:
    """Reads the outputs, and measures how long each source partition is without any.

    Attributes:
        seen: output records so far.
        latest: when the latest output of each partition was seen.
        longest_s: the longest pause since :meth:`begin`.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self.seen = 0
        self.latest: dict[int, float] = {}
        self.longest_s = 0.0

    def begin(self) -> None:
        """Forget the pauses so far."""
        self.longest_s = 0.0

    async def read(self) -> None:
        """Read without an end."""
        topics = [self._place.topics["clean"], self._place.topics["duplicates"]]
        async with _consumer(self._place.bootstrap, topics) as consumer:
            while True:
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    for record in records:
                        self._count(_partition_of(record.headers, record.value))

    def _count(self, partition: int) -> None:
        now = time.monotonic()
        if partition in self.latest:
            self.longest_s = max(self.longest_s, now - self.latest[partition])
        self.latest[partition] = now
        self.seen += 1


def _partition_of(headers: Sequence[tuple[str, bytes]], value: bytes) -> int:
    place = dict(headers).get(SOURCE_HEADER)
    if place is None:
        return int(json.loads(value)["position"]["partition"])
    return int(place.partition(b":")[0])


@contextlib.asynccontextmanager
async def _consumer(bootstrap: str, topics: Sequence[str]) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(
        *topics,
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        metadata_max_age_ms=1000,
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def _produce(place: Place, rate: int, stop: asyncio.Event, sent: list[int]) -> None:
    """Send posts to all partitions at a rate."""
    values = Documents(POST_BYTES).values(plan(10**6))
    producer = AIOKafkaProducer(bootstrap_servers=place.bootstrap, acks="all")
    await producer.start()
    began, number = time.monotonic(), 0
    try:
        while not stop.is_set():
            due = int((time.monotonic() - began) * rate)
            while number < due:
                await producer.send(place.source, next(values), partition=number % PARTITIONS)
                number += 1
            sent[:] = [number]
            await asyncio.sleep(_TICK_S)
        await producer.flush()
    finally:
        await producer.stop()


async def _append(place: Place, documents: int, partitions: int) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=place.bootstrap, acks="all")
    await producer.start()
    try:
        for number, value in enumerate(Documents(POST_BYTES).values(plan(documents))):
            await producer.send(place.source, value, partition=number % partitions)
        await producer.flush()
    finally:
        await producer.stop()
