"""*Async.* What the brokers know about topics, access and themselves; creates topics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from aiokafka import errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.client import CoordinationType
from aiokafka.protocol.transaction import AddOffsetsToTxnRequest

from streamdedup.errors import BrokerRefused, TopicError
from streamdedup.kafka.connection import REFUSALS, check_connection, connection_options, translated
from streamdedup.kafka.messages import ClusterFacts, TopicFacts
from streamdedup.kafka.protocol import AskForTopics
from streamdedup.kafka.topics import changelog_retention_ms, topic_names, topic_problems
from streamdedup.settings.kafka import KafkaSettings
from streamdedup.settings.sections import Settings

_TIMESTAMP_MARGIN_MS = 60_000
"""Clocks differ: a timestamp this close to the broker's limit is not tried."""
_NO_LIMIT = str(2**63 - 1)


POLL_S = 0.02

_OPERATIONS = {3: "Read", 4: "Write", 8: "Describe", 10: "DescribeConfigs"}
"""Of Kafka's access control, those that a worker needs; by their number."""

_NOT_SAID = -(2**31)
_NOBODY = -1
"""A producer id that no producer has."""


@contextlib.asynccontextmanager
async def admin_client(settings: KafkaSettings) -> AsyncIterator[AIOKafkaAdminClient]:
    """Open an admin client; its errors are translated."""
    admin = AIOKafkaAdminClient(
        bootstrap_servers=list(settings.bootstrap_servers), **connection_options(settings)
    )
    try:
        with translated("cannot ask the brokers for the topics"):
            await admin.start()
            yield admin
    finally:
        await admin.close()


async def inspect(settings: Settings) -> ClusterFacts:
    """Ask for the topics, and check that they can be used.

    Raises:
        TopicError: a topic is missing, or is not what it must be.
    """
    facts = await look_at_topics(settings)
    for problem in topic_problems(settings, facts.topics):
        raise TopicError(problem)
    return facts


async def look_at_topics(settings: Settings) -> ClusterFacts:
    """Ask for the topics; those that are missing are left out of the answer.

    Raises:
        BrokerRefused: we may not ask.
    """
    async with admin_client(settings.kafka) as admin:
        cluster = await _describe(admin, topic_names(settings.topics))
        found = {topic["topic"]: topic for topic in cluster["topics"] if not topic["error_code"]}
        configs = await _configs(admin, list(found))
    return ClusterFacts(
        cluster["cluster_id"],
        {
            name: _facts(found[name], configs[name])
            for name in topic_names(settings.topics)
            if name in found
        },
        {each["node_id"]: _address(each["host"], each["port"]) for each in cluster["brokers"]},
    )


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _facts(topic: dict[str, Any], config: dict[str, str]) -> TopicFacts:
    # Brokers before 3.6 know one limit for both directions, those from 4.0 on only the other two.
    both = config.get("message.timestamp.difference.max.ms", _NO_LIMIT)
    before, after = (
        int(config.get(f"message.timestamp.{direction}.max.ms", both))
        for direction in ("before", "after")
    )
    stamped_by_broker = config.get("message.timestamp.type") == "LogAppendTime"
    partitions = topic["partitions"]
    operations = topic.get("authorized_operations", _NOT_SAID)
    return TopicFacts(
        name=topic["topic"],
        partitions=len(partitions),
        max_message_bytes=int(config["max.message.bytes"]),
        timestamp_before_max_ms=int(_NO_LIMIT) if stamped_by_broker else _narrowed(before),
        timestamp_after_max_ms=int(_NO_LIMIT) if stamped_by_broker else _narrowed(after),
        cleanup_policy=config["cleanup.policy"],
        retention_ms=int(config["retention.ms"]),
        retention_bytes=int(config["retention.bytes"]),
        min_insync_replicas=int(config["min.insync.replicas"]),
        replicas=min(len(each["replicas"]) for each in partitions),
        in_sync=min(len(each["isr"]) if each["leader"] >= 0 else 0 for each in partitions),
        allowed=None if operations == _NOT_SAID else _names_of(operations),
    )


def _names_of(operations: int) -> frozenset[str]:
    return frozenset(name for number, name in _OPERATIONS.items() if operations >> number & 1)


def _narrowed(limit_ms: int) -> int:
    return max(limit_ms - _TIMESTAMP_MARGIN_MS, limit_ms // 2)


async def _describe(admin: AIOKafkaAdminClient, names: Sequence[str]) -> dict[str, Any]:
    """Ask for topics without making them: aiokafka's own question lets brokers create them."""
    answer = await admin._send_request(AskForTopics(names))  # noqa: SLF001
    cluster: dict[str, Any] = answer.to_object()
    for topic in cluster["topics"]:
        error = errors.for_code(topic["error_code"])
        if error in REFUSALS:
            raise BrokerRefused(f"not authorised to describe topic {topic['topic']}")
        if error not in (errors.NoError, errors.UnknownTopicOrPartitionError):
            raise error(topic["topic"])
    return cluster


async def _configs(admin: AIOKafkaAdminClient, names: Sequence[str]) -> dict[str, dict[str, str]]:
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    configs: dict[str, dict[str, str]] = {}
    for response in await admin.describe_configs(resources):
        for code, message, _, name, entries in response.resources:
            error = errors.for_code(code)
            if error in REFUSALS:
                raise BrokerRefused(f"not authorised to read the settings of topic {name}")
            if error is not errors.NoError:
                raise error(message or name)
            configs[name] = {entry[0]: entry[1] for entry in entries}
    return configs


async def check_identity(settings: KafkaSettings) -> None:
    """Ask whether we may use our transactional id and group; no worker is fenced by that.

    The brokers are asked to add the group to a transaction of a producer that nobody is. They look
    at the authorisation first, and refuse it then.

    Raises:
        BrokerRefused: we may not use one of them.
        BrokerUnavailable: the coordinator does not answer.
    """
    name, group = settings.transactional_id, settings.group_id
    async with admin_client(settings) as admin:
        with translated(f"cannot use transactional id {name} and group {group}"):
            async with asyncio.timeout(settings.request_timeout.total_seconds()):
                while (error := await _identity_error(admin, name, group)).retriable:  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
            if error not in (errors.InvalidProducerIdMapping, errors.NoError):
                raise error


async def _identity_error(
    admin: AIOKafkaAdminClient, name: str, group: str
) -> type[errors.KafkaError]:
    """Ask the two coordinators once; in a cluster that never had one they take a moment."""
    try:
        await admin.find_coordinator(group, CoordinationType.GROUP)
        node = await admin.find_coordinator(name, CoordinationType.TRANSACTION)
    except errors.CoordinatorNotAvailableError:
        return errors.CoordinatorNotAvailableError  # type: ignore[no-any-return]
    request = AddOffsetsToTxnRequest(name, _NOBODY, _NOBODY, group)
    answer = await admin._send_request(request, node)  # noqa: SLF001
    error: type[errors.KafkaError] = errors.for_code(answer.error_code)
    # A transaction that is just being ended: the authorisation was looked at before.
    return errors.NoError if error is errors.ConcurrentTransactions else error


async def longest_transaction_ms(settings: KafkaSettings) -> int | None:
    """Ask for the brokers' transaction.max.timeout.ms; None where we may not, as most may not."""
    option = "transaction.max.timeout.ms"
    async with admin_client(settings) as admin:
        cluster = await _describe(admin, [])
        resource = ConfigResource(
            ConfigResourceType.BROKER, str(cluster["brokers"][0]["node_id"]), {option: None}
        )
        (response,) = await admin.describe_configs([resource])
    ((code, _, _, _, entries),) = response.resources
    if errors.for_code(code) in REFUSALS:
        return None
    return next((int(entry[1]) for entry in entries if entry[0] == option), None)


async def create_topics(settings: Settings, partitions: int, replication: int) -> list[str]:
    """Create the topics that are missing; the changelog gets one partition.

    It keeps its records for as long as :func:`streamdedup.topics.changelog_retention_ms` says.

    Returns:
        The names of those that were created.
    """
    await check_connection(settings.kafka)
    async with admin_client(settings.kafka) as admin:
        described = (await _describe(admin, topic_names(settings.topics)))["topics"]
        there = {topic["topic"] for topic in described if not topic["error_code"]}
        new = [
            _new_topic(name, settings, partitions, replication)
            for name in topic_names(settings.topics)
            if name not in there
        ]
        if new:
            response = await admin.create_topics(new)
            for topic, code, message in response.topic_errors:
                error = errors.for_code(code)
                if error not in (errors.NoError, errors.TopicAlreadyExistsError):
                    raise error(f"{topic}: {message}")
    return [topic.name for topic in new]


def _new_topic(name: str, settings: Settings, partitions: int, replication: int) -> NewTopic:
    if name != settings.topics.changelog:
        return NewTopic(name, partitions, replication)
    kept = {
        "cleanup.policy": "delete",
        "retention.ms": str(changelog_retention_ms(settings)),
        "retention.bytes": "-1",
    }
    return NewTopic(name, 1, replication, topic_configs=kept)
