"""*Blocking.* Streams of documents in a source topic: in blocks, or at a pace."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
from collections.abc import Callable
from typing import Self

from aiokafka import AIOKafkaProducer

from tests.support.corpora import RealDocuments
from tests.support.patience import wait_until
from tests.support.stage import Stage
from tests.support.workers import WorkerProcess

PARTITIONS = 3
BLOCK = 300
_PAUSE_S = 0.05
_LONGEST_OUTAGE_MS = 300_000
_ANSWER_MS = 3_000
_STOP_S = 2


class Feed:
    """Documents for one stage, of which every fifth repeats the text of an earlier one.

    Args:
        stage: whose source topic.
        partitions: of the source topic.

    Attributes:
        fed: documents in the source topic.
    """

    def __init__(self, stage: Stage, partitions: int = PARTITIONS) -> None:
        self._stage = stage
        self._partitions = partitions
        self._documents = RealDocuments()
        self.fed = 0

    def add(self, *, copies_only: bool = False) -> None:
        """Append a block to the source topic."""
        block = self._documents.block(BLOCK, copies_only=copies_only)
        for partition in range(self._partitions):
            self._stage.produce_json(block[partition :: self._partitions], partition)
        self.fed += BLOCK

    def is_committed(self) -> bool:
        """Return whether all documents are judged and their offsets committed."""
        return sum(self._stage.committed().values()) == self.fed

    def add_if_committed(self, worker: WorkerProcess) -> None:
        """Append a block if the worker, which must run, has judged the ones before."""
        worker.assert_running()
        if self.is_committed():
            self.add()

    def wait(self, worker: WorkerProcess) -> None:
        """Wait until a worker, which must not end, has judged all documents."""

        def is_committed() -> bool:
            worker.assert_running()
            return self.is_committed()

        wait_until(is_committed, f"{self.fed} documents to be judged")


class Feeder:
    """Appends documents to the partitions of the source topic until it is stopped.

    It appends each document once: its producer is idempotent, and waits for lost brokers.

    Args:
        stage: whose source topic.
        partitions: of the source topic.
        documents_per_s: the pace, while the brokers answer.

    Attributes:
        sent: documents that were handed to the producer so far.
    """

    def __init__(self, stage: Stage, partitions: int, documents_per_s: int = 120) -> None:
        self._stage = stage
        self._partitions = partitions
        self._block = round(documents_per_s * _PAUSE_S)
        self._stop = threading.Event()
        self.sent = 0
        self._error: BaseException | None = None
        self._cancel: Callable[[], object] = self._stop.set
        self._thread = threading.Thread(target=self._run, name="feeder")

    def __enter__(self) -> Self:
        self._thread.start()
        # A fault that met its first request would end it.
        wait_until(lambda: self.sent > 0 or self._error is not None, "the first documents")
        self.assert_feeding()
        return self

    def __exit__(self, *_: object) -> None:
        # After a failed test no broker may be there to take the rest.
        self._cancel()
        self._thread.join()

    def assert_feeding(self) -> None:
        """Raise the error that has ended it, if any."""
        if self._error is not None:
            raise self._error

    def finish(self) -> int:
        """Stop, wait until all documents are in the topic, and return their number."""
        self._stop.set()
        self._thread.join()
        self.assert_feeding()
        return self.sent

    def _run(self) -> None:
        try:
            asyncio.run(self._feed_until_cancelled())
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            self._error = error

    async def _feed_until_cancelled(self) -> None:
        loop, feeding = asyncio.get_running_loop(), asyncio.create_task(self._feed())
        self._cancel = lambda: loop.is_closed() or loop.call_soon_threadsafe(feeding.cancel)
        await feeding

    async def _feed(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._stage.bootstrap,
            enable_idempotence=True,
            acks="all",
            linger_ms=5,
            request_timeout_ms=_LONGEST_OUTAGE_MS,
        )
        # That is how long it keeps documents; a broker that hangs must answer sooner.
        producer.client._request_timeout_ms = _ANSWER_MS  # noqa: SLF001 - no public way
        producer._sender._request_timeout_ms = _ANSWER_MS  # noqa: SLF001
        documents, partitions = RealDocuments(), itertools.cycle(range(self._partitions))
        topic = self._stage.topics["source"]
        delivered = []
        await producer.start()
        try:
            while not self._stop.is_set():
                for document in documents.block(self._block):
                    value = json.dumps(document).encode()
                    delivered.append(await producer.send(topic, value, partition=next(partitions)))
                self.sent = len(delivered)
                await asyncio.sleep(_PAUSE_S)
            await asyncio.gather(*delivered)
        finally:
            # If the brokers are gone, it would wait for them.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(producer.stop(), _STOP_S)
