"""*Async.* Prepares batches in the pool, with the schemas of their records."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

import structlog

from streamdedup.batches import SketchedBatch
from streamdedup.engine.pool import PendingBatch, SketchPool
from streamdedup.kafka.messages import ClusterFacts
from streamdedup.model import Record, Rejection
from streamdedup.registry.opening import id_of_duplicates, open_registry, schemas_in_files
from streamdedup.roles.session import Runtime

log = structlog.get_logger(__name__)


class Preparing:
    """Gives batches to the pool, recovers those whose process dies, and asks the schema registry.

    ``size`` is the number of processes.

    Raises:
        SettingsError: a file with a schema cannot be read, or a package is missing.
    """

    def __init__(self, runtime: Runtime, pool: SketchPool) -> None:
        settings = runtime.settings
        self.size = pool.size
        self._settings = settings
        self._pool = pool
        self._metrics, self._state = runtime.metrics, runtime.state
        self._registry = open_registry(settings, pool.schemas) if settings.uses_registry() else None
        pool.schemas.update(schemas_in_files(settings))
        self._warming: asyncio.Task[float] | None = None

    def warm(self) -> asyncio.Task[float]:
        """Let the processes load their kernels; return the task."""
        self._warming = asyncio.create_task(asyncio.to_thread(self._pool.warm))
        return self._warming

    async def reach(self, facts: ClusterFacts) -> ClusterFacts:
        """Check that the registry answers; return the facts with the schema of duplicate records.

        Raises what :func:`id_of_duplicates` raises.
        """
        if self._registry is None:
            return facts
        await self._registry.reach()
        if self._settings.output.duplicates_format != "avro":
            return facts
        number = await id_of_duplicates(self._registry, self._settings)
        return replace(facts, duplicates_schema_id=number)

    async def submit(
        self, records: Sequence[Record], refused: Mapping[int, Rejection]
    ) -> PendingBatch:
        """Send a batch to the pool, which leaves out ``refused`` records, by row.

        Raises what :meth:`Registry.reach` raises.
        """
        without_schema = dict[int, Rejection]()
        if self._registry is not None and self._settings.records.format == "registry":
            without_schema = await self._registry.provide(records)
        return self._pool.submit(records, {**without_schema, **refused})

    async def result(self, pending: PendingBatch) -> SketchedBatch:
        """Wait for the pool to prepare a batch; recover it if its process dies or hangs.

        Raises:
            PoolUnusable: processes die without a record.
        """
        future = asyncio.wrap_future(pending.future)
        # Else asyncio logs an error that comes when the wait is over.
        future.add_done_callback(lambda late: late.cancelled() or late.exception())
        for wait_s in self._pool.waits():
            await asyncio.wait({future}, timeout=wait_s)
            if future.done():
                break
        state = self._state
        try:
            if future.done():
                return future.result()
            state.recovery = "a sketch process does not answer"
        except BrokenProcessPool:
            state.recovery = "a sketch process died"
        log.warning("recovering a batch", reason=state.recovery)
        self._metrics.set_gauge("ready", state.ready)
        try:
            return await asyncio.to_thread(self._pool.recover, pending)
        finally:
            state.recovery = ""

    async def close(self) -> None:
        """Wait for processes that still start, and close the connections to the registry."""
        if self._warming is not None:
            await asyncio.gather(self._warming, return_exceptions=True)
        if self._registry is not None:
            await self._registry.close()
