"""*Async.* Kafka, and the only importer of aiokafka.

Rule 1: the producer starts before committed offsets and the changelog are read: its start fences a
predecessor and settles the transaction that one may have left open.
Rule 2: after any error or unknown outcome the whole session is closed and a new one begun; the
start is the only recovery there is.
Rule 3: aiokafka's exceptions end here; what leaves is named by who must act.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, NamedTuple

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.conn import create_conn
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest_v5
from aiokafka.protocol.transaction import AddOffsetsToTxnRequest, EndTxnRequest
from aiokafka.protocol.types import Array, Boolean, Int16, Int32, Schema, String

from streamdedup.errors import (
    BrokerRefused,
    BrokerUnavailable,
    Fenced,
    IndexDamaged,
    SettingsError,
    StreamdedupError,
    TopicError,
)
from streamdedup.model import (
    ClusterFacts,
    Outgoing,
    Position,
    Record,
    TopicFacts,
    Transaction,
)
from streamdedup.settings.secrets import read_secret
from streamdedup.settings.sections import KafkaSettings, SecuritySettings, Settings
from streamdedup.topics import changelog_retention_ms, topic_names, topic_problems

log = structlog.get_logger(__name__)

_REFUSALS = (
    errors.AuthenticationFailedError,
    errors.SaslAuthenticationFailed,
    errors.UnsupportedSaslMechanismError,
    errors.IllegalSaslStateError,
    errors.TopicAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.ClusterAuthorizationFailedError,
    errors.TransactionalIdAuthorizationFailed,
)
_MOST_BATCH_BYTES = 512 * 1024
_STOP_SECONDS = 2.0
_TIMESTAMP_MARGIN_MS = 60_000
"""Clocks differ: a timestamp this close to the broker's limit is not tried."""
_NO_LIMIT = str(2**63 - 1)
_PRODUCER_FENCED = 90
"""An error code that aiokafka does not know."""
_POLL_S = 0.02
_QUESTIONS = 100
_OPERATIONS = {3: "Read", 4: "Write", 8: "Describe", 10: "DescribeConfigs"}
"""Of Kafka's access control, those that a worker needs; by their number."""
_RETRIES, _RETRY_WINDOW_S = 3, 2.0
_NOT_SAID = -(2**31)
_NOBODY = -1
"""A producer id that no producer has."""


class RetriedWrites(logging.Filter):
    """Holds back the client's warning of a write that is tried again, until it lasts.

    A broker asks the transaction's coordinator before it takes a transaction's first write to a
    partition (KIP-890). Where it cannot tell at once it answers NOT_ENOUGH_REPLICAS, so that older
    clients try again (``ReplicaManager`` says so); a tenth of a second later the write is taken.
    Where replicas are lacking indeed the answer stays the same, and is told from the fourth on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._refused: dict[Any, list[float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide whether a record is written."""
        args = record.args
        if not isinstance(args, tuple) or args[-1:] != (errors.NotEnoughReplicasError,):
            return True
        now, partition = self._clock(), args[0]
        before = self._refused.get(partition, [])
        recent = [*(at for at in before if now - at < _RETRY_WINDOW_S), now][-_RETRIES - 1 :]
        self._refused[partition] = recent
        return len(recent) > _RETRIES


_RETRIED_WRITES = RetriedWrites()


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Put aiokafka's errors in our words.

    Raises:
        Fenced: another worker has our transactional id.
        BrokerRefused: login, certificate or authorisation.
        BrokerUnavailable: anything that may pass.
    """
    try:
        yield
    except (errors.ProducerFenced, errors.InvalidProducerEpoch) as error:
        raise Fenced(
            f"{what}: another worker with the same kafka.group_id and kafka.ordinal has taken "
            "over, or this one stood still for longer than kafka.transaction_timeout"
        ) from error
    except _REFUSALS as error:
        raise BrokerRefused(f"{what}: the broker refuses: {_say(error)}") from error
    except errors.InvalidTransactionTimeout as error:
        raise SettingsError(
            "kafka.transaction_timeout is above the brokers' transaction.max.timeout.ms"
        ) from error
    except ssl.SSLError as error:
        raise BrokerRefused(f"{what}: TLS failed: {_say(error)}") from error
    except (errors.KafkaError, OSError, TimeoutError) as error:
        raise BrokerUnavailable(f"{what}: {_say(error)}") from error


def forget_abandoned(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle what nobody caught: aiokafka's futures that nobody asks hold what was raised before.

    Args:
        loop: the event loop whose exception handler this is.
        context: as :meth:`asyncio.loop.call_exception_handler` has it.
    """
    if not isinstance(context.get("exception"), errors.KafkaError):
        loop.default_exception_handler(context)


def _say(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def connection_options(settings: KafkaSettings) -> dict[str, Any]:
    """Return the options that every aiokafka client takes.

    Raises:
        SettingsError: a certificate or secret cannot be read.
    """
    security = settings.security
    sasl = security.protocol.startswith("SASL")
    return {
        "client_id": settings.transactional_id,
        "request_timeout_ms": _milliseconds(settings.request_timeout),
        "security_protocol": security.protocol,
        "ssl_context": _ssl_context(security) if security.protocol.endswith("SSL") else None,
        "sasl_mechanism": security.sasl_mechanism if sasl else "PLAIN",
        "sasl_plain_username": security.sasl_username if sasl else None,
        "sasl_plain_password": security.password() if sasl else None,
    }


def _milliseconds(duration: Any) -> int:
    return int(duration.total_seconds() * 1000)


def _ssl_context(security: SecuritySettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=security.ca_file)
        if security.certificate_file is not None and security.key_file is not None:
            password_file = security.key_password_file
            password = read_secret(password_file) if password_file else None
            context.load_cert_chain(security.certificate_file, security.key_file, password)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"kafka.security: cannot use the certificates: {error}") from error
    return context


async def check_connection(settings: KafkaSettings) -> None:
    """Connect to one bootstrap server, to learn why where it fails.

    aiokafka's clients log the cause and raise a common error for all of them.

    Raises:
        BrokerRefused: login or certificate; one server that says so decides.
        BrokerUnavailable: no server answers.
    """
    unavailable: BrokerUnavailable | None = None
    for server in settings.bootstrap_servers:
        try:
            await _connect(server, settings)
        except BrokerUnavailable as error:
            unavailable = error
        else:
            return
    raise unavailable or SettingsError("kafka.bootstrap_servers is empty")


async def try_servers(
    settings: KafkaSettings, servers: Sequence[str]
) -> dict[str, StreamdedupError]:
    """Connect to each of some servers, ``host:port``; return the errors of those that fail."""
    failed: dict[str, StreamdedupError] = {}
    for server in servers:
        try:
            await _connect(server, settings)
        except StreamdedupError as error:
            failed[server] = error
    return failed


async def _connect(server: str, settings: KafkaSettings) -> None:
    host, _, port = server.rpartition(":")
    options = connection_options(settings)
    with translated(f"cannot connect to {server}"):
        connection = await create_conn(host.strip("[]"), int(port), **options)
    connection.close()


@contextlib.asynccontextmanager
async def _admin(settings: KafkaSettings) -> AsyncIterator[AIOKafkaAdminClient]:
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
    async with _admin(settings.kafka) as admin:
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
    answer = await admin._send_request(_AskForTopics(names))  # noqa: SLF001
    cluster: dict[str, Any] = answer.to_object()
    for topic in cluster["topics"]:
        error = errors.for_code(topic["error_code"])
        if error in _REFUSALS:
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
            if error in _REFUSALS:
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
    async with _admin(settings) as admin:
        with translated(f"cannot use transactional id {name} and group {group}"):
            async with asyncio.timeout(settings.request_timeout.total_seconds()):
                while (error := await _identity_error(admin, name, group)).retriable:  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_S)
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
    async with _admin(settings) as admin:
        cluster = await _describe(admin, [])
        resource = ConfigResource(
            ConfigResourceType.BROKER, str(cluster["brokers"][0]["node_id"]), {option: None}
        )
        (response,) = await admin.describe_configs([resource])
    ((code, _, _, _, entries),) = response.resources
    if errors.for_code(code) in _REFUSALS:
        return None
    return next((int(entry[1]) for entry in entries if entry[0] == option), None)


async def create_topics(settings: Settings, partitions: int, replication: int) -> list[str]:
    """Create the topics that are missing; the changelog gets one partition.

    It keeps its records for as long as :func:`streamdedup.topics.changelog_retention_ms` says.

    Returns:
        The names of those that were created.
    """
    await check_connection(settings.kafka)
    async with _admin(settings.kafka) as admin:
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


class _Topics_v8(Response):  # type: ignore[misc] # noqa: N801 - as aiokafka names versions
    API_KEY = 3
    API_VERSION = 8
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            Array(
                ("node_id", Int32),
                ("host", String("utf-8")),
                ("port", Int32),
                ("rack", String("utf-8")),
            ),
        ),
        ("cluster_id", String("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            Array(
                ("error_code", Int16),
                ("topic", String("utf-8")),
                ("is_internal", Boolean),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", Array(Int32)),
                        ("isr", Array(Int32)),
                        ("offline_replicas", Array(Int32)),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
        ("cluster_authorized_operations", Int32),
    )


class _AskForTopics_v8(RequestStruct):  # type: ignore[misc] # noqa: N801
    API_KEY = 3
    API_VERSION = 8
    RESPONSE_TYPE = _Topics_v8
    SCHEMA = Schema(
        ("topics", Array(String("utf-8"))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
    )


class _AskForTopics(Request[MetadataRequest_v5 | _AskForTopics_v8]):  # type: ignore[misc]
    """Kafka's Metadata request; from version 8 on its answer says what we may do with a topic."""

    API_KEY = 3

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)

    def build(self, request_struct_class: type[Any]) -> Any:
        if request_struct_class is _AskForTopics_v8:
            return _AskForTopics_v8(self._names, False, False, True)
        return request_struct_class(self._names, False)


class _SentBatch(NamedTuple):
    """A batch on its way: what the broker will say of it, and how many messages it holds."""

    delivered: asyncio.Future[Any]
    messages: int


class TransactionalWriter:
    """The transactional producer of one session."""

    def __init__(self, settings: Settings, facts: ClusterFacts) -> None:
        kafka = settings.kafka
        self._settings = settings
        self._group_id = kafka.group_id
        self._changelog = settings.topics.changelog
        self._outputs = topic_names(settings.topics)[1:]
        self._partitions = {name: topic.partitions for name, topic in facts.topics.items()}
        self._timeout_s = kafka.transaction_timeout.total_seconds()
        self._partitioner = DefaultPartitioner()
        smallest = min(topic.max_message_bytes for topic in facts.topics.values())
        logging.getLogger("aiokafka.producer.sender").addFilter(_RETRIED_WRITES)
        self._producer = AIOKafkaProducer(
            bootstrap_servers=list(kafka.bootstrap_servers),
            transactional_id=kafka.transactional_id,
            transaction_timeout_ms=_milliseconds(kafka.transaction_timeout),
            acks="all",
            max_batch_size=min(_MOST_BATCH_BYTES, smallest),
            compression_type=None if kafka.compression == "none" else kafka.compression,
            **connection_options(kafka),
        )

    async def start(self, applied: int) -> None:
        """Connect, fence a predecessor, and settle the transaction it may have left open.

        Args:
            applied: the changelog offset that the index stands for.
        """
        with translated("cannot start the transactional producer"):
            async with asyncio.timeout(self._timeout_s):
                await self._producer.start()
            await self._mark_every_partition(applied)

    async def _mark_every_partition(self, applied: int) -> None:
        """End once more, on every partition, the transaction that a predecessor left open.

        The broker ends it when the producer starts. But brokers of Kafka 4.3 write no mark into a
        partition that has no leader at that moment, which is every partition of a broker that has
        just been killed; what was written there would become visible with our next commit, for a
        second time. An empty transaction of ours puts a mark behind it. It is an abort, since of a
        transaction without any mark no offset was taken over, so that its records are judged anew;
        except where the index has an entry that readers do not see: then the commit was confirmed.
        """
        every = [
            TopicPartition(name, number)
            for name in self._outputs
            for number in range(self._partitions[name])
        ]
        changelog = TopicPartition(self._changelog, 0)
        # To be told its end is to know that it has a leader.
        visible = (await _ends(self._settings.kafka, every, "read_committed"))[changelog]
        confirmed = False
        if visible < applied:
            written = await _ends(self._settings.kafka, [changelog], "read_uncommitted")
            confirmed = written[changelog] == applied
        async with self._transaction():
            await self._join(every)
            if confirmed:
                await self._producer.commit_transaction()
            else:
                await self._producer.abort_transaction()

    async def _join(self, partitions: Sequence[TopicPartition]) -> None:
        """Add partitions and the group's offsets to the transaction; aiokafka does so on writes."""
        manager, sender = self._producer._txn_manager, self._producer._sender  # noqa: SLF001
        for at in partitions:
            manager.maybe_add_partition_to_txn(at)
        while manager.partitions_to_add() and manager.is_in_transaction():  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        while manager.is_in_transaction():
            if await sender._do_add_offsets_to_txn(self._group_id):  # noqa: SLF001
                return
        await manager.wait_for_transaction_end()  # it has failed, and this raises the cause

    @contextlib.asynccontextmanager
    async def _transaction(self) -> AsyncIterator[None]:
        """Begin a transaction, which must be ended inside, in time; raise what made it fail."""
        async with asyncio.timeout(self._timeout_s):
            await self._producer.begin_transaction()
            try:
                yield
            except (errors.KafkaError, errors.IllegalOperation, AssertionError) as error:
                # Some only say that there is no transaction any more: aiokafka has ended it.
                ended = self._producer._txn_manager.wait_for_transaction_end()  # noqa: SLF001
                failed = ended.done() and not ended.cancelled()
                cause = (ended.exception() if failed else None) or error
                if isinstance(cause.__cause__, errors.UnknownError):
                    await self._ask_whether_fenced()
                raise cause from error

    async def _ask_whether_fenced(self) -> None:
        """Find out whether an answer that says nothing came from a takeover.

        A broker that is asked to end a transaction while another producer takes it over answers
        with an unknown error. Asked again it either tells, or aborts what is given up anyway.

        Raises:
            ProducerFenced: another producer has taken over.
        """
        sender = self._producer._sender  # noqa: SLF001
        manager = sender._txn_manager  # noqa: SLF001
        request = EndTxnRequest(
            transactional_id=manager.transactional_id,
            producer_id=manager.producer_id,
            producer_epoch=manager.producer_epoch,
            transaction_result=False,
        )
        for _ in range(_QUESTIONS):
            await asyncio.sleep(_POLL_S)
            node = await sender._find_coordinator(  # noqa: SLF001
                CoordinationType.TRANSACTION, manager.transactional_id
            )
            answer = await sender.client.send(node, request, group=ConnectionGroup.COORDINATION)
            error = errors.for_code(answer.error_code)
            if error is errors.InvalidProducerEpoch or answer.error_code == _PRODUCER_FENCED:
                raise errors.ProducerFenced
            if error not in (errors.UnknownError, errors.ConcurrentTransactions):
                return

    async def commit(self, transaction: Transaction) -> int:
        """Write one transaction: messages, changelog entries and consumed offsets.

        Returns:
            The changelog offset after the last entry, 0 without entries.

        Raises:
            Fenced, BrokerRefused: as said.
            BrokerUnavailable: the transaction was not committed, or its outcome is unknown; only a
                new session can tell.
        """
        with translated("the transaction failed"):
            async with self._transaction():
                sent = await self._send(transaction.messages)
                entries = [_entry(data) for data in transaction.changelog]
                logged = await self._send_to(self._changelog, 0, entries)
                offsets = {TopicPartition(*at): to for at, to in transaction.offsets.items()}
                if offsets:
                    await self._producer.send_offsets_to_transaction(offsets, self._group_id)
                await asyncio.gather(*(batch.delivered for batch in sent + logged))
                await self._producer.commit_transaction()
        if not logged:
            return 0
        last = logged[-1].delivered.result()
        if last.offset < 0:
            raise BrokerUnavailable("the broker did not say where the changelog entry stands")
        return int(last.offset + logged[-1].messages)

    async def _send(self, messages: Sequence[Outgoing]) -> list[_SentBatch]:
        by_partition: dict[tuple[str, int], list[Outgoing]] = {}
        for message in messages:
            at = (message.topic, self._partition(message))
            by_partition.setdefault(at, []).append(message)
        sent: list[_SentBatch] = []
        for (topic, partition), group in by_partition.items():
            sent += await self._send_to(topic, partition, group)
        return sent

    async def _send_to(
        self, topic: str, partition: int, group: Sequence[Outgoing]
    ) -> list[_SentBatch]:
        """Send a group in as many batches as it takes."""
        sent = []
        batch = self._producer.create_batch()
        for message in group:
            if not _append(batch, message):
                sent.append(await self._submit(batch, topic, partition))
                batch = self._producer.create_batch()
                _append(batch, message)
        if batch.record_count():
            sent.append(await self._submit(batch, topic, partition))
        return sent

    async def _submit(self, batch: Any, topic: str, partition: int) -> _SentBatch:
        count = batch.record_count()
        delivered = await self._producer.send_batch(batch, topic, partition=partition)
        # Where one batch fails, the others' errors are looked at by nobody else.
        delivered.add_done_callback(lambda future: future.cancelled() or future.exception())
        return _SentBatch(delivered, count)

    def _partition(self, message: Outgoing) -> int:
        """Keep what has one key together, and what has none with its source partition."""
        count = self._partitions[message.topic]
        if message.key is None:
            return message.source_partition % count
        every = list(range(count))
        return int(self._partitioner(message.key, every, every))

    async def close(self) -> None:
        """Stop the producer; a transaction still open is aborted by the next start."""
        await _stop(self._producer.stop())
        sender = self._producer._sender  # noqa: SLF001 - stop() leaves it running when it times out
        await _stop(sender.close())


def _entry(data: bytes) -> Outgoing:
    return Outgoing("", None, data, (), None)


def _append(batch: Any, message: Outgoing) -> bool:
    appended = batch.append(
        timestamp=message.timestamp_ms,
        key=message.key,
        value=message.value,
        headers=list(message.headers),
    )
    return appended is not None


async def _stop(stopping: Coroutine[Any, Any, None]) -> None:
    """Wait a while for a client to stop; one that cannot is left behind.

    It stops in a task of its own: a consumer without a broker may end with a cancellation that was
    meant for one of its own tasks, and that must not look like ours.
    """
    task = asyncio.create_task(stopping)
    await asyncio.wait({task}, timeout=_STOP_SECONDS)
    if not task.done():
        task.cancel()
    elif not task.cancelled() and (error := task.exception()) is not None:
        log.warning("a Kafka client did not stop in order", error=_say(error))


def _consumer(
    settings: KafkaSettings, isolation_level: str = "read_committed", **options: Any
) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        bootstrap_servers=list(settings.bootstrap_servers),
        enable_auto_commit=False,
        isolation_level=isolation_level,
        auto_offset_reset="none",
        **connection_options(settings),
        **options,
    )


async def _ends(
    settings: KafkaSettings, partitions: Sequence[TopicPartition], isolation_level: str
) -> dict[TopicPartition, int]:
    """Ask each partition's leader where the partition ends for readers of this isolation level."""
    consumer = _consumer(settings, isolation_level)
    try:
        await consumer.start()
        ends: dict[TopicPartition, int] = await consumer.end_offsets(list(partitions))
        return ends
    finally:
        await _stop(consumer.stop())


class Source:
    """The source topic: every partition, assigned by hand, read in offset order."""

    def __init__(self, settings: Settings, partitions: int) -> None:
        self._topic = settings.topics.source
        self._start = settings.kafka.start
        self._most = settings.batch.documents
        self._linger_ms = _milliseconds(settings.batch.linger)
        self._patience_s = settings.kafka.request_timeout.total_seconds()
        self._next_offsets: dict[int, int] = {}
        self._heard_at = time.monotonic()
        self._known = partitions
        self._consumer = _consumer(
            settings.kafka,
            group_id=settings.kafka.group_id,
            metadata_max_age_ms=_milliseconds(settings.kafka.metadata_refresh),
        )

    async def start(self, judged: Callable[[str, int], int]) -> dict[tuple[str, int], int]:
        """Take every partition at its committed offset.

        Brokers forget a group's offsets after some days without a commit. A partition without one
        goes on where the index stands, since a second verdict on a record would be one too many.

        Args:
            judged: gives the offset up to which a partition was judged, 0 where it never was.

        Returns:
            First offsets of partitions that had none committed; they must be committed before
            anything else, so that a restart begins at the same place.

        Raises:
            TopicError: a committed offset is not in the topic.
        """
        with translated("cannot start the consumer"):
            await self._consumer.start()
            partitions = [TopicPartition(self._topic, number) for number in range(self._known)]
            self._consumer.assign(partitions)
            committed = {at: await self._consumer.committed(at) for at in partitions}
            first = await self._consumer.beginning_offsets(partitions)
            end = await self._consumer.end_offsets(partitions)
        known = {
            at: judged(*at) or None if offset is None else offset
            for at, offset in committed.items()
        }
        fresh = all(offset is None for offset in known.values())
        begin = end if fresh and self._start == "latest" else first
        for at in partitions:
            offset = known[at]
            if offset is None:
                offset = begin[at]
            self._check(at, offset, first[at], end[at])
            self._next_offsets[at.partition] = offset
            self._consumer.seek(at, offset)
        return {
            (self._topic, at.partition): self._next_offsets[at.partition]
            for at in partitions
            if committed[at] is None
        }

    def _check(self, at: TopicPartition, offset: int, first: int, end: int) -> None:
        where = f"{at.topic} partition {at.partition}"
        remedy = "set the group's offsets to where it shall go on, with Kafka's own tools"
        if offset < first:
            raise TopicError(
                f"{where}: the committed offset is {offset}, the topic begins at {first}: "
                f"{first - offset} records were deleted before they were judged; {remedy}"
            )
        if offset > end:
            raise TopicError(
                f"{where}: the committed offset is {offset}, the topic ends at {end}: it was "
                "deleted and made anew; use another kafka.group_id, changelog topic and index "
                "directory, since positions are what records are known by"
            )

    async def poll(self) -> list[Record]:
        """Return the next records, partition by partition, or none after a while."""
        with translated("cannot read the source topic"):
            try:
                fetched = await self._consumer.getmany(
                    timeout_ms=self._linger_ms, max_records=self._most
                )
            except errors.OffsetOutOfRangeError as error:
                raise BrokerUnavailable("the position is no longer in the source topic") from error
            except UnicodeDecodeError as error:
                raise TopicError(
                    "a record of the source topic has a header whose name is no UTF-8, which the "
                    f"client cannot read; it lies at or after {self._next_offsets} (partition: "
                    "offset); set the group's offset behind it, with Kafka's own tools"
                ) from error
        await self._advance(any(fetched.values()))
        self._take_new_partitions()
        return [
            _record(message)
            for at in sorted(fetched, key=lambda each: each.partition)
            for message in fetched[at]
        ]

    async def _advance(self, heard: bool) -> None:
        """Note how far the consumer is; one that hears nothing for long asks whether all is well.

        A position passes what no reader gets: the marks of transactions, what they aborted, and
        what compaction took. It is asked for at once, since every partition has one.
        """
        now = time.monotonic()
        with translated("the source topic cannot be reached"):
            for at in self._consumer.assignment():
                self._next_offsets[at.partition] = await self._consumer.position(at)
            if not heard and now - self._heard_at > self._patience_s:
                # The consumer itself would wait for a lost broker without a word.
                async with asyncio.timeout(self._patience_s):
                    await self._consumer.end_offsets(list(self._consumer.assignment()))
                heard = True
        if heard:
            self._heard_at = time.monotonic()

    def _take_new_partitions(self) -> None:
        partitions = self._consumer.partitions_for_topic(self._topic) or ()
        if len(partitions) <= self._known:
            return
        # A partition made while we run is read from its beginning, whatever kafka.start says.
        for number in range(self._known, len(partitions)):
            self._next_offsets[number] = 0
        self._known = len(partitions)
        assignment = [TopicPartition(self._topic, number) for number in range(self._known)]
        self._consumer.assign(assignment)
        for at in assignment:
            self._consumer.seek(at, self._next_offsets[at.partition])

    @property
    def partitions(self) -> int:
        """How many partitions are read."""
        return self._known

    @property
    def positions(self) -> dict[int, int]:
        """The offset of each partition that is read next."""
        return dict(self._next_offsets)

    def lag(self) -> dict[int, int]:
        """Return how many records of each partition are not read yet, as far as is known."""
        behind = {}
        for partition, offset in self._next_offsets.items():
            end = self._consumer.highwater(TopicPartition(self._topic, partition))
            if end is not None:
                behind[partition] = max(0, end - offset)
        return behind

    async def close(self) -> None:
        """Stop the consumer."""
        await _stop(self._consumer.stop())


def _record(message: Any) -> Record:
    return Record(
        position=Position(message.topic, message.partition, message.offset),
        value=message.value,
        key=message.key,
        headers=tuple(message.headers),
        timestamp_ms=message.timestamp,
    )


class ChangelogReader:
    """Reads the changelog topic once, from an offset to its end."""

    def __init__(self, settings: Settings) -> None:
        self._at = TopicPartition(settings.topics.changelog, 0)
        self._consumer = _consumer(settings.kafka)
        self.first = 0
        self.end = 0

    async def start(self) -> None:
        """Learn where the changelog begins and ends."""
        with translated("cannot read the changelog"):
            await self._consumer.start()
            self._consumer.assign([self._at])
            self.first = (await self._consumer.beginning_offsets([self._at]))[self._at]
            self.end = (await self._consumer.end_offsets([self._at]))[self._at]

    async def entries(self, offset: int) -> AsyncIterator[tuple[int, bytes]]:
        """Yield the entries from an offset on, each with its own offset.

        Raises:
            TopicError: the offset is not in the topic.
            IndexDamaged: an entry has no content.
        """
        self.check(offset)
        self._consumer.seek(self._at, offset)
        while True:
            with translated("cannot read the changelog"):
                if await self._consumer.position(self._at) >= self.end:
                    return
                fetched = await self._consumer.getmany(timeout_ms=200, max_records=64)
            for message in fetched.get(self._at, ()):
                if message.value is None:
                    raise IndexDamaged(
                        f"offset {message.offset} of the changelog holds no entry; another "
                        "program writes to this topic"
                    )
                yield message.offset, message.value

    def check(self, offset: int) -> None:
        """Check that an index that stands at an offset can go on from there.

        Raises:
            TopicError: the offset is not in the topic.
        """
        topic = self._at.topic
        if offset > self.end:
            raise TopicError(
                f"the index stands at offset {offset} of {topic}, which ends at {self.end}: the "
                "topic was deleted and made anew; remove the index directory, or restore the topic"
            )
        if offset < self.first:
            raise TopicError(
                f"the index stands at offset {offset} of {topic}, which begins at {self.first}: "
                "entries between were deleted; remove the index directory to rebuild it from "
                "what is left"
            )

    async def close(self) -> None:
        """Stop the consumer."""
        await _stop(self._consumer.stop())
