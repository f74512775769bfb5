"""*Async.* The composition root of the worker: settings to parts, signals, and the drain."""

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
from streamdedup.roles.worker import Worker
from streamdedup.settings.sections import Settings

log = structlog.get_logger(__name__)


async def run_worker(settings: Settings) -> None:
    """Run the worker until SIGTERM or SIGINT; a second signal ends the process at once.

    Raises:
        StreamdedupError: something that waiting does not mend.
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
                await _run_and_drain(worker, state, stop, settings.drain_budget.total_seconds())
            finally:
                await worker.close()
    finally:
        await asyncio.to_thread(pool.close)


async def _run_and_drain(
    worker: Worker, state: WorkerState, stop: asyncio.Event, budget_s: float
) -> None:
    """Run the worker; once told to stop it has a budget to finish what it has begun."""
    running = asyncio.create_task(worker.run())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not running.done() and state.ready:
        log.info("draining", budget_s=budget_s)
        await asyncio.wait({running}, timeout=budget_s)
    if not running.done():
        # Nothing is lost: what was not committed is read again by the next start.
        log.warning("stopping without a drain", phase=state.phase)
        running.cancel()
    try:
        await running
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
    log.info("stopped")


def _on_signals(stop: asyncio.Event) -> None:
    """Let the first signal drain, and the second end the process."""

    def handler(number: int) -> Callable[[], None]:
        def handle() -> None:
            if stop.is_set():
                os._exit(128 + number)
            stop.set()

        return handle

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handler(number))
