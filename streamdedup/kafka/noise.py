"""*Async.* Filters unread errors of the Kafka client that need no action."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import errors


def forget_abandoned(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignore Kafka errors in futures that aiokafka abandons; they were raised elsewhere before.

    Args:
        loop: the event loop whose exception handler this is.
        context: the argument of :meth:`asyncio.loop.call_exception_handler`.
    """
    if not isinstance(context.get("exception"), errors.KafkaError):
        loop.default_exception_handler(context)
