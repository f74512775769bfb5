"""*Async.* Prepares batches in the pool, and recovers those whose process dies."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool

import structlog

from streamdedup.batches import SketchedBatch
from streamdedup.engine.pool import PendingBatch, SketchPool
from streamdedup.model import Record, Rejection
from streamdedup.roles.schemas import Schemas
from streamdedup.roles.session import Runtime

log = structlog.get_logger(__name__)


class Preparing:
    """Gives batches to the pool, with the schemas that they need.

    Args:
        runtime: what the parts of the role share.
        pool: the pool.

    Attributes:
        size: the number of processes.
        schemas: what is known of the schemas.

    Raises:
        SettingsError: a file with a schema cannot be read, or a package is missing.
    """

    def __init__(self, runtime: Runtime, pool: SketchPool) -> None:
        self.size = pool.size
        self.schemas = Schemas(runtime.settings, pool.schemas)
        self._pool = pool
        self._metrics, self._state = runtime.metrics, runtime.state

    async def submit(
        self, records: Sequence[Record], refused: Mapping[int, Rejection]
    ) -> PendingBatch:
        """Send a batch to the pool.

        Args:
            records: the batch, in order of judgement.
            refused: rejections of records that the pool does not look at, by row.

        Raises:
            RegistryUnavailable: the registry does not answer.
            BrokerRefused: it refuses the login.
        """
        without_schema = await self.schemas.provide(records)
        return self._pool.submit(records, {**without_schema, **refused})

    async def result(self, pending: PendingBatch) -> SketchedBatch:
        """Wait for the pool to prepare a batch; recover it if its process dies or hangs.

        Raises:
            PoolUnusable: processes die without a record.
        """
        future = asyncio.wrap_future(pending.future)
        done, _ = await asyncio.wait({future}, timeout=self._pool.patience_s)
        state = self._state
        try:
            if done:
                return future.result()
            state.recovery = "a sketch process does not answer"
        except BrokenProcessPool:
            state.recovery = "a sketch process died"
        log.warning("recovering a batch", reason=state.recovery)
        self._metrics.observe_ready(state.ready)
        try:
            return await asyncio.to_thread(self._pool.recover, pending)
        finally:
            state.recovery = ""
