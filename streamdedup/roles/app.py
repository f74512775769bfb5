"""*Async.* The composition root: makes the parts of a process from its settings."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import structlog

from streamdedup.engine.pool import SketchPool
from streamdedup.kafka.noise import forget_abandoned
from streamdedup.observe.metrics import Metrics
from streamdedup.observe.state import WorkerState
from streamdedup.observe.status import StatusServer
from streamdedup.roles.session import run_and_drain
from streamdedup.roles.worker import Worker
from streamdedup.settings.sections import Settings

log = structlog.get_logger(__name__)


async def run_worker(settings: Settings) -> None:
    """Run the worker until SIGTERM or SIGINT; a second signal ends the process at once.

    Raises:
        StreamdedupError: an error that retrying cannot fix.
    """
    metrics, state, stop = Metrics(), WorkerState(), asyncio.Event()
    _on_signals(stop)
    asyncio.get_running_loop().set_exception_handler(forget_abandoned)
    pool = SketchPool(settings, on_restart=metrics.count_pool_restart)
    try:
        async with StatusServer(settings.status, metrics, state) as status:
            log.info("listening", host=settings.status.host, port=status.port)
            metrics.describe(settings)
            worker = Worker(settings, pool, metrics, state, stop)
            try:
                budget_s = settings.drain_budget.total_seconds()
                await run_and_drain(worker.run(), state, stop, budget_s)
            finally:
                # First, since the worker waits for a process that is still starting.
                await asyncio.to_thread(pool.close)
                await worker.close()
    finally:
        await asyncio.to_thread(pool.close)


def _on_signals(stop: asyncio.Event) -> None:
    """Drain on the first signal; end the process on the second."""

    def handler(number: int) -> Callable[[], None]:
        def handle() -> None:
            if stop.is_set():
                os._exit(128 + number)
            stop.set()

        return handle

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handler(number))
