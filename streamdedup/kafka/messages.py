"""*Pure.* What this package exchanges with the rest: topic facts, messages and transactions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from streamdedup.columns import I64


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as the brokers describe it.

    Attributes:
        timestamp_before_max_ms, timestamp_after_max_ms: how far a record's timestamp may be behind
            and ahead of the clock.
        compression: ``producer`` if the brokers store batches as they come, else their codec.
        cleanup_policy: ``delete``, ``compact``, or both separated by a comma.
        retention_ms, retention_bytes: limits of a partition; -1 without a limit.
        min_insync_replicas: replicas that must have a record before a write is confirmed.
        replicas, in_sync: of the partition that has the fewest; 0 in sync if one has no leader.
        allowed: Kafka's names of the operations that this client may perform; None if unknown.
        id: 16 bytes, which a recreated topic does not share; empty if the brokers do not report it
            (Kafka before 2.8).
        unlisted: settings that the brokers do not list, which have Kafka's defaults or no limit.
    """

    name: str
    partitions: int
    max_message_bytes: int
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    compression: str = "producer"
    cleanup_policy: str = "delete"
    retention_ms: int = -1
    retention_bytes: int = -1
    min_insync_replicas: int = 1
    replicas: int = 1
    in_sync: int = 1
    allowed: frozenset[str] | None = None
    id: bytes = b""
    unlisted: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The cluster as the brokers describe it.

    Attributes:
        topics: the existing topics of the settings, by name.
        brokers: the advertised ``host:port`` of each broker, by node id.
        release_level: see :mod:`streamdedup.kafka.brokers`; None if it is unknown.
        duplicates_schema_id: of the Avro schema of duplicate records; None for JSON.
    """

    cluster_id: str
    topics: Mapping[str, TopicFacts]
    brokers: Mapping[int, str] = field(default_factory=dict)
    release_level: int | None = None
    duplicates_schema_id: int | None = None

    def log(self, topic: str) -> str:
        """Return the name by which an index identifies its changelog."""
        return f"changelog topic {topic} of cluster {self.cluster_id}"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to produce.

    Attributes:
        timestamp_ms: the record's own, or ``NO_TIMESTAMP``; None for the time of sending.
        source_partition: decides the partition of a message without a key.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int | None
    source_partition: int = 0


@dataclass(frozen=True, slots=True)
class Messages:
    """``n`` messages to one topic, as columns; see :class:`Outgoing`."""

    topic: str
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Sequence[tuple[str, bytes | None]]]
    timestamps_ms: Sequence[int | None]
    source_partitions: I64

    @classmethod
    def of(cls, topic: str, messages: Sequence[Outgoing]) -> Messages:
        """Return the columns of messages to a topic."""
        return cls(
            topic,
            [message.key for message in messages],
            [message.value for message in messages],
            [message.headers for message in messages],
            [message.timestamp_ms for message in messages],
            np.array([message.source_partition for message in messages], dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Transaction:
    """The contents of one Kafka transaction.

    Attributes:
        messages: at most one entry for each output topic.
        changelog: values of the changelog's records.
        offsets: the next offset to read, by source topic and partition.
        note: metadata committed with each offset.
        last: messages that are sent when everything else is acknowledged, because readers of their
            partitions wait for the end of the transaction.
    """

    messages: list[Messages]
    changelog: list[bytes]
    offsets: dict[tuple[str, int], int]
    note: str = ""
    last: list[Messages] = field(default_factory=list)
