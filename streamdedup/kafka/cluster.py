"""*Async.* Administrative requests: describe topics and brokers, check access, create topics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from aiokafka import errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.client import CoordinationType
from aiokafka.protocol.transaction import AddOffsetsToTxnRequest

from streamdedup.errors import BrokerRefused, TopicError
from streamdedup.kafka.brokers import LEVEL_FEATURE, TIMESTAMP_MARGIN_MS
from streamdedup.kafka.connection import (
    POLL_S,
    REFUSALS,
    check_connection,
    connection_options,
    translated,
)
from streamdedup.kafka.messages import ClusterFacts, TopicFacts
from streamdedup.kafka.protocol import (
    NO_ID,
    NO_OPERATIONS,
    OPERATIONS,
    ApiVersionsRequest,
    MetadataRequest,
    highest_level,
)
from streamdedup.kafka.sizes import roomy_message_bytes
from streamdedup.kafka.topics import (
    SKETCHES_RETENTION,
    VERDICTS_RETENTION,
    changelog_retention_ms,
    output_names,
    topic_names,
    topic_problems,
)
from streamdedup.settings.kafka import KafkaSettings
from streamdedup.settings.sections import Settings
from streamdedup.settings.units import milliseconds

_NO_LIMIT_MS = 2**63 - 1
_UNLISTED = {
    "max.message.bytes": "1048588",
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "min.insync.replicas": "1",
}
"""Values of settings that brokers do not list; some only speak Kafka's protocol."""
_VISIBLE_S = 10.0
"""How long to wait for new topics to be visible; a worker looks again in any case."""
_UNUSED_PRODUCER = -1
"""A producer id, and an epoch, that no producer has."""


@contextlib.asynccontextmanager
async def admin_client(settings: KafkaSettings) -> AsyncIterator[AIOKafkaAdminClient]:
    """Open an admin client, and translate its errors."""
    admin = AIOKafkaAdminClient(
        bootstrap_servers=list(settings.bootstrap_servers), **connection_options(settings)
    )
    try:
        with translated("a request to the brokers failed"):
            await admin.start()
            yield admin
    finally:
        await admin.close()


async def inspect(settings: Settings) -> ClusterFacts:
    """Describe the topics, and check that a worker can use them.

    Raises:
        TopicError: a topic is missing, or its settings do not fit.
    """
    facts = await look_at_topics(settings)
    for problem in topic_problems(settings, facts.topics):
        raise TopicError(problem)
    return facts


async def look_at_topics(settings: Settings) -> ClusterFacts:
    """Describe the topics; the answer leaves out missing ones.

    Raises:
        BrokerRefused: this client may not describe a topic.
    """
    names = topic_names(settings)
    async with admin_client(settings.kafka) as admin:
        cluster = await _describe(admin, names)
        existing = {topic["topic"]: topic for topic in cluster["topics"] if not topic["error_code"]}
        configs = await _configs(admin, list(existing))
        versions = await admin._send_request(ApiVersionsRequest())
    return ClusterFacts(
        cluster["cluster_id"],
        {name: _topic_facts(existing[name], configs[name]) for name in names if name in existing},
        {
            each["node_id"]: f"[{each['host']}]:{each['port']}"
            if ":" in each["host"]
            else f"{each['host']}:{each['port']}"
            for each in cluster["brokers"]
        },
        highest_level(versions, LEVEL_FEATURE),
    )


def _topic_facts(topic: dict[str, Any], listed: dict[str, str]) -> TopicFacts:
    config = _UNLISTED | listed
    partitions = topic["partitions"]
    operations = topic.get("authorized_operations", NO_OPERATIONS)
    topic_id = topic.get("topic_id", NO_ID)
    return TopicFacts(
        name=topic["topic"],
        partitions=len(partitions),
        max_message_bytes=int(config["max.message.bytes"]),
        timestamp_before_max_ms=_timestamp_limit_ms(listed, "before"),
        timestamp_after_max_ms=_timestamp_limit_ms(listed, "after"),
        compression=config.get("compression.type", "producer"),
        cleanup_policy=config["cleanup.policy"],
        retention_ms=int(config["retention.ms"]),
        retention_bytes=int(config["retention.bytes"]),
        min_insync_replicas=int(config["min.insync.replicas"]),
        replicas=min(len(partition["replicas"]) for partition in partitions),
        in_sync=min(len(each["isr"]) if each["leader"] >= 0 else 0 for each in partitions),
        allowed=(
            None
            if operations == NO_OPERATIONS
            else frozenset(name for bit, name in OPERATIONS.items() if operations >> bit & 1)
        ),
        id=b"" if topic_id == NO_ID else topic_id.bytes,
        unlisted=frozenset(_UNLISTED.keys() - listed.keys()),
    )


def _timestamp_limit_ms(config: dict[str, str], direction: str) -> int:
    """Return how far before or after the clock a record's timestamp may be.

    Brokers before 3.6 have one limit for both directions; from 4.0 on they have only the other two.
    """
    if config.get("message.timestamp.type") == "LogAppendTime":
        return _NO_LIMIT_MS
    both = config.get("message.timestamp.difference.max.ms", str(_NO_LIMIT_MS))
    limit_ms = int(config.get(f"message.timestamp.{direction}.max.ms", both))
    return max(limit_ms - TIMESTAMP_MARGIN_MS, limit_ms // 2)


def _refusal(operation: str, topic: str) -> BrokerRefused:
    return BrokerRefused(
        f"not authorised: {operation} on topic {topic}; add this ACL (docs/operations.md lists all)"
    )


async def _describe(admin: AIOKafkaAdminClient, names: Sequence[str]) -> dict[str, Any]:
    """Describe topics without creating them."""
    answer = await admin._send_request(MetadataRequest(names))
    cluster: dict[str, Any] = answer.to_object()
    for topic in cluster["topics"]:
        error = errors.for_code(topic["error_code"])
        if error in REFUSALS:
            raise _refusal("Describe", topic["topic"])
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
                raise _refusal("DescribeConfigs", name)
            if error is not errors.NoError:
                raise error(message or name)
            configs[name] = {entry[0]: entry[1] for entry in entries if entry[1] is not None}
    return configs


async def check_identity(settings: Settings, names: Iterable[str]) -> None:
    """Check that this client may use transactional ids and its groups, without fencing a worker.

    The request adds the group to a transaction of a producer that does not exist. The brokers check
    the authorisation before they look for the producer.

    Raises:
        BrokerRefused: the client may not use one of them.
        BrokerUnavailable: the coordinator does not answer.
    """
    group = settings.kafka.group_id
    others = [settings.topics.election] if settings.standby.enabled else []
    async with admin_client(settings.kafka) as admin:
        for name in names:
            with translated(f"cannot use transactional id {name} and group {group}"):
                async with asyncio.timeout(settings.kafka.request_timeout.total_seconds()):
                    error = await _identity_error(admin, name, group, others)
                    while error.retriable:
                        await asyncio.sleep(POLL_S)
                        error = await _identity_error(admin, name, group, others)
                if error not in (errors.InvalidProducerIdMapping, errors.NoError):
                    raise error


async def _identity_error(
    admin: AIOKafkaAdminClient, name: str, group: str, others: Sequence[str]
) -> type[errors.KafkaError]:
    """Ask the coordinators of the groups and of the transactional id once.

    A cluster creates its coordinators on the first request, which takes a moment.
    """
    try:
        for one in (group, *others):
            await admin.find_coordinator(one, CoordinationType.GROUP)
        node = await admin.find_coordinator(name, CoordinationType.TRANSACTION)
    except errors.CoordinatorNotAvailableError as error:
        return type(error)
    request = AddOffsetsToTxnRequest(name, _UNUSED_PRODUCER, _UNUSED_PRODUCER, group)
    answer = await admin._send_request(request, node)
    error_type: type[errors.KafkaError] = errors.for_code(answer.error_code)
    if error_type is errors.ConcurrentTransactions:
        # A transaction is just being ended; the authorisation was checked before that.
        error_type = errors.NoError
    return error_type


async def longest_transaction_ms(settings: KafkaSettings) -> int | None:
    """Return the brokers' transaction.max.timeout.ms, or None if this client may not read it."""
    async with admin_client(settings) as admin:
        return await _broker_option(admin, "transaction.max.timeout.ms")


async def _broker_option(admin: AIOKafkaAdminClient, option: str) -> int | None:
    """Return a number of the brokers' configuration, or None if it cannot be read."""
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
    """Create the missing topics; return their names.

    The changelog and the topic of the sketches get one partition, that of the verdicts at least
    those of the source, and each other topic so many ``partitions``. Each partition gets
    ``replication`` replicas. The outputs get room for larger messages than the source. A source
    topic that does not exist gets the brokers' default size.
    """

    def kept(retention_ms: int) -> dict[str, str]:
        return {"cleanup.policy": "delete", "retention.ms": str(retention_ms)}

    await check_connection(settings.kafka)
    topics, names = settings.topics, topic_names(settings)
    async with admin_client(settings.kafka) as admin:
        described = (await _describe(admin, names))["topics"]
        existing = {
            topic["topic"]: len(topic["partitions"])
            for topic in described
            if not topic["error_code"]
        }
        source_bytes: int | None
        if topics.source in existing:
            config = _UNLISTED | (await _configs(admin, [topics.source]))[topics.source]
            source_bytes = int(config["max.message.bytes"])
        else:
            source_bytes = await _broker_option(admin, "message.max.bytes")
        output = {}
        if source_bytes is not None:
            output["max.message.bytes"] = str(roomy_message_bytes(settings, source_bytes))
        of_changelog = kept(changelog_retention_ms(settings)) | {"retention.bytes": "-1"}
        of_verdicts = output | kept(milliseconds(VERDICTS_RETENTION))
        planned: dict[str, tuple[int, dict[str, str]]] = {
            topics.source: (partitions, {}),
            **dict.fromkeys(output_names(topics), (partitions, output)),
            topics.changelog: (1, of_changelog),
            topics.sketches: (1, kept(milliseconds(SKETCHES_RETENTION))),
            topics.verdicts: (max(partitions, existing.get(topics.source, 0)), of_verdicts),
        }
        new = [
            NewTopic(name, planned[name][0], replication, topic_configs=planned[name][1])
            for name in names
            if name not in existing
        ]
        if new:
            response = await admin.create_topics(new)
            for topic, code, message in response.topic_errors:
                error = errors.for_code(code)
                if error not in (errors.NoError, errors.TopicAlreadyExistsError):
                    raise error(f"{topic}: {message}")
            await _wait_until_visible(admin, names)
    return [topic.name for topic in new]


async def _wait_until_visible(admin: AIOKafkaAdminClient, names: Sequence[str]) -> None:
    """Wait for a while until topics are described: brokers learn of new ones with a delay."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_VISIBLE_S):
            while True:
                with contextlib.suppress(errors.LeaderNotAvailableError):
                    described = await _describe(admin, names)
                    if not any(topic["error_code"] for topic in described["topics"]):
                        return
                await asyncio.sleep(POLL_S)
