"""*Blocking.* A network between workers and their broker, which a test can disturb.

It is a TCP proxy in a thread of its own. It forwards Kafka's frames: a size of four bytes, then a
request or a response. In responses that name the broker's address it puts its own address, so that
all connections of a client pass through it, however the broker was started.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Literal, NamedTuple, Self

PRODUCE, METADATA, FIND_COORDINATOR = 0, 3, 10
INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 22, 24, 25, 26, 28
"""API keys of Kafka's requests."""
COMMIT_STEPS = (PRODUCE, ADD_PARTITIONS, ADD_OFFSETS, TXN_OFFSET_COMMIT, END_TXN)
"""The requests of a transaction."""
_WITH_ADDRESSES = (METADATA, FIND_COORDINATOR)

Ending = Literal["reset", "silence"]
"""What follows a lost response: the connection is reset, or stays without further responses."""

_LOOPBACK = "127.0.0.1"
_IN_FLIGHT = 256
"""Frames on the way in one direction of a connection, beyond which its sender must wait."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_PATIENCE_S = 30.0


class Loss(NamedTuple):
    """The loss of one response.

    Attributes:
        turn: to which request of its kind the response belongs, counted from 1.
        ending: what follows it.
    """

    turn: int
    ending: Ending


class Network:
    """A proxy in front of one broker.

    Args:
        bootstrap: the address that the broker advertises.
        rng: chooses the latencies.

    Attributes:
        latency_s: least and greatest delay of a frame, in each direction.
        bytes_per_second: the bandwidth of each direction of a connection.
        losses: the responses that will be lost, by API key; a lost one is removed.
    """

    def __init__(self, bootstrap: str, rng: random.Random) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._broker = host.strip("[]"), int(port)
        self._own = _LOOPBACK, 0
        self._rng = rng
        self.latency_s = 0.0, 0.0
        self.bytes_per_second = math.inf
        self.losses: dict[int, Loss] = {}
        self._links: set[_Link] = set()
        self._whole = asyncio.Event()
        self._whole.set()
        self._closing = asyncio.Event()
        self._listening = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="network")

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listening.wait(_PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    @property
    def bootstrap(self) -> str:
        """The address for clients."""
        return "{}:{}".format(*self._own)

    @contextlib.contextmanager
    def interrupted(self) -> Iterator[None]:
        """Deliver nothing during the context; deliver all of it afterwards, as TCP does."""
        self._loop.call_soon_threadsafe(self._whole.clear)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._whole.set)

    def reset(self) -> int:
        """Reset all connections, of clients and to the broker; return how many there were."""
        return self._end(_Link.reset)

    def desert(self) -> int:
        """End all connections to the broker, which the clients do not notice; return how many."""
        return self._end(_Link.desert)

    def _end(self, how: Callable[[_Link], None]) -> int:
        async def end() -> int:
            links = list(self._links)
            for link in links:
                how(link)
            return len(links)

        return asyncio.run_coroutine_threadsafe(end(), self._loop).result(_PATIENCE_S)

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._listen())

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._connect, _LOOPBACK, 0)
        self._own = server.sockets[0].getsockname()
        self._listening.set()
        await self._closing.wait()
        server.close()
        for link in self._links:
            link.reset()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            broker_reader, broker_writer = await asyncio.open_connection(*self._broker)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(self, writer, broker_writer)
        self._links.add(link)
        try:
            await asyncio.gather(
                self._carry(link.requests(reader), broker_writer),
                self._carry(link.responses(broker_reader), writer),
            )
        except OSError:
            link.reset()  # one side has ended while the other one was sending
        finally:
            self._links.discard(link)

    async def _carry(self, frames: AsyncIterator[bytes], writer: asyncio.StreamWriter) -> None:
        """Carry frames to a writer: each has its own latency, and none passes another one."""
        way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_IN_FLIGHT)

        async def depart() -> None:
            async for frame in frames:
                await way.put((time.monotonic() + self._rng.uniform(*self.latency_s), frame))
            await way.put((0.0, b""))

        departing = asyncio.create_task(depart())
        try:
            while frame := await self._arrival(way):
                writer.write(frame)
                await writer.drain()
            writer.close()
        finally:
            departing.cancel()

    async def _arrival(self, way: asyncio.Queue[tuple[float, bytes]]) -> bytes:
        due, frame = await way.get()
        await asyncio.sleep(max(due - time.monotonic(), len(frame) / self.bytes_per_second))
        await self._whole.wait()
        return frame

    def loss(self, api_key: int) -> Loss | None:
        """Return the loss of the response to a request of this kind, if that is due."""
        loss = self.losses.pop(api_key, None)
        if loss is not None and loss.turn > 1:
            self.losses[api_key] = loss._replace(turn=loss.turn - 1)
            return None
        return loss

    def redirected(self, response: bytes) -> bytes:
        """Put the proxy's address for the broker's, in both of Kafka's encodings of a string."""
        content = response[4:]
        for length in (_two_bytes, _compact):
            content = content.replace(_encoded(self._broker, length), _encoded(self._own, length))
        return struct.pack(">i", len(content)) + content


class _Link:
    """One connection of a client, and the one to the broker that belongs to it."""

    def __init__(
        self, network: Network, client: asyncio.StreamWriter, broker: asyncio.StreamWriter
    ) -> None:
        self._network = network
        self._client = client
        self._broker = broker
        self._asked: deque[int] = deque()  # a broker responds in the order of the requests
        self._is_deserted = False
        self._is_silent = False
        self._has_left = asyncio.Event()

    async def requests(self, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
        """Yield the client's requests until it closes the connection."""
        async for frame in _frames(reader):
            (api_key,) = struct.unpack_from(">h", frame, 4)
            self._asked.append(api_key)
            if not self._is_deserted:
                yield frame
        self._has_left.set()

    async def responses(self, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
        """Yield the broker's responses, until it closes the connection or the client does."""
        async for frame in _frames(reader):
            api_key = self._asked.popleft()
            loss = self._network.loss(api_key)
            if loss is not None and loss.ending == "reset":
                self.reset()
                return
            self._is_silent |= loss is not None
            if self._is_silent:
                continue
            yield self._network.redirected(frame) if api_key in _WITH_ADDRESSES else frame
        if self._is_deserted:
            await self._has_left.wait()

    def reset(self) -> None:
        """Reset the connections on both sides; what is on the way is lost."""
        for writer in (self._client, self._broker):
            if not writer.is_closing():
                connection = writer.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()

    def desert(self) -> None:
        """End the connection to the broker; the client gets no sign of it."""
        self._is_deserted = True
        self._broker.transport.abort()


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    with contextlib.suppress(asyncio.IncompleteReadError, OSError):
        while True:
            head = await reader.readexactly(4)
            yield head + await reader.readexactly(*struct.unpack(">i", head))


def _encoded(address: tuple[str, int], length: Callable[[int], bytes]) -> bytes:
    host, port = address
    return length(len(host)) + host.encode() + struct.pack(">i", port)


def _two_bytes(length: int) -> bytes:
    return struct.pack(">h", length)


def _compact(length: int) -> bytes:
    return bytes([length + 1])
