"""*Async.* Which broker of a cluster does what: leaders, coordinators, replicas in sync."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import stamina
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import CoordinationType
from aiokafka.errors import KafkaError

from tests.support.patience import PATIENCE_S

T = TypeVar("T")


async def leader(bootstrap: str, topic: str, partition: int = 0) -> int:
    """Return the number of the broker that leads a partition; -1 if none does."""
    return await _ask(bootstrap, lambda admin: _leader(admin, topic, partition))


async def transaction_coordinator(bootstrap: str, transactional_id: str) -> int:
    """Return the number of the broker that coordinates the transactions of a producer."""
    return await _ask(
        bootstrap,
        lambda admin: admin.find_coordinator(transactional_id, CoordinationType.TRANSACTION),
    )


async def group_coordinator(bootstrap: str, group: str) -> int:
    """Return the number of the broker that coordinates a consumer group."""
    return await _ask(bootstrap, lambda admin: admin.find_coordinator(group))


async def wait_until_in_sync(bootstrap: str) -> None:
    """Wait until every partition of the cluster has a leader, and all its replicas in sync."""
    async with asyncio.timeout(PATIENCE_S):
        while not await _ask(bootstrap, _is_in_sync):  # noqa: ASYNC110 - brokers send no event
            await asyncio.sleep(0.2)


async def _leader(admin: AIOKafkaAdminClient, topic: str, partition: int) -> int:
    (described,) = await admin.describe_topics([topic])
    return next(
        int(one["leader"]) for one in described["partitions"] if one["partition"] == partition
    )


async def _is_in_sync(admin: AIOKafkaAdminClient) -> bool:
    return all(
        partition["leader"] >= 0 and len(partition["isr"]) == len(partition["replicas"])
        for topic in await admin.describe_topics()
        for partition in topic["partitions"]
    )


async def _ask(bootstrap: str, question: Callable[[AIOKafkaAdminClient], Awaitable[T]]) -> T:
    """Ask until a broker answers; the first one may be dead, or not know the cluster yet."""
    attempts = stamina.retry_context(on=KafkaError, attempts=None, timeout=PATIENCE_S, wait_max=0.5)
    async for attempt in attempts:
        with attempt:
            async with _admin(bootstrap) as admin:
                return await question(admin)
    raise AssertionError("unreachable: the last attempt raises")


@contextlib.asynccontextmanager
async def _admin(bootstrap: str, **options: Any) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=2000, **options)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()
