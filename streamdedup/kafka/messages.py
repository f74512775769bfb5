"""*Pure.* What passes between the Kafka rim and the rest: topic facts, messages, transactions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What the broker says of a topic.

    Attributes:
        timestamp_before_max_ms: how far behind the clock a record's timestamp may be.
        timestamp_after_max_ms: how far ahead of it.
        cleanup_policy: ``delete``, ``compact``, or both with a comma between.
        retention_ms: how long a record is kept; -1 for ever.
        retention_bytes: most bytes of a partition; -1 without a limit.
        min_insync_replicas: replicas that must have a record before a write is confirmed.
        replicas: of the partition that has the fewest.
        in_sync: replicas that have all of it, of the partition that has the fewest of these; 0
            where a partition has no leader.
        allowed: what we may do with it, in Kafka's words; None where the brokers do not say.
    """

    name: str
    partitions: int
    max_message_bytes: int
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    cleanup_policy: str = "delete"
    retention_ms: int = -1
    retention_bytes: int = -1
    min_insync_replicas: int = 1
    replicas: int = 1
    in_sync: int = 1
    allowed: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What the brokers say of themselves and of our topics.

    Attributes:
        topics: those that there are, by name.
        brokers: host:port of each broker, as it wants to be reached; by number.
    """

    cluster_id: str
    topics: Mapping[str, TopicFacts]
    brokers: Mapping[int, str] = field(default_factory=dict)

    def log(self, topic: str) -> str:
        """Return the name under which an index remembers its changelog."""
        return f"changelog topic {topic} of cluster {self.cluster_id}"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to be produced.

    Attributes:
        timestamp_ms: the record's own, ``NO_TIMESTAMP`` included; None is the time of sending.
        source_partition: where its record came from; a message without a key keeps to it.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int | None
    source_partition: int = 0


@dataclass(frozen=True, slots=True)
class Transaction:
    """Everything that one Kafka transaction holds."""

    messages: list[Outgoing]
    changelog: list[bytes]
    offsets: dict[tuple[str, int], int]
