"""*Async.* The transactional producer: one Kafka transaction per batch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from aiokafka import AIOKafkaProducer, TopicPartition, errors
from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.protocol.transaction import EndTxnRequest

from streamdedup.errors import BrokerUnavailable
from streamdedup.kafka.cluster import POLL_S
from streamdedup.kafka.connection import (
    connection_options,
    new_consumer,
    stop,
    translated,
)
from streamdedup.kafka.messages import ClusterFacts, Outgoing, Transaction
from streamdedup.kafka.noise import RETRIED_WRITES
from streamdedup.kafka.topics import topic_names
from streamdedup.settings.kafka import KafkaSettings
from streamdedup.settings.sections import Settings
from streamdedup.settings.units import milliseconds

_MOST_BATCH_BYTES = 512 * 1024

_PRODUCER_FENCED = 90
"""An error code that aiokafka does not know."""

_QUESTIONS = 100


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
        logging.getLogger("aiokafka.producer.sender").addFilter(RETRIED_WRITES)
        self._producer = AIOKafkaProducer(
            bootstrap_servers=list(kafka.bootstrap_servers),
            transactional_id=kafka.transactional_id,
            transaction_timeout_ms=milliseconds(kafka.transaction_timeout),
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
            await asyncio.sleep(POLL_S)
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
            await asyncio.sleep(POLL_S)
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
        await stop(self._producer.stop())
        sender = self._producer._sender  # noqa: SLF001 - stop() leaves it running when it times out
        await stop(sender.close())


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


async def _ends(
    settings: KafkaSettings, partitions: Sequence[TopicPartition], isolation_level: str
) -> dict[TopicPartition, int]:
    """Ask each partition's leader where the partition ends for readers of this isolation level."""
    consumer = new_consumer(settings, isolation_level)
    try:
        await consumer.start()
        ends: dict[TopicPartition, int] = await consumer.end_offsets(list(partitions))
        return ends
    finally:
        await stop(consumer.stop())
