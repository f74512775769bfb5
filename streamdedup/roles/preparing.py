"""*Async.* Waits for batches in the pool, and recovers those whose process dies."""

from __future__ import annotations

import asyncio
from concurrent.futures.process import BrokenProcessPool

import structlog

from streamdedup.batches import SketchedBatch
from streamdedup.engine.pool import PendingBatch, SketchPool
from streamdedup.observe.metrics import Metrics
from streamdedup.observe.state import WorkerState

log = structlog.get_logger(__name__)


async def prepared(
    pending: PendingBatch, pool: SketchPool, state: WorkerState, metrics: Metrics
) -> SketchedBatch:
    """Wait for the pool to prepare a batch; recover it if its process dies or hangs.

    Args:
        pending: the batch.
        pool: the pool.
        state: shows a recovery.
        metrics: receives whether the role is ready.

    Raises:
        PoolUnusable: processes die without a record.
    """
    future = asyncio.wrap_future(pending.future)
    done, _ = await asyncio.wait({future}, timeout=pool.patience_s)
    try:
        if done:
            return future.result()
        state.recovery = "a sketch process does not answer"
    except BrokenProcessPool:
        state.recovery = "a sketch process died"
    log.warning("recovering a batch", reason=state.recovery)
    metrics.observe_ready(state.ready)
    try:
        return await asyncio.to_thread(pool.recover, pending)
    finally:
        state.recovery = ""
