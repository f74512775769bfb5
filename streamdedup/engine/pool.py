"""*Blocking.* A pool of processes that decode and sketch, off the event loop.

Processes are spawned, never forked: LMDB must not cross a fork. When a process dies (killed, out of
memory), the whole pool breaks. The pool is restarted, and the batch is retried. If a process dies
again, the batch is retried in isolation, and the records that kill a process are refused.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from streamdedup.engine.prepare import NONE_REFUSED, Preparer
from streamdedup.kernels import compile_seconds
from streamdedup.model import Record, Rejection, SketchedBatch
from streamdedup.settings.sections import Settings

Task = Callable[[Sequence[Record], dict[int, Rejection]], SketchedBatch]

_DIED = Rejection(
    "sketch", "ProcessDied", "a sketch process died twice while it prepared this record"
)
_preparer: Preparer | None = None
"""The preparer of this process, if it is a pool process; None in all others."""


@dataclass(frozen=True, slots=True)
class PendingBatch:
    """A batch on its way through the pool."""

    records: Sequence[Record]
    refused: dict[int, Rejection]
    future: Future[SketchedBatch]


class SketchPool:
    """A pool of processes, each with a :class:`~streamdedup.engine.prepare.Preparer`.

    Args:
        settings: all settings; ``pool.size()`` is the number of processes.
        on_restart: called after each restart of the pool.
        task: what a process does with a batch; a module-level function, so that it can be pickled.
    """

    def __init__(
        self,
        settings: Settings,
        on_restart: Callable[[], None] = lambda: None,
        task: Task | None = None,
    ) -> None:
        self.size = settings.pool.size()
        self._settings = settings
        self._on_restart = on_restart
        self._task = task or prepare
        self._lock = threading.Lock()
        self._executor = _start(settings, self.size)

    def warm(self) -> float:
        """Start one process, and wait until its kernels are loaded; others start when needed.

        Returns:
            Seconds that this process compiled kernels; 0 if numba's cache holds them.
        """
        with _interrupts_blocked():
            warmed = self._executor.submit(self._task, [], {})
        warmed.result()
        return self._executor.submit(compile_seconds).result()

    def submit(
        self, records: Sequence[Record], refused: Mapping[int, Rejection] = NONE_REFUSED
    ) -> PendingBatch:
        """Send a batch to the pool.

        Args:
            records: the batch, in order of judgement.
            refused: rejections of records that the pool does not look at, by row.
        """
        refused = dict(refused)
        with self._lock, _interrupts_blocked():
            try:
                future = self._executor.submit(self._task, records, refused)
            except BrokenProcessPool:
                self._executor.shutdown(wait=False)
                self._executor = _start(self._settings, self.size)
                self._on_restart()
                future = self._executor.submit(self._task, records, refused)
        return PendingBatch(records, refused, future)

    def result(self, pending: PendingBatch) -> SketchedBatch:
        """Wait for a batch; recover it if the pool broke meanwhile."""
        try:
            return pending.future.result()
        except BrokenProcessPool:
            return self.recover(pending)

    def recover(self, pending: PendingBatch) -> SketchedBatch:
        """Prepare a batch whose pool broke: retry it, then refuse the records that break the pool.

        Raises:
            BrokenProcessPool: a process dies even if it gets no record.
        """
        try:
            return self.submit(pending.records, pending.refused).future.result()
        except BrokenProcessPool:
            return self._recover_in_isolation(pending)

    def _recover_in_isolation(self, pending: PendingBatch) -> SketchedBatch:
        """Prepare a batch in its own process, so that it breaks no other batch."""
        with _Quarantine(self._settings, self._task) as quarantine:
            whole = quarantine.attempt(pending.records, pending.refused)
            if whole is not None:
                return whole
            guilty = quarantine.guilty(pending.records, pending.refused)
            last = quarantine.attempt(
                pending.records, pending.refused | dict.fromkeys(guilty, _DIED)
            )
        if last is None:
            raise BrokenProcessPool(
                "sketch processes die even without a record; check the memory limit of the worker"
            )
        return last

    def close(self) -> None:
        """Stop the processes; batches in the pool are dropped."""
        self._executor.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT in the processes that the body starts.

    Ctrl-C reaches every process of the terminal, and one that is still loading would print a
    traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Quarantine:
    """One process for suspect records; it is restarted whenever it dies."""

    def __init__(self, settings: Settings, task: Task) -> None:
        self._settings = settings
        self._task = task
        self._executor = _start(settings, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)

    def attempt(
        self, records: Sequence[Record], refused: dict[int, Rejection]
    ) -> SketchedBatch | None:
        """Prepare records; return None if the process dies."""
        try:
            return self._executor.submit(self._task, records, refused).result()
        except BrokenProcessPool:
            self._executor.shutdown(wait=True)
            self._executor = _start(self._settings, 1)
            return None

    def guilty(self, records: Sequence[Record], refused: dict[int, Rejection]) -> list[int]:
        """Return the rows of the records that kill a process, among those not refused."""
        return self._search(records, [row for row in range(len(records)) if row not in refused])

    def _search(self, records: Sequence[Record], suspects: list[int]) -> list[int]:
        """Find these rows by bisection; a process has just died on the suspects together."""
        if len(suspects) <= 1:
            return suspects
        middle = len(suspects) // 2
        return [
            row
            for half in (suspects[:middle], suspects[middle:])
            if self.attempt([records[row] for row in half], {}) is None
            for row in self._search(records, half)
        ]


def _start(settings: Settings, size: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        max_workers=size,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_initialise,
        initargs=(settings,),
    )


def _initialise(settings: Settings) -> None:
    global _preparer  # noqa: PLW0603 - a pool process has no other place to keep it
    # Ctrl-C reaches every process of the terminal; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    _preparer = Preparer(settings)
    _preparer.warm()


def _die_with_parent() -> None:
    """End this process when its parent has ended, even by a kill: an orphan would keep memory."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(0)


def prepare(records: Sequence[Record], refused: dict[int, Rejection]) -> SketchedBatch:
    """Prepare a batch, in a pool process."""
    if _preparer is None:
        raise RuntimeError("prepare was called outside a pool process")
    return _preparer.prepare_records(records, refused)
