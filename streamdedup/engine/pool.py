"""*Blocking.* The way off the event loop: processes that decode and sketch.

Processes are spawned, never forked: LMDB must not cross a fork. A process that dies (killed,
out of memory) takes the pool with it; the pool is made anew, and the batch tried again apart. If a
process dies again the guilty records are searched for and refused.
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
from streamdedup.model import Record, Rejection, SketchedBatch
from streamdedup.settings.sections import Settings

Task = Callable[[Sequence[Record], dict[int, Rejection]], SketchedBatch]

_DIED = Rejection(
    "sketch", "ProcessDied", "a sketch process died on this record, twice; the record is refused"
)
_preparer: Preparer | None = None
"""The preparer of this pool process; None everywhere else."""


@dataclass(frozen=True, slots=True)
class PendingBatch:
    """A batch on its way through the pool."""

    records: Sequence[Record]
    refused: dict[int, Rejection]
    future: Future[SketchedBatch]


class SketchPool:
    """A pool of processes, each with a :class:`~streamdedup.engine.prepare.Preparer`.

    Args:
        settings: ``pool.size()`` processes are started.
        on_restart: called each time the pool had to be made anew.
        task: what a process does with a batch; a function of a module, that it can be sent.
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

    def warm(self) -> None:
        """Start one process, and wait for its kernels; the others start when needed."""
        with _interrupts_blocked():
            warmed = self._executor.submit(self._task, [], {})
        warmed.result()

    def submit(
        self, records: Sequence[Record], refused: Mapping[int, Rejection] = NONE_REFUSED
    ) -> PendingBatch:
        """Send a batch to the pool; the ``refused`` records are rejected unseen."""
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
        """Wait for a batch; one whose pool broke meanwhile is recovered."""
        try:
            return pending.future.result()
        except BrokenProcessPool:
            return self.recover(pending)

    def recover(self, pending: PendingBatch) -> SketchedBatch:
        """Prepare a batch whose pool broke: try again, then refuse the records that break it.

        The search happens in a process apart, so that no other batch breaks, or is blamed, with it.

        Raises:
            BrokenProcessPool: processes die without any record.
        """
        try:
            return self.submit(pending.records, pending.refused).future.result()
        except BrokenProcessPool:
            return self._recover_apart(pending)

    def _recover_apart(self, pending: PendingBatch) -> SketchedBatch:
        with _Quarantine(self._settings, self._task) as quarantine:
            whole = quarantine.attempt(pending.records, pending.refused)
            if whole is not None:
                return whole
            guilty = quarantine.guilty(pending.records, pending.refused)
            last = quarantine.attempt(
                pending.records, pending.refused | dict.fromkeys(guilty, _DIED)
            )
        if last is None:
            raise BrokenProcessPool("sketch processes keep dying, whatever they are given")
        return last

    def close(self) -> None:
        """Stop the processes; batches on their way are dropped."""
        self._executor.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Let processes that are started here begin with SIGINT blocked.

    Ctrl-C goes to the whole terminal; a process that is still loading would print a traceback.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Quarantine:
    """One process for suspect records, made anew after each death."""

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
        """Prepare records; None if the process dies."""
        try:
            return self._executor.submit(self._task, records, refused).result()
        except BrokenProcessPool:
            self._executor.shutdown(wait=True)
            self._executor = _start(self._settings, 1)
            return None

    def guilty(self, records: Sequence[Record], refused: dict[int, Rejection]) -> list[int]:
        """Find the places of the records on which a process dies, among those not refused."""
        return self._search(records, [at for at in range(len(records)) if at not in refused])

    def _search(self, records: Sequence[Record], suspects: list[int]) -> list[int]:
        """Find them by halving; a process has just died on the suspects together."""
        if len(suspects) <= 1:
            return suspects
        middle = len(suspects) // 2
        return [
            place
            for half in (suspects[:middle], suspects[middle:])
            if self.attempt([records[at] for at in half], {}) is None
            for place in self._search(records, half)
        ]


def _start(settings: Settings, size: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        max_workers=size,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_initialise,
        initargs=(settings,),
    )


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


def prepare(records: Sequence[Record], refused: dict[int, Rejection]) -> SketchedBatch:
    """Prepare a batch; only for pool processes."""
    if _preparer is None:
        raise RuntimeError("this is no pool process")
    return _preparer.prepare_records(records, refused)
