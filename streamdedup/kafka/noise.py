"""*Pure.* Client warnings and abandoned futures that need no action."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from aiokafka import errors

_RETRIES, _RETRY_WINDOW_S = 3, 2.0


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


RETRIED_WRITES = RetriedWrites()


def forget_abandoned(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle what nobody caught: aiokafka's futures that nobody asks hold what was raised before.

    Args:
        loop: the event loop whose exception handler this is.
        context: as :meth:`asyncio.loop.call_exception_handler` has it.
    """
    if not isinstance(context.get("exception"), errors.KafkaError):
        loop.default_exception_handler(context)
