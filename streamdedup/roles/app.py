"""*Async.* The composition root: makes the parts of a process from its settings."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import AsyncExitStack
from typing import Literal

import structlog

from streamdedup.engine.pool import SketchPool
from streamdedup.kafka.connection import forget_abandoned
from streamdedup.observe import logs
from streamdedup.observe.metrics import Metrics
from streamdedup.observe.progress import page_address, reporting_progress
from streamdedup.observe.quality import LiveQuality, Shadow
from streamdedup.observe.recent import RecentActivity
from streamdedup.observe.state import WorkerState
from streamdedup.observe.status import StatusServer
from streamdedup.roles.edge import Edge
from streamdedup.roles.judge import new_judge
from streamdedup.roles.keeper import Keeper
from streamdedup.roles.session import Runtime, run_and_drain
from streamdedup.roles.worker import new_worker
from streamdedup.settings.sections import Settings

log = structlog.get_logger(__name__)


Role = Literal["worker", "edge", "judge"]
"""What a process can be."""


async def run_role(settings: Settings, name: Role) -> None:
    """Run a role until SIGTERM or SIGINT; a second signal ends the process at once.

    Raises:
        StreamdedupError: an error that retrying cannot fix.
    """
    metrics, state, stop = Metrics(), WorkerState(), asyncio.Event()
    _on_signals(stop)
    asyncio.get_running_loop().set_exception_handler(forget_abandoned)
    pool = SketchPool(settings, on_restart=lambda: metrics.count("pool_restarts_total"))
    if settings.status.page:
        state.recent = RecentActivity(settings, time.monotonic, pool.schemas)
    samples = settings.quality.shadow_sample > 0 and name != "judge"
    shadow = Shadow(settings, pool.schemas) if samples else None
    state.quality = LiveQuality(settings, judges=name != "edge", shadow=shadow)
    role: Keeper | Edge
    try:
        async with AsyncExitStack() as resources:
            status = StatusServer(settings.status, metrics, state)
            await resources.enter_async_context(status)
            log.info("listening", role=name, host=settings.status.host, port=status.port)
            if logs.is_on_terminal(settings.log):
                await resources.enter_async_context(reporting_progress(state))
                if settings.status.page:
                    address = page_address(settings.status.host, status.port)
                    log.info("serving the page", address=address)
            metrics.describe(settings, name)
            runtime = Runtime(settings, metrics, state, stop)
            match name:
                case "judge":
                    role = new_judge(runtime)
                case "edge":
                    role = Edge(runtime, pool)
                case "worker":
                    role = new_worker(runtime, pool)
            try:
                budget_s = settings.drain_budget.total_seconds()
                await run_and_drain(role.run(), state, stop, budget_s)
            finally:
                # First, since a role waits for a process that is still starting.
                await asyncio.to_thread(pool.close)
                await role.close()
    finally:
        await asyncio.to_thread(pool.close)
        await asyncio.to_thread(state.quality.close)


def _on_signals(stop: asyncio.Event) -> None:
    """Drain on the first signal; end the process on the second."""

    def handle(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle, number)
