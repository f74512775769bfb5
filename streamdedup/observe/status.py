"""*Async.* The HTTP server (/metrics, /livez, /readyz, /status, /page) and the heartbeat."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any, Self

from aiohttp import web

import streamdedup
from streamdedup.errors import SettingsError
from streamdedup.observe.metrics import Metrics
from streamdedup.observe.page import Page
from streamdedup.observe.state import WorkerState
from streamdedup.observe.watchdog import Watchdog
from streamdedup.settings.sections import StatusSettings

HEARTBEAT_S = 0.5
"""Interval at which the heartbeat measures how late the event loop is."""

_SHUTDOWN_S = 1.0
"""How long the server waits for open requests when it closes."""


class StatusServer:
    """Serves the status pages; use it as an async context manager.

    Args:
        settings: the address to listen on, and whether to serve the page.
        metrics: what /metrics shows; also records the heartbeat and readiness.
        state: the state of the worker.

    Attributes:
        port: the bound port, once started.
    """

    def __init__(self, settings: StatusSettings, metrics: Metrics, state: WorkerState) -> None:
        self.port = settings.port
        self._settings = settings
        self._metrics = metrics
        self._state = state
        self._runner = web.AppRunner(
            self._application(), access_log=None, shutdown_timeout=_SHUTDOWN_S
        )
        self._heartbeat: asyncio.Task[None] | None = None
        self._watchdog = Watchdog(state)

    async def start(self) -> int:
        """Listen, and return the bound port.

        Raises:
            SettingsError: the address cannot be bound.
        """
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._settings.host, self._settings.port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise SettingsError(
                f"cannot listen on {self._settings.host}:{self._settings.port} "
                f"({_cause(error)}); change status.host or status.port"
            ) from error
        self.port = self._runner.addresses[0][1]
        self._heartbeat = asyncio.create_task(self._beat(), name="heartbeat")
        self._watchdog.start()
        return self.port

    async def close(self) -> None:
        """Stop listening, and stop the heartbeat."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._heartbeat
            self._watchdog.close()
        await self._runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _beat(self) -> None:
        """Measure repeatedly how late the event loop wakes this task, and tell the watchdog."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + HEARTBEAT_S
            await asyncio.sleep(HEARTBEAT_S)
            self._metrics.observe_loop_lag(max(0.0, loop.time() - due))
            self._watchdog.beat()

    def _application(self) -> web.Application:
        application = web.Application()
        application.router.add_get("/metrics", self._serve_metrics)
        application.router.add_get("/livez", self._serve_live)
        application.router.add_get("/readyz", self._serve_ready)
        application.router.add_get("/status", self._serve_status)
        if self._settings.page:
            Page(self._describe, lambda: self._state.recent).add_to(application.router)
        return application

    async def _serve_metrics(self, _: web.Request) -> web.Response:
        self._metrics.observe_ready(self._state.ready)
        self._metrics.observe_degradations(self._state.degradations())
        body, content_type = self._metrics.render()
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _serve_live(self, _: web.Request) -> web.Response:
        """Answer 200 while the event loop runs and the work advances, with or without brokers."""
        stuck = self._state.stuck
        return web.Response(text=f"{stuck or 'live'}\n", status=503 if stuck else 200)

    async def _serve_ready(self, _: web.Request) -> web.Response:
        status = 200 if self._state.ready else 503
        return web.Response(text=f"{self._state.explanation()}\n", status=status)

    async def _serve_status(self, _: web.Request) -> web.Response:
        return web.json_response(self._describe())

    def _describe(self) -> dict[str, Any]:
        state = self._state
        return {
            "version": streamdedup.__version__,
            "phase": state.phase,
            "ready": state.ready,
            "explanation": state.explanation(),
            "replay": {"done": state.replay_done, "total": state.replay_total},
            "partitions": state.partitions,
            "positions": {str(number): offset for number, offset in state.positions.items()},
            "lag": {str(number): records for number, records in state.lag.items()},
            "applied_offset": state.applied_offset,
        }


def _cause(error: OSError) -> str:
    """Return the system's message, which asyncio wraps in a longer one."""
    if error.errno is not None and error.errno > 0:  # a resolver's numbers are negative
        return os.strerror(error.errno)
    return str(error.strerror or error)
