"""*Blocking.* A stage for one test: five topics of its own, and workers as real processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import stamina
import yaml
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.errors import KafkaError

from streamdedup.kafka.cluster import create_topics
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import Settings

PATIENCE_S = 90.0
"""How long a test waits for what must come; it fails after that."""


def wait_until(condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for a condition, or fail the test saying what did not come."""
    end = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {patience_s:.0f} s in vain: {what}")
        time.sleep(0.05)


@dataclass(frozen=True)
class Message:
    """A record for the source topic."""

    value: bytes | None
    key: bytes | None = b"k"
    partition: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None


@dataclass
class Stage:
    """Topics, configuration file and index directory of one test."""

    bootstrap: str
    folder: Path
    name: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:10]}")
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Write the configuration file."""
        self.folder.mkdir(exist_ok=True)
        self.configure()

    def variant(self, name: str, **changes: dict[str, Any]) -> Stage:
        """Return a stage on the same topics with a folder, and so an index, of its own."""
        other = Stage(self.bootstrap, self.folder / name, self.name, dict(self.overrides))
        other.configure(**changes)
        return other

    @property
    def config(self) -> Path:
        """The configuration file."""
        return self.folder / "streamdedup.yaml"

    @property
    def index(self) -> Path:
        """The index directory."""
        return self.folder / "index"

    def configure(self, **changes: dict[str, Any]) -> None:
        """Write the configuration file, with changes to what it said."""
        for section, values in changes.items():
            self.overrides[section] = self.overrides.get(section, {}) | values
        base: dict[str, dict[str, Any]] = {
            "kafka": {
                "bootstrap_servers": self.bootstrap,
                "group_id": self.name,
                "transaction_timeout": "10s",
                "request_timeout": "5s",
                "metadata_refresh": "1s",
            },
            "topics": self.topics,
            "index": {"directory": str(self.index)},
            "batch": {"linger": "50ms"},
            "pool": {"workers": 1},
            "status": {"port": 0},
            "log": {"format": "json"},
        }
        merged = {
            section: base.get(section, {}) | self.overrides.get(section, {})
            for section in base.keys() | self.overrides.keys()
        }
        self.config.write_text(yaml.safe_dump(merged))

    @property
    def topics(self) -> dict[str, str]:
        """The five topics, by role."""
        roles = ("source", "clean", "duplicates", "dead_letter", "changelog")
        return {role: f"{self.name}-{role}" for role in roles}

    def settings(self) -> Settings:
        """Load the settings that the workers load."""
        return load_settings(self.config)

    def create_topics(self, partitions: int = 1, **configs: dict[str, str]) -> None:
        """Create the five topics; ``configs`` are by role."""
        special = {self.topics[role]: config for role, config in configs.items()}
        asyncio.run(_create(self.bootstrap, special, partitions))
        asyncio.run(create_topics(self.settings(), partitions, 1))

    def delete_topic(self, role: str) -> None:
        """Delete a topic, and wait until it is gone."""
        asyncio.run(_delete(self.bootstrap, self.topics[role]))

    def delete_records(self, role: str, before: int, partition: int = 0) -> None:
        """Delete the oldest records of a topic, as its retention would."""
        at = TopicPartition(self.topics[role], partition)
        asyncio.run(_delete_records(self.bootstrap, at, before))

    def add_partitions(self, role: str, total: int) -> None:
        """Raise the number of partitions of a topic."""
        asyncio.run(_add_partitions(self.bootstrap, self.topics[role], total))

    def committed(self) -> dict[int, int]:
        """Return the offset that the group has committed for each partition of the source."""
        return asyncio.run(_committed(self.bootstrap, self.name))

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Set the group's offsets, as an operator would with Kafka's own tools."""
        wanted = {TopicPartition(self.topics["source"], at): to for at, to in offsets.items()}
        asyncio.run(_commit(self.bootstrap, self.name, wanted))

    def produce(self, messages: Iterable[Message]) -> None:
        """Append messages to the source topic."""
        asyncio.run(_produce(self.bootstrap, self.topics["source"], messages))

    def produce_json(self, documents: Iterable[dict[str, Any]], partition: int = 0) -> None:
        """Append JSON documents to the source topic."""
        self.produce(
            Message(json.dumps(document).encode(), None, partition) for document in documents
        )

    def leave_transaction_open(self, role: str, value: bytes, timeout_s: float) -> None:
        """Write as the worker would, under its transactional id, and vanish before the commit."""
        identity = self.settings().kafka.transactional_id
        asyncio.run(_write_only(self.bootstrap, identity, self.topics[role], value, timeout_s))

    def read(self, role: str) -> list[ConsumerRecord]:
        """Read a whole topic as a ``read_committed`` consumer sees it now."""
        return asyncio.run(_read(self.bootstrap, self.topics[role]))

    def offsets_judged(self) -> set[tuple[int, int]]:
        """Return partition and offset of every source record with a committed outcome."""
        return set(self.outcomes())

    def outcomes(self) -> dict[tuple[int, int], str]:
        """Return the outcome of every judged source position.

        Raises:
            AssertionError: a position has two.
        """
        return {position: role for position, (role, _) in self._judged().items()}

    def records(self) -> dict[tuple[int, int], ConsumerRecord]:
        """Return what was written for every judged source position, which must be one record."""
        return {position: record for position, (_, record) in self._judged().items()}

    def _judged(self) -> dict[tuple[int, int], tuple[str, ConsumerRecord]]:
        found: dict[tuple[int, int], tuple[str, ConsumerRecord]] = {}
        for role, place in PLACES.items():
            for record in self.read(role):
                position = place(record)
                assert position not in found, f"{position} is in {role} and {found[position][0]}"
                found[position] = (role, record)
        return found

    def wait_for(self, count: int, worker: WorkerProcess | None = None) -> None:
        """Wait until so many records have an outcome."""

        def enough() -> bool:
            if worker is not None:
                worker.assert_running()
            return sum(self.ends().values()) >= count

        # End offsets count transaction marks too, so they only tell when to look closely.
        wait_until(enough, f"{count} records to be judged")

        def all_there() -> bool:
            if worker is not None:
                worker.assert_running()
            return len(self.offsets_judged()) >= count

        wait_until(all_there, f"{count} records to be judged")

    def wait_until_committed(self, offsets: Mapping[int, int], worker: WorkerProcess) -> None:
        """Wait until the group stands at these offsets; each partition's must be told."""

        def there() -> bool:
            worker.assert_running()
            return self.committed() == offsets

        wait_until(there, f"the group to stand at {offsets}")

    def ends(self) -> dict[str, int]:
        """Return the summed end offsets of the three output topics."""
        roles = ("clean", "duplicates", "dead_letter")
        return asyncio.run(_ends(self.bootstrap, {role: self.topics[role] for role in roles}))

    def start_worker(self, *flags: str, env: dict[str, str] | None = None) -> WorkerProcess:
        """Start a worker process."""
        return WorkerProcess(self.config, self.folder, flags, env or {})

    def run_until_judged(self, count: int) -> WorkerProcess:
        """Run a worker until so many records have an outcome, then stop it gently."""
        with self.start_worker() as worker:
            self.wait_for(count, worker)
            worker.drain()
        return worker

    def run_until_committed(self, offsets: Mapping[int, int]) -> WorkerProcess:
        """Run a worker until the group stands at these offsets, then stop it gently."""
        with self.start_worker() as worker:
            self.wait_until_committed(offsets, worker)
            worker.drain()
        return worker


class WorkerProcess:
    """``streamdedup run`` as a process of its own; killed when the test leaves it behind."""

    def __init__(
        self, config: Path, folder: Path, flags: Sequence[str], env: dict[str, str]
    ) -> None:
        self._log = folder / f"worker-{time.monotonic_ns()}.log"
        command = [sys.executable, "-m", "streamdedup", "run", "--config", str(config), *flags]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=os.environ | env, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()

    def log(self) -> str:
        """Return what the worker has printed."""
        return self._log.read_text(errors="replace")

    def events(self) -> list[dict[str, Any]]:
        """Return the log's lines as JSON."""
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    def wait_for_event(self, event: str) -> dict[str, Any]:
        """Wait for a line of the log."""
        wait_until(lambda: self._has(event), f"{event!r} in the log")
        return next(each for each in self.events() if each["event"] == event)

    def _has(self, event: str) -> bool:
        there = any(each["event"] == event for each in self.events())
        if not there:
            self.assert_running()
        return there

    def status_url(self) -> str:
        """Wait for the status server, and return its address."""
        port = self.wait_for_event("listening")["port"]
        return f"http://127.0.0.1:{port}"

    def get(self, path: str) -> tuple[int, str]:
        """Ask the status server; return the HTTP status and the body."""
        try:
            with urllib.request.urlopen(self.status_url() + path, timeout=10) as answer:  # noqa: S310
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read().decode()

    def metric(self, name: str, **labels: str) -> float:
        """Return a sample of the worker's metrics."""
        return metric(self.get("/metrics")[1], f"streamdedup_{name}", **labels)

    def wait_until_ready(self) -> None:
        """Wait until documents are being judged."""

        def ready() -> bool:
            self.assert_running()
            return self.get("/readyz")[0] == 200

        wait_until(ready, "the worker to be ready")

    def drain(self) -> None:
        """Ask the worker to drain and end, and check that it says so."""
        self.terminate()
        assert self.wait() == 0, self.log()

    def assert_running(self) -> None:
        """Fail the test if the worker has ended."""
        assert self.process.poll() is None, f"the worker ended:\n{self.log()}"

    def terminate(self) -> None:
        """Ask the worker to drain and end."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the worker as the OOM killer would; its pool goes with it."""
        self.process.kill()
        self.process.wait()

    def wait(self, patience_s: float = PATIENCE_S) -> int:
        """Wait for the end, and return the exit code."""
        return self.process.wait(patience_s)

    def complaint(self) -> str:
        """Return the one line that is not a log event: what the operator is told."""
        lines = [line for line in self.log().splitlines() if not line.startswith("{")]
        assert len(lines) == 1, self.log()
        return lines[0]

    def assert_ends(self, code: int, *words: str) -> None:
        """Wait for the end; check the exit code and that the one line holds the words."""
        assert self.wait() == code, self.log()
        complaint = self.complaint()
        assert complaint.startswith("streamdedup: "), complaint
        for word in words:
            assert word in complaint, complaint


def _clean_position(record: ConsumerRecord) -> tuple[int, int]:
    headers = dict(record.headers)
    return int(headers["streamdedup-partition"]), int(headers["streamdedup-offset"])


def _duplicate_position(record: ConsumerRecord) -> tuple[int, int]:
    position = json.loads(record.value)["position"]
    return position["partition"], position["offset"]


def _dead_position(record: ConsumerRecord) -> tuple[int, int]:
    headers = dict(record.headers)
    prefix = "__streamdedup.errors."
    return int(headers[prefix + "partition"]), int(headers[prefix + "offset"])


PLACES = {
    "clean": _clean_position,
    "duplicates": _duplicate_position,
    "dead_letter": _dead_position,
}
"""How a record of each output topic says which source record it stands for."""


async def _produce(bootstrap: str, topic: str, messages: Iterable[Message]) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        linger_ms=20,
        max_batch_size=256 * 1024,
        max_request_size=100 * 1024 * 1024,
    )
    await producer.start()
    try:
        for partition, group in _by_partition(messages).items():
            # Batches, since send() refuses a record that has neither key nor value.
            batch = producer.create_batch()
            for message in group:
                if not _append(batch, message):
                    await (await producer.send_batch(batch, topic, partition=partition))
                    batch = producer.create_batch()
                    _append(batch, message)
            await (await producer.send_batch(batch, topic, partition=partition))
    finally:
        await producer.stop()


def _by_partition(messages: Iterable[Message]) -> dict[int, list[Message]]:
    groups: dict[int, list[Message]] = {}
    for message in messages:
        groups.setdefault(message.partition, []).append(message)
    return groups


def _append(batch: Any, message: Message) -> bool:
    appended = batch.append(
        timestamp=message.timestamp_ms,
        key=message.key,
        value=message.value,
        headers=list(message.headers),
    )
    return appended is not None


async def _write_only(
    bootstrap: str, identity: str, topic: str, value: bytes, timeout_s: float
) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        transactional_id=identity,
        transaction_timeout_ms=int(timeout_s * 1000),
    )
    await producer.start()
    try:
        await producer.begin_transaction()
        await producer.send_and_wait(topic, value, partition=0)
    finally:
        await producer.stop()


async def _read(bootstrap: str, topic: str) -> list[ConsumerRecord]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=8 * 1024 * 1024,
    )
    await consumer.start()
    try:
        partitions = (await _partitions(bootstrap, [topic]))[topic]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        records: list[ConsumerRecord] = []
        for at in partitions:
            consumer.seek(at, 0)
        while any([await consumer.position(at) < ends[at] for at in partitions]):
            fetched = await consumer.getmany(timeout_ms=100)
            for batch in fetched.values():
                records.extend(batch)
        return records
    finally:
        await consumer.stop()


async def _create(bootstrap: str, configs: dict[str, dict[str, str]], partitions: int) -> None:
    async with _admin(bootstrap) as admin:
        await admin.create_topics(
            [NewTopic(name, partitions, 1, topic_configs=configs[name]) for name in configs]
        )


async def _delete(bootstrap: str, topic: str) -> None:
    async with _admin(bootstrap) as admin:
        await admin.delete_topics([topic])
        while topic in await admin.list_topics():  # noqa: ASYNC110 - the broker tells nobody
            await asyncio.sleep(0.05)


async def _delete_records(bootstrap: str, at: TopicPartition, before: int) -> None:
    async with _admin(bootstrap) as admin:
        await admin.delete_records({at: RecordsToDelete(before_offset=before)})


async def _add_partitions(bootstrap: str, topic: str, total: int) -> None:
    async with _admin(bootstrap) as admin:
        await admin.create_partitions({topic: NewPartitions(total)})


async def _committed(bootstrap: str, group: str) -> dict[int, int]:
    # A broker that has just started, or was frozen, takes a moment to know itself.
    patient = stamina.retry_context(on=KafkaError, attempts=None, timeout=PATIENCE_S, wait_max=0.5)
    async for attempt in patient:
        with attempt:
            async with _admin(bootstrap) as admin:
                offsets = await admin.list_consumer_group_offsets(group)
    return {at.partition: committed.offset for at, committed in offsets.items()}


async def _commit(bootstrap: str, group: str, offsets: dict[TopicPartition, int]) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False
    )
    await consumer.start()
    try:
        consumer.assign(list(offsets))
        await consumer.commit(offsets)
    finally:
        await consumer.stop()


@contextlib.asynccontextmanager
async def _admin(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def _partitions(bootstrap: str, topics: Iterable[str]) -> dict[str, list[TopicPartition]]:
    async with _admin(bootstrap) as admin:
        return {
            topic["topic"]: [
                TopicPartition(topic["topic"], p["partition"]) for p in topic["partitions"]
            ]
            for topic in await admin.describe_topics(list(topics))
        }


async def _ends(bootstrap: str, topics: dict[str, str]) -> dict[str, int]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        partitions = await _partitions(bootstrap, topics.values())
        every = await consumer.end_offsets([at for group in partitions.values() for at in group])
        return {role: sum(every[at] for at in partitions[topics[role]]) for role in topics}
    finally:
        await consumer.stop()


def metric(text: str, name: str, **labels: str) -> float:
    """Return a sample's value from a page of metrics; 0 where it is not there."""
    wanted = "".join(f'(?=.*{key}="{re.escape(value)}")' for key, value in labels.items())
    found = re.search(rf"^{name}(?:\{{{wanted}[^}}]*\}})? ([0-9.e+-]+|NaN)$", text, re.MULTILINE)
    return float(found.group(1)) if found else 0.0
