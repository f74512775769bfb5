"""*Blocking.* Batches of the transactional producer, which are built before they are sent.

aiokafka encodes and compresses a batch when it sends it: on the event loop, within the transaction.
Here a thread does both, while the transaction before is still being committed. The header of a
batch has the producer's id and epoch, and the sequence number of the first record. All are known in
advance, because batches are sent in the order in which they are built.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
from aiokafka import AIOKafkaProducer, errors
from aiokafka.producer.message_accumulator import BatchBuilder

from streamdedup.kafka.append import batches
from streamdedup.kafka.messages import Messages
from streamdedup.kafka.partition import partitions_of

_SEQUENCES = 2**31
"""Sequence numbers of a partition; 0 follows the last one."""


class BuiltBatch(BatchBuilder):  # type: ignore[misc]
    """A batch of aiokafka that replaces ``batch``, is closed, and has its data already.

    ``producer`` is its id and epoch; ``sequence`` is the number of the first record.
    """

    def __init__(
        self,
        batch: BatchBuilder,
        topic: str,
        partition: int,
        producer: tuple[int, int],
        sequence: int,
    ) -> None:
        batch._set_producer_state(*producer, sequence)
        batch._build()
        self.__dict__.update(vars(batch))
        self.topic, self.partition, self._producer = topic, partition, producer

    def _set_producer_state(self, id_: int, epoch: int, _: int) -> None:
        if (id_, epoch) != self._producer:
            raise errors.InvalidProducerEpoch("the batch was built for another session")


class BatchBuilding:
    """Builds the batches of one session, whose producer must have been started."""

    def __init__(self, producer: AIOKafkaProducer, partitions: Mapping[str, int]) -> None:
        self._producer = producer
        self._partitions = partitions
        self._sent: Counter[tuple[str, int]] = Counter()

    def build(self, messages: Messages) -> Iterator[BuiltBatch]:
        """Encode and compress messages; the batches must be sent in this order."""
        topic, manager = messages.topic, self._producer._txn_manager
        producer, count = (manager.producer_id, manager.producer_epoch), self._partitions[topic]
        partitions = partitions_of(messages.keys, messages.source_partitions, count)
        for partition in np.unique(partitions).tolist():
            rows = np.flatnonzero(partitions == partition).tolist()
            for batch in batches(self._producer, messages, rows):
                sequence = self._sent[topic, partition] % _SEQUENCES
                yield BuiltBatch(batch, topic, partition, producer, sequence)
                self._sent[topic, partition] += batch.record_count()
