"""*Blocking.* Loopback ports: find free ones, and test whether a Kafka broker answers."""

import errno
import random
import socket
import struct
import time
from collections.abc import Callable

from deploy.broker.errors import BrokerFailed

LOOPBACK = "127.0.0.1"

_PORTS = range(20_000, 32_000)
"""Below the kernel's ephemeral range (32768 and up on Linux), so that no outgoing connection takes
the port of a broker that is stopped between two starts."""

_API_VERSIONS_KEY = 18
_CORRELATION_ID = 7
_HEADER_BYTES = 10
_ATTEMPT_SECONDS = 1.0
_PAUSE_SECONDS = 0.05


def is_free(port: int) -> bool:
    """Tell whether a server can listen on the loopback `port` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def choose_ports(count: int) -> list[int]:
    """Return `count` different free loopback ports."""
    chosen: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        if len(chosen) == count:
            break
        if is_free(port):
            chosen.append(port)
    return chosen


def answers_kafka(host: str, port: int) -> bool:
    """Tell whether a Kafka broker at `host`:`port` answers an ApiVersions request (version 0).

    A KRaft broker opens its client listeners only when it is unfenced, so an answer means that it
    serves requests.
    """
    body = struct.pack(">hhih", _API_VERSIONS_KEY, 0, _CORRELATION_ID, -1)
    try:
        with socket.create_connection((host, port), timeout=_ATTEMPT_SECONDS) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            header = _receive(connection, _HEADER_BYTES)
    except OSError:
        return False
    if len(header) < _HEADER_BYTES:
        return False
    _, correlation_id, error_code = struct.unpack(">iih", header)
    return bool(correlation_id == _CORRELATION_ID and error_code == 0)


def wait_until_answers(
    host: str, port: int, *, timeout_seconds: float, is_alive: Callable[[], bool]
) -> None:
    """Wait until a broker answers.

    Raises:
        BrokerFailed: `is_alive` returned False, or `timeout_seconds` passed.
    """
    deadline = time.monotonic() + timeout_seconds
    while not answers_kafka(host, port):
        if not is_alive():
            raise BrokerFailed("the broker ended before it answered")
        if time.monotonic() > deadline:
            raise BrokerFailed(f"{host}:{port} did not answer within {timeout_seconds:g} s")
        time.sleep(_PAUSE_SECONDS)


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            break
        received += chunk
    return received
