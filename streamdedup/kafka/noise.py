"""*Async.* Filters warnings and unread errors of the Kafka client that need no action."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from aiokafka import errors

_RETRIES, _RETRY_WINDOW_S = 3, 2.0


class RetriedWrites(logging.Filter):
    """Suppresses the client's warning about a retried write, unless the retries continue.

    A broker asks the transaction coordinator before it accepts the first write of a transaction to
    a partition (KIP-890). If the coordinator has not answered yet, the broker returns
    NOT_ENOUGH_REPLICAS, so that older clients retry (see Kafka's ``ReplicaManager``). It accepts
    the write a tenth of a second later. If replicas really are missing, the error repeats, and the
    warning passes from the fourth time on.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._refusals: dict[Any, list[float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide whether a record is logged."""
        args = record.args
        if not isinstance(args, tuple) or args[-1:] != (errors.NotEnoughReplicasError,):
            return True
        now, partition = self._clock(), args[0]
        earlier = self._refusals.get(partition, [])
        recent = [*(time_s for time_s in earlier if now - time_s < _RETRY_WINDOW_S), now]
        self._refusals[partition] = recent[-_RETRIES - 1 :]
        return len(recent) > _RETRIES


RETRIED_WRITES = RetriedWrites()
"""The one filter of this process: adding it to a logger again has no effect."""


def forget_abandoned(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignore Kafka errors in futures that aiokafka abandons; they were raised elsewhere before.

    Args:
        loop: the event loop whose exception handler this is.
        context: the argument of :meth:`asyncio.loop.call_exception_handler`.
    """
    if not isinstance(context.get("exception"), errors.KafkaError):
        loop.default_exception_handler(context)
