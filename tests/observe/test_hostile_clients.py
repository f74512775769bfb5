"""The HTTP server against clients that misbehave, with raw sockets."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

import pytest

from streamdedup.observe import status
from streamdedup.observe.metrics import Metrics
from streamdedup.observe.state import WorkerState
from streamdedup.observe.status import StatusServer
from streamdedup.settings.sections import StatusSettings

PATHS = ["/metrics", "/livez", "/readyz", "/status", "/", "/page", "/page/page.js", "/page/state"]
METHODS = ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"]
HOST = b"Host: worker\r\n"


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """Serve with short limits; return the port."""
    monkeypatch.setattr(status, "CONNECTION_S", 0.5)
    monkeypatch.setattr(status, "MOST_CONNECTIONS", 10)
    settings = StatusSettings(port=0, page=True)
    async with StatusServer(settings, Metrics(), WorkerState("running")) as server:
        yield server.port


async def answer(port: int, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """Send parts of a request with pauses; return everything until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def status_of(response: bytes) -> int:
    """Return the status of a response; 0 without one."""
    return int(response.split(b" ", 2)[1]) if response else 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("path", PATHS)
async def test_only_get_and_head_are_allowed(port: int, path: str, method: str) -> None:
    """No path has a call that could change state."""
    request = f"{method} {path} HTTP/1.1\r\n".encode() + HOST + b"Content-Length: 0\r\n\r\n"
    assert status_of(await answer(port, request)) == (404 if method == "CONNECT" else 405)


@pytest.mark.parametrize("path", PATHS)
async def test_a_connection_serves_one_request(port: int, path: str) -> None:
    """A second request on the same connection is not answered."""
    request = f"GET {path} HTTP/1.1\r\n".encode() + HOST + b"\r\n"
    response = await answer(port, request * 2)
    assert status_of(response) in (200, 302)
    assert response.count(b"HTTP/1.1 ") == response.count(b"\r\nConnection: close\r\n") == 1


OVERSIZED = {
    "request line": b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "header": b"GET /livez HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 9000 + b"\r\n\r\n",
    "header name": b"GET /livez HTTP/1.1\r\n" + HOST + b"a" * 9000 + b": x\r\n\r\n",
    "headers": b"GET /livez HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 65 + b"\r\n",
    "endless line": b"GET /" + b"a" * 1_000_000,
    "endless header": b"GET /livez HTTP/1.1\r\nX: " + b"a" * 1_000_000,
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 512,
}


@pytest.mark.parametrize("name", OVERSIZED)
async def test_oversized_and_invalid_requests_are_refused(
    port: int, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They get a 400, or only the end of the connection, and no line in the log."""
    with caplog.at_level(logging.WARNING):
        response = await answer(port, OVERSIZED[name])
    assert status_of(response) in (0, 400)
    assert not caplog.records
    assert status_of(await answer(port, b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n")) == 200


SLOW = {
    "nothing": [b""],
    "a line in bytes": [bytes([byte]) for byte in b"GET /metrics HTTP/1.1\r\n"],
    "endless headers": [b"GET /metrics HTTP/1.1\r\n", *[b"X-%d: y\r\n" % n for n in range(40)]],
    "an endless body": [
        b"POST /metrics HTTP/1.1\r\n" + HOST + b"Content-Length: 999\r\n\r\n",
        *[b"x"] * 40,
    ],
}


@pytest.mark.parametrize("name", SLOW)
async def test_slow_clients_are_disconnected(port: int, name: str) -> None:
    """A connection ends after its longest life, whatever arrived until then."""
    began = time.monotonic()
    await asyncio.wait_for(answer(port, *SLOW[name], pause_s=0.1), 30)
    assert time.monotonic() - began >= 0.4


async def test_the_number_of_connections_is_limited(port: int) -> None:
    """Connections beyond the limit end at once; when the others end, requests pass again."""
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
    await asyncio.sleep(0.05)
    assert await answer(port, b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n") == b""
    for reader, writer in held:
        assert await reader.read() == b""
        writer.close()
    assert status_of(await answer(port, b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n")) == 200
