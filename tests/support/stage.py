"""*Blocking.* A stage for one test: its own five topics, configuration file and index."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from aiokafka import ConsumerRecord
from aiokafka.structs import OffsetAndMetadata

from streamdedup.kafka.cluster import create_topics
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import Settings
from tests.support import topics
from tests.support.outcomes import POSITION_IN
from tests.support.patience import wait_until
from tests.support.topics import Message
from tests.support.workers import WorkerProcess


@dataclass
class Stage:
    """Topics, configuration file and index directory of one test.

    Attributes:
        bootstrap: the broker's address, or those of several, separated by commas.
        folder: where the configuration, the index and the logs are.
        name: the group, and the prefix of the topics.
        overrides: changed settings, by section.
        replication: replicas of each partition of the topics.
        mode: the mode, ``single`` or ``split``.
    """

    bootstrap: str
    folder: Path
    name: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:10]}")
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)
    replication: int = 1
    mode: str = "single"

    def __post_init__(self) -> None:
        """Write the configuration file."""
        self.folder.mkdir(exist_ok=True)
        self.configure()

    def variant(self, name: str, **changes: dict[str, Any]) -> Stage:
        """Return a stage on the same topics with its own folder, and so its own index."""
        other = Stage(
            self.bootstrap,
            self.folder / name,
            self.name,
            dict(self.overrides),
            self.replication,
            self.mode,
        )
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
        """Change settings, by section, and write the configuration file."""
        for section, values in changes.items():
            self.overrides[section] = self.overrides.get(section, {}) | values
        base: dict[str, Any] = {
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
        self.config.write_text(yaml.safe_dump({"mode": self.mode, **merged}))

    @property
    def topics(self) -> dict[str, str]:
        """The topics, by role."""
        roles = ("source", "clean", "duplicates", "dead_letter", "changelog")
        split = ("sketches", "verdicts") if self.mode == "split" else ()
        return {role: f"{self.name}-{role}" for role in (*roles, *split)}

    def settings(self) -> Settings:
        """Load the settings as a worker does."""
        return load_settings(self.config)

    def create_topics(self, partitions: int = 1, **configs: dict[str, str]) -> None:
        """Create the topics; ``configs`` are by role."""
        configured = {self.topics[role]: config for role, config in configs.items()}
        asyncio.run(topics.create(self.bootstrap, configured, partitions, self.replication))
        asyncio.run(create_topics(self.settings(), partitions, self.replication))

    def delete_topic(self, role: str) -> None:
        """Delete a topic, and wait until it is gone."""
        asyncio.run(topics.delete(self.bootstrap, self.topics[role]))

    def delete_records(self, role: str, before: int, partition: int = 0) -> None:
        """Delete the oldest records of a topic, as its retention would."""
        asyncio.run(topics.delete_records(self.bootstrap, self.topics[role], partition, before))

    def add_partitions(self, role: str, total: int) -> None:
        """Raise the number of partitions of a topic."""
        asyncio.run(topics.add_partitions(self.bootstrap, self.topics[role], total))

    def committed(self) -> dict[int, int]:
        """Return the group's committed offset for each partition of the source."""
        return asyncio.run(
            topics.committed_offsets(self.bootstrap, self.name, self.topics["source"])
        )

    def commit(self, offsets: Mapping[int, int | OffsetAndMetadata]) -> None:
        """Set the group's offsets, by partition of the source."""
        source = self.topics["source"]
        asyncio.run(topics.commit_offsets(self.bootstrap, self.name, source, offsets))

    def produce(self, messages: Iterable[Message]) -> None:
        """Append messages to the source topic."""
        asyncio.run(topics.produce(self.bootstrap, self.topics["source"], messages))

    def produce_to(self, role: str, values: Iterable[bytes]) -> None:
        """Append values to partition 0 of a topic."""
        messages = [Message(value, None, 0) for value in values]
        asyncio.run(topics.produce(self.bootstrap, self.topics[role], messages))

    def produce_json(self, documents: Iterable[dict[str, Any]], partition: int = 0) -> None:
        """Append JSON documents to the source topic."""
        self.produce(
            Message(json.dumps(document).encode(), None, partition) for document in documents
        )

    def produce_in_transaction(
        self, documents: Iterable[dict[str, Any]], *, aborts: bool = False
    ) -> None:
        """Append JSON documents to partition 0 of the source topic, in one transaction."""
        values = [json.dumps(document).encode() for document in documents]
        source = self.topics["source"]
        asyncio.run(topics.produce_in_transaction(self.bootstrap, source, values, aborts=aborts))

    def leave_transaction_open(self, role: str, value: bytes, timeout_s: float) -> None:
        """Write with the worker's transactional id, and disconnect before the commit."""
        identity = self.settings().topics.transactional_id
        topic = self.topics[role]
        asyncio.run(topics.produce_uncommitted(self.bootstrap, identity, topic, value, timeout_s))

    def read(self, role: str) -> list[ConsumerRecord]:
        """Return all records of a topic that a ``read_committed`` consumer sees now."""
        return asyncio.run(topics.read(self.bootstrap, self.topics[role]))

    def outcomes(self) -> dict[tuple[int, int], str]:
        """Return the role of the topic that has each judged source record.

        Raises:
            AssertionError: a source record has two outcomes.
        """
        return {position: role for position, (role, _) in self._judged().items()}

    def records(self) -> dict[tuple[int, int], ConsumerRecord]:
        """Return the one output record of each judged source record."""
        return {position: record for position, (_, record) in self._judged().items()}

    def _judged(self) -> dict[tuple[int, int], tuple[str, ConsumerRecord]]:
        judged: dict[tuple[int, int], tuple[str, ConsumerRecord]] = {}
        for role, position_of in POSITION_IN.items():
            for record in self.read(role):
                position = position_of(record)
                assert position not in judged, f"{position} is in {role} and {judged[position][0]}"
                judged[position] = (role, record)
        return judged

    def wait_for(self, count: int, worker: WorkerProcess) -> None:
        """Wait until this number of records has an outcome."""

        def may_be_judged() -> bool:
            worker.assert_running()
            return sum(self.ends().values()) >= count

        def judged() -> bool:
            worker.assert_running()
            return len(self.outcomes()) >= count

        # End offsets count transaction markers too, so they only tell when to read the records.
        wait_until(may_be_judged, f"{count} records to be judged")
        wait_until(judged, f"{count} records to be judged")

    def wait_until_committed(self, offsets: Mapping[int, int], worker: WorkerProcess) -> None:
        """Wait until the group's offsets are these; ``offsets`` has every partition."""

        def committed() -> bool:
            worker.assert_running()
            return self.committed() == offsets

        wait_until(committed, f"the committed offsets to be {offsets}")

    def ends(self) -> dict[str, int]:
        """Return the sum of the end offsets of each output topic, by role."""
        names = {role: self.topics[role] for role in POSITION_IN}
        ends = asyncio.run(topics.end_offsets(self.bootstrap, list(names.values())))
        return {role: ends[name] for role, name in names.items()}

    def end(self, role: str) -> int:
        """Return the offset behind the last record or marker of a topic with one partition."""
        name = self.topics[role]
        return asyncio.run(topics.end_offsets(self.bootstrap, [name]))[name]

    def start_worker(
        self, *flags: str, env: Mapping[str, str] | None = None, module: str = "streamdedup"
    ) -> WorkerProcess:
        """Start a worker process."""
        return WorkerProcess(self.config, self.folder, flags, env or {}, module)

    def run_until_judged(self, count: int) -> WorkerProcess:
        """Run a worker until this number of records has an outcome, and drain it."""
        with self.start_worker() as worker:
            self.wait_for(count, worker)
            worker.drain()
        return worker

    def run_until_committed(self, offsets: Mapping[int, int]) -> WorkerProcess:
        """Run a worker until the group's offsets are these, and drain it."""
        with self.start_worker() as worker:
            self.wait_until_committed(offsets, worker)
            worker.drain()
        return worker
