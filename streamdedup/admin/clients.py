"""*Async.* What commands and roles have in common: the brokers, and clients for a block."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from streamdedup.kafka.cluster import inspect
from streamdedup.kafka.connection import check_connection
from streamdedup.kafka.messages import ClusterFacts
from streamdedup.settings.sections import Settings


class _Startable(Protocol):
    async def start(self) -> None: ...

    async def close(self) -> None: ...


ClientT = TypeVar("ClientT", bound=_Startable)


@asynccontextmanager
async def started(client: ClientT) -> AsyncIterator[ClientT]:
    """Start a client of the brokers for a block; close it even if the start fails."""
    try:
        await client.start()
        yield client
    finally:
        await client.close()


async def look_at_brokers(settings: Settings) -> ClusterFacts:
    """Return the topics of a worker; an error has the cause that the brokers give."""
    await check_connection(settings.kafka)
    return await inspect(settings)
