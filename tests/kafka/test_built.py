"""Batches that are built before they are sent."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, errors

from streamdedup.kafka.built import BatchBuilding, BuiltBatch
from streamdedup.kafka.messages import Messages, Outgoing

_HEADER = struct.Struct(">qhi")
_HEADER_AT = 43
"""Where a batch has the producer's id and epoch, and the first sequence number."""


def messages(count: int) -> Messages:
    """Return messages of 100 bytes to partition 0."""
    return Messages.of("t", [Outgoing("t", None, bytes(100), (), 0)] * count)


def header(batch: BuiltBatch) -> tuple[int, int, int]:
    """Return the id and epoch of the producer, and the first sequence number."""
    found: tuple[int, int, int] = _HEADER.unpack_from(bytes(batch._build()), _HEADER_AT)
    return found


@pytest.fixture(name="building")
async def _building() -> AsyncIterator[BatchBuilding]:
    """For a producer that has an id and an epoch, but no connection."""
    producer: Any = AIOKafkaProducer(transactional_id="t", max_batch_size=1_000)
    producer._txn_manager.set_pid_and_epoch(7, 3)
    yield BatchBuilding(producer, {"t": 1})
    await producer.stop()


async def test_sequence_numbers_continue_over_batches_and_transactions(
    building: BatchBuilding,
) -> None:
    """After 2**31 messages they begin again at 0, as the brokers expect."""
    first = list(building.build(messages(15)))
    counts = [batch.record_count() for batch in first]
    assert len(counts) > 1
    assert sum(counts) == 15
    assert [header(batch) for batch in first] == [
        (7, 3, sum(counts[:number])) for number in range(len(counts))
    ]
    (second,) = building.build(messages(2))
    assert header(second) == (7, 3, 15)
    building._sent["t", 0] = 2**31 - 1
    (last,) = building.build(messages(1))
    assert header(last) == (7, 3, 2**31 - 1)
    (again,) = building.build(messages(1))
    assert header(again) == (7, 3, 0)


async def test_a_batch_of_another_epoch_is_refused(building: BatchBuilding) -> None:
    """It would be written with the epoch of a session that has ended."""
    (batch,) = building.build(messages(1))
    assert batch.closed()
    batch._set_producer_state(7, 3, 99)
    assert header(batch) == (7, 3, 0)
    with pytest.raises(errors.InvalidProducerEpoch):
        batch._set_producer_state(7, 4, 0)
