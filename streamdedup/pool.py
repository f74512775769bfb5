"""*Blocking.* The way off the event loop: processes that decode and sketch.

Processes are spawned, never forked: LMDB must not cross a fork. A process that dies (killed,
out of memory) takes the pool with it; the pool is made anew and the batch tried again, and if it
dies again the guilty record is searched for and refused.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from streamdedup.model import Record, Rejection, SketchedBatch
from streamdedup.prepare import Preparer
from streamdedup.settings import Settings

_preparer: Preparer | None = None
"""The preparer of this pool process; None everywhere else."""


@dataclass(frozen=True, slots=True)
class PendingBatch:
    """A batch on its way through the pool."""

    records: Sequence[Record]
    refused: dict[int, Rejection]
    future: Future[SketchedBatch]


class SketchPool:
    """A pool of processes that prepare batches; :class:`streamdedup.prepare.Preparer` in each.

    Args:
        settings: ``pool.size()`` processes are started.
        on_restart: called each time the pool had to be made anew.
    """

    def __init__(
        self, settings: Settings, on_restart: Callable[[], None] = lambda: None
    ) -> None:
        self.size = settings.pool.size()
        self._settings = settings
        self._on_restart = on_restart
        self._lock = threading.Lock()
        self._executor = self._start()

    def warm(self) -> None:
        """Start the processes, and wait until one has its kernels ready."""
        self._executor.submit(_prepare, [], {}).result()

    def submit(
        self, records: Sequence[Record], refused: dict[int, Rejection] | None = None
    ) -> PendingBatch:
        """Send a batch to the pool; the ``refused`` records are rejected unseen."""
        refused = refused or {}
        return PendingBatch(records, refused, self._send(records, refused))

    def result(self, pending: PendingBatch) -> SketchedBatch:
        """Wait for a batch; a pool that broke meanwhile is made anew."""
        try:
            return pending.future.result()
        except BrokenProcessPool:
            return self.recover(pending)

    def recover(self, pending: PendingBatch) -> SketchedBatch:
        """Prepare a batch whose pool broke: try again, then refuse the records that break it."""
        whole = self._attempt(pending.records, pending.refused)
        if whole is not None:
            return whole
        message = "a sketch process died on this record, twice; the record is refused"
        guilty = self._guilty(pending.records)
        died = {place: Rejection("sketch", "ProcessDied", message) for place in guilty}
        last = self._attempt(pending.records, died | pending.refused)
        if last is None:
            raise BrokenProcessPool("sketch processes keep dying, whatever they are given")
        return last

    def close(self) -> None:
        """Stop the processes; batches on their way are dropped."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _start(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            max_workers=self.size,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_initialise,
            initargs=(self._settings,),
        )

    def _send(
        self, records: Sequence[Record], refused: dict[int, Rejection]
    ) -> Future[SketchedBatch]:
        with self._lock:
            try:
                return self._executor.submit(_prepare, records, refused)
            except BrokenProcessPool:
                self._executor.shutdown(wait=False)
                self._executor = self._start()
                self._on_restart()
                return self._executor.submit(_prepare, records, refused)

    def _attempt(
        self, records: Sequence[Record], refused: dict[int, Rejection]
    ) -> SketchedBatch | None:
        try:
            return self._send(records, refused).result()
        except BrokenProcessPool:
            return None

    def _guilty(self, records: Sequence[Record]) -> list[int]:
        """Find the records on which a process dies, by halving."""
        if len(records) == 1:
            return [0]
        middle = len(records) // 2
        return [
            start + place
            for start, half in ((0, records[:middle]), (middle, records[middle:]))
            if self._attempt(half, {}) is None
            for place in self._guilty(half)
        ]


def _initialise(settings: Settings) -> None:
    global _preparer  # noqa: PLW0603 - the only place where a pool process can keep it
    # Ctrl-C goes to the whole terminal; it is for the parent to decide what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    _preparer = Preparer(settings)
    _preparer.warm()


def _die_with_parent() -> None:
    """End this process when its parent is gone, however it went: no orphan keeps the memory."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(0)


def _prepare(records: Sequence[Record], refused: dict[int, Rejection]) -> SketchedBatch:
    if _preparer is None:
        raise RuntimeError("this is no pool process")
    return _preparer.prepare_records(records, refused)
