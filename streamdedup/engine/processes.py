"""*Blocking.* Processes that decode and sketch, and how they start and end.

Processes are spawned, never forked: LMDB must not cross a fork.
"""

from __future__ import annotations

import errno
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from streamdedup.batches import SketchedBatch
from streamdedup.columns import RecordColumns
from streamdedup.engine.prepare import Preparer, RawBatch
from streamdedup.failpoints import reach
from streamdedup.formats.schemas import Schema
from streamdedup.kernels import compile_seconds, spare_collector
from streamdedup.model import Rejection
from streamdedup.settings.sections import Settings

Task = Callable[[RawBatch, dict[int, Rejection]], SketchedBatch]

_GRACE_S = 5.0
"""How long a process may take to finish its batch when it is asked to end."""
_preparer: Preparer | None = None
"""The preparer of this process, if it is a pool process; None in all others."""


class Processes:
    """A fixed number of processes, each with a :class:`~streamdedup.engine.prepare.Preparer`.

    If one dies, all end, and their batches raise BrokenProcessPool.
    """

    def __init__(
        self, settings: Settings, size: int, task: Task, schemas: Mapping[bytes, Schema]
    ) -> None:
        self._task = task
        self._schemas = schemas
        self._executor = ProcessPoolExecutor(
            max_workers=size,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_initialise,
            initargs=(settings,),
        )

    def submit(
        self, records: RecordColumns, refused: dict[int, Rejection]
    ) -> Future[SketchedBatch]:
        """Send a batch to a process, which is started if none is free.

        Raises:
            BrokenProcessPool: a process has died.
        """
        with _interrupts_blocked():
            try:
                return self._executor.submit(
                    self._task, RawBatch.of(records, self._schemas), refused
                )
            except OSError as error:
                if error.errno != errno.EBADF:
                    raise
                # The executor is about to notice, and has closed its pipe already.
                raise BrokenProcessPool("a sketch process has died") from error

    def compile_seconds(self) -> float:
        """Return for how long one of the processes has compiled kernels."""
        return self._executor.submit(compile_seconds).result()

    def kill(self) -> None:
        """End all processes at once, also those that are stopped or hang."""
        for process in self._alive():
            process.kill()
        _join(self._shut_down(cancel=False))

    def stop(self) -> None:
        """End all processes after their current batch, or kill them after some seconds."""
        processes = self._alive()
        manager = self._shut_down(cancel=True)
        running = {process.sentinel for process in processes}
        end = time.monotonic() + _GRACE_S
        while running and (left := end - time.monotonic()) > 0:
            running.difference_update(multiprocessing.connection.wait(list(running), left))
        for process in processes:
            if process.sentinel in running:
                process.kill()
        _join(manager)

    def _shut_down(self, *, cancel: bool) -> Any:
        """Shut the executor down; return its thread, which it forgets."""
        manager: Any = self._executor._executor_manager_thread  # noqa: SLF001 - see _join
        self._executor.shutdown(wait=False, cancel_futures=cancel)
        return manager

    def _alive(self) -> list[multiprocessing.Process]:
        # Python 3.14 has a public kill_workers(). The dictionary is gone after a shutdown.
        return list((self._executor._processes or {}).values())  # noqa: SLF001


def _join(manager: threading.Thread | None) -> None:
    """Wait for the thread of an executor whose processes have ended.

    Before 3.12, an exit of Python that meets the end of this thread prints a traceback.
    """
    if manager is not None:
        manager.join(_GRACE_S)


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


def _initialise(settings: Settings) -> None:
    global _preparer  # noqa: PLW0603 - a pool process has no other place to keep it
    # Ctrl-C reaches every process of the terminal; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    _preparer = Preparer(settings)
    _preparer.warm()
    spare_collector()


def _die_with_parent() -> None:
    """End this process when its parent has ended, even by a kill: an orphan would keep memory."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(0)


def prepare(batch: RawBatch, refused: dict[int, Rejection]) -> SketchedBatch:
    """Prepare a batch, in a pool process.

    An unexpected error ends the process. So the pool finds the record that causes it, as it finds
    one that kills a process, and the other records get their verdicts.
    """
    if _preparer is None:
        raise RuntimeError("prepare was called outside a pool process")
    try:
        reach("pool")
        return _preparer.prepare_raw(batch, refused)
    except MemoryError:
        sys.stderr.write("streamdedup: a sketch process has no memory left; raise its limit\n")
    except Exception:  # noqa: BLE001 - any error that a record can cause
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)
