"""*Async.* The HTTP server (/metrics, /livez, /readyz, /status, /page) and the heartbeat.

Rule 1: every path only reads. Only GET and HEAD are allowed.
Rule 2: no client can hold resources. A connection serves one request and has a longest life, and
the number of connections, the request line and the headers are limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import Callable
from typing import Any, Self

from aiohttp import http_exceptions, web
from yarl import URL

import streamdedup
from streamdedup.errors import SettingsError
from streamdedup.model import Outcome
from streamdedup.observe.metrics import Metrics
from streamdedup.observe.page import Page
from streamdedup.observe.state import WorkerState
from streamdedup.observe.watchdog import Watchdog
from streamdedup.settings.sections import StatusSettings

HEARTBEAT_S = 0.5
"""Interval at which the heartbeat measures how late the event loop is."""
CONNECTION_S = 30.0
"""Longest life of a connection; it ends clients that send or read slowly."""
MOST_CONNECTIONS = 100
"""Connections at a time; another one is closed at once. Each takes a file descriptor."""
_LINE_BYTES = 8 * 1024  # longest request line, and longest header
_MOST_HEADERS = 64
_SHUTDOWN_S = 1.0  # how long the server waits for open requests when it closes


class StatusServer:
    """Serves the status pages, and records heartbeat and readiness; an async context manager."""

    def __init__(self, settings: StatusSettings, metrics: Metrics, state: WorkerState) -> None:
        self.port = settings.port  # the bound one, once started
        self._settings = settings
        self._metrics = metrics
        self._state = state
        self._runner = web.AppRunner(
            self._application(),
            access_log=None,
            shutdown_timeout=_SHUTDOWN_S,
            max_line_size=_LINE_BYTES,
            max_field_size=_LINE_BYTES,
            max_headers=_MOST_HEADERS,
        )
        self._listener: asyncio.Server | None = None
        self._heartbeat: asyncio.Task[None] | None = None
        self._watchdog = Watchdog(state)

    async def start(self) -> int:
        """Listen, and return the bound port; a SettingsError says why it cannot be bound."""
        await self._runner.setup()
        logging.getLogger("aiohttp.server").addFilter(_is_not_of_client)
        server = self._runner.server
        if server is None:
            raise AssertionError("unreachable: the runner is set up")
        server.request_factory = functools.partial(_make_request, server.request_factory)
        accept = functools.partial(self._accept, server)
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                accept, self._settings.host, self._settings.port
            )
        except OSError as error:
            await self._runner.cleanup()
            # asyncio wraps the system's message in a longer one. A resolver's numbers are negative.
            number = error.errno or 0
            cause = os.strerror(number) if number > 0 else error.strerror or error
            raise SettingsError(
                f"cannot listen on {self._settings.host}:{self._settings.port} "
                f"({cause}); change status.host or status.port"
            ) from error
        self.port = self._listener.sockets[0].getsockname()[1]
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
        if self._listener is not None:
            self._listener.close()
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

    def _accept(self, server: web.Server) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection, whose end is scheduled."""
        handler = server()
        is_full = len(server.connections) >= MOST_CONNECTIONS
        # A timer without delay comes after the connection was made.
        delay_s = 0.0 if is_full else CONNECTION_S
        asyncio.get_running_loop().call_later(delay_s, _abort, handler)
        return handler

    def _application(self) -> web.Application:
        application = web.Application()
        application.on_response_prepare.append(_close_after)
        application.router.add_get("/metrics", self._serve_metrics)
        application.router.add_get("/livez", self._serve_live)
        application.router.add_get("/readyz", self._serve_ready)
        application.router.add_get("/status", self._serve_status)
        if self._settings.page:
            Page(self._describe, lambda: self._state.recent).add_to(application.router)
        return application

    async def _serve_metrics(self, _: web.Request) -> web.Response:
        metrics, state = self._metrics, self._state
        metrics.set_gauge("ready", state.ready)
        metrics.set_gauge("active", state.phase == "running")
        metrics.set_gauge("standby_behind", state.behind)
        for reason, holds in state.degradations().items():
            metrics.set_gauge("degraded", holds, reason)
        if state.quality is not None:
            metrics.observe_quality(state.quality)
        body, content_type = metrics.render()
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
            "active": state.phase == "running",
            "behind": state.behind,
            "replay": {"done": state.replay_done, "total": state.replay_total},
            "partitions": state.partitions,
            "positions": {str(number): offset for number, offset in state.positions.items()},
            "judged": {str(outcome): state.judged[outcome] for outcome in Outcome},
            "documents": state.documents,
            "lag": {str(number): records for number, records in state.lag.items()},
            "applied_offset": state.applied_offset,
            "quality": None if state.quality is None else state.quality.described(),
        }


async def _close_after(_: web.Request, response: web.StreamResponse) -> None:
    """Let a connection end with its first response, and tell the client."""
    response.force_close()
    response.headers["Connection"] = "close"


def _make_request(
    make: Callable[..., web.BaseRequest], message: Any, *rest: Any
) -> web.BaseRequest:
    """Make a request; aiohttp 3 fails if it has no target, as in ``CONNECT`` and a line break."""
    return make(message if message.url is not None else message._replace(url=URL("/")), *rest)


def _abort(handler: asyncio.BaseProtocol) -> None:
    transport: asyncio.Transport | None = getattr(handler, "transport", None)
    if transport is not None:
        transport.abort()


def _is_not_of_client(record: logging.LogRecord) -> bool:
    """Return whether a record is worth logging: invalid requests of clients are not."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, http_exceptions.HttpProcessingError)
