"""*Async.* The transactional producer: one Kafka transaction per batch.

Rule 1: a session starts the producer before it reads committed offsets and the changelog. The start
fences a predecessor and ends the transaction that it may have left open.
Rule 2: after an error or an unknown outcome the session is closed and a new one is started. There
is no other recovery.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import structlog
from aiokafka import TopicPartition, errors
from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.producer import sender
from aiokafka.protocol.transaction import EndTxnRequest

from streamdedup.errors import BrokerUnavailable, ProducerForgotten, TopicError
from streamdedup.failpoints import reach
from streamdedup.kafka.append import new_producer
from streamdedup.kafka.brokers import clock_warning, least_difference_ms
from streamdedup.kafka.built import BatchBuilding, BuiltBatch
from streamdedup.kafka.connection import POLL_S, new_consumer, stop, translated
from streamdedup.kafka.messages import ClusterFacts, Messages, Outgoing, Transaction
from streamdedup.kafka.protocol import DescribeTransactionsRequest
from streamdedup.kafka.topics import NEW_CHANGELOG, output_names
from streamdedup.settings.kafka import KafkaSettings
from streamdedup.settings.sections import Settings
from streamdedup.settings.units import milliseconds

log = structlog.get_logger(__name__)

sender.BACKOFF_OVERRIDE = 0.003
"""Seconds between two attempts to begin a transaction while the coordinator still writes the
markers of the one before, which takes it some milliseconds; aiokafka waits 20."""
_RETRY_MS = 20
"""Pause before other attempts; aiokafka's default of 100 would be the latency of a transaction."""
_PRODUCER_FENCED = 90
"""An error code that aiokafka does not know."""
_NOT_FOUND = 105
"""The error code for a transactional id that the brokers do not know (any more)."""
_IDLE_S = 10.0
"""Time without a transaction after which the brokers may have forgotten the producer. They do after
``transactional.id.expiration.ms``, by default a week."""
_END_REQUESTS = 100
"""Requests, ``POLL_S`` apart, after which an unknown error is accepted as the cause."""


class BuiltTransaction(NamedTuple):
    """A transaction whose batches are built."""

    batches: list[BuiltBatch]
    changelog: list[BuiltBatch]
    offsets: dict[TopicPartition, tuple[int, str]]
    last: list[BuiltBatch]


class TransactionalWriter:
    """The transactional producer of one session, which writes to some topics, ``outputs``.

    It fences an earlier producer with the same ``transactional_id``.
    """

    def __init__(
        self, settings: Settings, facts: ClusterFacts, transactional_id: str, outputs: Sequence[str]
    ) -> None:
        kafka = settings.kafka
        self._settings = settings
        self._group_id = kafka.group_id
        self._outputs = [facts.topics[name] for name in outputs]
        self._timeout_s = kafka.transaction_timeout.total_seconds()
        self._producer = new_producer(
            kafka,
            facts,
            transactional_id=transactional_id,
            transaction_timeout_ms=milliseconds(kafka.transaction_timeout),
            retry_backoff_ms=_RETRY_MS,
        )
        partitions = {name: topic.partitions for name, topic in facts.topics.items()}
        self._building = BatchBuilding(self._producer, partitions)
        self._used_at = time.monotonic()

    async def start(self) -> None:
        """Connect, fence a predecessor, and end the transaction that it may have left open.

        Raises:
            ClockWrong: the clock of this machine differs too much from the brokers'.
        """
        with translated("cannot start the transactional producer"):
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._producer.start()
            except AssertionError as error:
                # aiokafka asserts that it knows a broker, and an answer of one that starts has
                # none.
                raise BrokerUnavailable(f"the brokers have no metadata yet: {error}") from error
            self._used_at = time.monotonic()
            await self._mark_every_partition()

    async def _mark_every_partition(self) -> None:
        """Write an end marker to every partition, behind a predecessor's open transaction.

        The broker aborts an open transaction when the producer starts. But Kafka 4.3 writes no
        marker into a partition that has no leader at that moment, as after a broker was killed.
        The records there would then become visible with this producer's next commit. An empty
        transaction closes them off.

        It aborts by default: a transaction without any marker moved no offsets, so its records are
        judged again. It commits if the predecessor's transaction is known to be confirmed.
        """
        partitions = [
            TopicPartition(topic.name, number)
            for topic in self._outputs
            for number in range(topic.partitions)
        ]
        confirmed = await self._is_confirmed(partitions)
        before_ms = _now_ms()
        async with self._transaction():
            await self._join(partitions)
            # The start of this transaction by the coordinator's clock, negative if unknown.
            state = await self._described()
            start_ms = -1 if state["error_code"] else int(state["transaction_start_time_ms"])
            after_ms = _now_ms()
            if confirmed:
                await self._producer.commit_transaction()
            else:
                await self._producer.abort_transaction()
        await self._wait_for_markers()
        if start_ms >= 0:
            ahead_ms = least_difference_ms(before_ms, start_ms, after_ms)
            if warning := clock_warning(ahead_ms, self._outputs):
                log.warning("the clock differs from the brokers' clock", reason=warning)

    async def _is_confirmed(self, partitions: Sequence[TopicPartition]) -> bool:
        """Return whether the last transaction was confirmed, though readers may not see it yet.

        Only a partition with a leader answers, so this also waits until each output has one.
        """
        await end_offsets(self._settings.kafka, partitions, "read_committed")
        return False

    async def _wait_for_markers(self) -> None:
        """Wait until readers see what they must see before the first transaction."""

    async def _described(self) -> dict[str, Any]:
        """Return what the coordinator knows about the transactional id."""
        request = DescribeTransactionsRequest(self._producer._txn_manager.transactional_id)
        try:
            answer = await self._ask_coordinator(request)
        except errors.IncompatibleBrokerVersion:
            # A broker before Kafka 3.0 does not tell.
            return {"error_code": 0, "transaction_start_time_ms": -1}
        (state,) = answer.to_object()["transaction_states"]
        return dict(state)

    async def _ask_coordinator(self, request: Any) -> Any:
        sender, id_ = self._producer._sender, self._producer._txn_manager.transactional_id
        node = await sender._find_coordinator(CoordinationType.TRANSACTION, id_)
        return await sender.client.send(node, request, group=ConnectionGroup.COORDINATION)

    async def _join(self, partitions: Sequence[TopicPartition]) -> None:
        """Add partitions and the group's offsets to the transaction, as aiokafka does on writes."""
        manager, sender = self._producer._txn_manager, self._producer._sender
        for partition in partitions:
            manager.maybe_add_partition_to_txn(partition)
        while True:
            if not manager.is_in_transaction():
                await manager.wait_for_transaction_end()  # it failed; this raises the cause
                return
            if manager.partitions_to_add():
                await asyncio.sleep(POLL_S)
            elif await sender._do_add_offsets_to_txn(self._group_id):
                return

    @contextlib.asynccontextmanager
    async def _transaction(self) -> AsyncIterator[None]:
        """Begin a transaction that the body must end within the timeout.

        An error is replaced by the one that made the transaction fail.

        Raises:
            ProducerForgotten: the brokers do not know an idle producer any more.
        """
        async with asyncio.timeout(self._timeout_s):
            idle_s = time.monotonic() - self._used_at
            if idle_s > _IDLE_S and (await self._described())["error_code"] == _NOT_FOUND:
                raise ProducerForgotten(
                    f"the brokers have forgotten this producer after {idle_s:.0f} s without a "
                    "record (transactional.id.expiration.ms): a new session starts another one"
                )
            await self._producer.begin_transaction()
            try:
                yield
            except (errors.KafkaError, errors.IllegalOperation, AssertionError) as error:
                # Some errors only say that aiokafka has ended the transaction already.
                ended = self._producer._txn_manager.wait_for_transaction_end()
                failed = ended.done() and not ended.cancelled()
                cause = (ended.exception() if failed else None) or error
                if isinstance(cause.__cause__, errors.UnknownError):
                    await self._check_fencing()
                raise cause from error
            self._used_at = time.monotonic()

    async def _check_fencing(self) -> None:
        """Find out whether an unknown error was caused by another producer.

        A broker returns an unknown error for the end of a transaction while another producer takes
        it over. A repeated request either reports that, or aborts the failed transaction.

        Raises:
            ProducerFenced: another producer has taken over.
        """
        manager = self._producer._txn_manager
        request = EndTxnRequest(
            transactional_id=manager.transactional_id,
            producer_id=manager.producer_id,
            producer_epoch=manager.producer_epoch,
            transaction_result=False,
        )
        for _ in range(_END_REQUESTS):
            await asyncio.sleep(POLL_S)
            answer = await self._ask_coordinator(request)
            error = errors.for_code(answer.error_code)
            if error is errors.InvalidProducerEpoch or answer.error_code == _PRODUCER_FENCED:
                raise errors.ProducerFenced
            if error not in (errors.UnknownError, errors.ConcurrentTransactions):
                return

    def build(self, transaction: Transaction) -> BuiltTransaction:
        """Encode and compress the messages of a transaction; any thread may do so.

        Transactions must be committed in the order in which they are built.
        """
        entries = [Outgoing("", None, data, (), None) for data in transaction.changelog]
        changelog = self._settings.topics.changelog
        build = self._building.build
        return BuiltTransaction(
            [batch for messages in transaction.messages for batch in build(messages)],
            list(build(Messages.of(changelog, entries))) if entries else [],
            {
                TopicPartition(topic, partition): (next_offset, transaction.note)
                for (topic, partition), next_offset in transaction.offsets.items()
            },
            [batch for messages in transaction.last for batch in build(messages)],
        )

    async def commit(self, transaction: BuiltTransaction) -> int:
        """Write one transaction; return the changelog offset after its last entry, 0 without one.

        Raises:
            Fenced: another producer has taken over.
            BrokerRefused: the broker refuses access.
            ClockWrong: the broker refuses a timestamp.
            BrokerUnavailable: the transaction was not committed, or its outcome is unknown; start a
                new session.
        """
        with translated("the transaction failed"):
            async with self._transaction():
                reach("begin")
                sent = [await self._send(batch) for batch in transaction.batches]
                logged = [await self._send(batch) for batch in transaction.changelog]
                await asyncio.gather(*sent, *logged)
                reach("produce")
                # Not at the same time: a broker asks the coordinator about one request of a
                # transaction at a time (Kafka's AddPartitionsToTxnManager), and lets the client
                # repeat the other one after a pause.
                if transaction.offsets:
                    await self._producer.send_offsets_to_transaction(
                        transaction.offsets, self._group_id
                    )
                await asyncio.gather(*[await self._send(batch) for batch in transaction.last])
                reach("offsets")
                await self._producer.commit_transaction()
        if not logged:
            return 0
        records = transaction.changelog[-1].record_count()
        return self._logged(logged[0].result().offset, logged[-1].result().offset + records)

    def _logged(self, _first: int, end: int) -> int:
        """Remember the offsets of the committed changelog entries; return their end."""
        return end

    async def _send(self, batch: BuiltBatch) -> asyncio.Future[Any]:
        """Send a batch; return the future of its metadata."""
        delivered: asyncio.Future[Any] = await self._producer.send_batch(
            batch, batch.topic, partition=batch.partition
        )
        # If one batch fails, gather() never reads the errors of the others.
        delivered.add_done_callback(lambda future: future.cancelled() or future.exception())
        return delivered

    async def close(self) -> None:
        """Stop the producer; the next start aborts a transaction that is still open."""
        await stop(self._producer.stop())
        # After a timeout the producer's stop() leaves the sender running.
        await stop(self._producer._sender.close())


class ChangelogWriter(TransactionalWriter):
    """Writes changelog entries too, and checks that they continue the index.

    The index is complete up to a changelog offset, ``applied``.
    """

    def __init__(self, settings: Settings, facts: ClusterFacts, applied: int) -> None:
        topics = settings.topics
        outputs = [topics.verdicts] if settings.mode == "split" else output_names(topics)
        super().__init__(settings, facts, topics.transactional_id, [*outputs, topics.changelog])
        self._changelog = TopicPartition(topics.changelog, 0)
        self._applied = applied
        self._has_committed = False

    async def _is_confirmed(self, partitions: Sequence[TopicPartition]) -> bool:
        """Return whether the index holds an entry that readers do not see yet.

        The index only takes entries whose commit was confirmed.
        """
        visible = await end_offsets(self._settings.kafka, partitions, "read_committed")
        if visible[self._changelog] >= self._applied:
            return False
        return await self._end_of_changelog("read_uncommitted") == self._applied

    async def _wait_for_markers(self) -> None:
        """Wait until readers see the whole changelog.

        The coordinator writes markers after it has confirmed the end of a transaction. Until then
        the index may be ahead of what readers see.
        """
        written = await self._end_of_changelog("read_uncommitted")
        async with asyncio.timeout(self._timeout_s):
            while await self._end_of_changelog("read_committed") < written:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)

    async def _end_of_changelog(self, isolation_level: str) -> int:
        ends = await end_offsets(self._settings.kafka, [self._changelog], isolation_level)
        return ends[self._changelog]

    def _logged(self, first: int, end: int) -> int:
        """Check the offsets of new entries.

        Raises:
            TopicError: the changelog is not the one that the index was built from.
            BrokerUnavailable: there may be entries in between that the index does not know.
        """
        if first < 0:
            raise BrokerUnavailable("the broker did not return the offset of the changelog entry")
        if first < self._applied:
            raise TopicError(
                f"a new entry of {self._changelog.topic} got offset {first}, but the index is at "
                f"offset {self._applied}: the topic was deleted and recreated; {NEW_CHANGELOG}"
            )
        expected, self._applied = self._applied, end
        # Behind the entries of a transaction there is its marker.
        if self._has_committed and first > expected + 1:
            raise BrokerUnavailable(
                f"a new entry of {self._changelog.topic} got offset {first}, not {expected + 1}: "
                "reading what is in between, after a failover usually a second transaction marker"
            )
        self._has_committed = True
        return self._applied


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def end_offsets(
    settings: KafkaSettings, partitions: Sequence[TopicPartition], isolation_level: str
) -> dict[TopicPartition, int]:
    """Return the end offset that each partition's leader reports to readers at this level."""
    # Its first attempt finds out the leaders, and fails.
    consumer = new_consumer(settings, isolation_level, retry_backoff_ms=_RETRY_MS)
    try:
        await consumer.start()
        ends: dict[TopicPartition, int] = await consumer.end_offsets(list(partitions))
        return ends
    finally:
        await stop(consumer.stop())
