"""The Kafka client's warnings: held back where an answer passes, written where it lasts."""

from __future__ import annotations

import logging
from typing import Any

from aiokafka import TopicPartition, errors

from streamdedup.kafka.noise import RetriedWrites

FIRST, SECOND = TopicPartition("clean", 0), TopicPartition("clean", 1)


class _Clock:
    """A clock that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def warning(*args: Any) -> logging.LogRecord:
    """Return a record as aiokafka's sender makes it."""
    text = "Got error produce response on topic-partition %s, retrying. Error: %s"
    return logging.LogRecord("aiokafka.producer.sender", logging.WARNING, "", 0, text, args, None)


def test_a_write_that_is_soon_taken_is_not_warned_of() -> None:
    """The first answers of each transaction and partition are the brokers asking each other."""
    clock = _Clock()
    retried = RetriedWrites(clock)
    for _ in range(100):
        assert not retried.filter(warning(FIRST, errors.NotEnoughReplicasError))
        assert not retried.filter(warning(SECOND, errors.NotEnoughReplicasError))
        clock.now += 1.0


def test_a_write_that_is_not_taken_is_warned_of() -> None:
    """Replicas that are lacking indeed are told of within half a second, again and again."""
    clock = _Clock()
    retried = RetriedWrites(clock)
    told = []
    for _ in range(20):
        told.append(retried.filter(warning(FIRST, errors.NotEnoughReplicasError)))
        clock.now += 0.1
    assert told == [False] * 3 + [True] * 17


def test_every_other_warning_passes() -> None:
    """Other errors and other sentences are none of its business."""
    retried = RetriedWrites(_Clock())
    assert retried.filter(warning(FIRST, errors.NotLeaderForPartitionError))
    assert retried.filter(warning(FIRST, "a message of the broker"))
    bare = logging.LogRecord("aiokafka", logging.WARNING, "", 0, "no arguments", None, None)
    assert retried.filter(bare)
