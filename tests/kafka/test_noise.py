"""The Kafka client's warnings about retried writes."""

from __future__ import annotations

import logging
from typing import Any

from aiokafka import TopicPartition, errors

from streamdedup.kafka.noise import RetriedWrites
from tests.support.clock import Clock

FIRST, SECOND = TopicPartition("clean", 0), TopicPartition("clean", 1)


def warning(*args: Any) -> logging.LogRecord:
    """Return a log record like that of aiokafka's sender."""
    text = "Got error produce response on topic-partition %s, retrying. Error: %s"
    return logging.LogRecord("aiokafka.producer.sender", logging.WARNING, "", 0, text, args, None)


def test_a_write_that_is_soon_accepted_is_not_logged() -> None:
    """One refusal per transaction and partition only means that the coordinator was asked."""
    clock = Clock()
    retried = RetriedWrites(clock)
    for _ in range(100):
        assert not retried.filter(warning(FIRST, errors.NotEnoughReplicasError))
        assert not retried.filter(warning(SECOND, errors.NotEnoughReplicasError))
        clock.time += 1.0


def test_a_write_that_stays_refused_is_logged() -> None:
    """Missing replicas are reported within half a second, and every time after that."""
    clock = Clock()
    retried = RetriedWrites(clock)
    logged = []
    for _ in range(20):
        logged.append(retried.filter(warning(FIRST, errors.NotEnoughReplicasError)))
        clock.time += 0.1
    assert logged == [False] * 3 + [True] * 17


def test_every_other_warning_passes() -> None:
    """The filter leaves other errors and other messages alone."""
    retried = RetriedWrites(Clock())
    assert retried.filter(warning(FIRST, errors.NotLeaderForPartitionError))
    assert retried.filter(warning(FIRST, "a message of the broker"))
    bare = logging.LogRecord("aiokafka", logging.WARNING, "", 0, "no arguments", None, None)
    assert retried.filter(bare)
