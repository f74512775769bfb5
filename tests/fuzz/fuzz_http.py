"""*Async.* The HTTP port: any bytes over a connection, and the server keeps answering."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random

from streamdedup.observe.metrics import Metrics
from streamdedup.observe.state import WorkerState
from streamdedup.observe.status import StatusServer
from streamdedup.settings.sections import StatusSettings
from tests.fuzz.cases import Block, Finding, expect, mutated, odd_integer

_CASES = 64
_LOGS = ("streamdedup.observe.status", "aiohttp.server", "aiohttp.web", "asyncio")
_ANSWER_S = 20.0
"""Longest time for an answer, on a busy machine."""
_PAUSE_S = 0.1
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
_PATHS = (
    "/metrics", "/livez", "/readyz", "/status", "/", "/page", "/page/page.js", "/page/state",
    "/page/duplicates", "/page/duplicates?low=0.5&high=1", "/page/duplicates?low=nan",
    "/page/../status",
    "//status", "/%2e%2e/%2fetc/passwd", "/page/duplicates?low=1e999&low=0", "/nothing", "*",
    "http://x/livez",
    "/page/duplicates?low=%ff%00", "/livez;a=b?c#d", "/%", "/page/page.css%00",
)  # fmt: skip
_TOKENS = (
    b"\r\n", b"\r\n\r\n", b"\n", b"\r", b":", b" ", b"\x00", b"\xff", b"HTTP/1.1", b"HTTP/2.0",
    b"HTTP/9",
    b"Content-Length: 5\r\n", b"Content-Length: -1\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n", b"Upgrade: websocket\r\n",
    b"Connection: Upgrade\r\n", b"Connection: close\r\n", b"Host: x\r\n", b"fffffffffffffffff\r\n",
    b"X: " + b"a" * 9000 + b"\r\n", b"X: y\r\n" * 200, b"%ff", b"%00", b"?low=", b"&high=1e400",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"..",
    b"\xc0\xaf",
    b"Content-Encoding: gzip\r\n", b"Accept-Encoding: gzip\r\n", b"Range: bytes=0-\r\n",
    b"Cookie: a=\xff\r\n",
)  # fmt: skip
_METHODS = (
    "GET",
    "GET",
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "OPTIONS",
    "CONNECT",
    "TRACE",
    "get",
    "G@T",
)


@contextmanager
def requests() -> Iterator[Block]:
    """Any bytes get an answer that is not the server's failure, or a closed connection."""
    failures: list[str] = []
    with asyncio.Runner() as runner, _failing_logs(failures):
        runner.get_loop().set_exception_handler(
            lambda _, context: failures.append(str(context.get("exception", context["message"])))
        )
        state = WorkerState()
        state.enter("running")
        server = StatusServer(StatusSettings(port=0), Metrics(), state)
        port = runner.run(server.start())

        def block(random: Random) -> int:
            runner.run(_run(port, [_request(random) for _ in range(_CASES)], failures))
            return _CASES

        try:
            yield block
        finally:
            runner.run(server.close())


@contextmanager
def _failing_logs(failures: list[str]) -> Iterator[None]:
    """Collect what the server logs as an error: exceptions of handlers."""

    class _Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            failures.append(f"{record.getMessage()} {record.exc_info}")

    handler = _Collector(logging.ERROR)
    loggers = [logging.getLogger(name) for name in _LOGS]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def _request(random: Random) -> bytes:
    lines = [
        f"{random.choice(_METHODS)} {random.choice(_PATHS)} HTTP/1.{random.choice('110')}",
        "Host: localhost",
    ]
    body = b""
    if random.random() < 0.3:
        body = random.randbytes(int(random.random() * 50))
        lines.append(
            f"Content-Length: {random.choice([len(body), len(body), odd_integer(random)])}"
        )
    content = "\r\n".join([*lines, "", ""]).encode() + body
    return content if random.random() < 0.2 else mutated(random, content, _TOKENS)


async def _run(port: int, requests: list[bytes], failures: list[str]) -> None:
    await _check(port, requests, failures)
    if failures:  # find the request that caused them
        together = failures[:3]
        for request in requests:
            failures.clear()
            await _check(port, [request], failures)
            expect(not failures, request, f"the server failed: {failures[:1]}")
        raise Finding(requests, f"the server failed: {together}")
    alive = await asyncio.wait_for(_send(port, b"GET /livez HTTP/1.0\r\n\r\n"), _ANSWER_S)
    expect(alive.startswith(b"HTTP/1.0 200"), requests[-1], f"not alive: {alive[:100]!r}")


async def _check(port: int, requests: list[bytes], failures: list[str]) -> None:
    answers = [_send(port, request) for request in requests]
    received = await asyncio.wait_for(asyncio.gather(*answers), _ANSWER_S)
    gc.collect()  # reports the errors of tasks that no code awaits
    for request, answer in zip(requests, received, strict=True):
        for status in _STATUS.findall(answer):
            expect(not status.startswith(b"5"), request, f"status {status!r}, {failures[:1]}")


async def _send(port: int, request: bytes) -> bytes:
    """Send bytes; return what comes back before the server pauses, and after the sending ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    with suppress(ConnectionError):
        writer.write(request)
        await writer.drain()
        with suppress(TimeoutError):  # the server does not answer half a request
            answer = await asyncio.wait_for(reader.read(2**16), _PAUSE_S)
        writer.write_eof()
        answer += await reader.read(-1)
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    return answer
