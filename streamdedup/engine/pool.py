"""*Blocking.* A pool of processes that decode and sketch, off the event loop.

When a process dies (killed, out of memory, an unexpected error), the whole pool breaks. The pool is
restarted, and the batch is retried. If a process dies again, the batch is retried in isolation, in
ever smaller parts, and a record that kills a process alone is refused. A process that does not
answer is killed, and its batch retried in isolation; so is that of a process that dies while it
sends a result, since the executor waits for the rest, and does not notice the death.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from streamdedup.batches import SketchedBatch
from streamdedup.columns import RecordColumns
from streamdedup.engine.prepare import NONE_REFUSED, Preparer, RawBatch, merge
from streamdedup.errors import PoolUnusable
from streamdedup.failpoints import reach
from streamdedup.formats.schemas import Schema
from streamdedup.kernels import compile_seconds, spare_collector
from streamdedup.model import Record, Rejection
from streamdedup.settings.sections import Settings

_DIED = Rejection(
    "sketch",
    "ProcessDied",
    "a sketch process died or did not answer, twice, while it prepared this record",
)

_START_S = 60.0
"""How long a process may take to start; at its first start ever it compiles the kernels."""
_WORK_S = 30.0  # how long a batch may take, whatever its size: the machine may be busy
_BYTE_S = 1e-8
"""Additional seconds per byte and signature value: several times the slowest sketch measured."""
_LOOK_S = 1.0
"""How long to wait for a batch before looking whether a process has died."""
_GRACE_S = 5.0  # how long a process may take to finish its batch when it is asked to end
_preparer: Preparer | None = None
"""The preparer of this process, if it is a pool process; None in all others."""

Task = Callable[[RawBatch, dict[int, Rejection]], SketchedBatch]


@dataclass(frozen=True, slots=True)
class PendingBatch:
    """A batch on its way through the pool."""

    records: RecordColumns
    refused: dict[int, Rejection]
    future: Future[SketchedBatch]


class SketchPool:
    """A pool of processes, each with a :class:`~streamdedup.engine.prepare.Preparer`.

    Args:
        settings: ``pool.size()`` is the number of processes.
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
        self._byte_s = _BYTE_S * settings.dedup.num_perm
        largest = max(settings.batch.bytes, settings.limits.value_bytes)
        # If the oldest batch takes longer than this, its process hangs.
        self.patience_s = _START_S + _WORK_S + largest * self._byte_s
        self.schemas: dict[bytes, Schema] = {}  # by prefix; the owner of the pool adds to them
        self._lock = threading.Lock()
        self._closed = False
        self._has_worked = False
        self._processes = _Processes(settings, self.size, self._task, self.schemas)
        self._isolated: _Processes | None = None

    def warm(self) -> float:
        """Start one process, with its kernels; others start when needed.

        Return the seconds of compiling kernels, 0 if all are cached.
        """
        self.submit([]).future.result()
        return self._processes.compile_seconds()

    def submit(
        self, records: Sequence[Record], refused: Mapping[int, Rejection] = NONE_REFUSED
    ) -> PendingBatch:
        """Send a batch to the pool, which does not look at the refused records, given by row."""
        records, refused = RecordColumns.of(records), dict(refused)
        with self._lock:
            self._check_open()
            try:
                future = self._processes.submit(records, refused)
            except BrokenProcessPool as error:
                if self._has_worked:
                    self._restart()
                    future = self._processes.submit(records, refused)
                else:
                    # Perhaps no process can start. The recovery finds out, with a single one.
                    future = Future()
                    future.set_exception(error)
        if not self._has_worked:
            future.add_done_callback(self._note_success)
        return PendingBatch(records, refused, future)

    def result(self, pending: PendingBatch) -> SketchedBatch:
        """Wait for the oldest batch; recover it if its process dies or hangs.

        Raises:
            PoolUnusable: processes die without a record.
        """
        with suppress(BrokenProcessPool, CancelledError, TimeoutError):
            return self._processes.result(pending.future, self.patience_s)
        return self.recover(pending)

    def waits(self) -> Iterator[float]:
        """Yield for how many seconds to wait for the oldest batch, until it needs a recovery."""
        return self._processes.waits(self.patience_s)

    def recover(self, pending: PendingBatch) -> SketchedBatch:
        """Do what :meth:`result` does, once a process died, or has not answered until now."""
        if self._is_lost(pending) and self._has_worked:
            try:
                pending = self.submit(pending.records, pending.refused)
                return self._processes.result(pending.future, self.patience_s)
            except (BrokenProcessPool, CancelledError, TimeoutError):
                self._is_lost(pending)
        return self._recover_in_isolation(pending)

    def _is_lost(self, pending: PendingBatch) -> bool:
        """Return whether the process died; if it hangs, kill it with the whole pool."""
        with self._lock:
            if pending.future.done():
                return True
            self._restart()
            return False

    def _restart(self) -> None:
        """Replace the processes; batches in the old ones raise BrokenProcessPool."""
        self._processes.kill()
        self._check_open()
        self._processes = _Processes(self._settings, self.size, self._task, self.schemas)
        self._on_restart()

    def _recover_in_isolation(self, pending: PendingBatch) -> SketchedBatch:
        """Prepare a batch in its own process, so that it breaks no other batch."""
        quarantine = _Quarantine(self._start_isolated, self._work_s)
        try:
            batch = quarantine.prepare(pending.records, pending.refused)
        finally:
            if self._isolated is not None:
                self._isolated.kill()
        self._has_worked = True
        return batch

    def _start_isolated(self) -> _Processes:
        with self._lock:
            self._check_open()
            self._isolated = _Processes(self._settings, 1, self._task, self.schemas)
            return self._isolated

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the pool is closed")

    def _work_s(self, records: RecordColumns) -> float:
        return _WORK_S + int(records.sizes().sum()) * self._byte_s

    def _note_success(self, future: Future[SketchedBatch]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._has_worked = True

    def close(self) -> None:
        """Stop the processes within seconds; batches in the pool are dropped."""
        with self._lock:
            self._closed = True
        if self._isolated is not None:
            self._isolated.kill()
        self._processes.stop(_GRACE_S)


class _Quarantine:
    """One process for suspect records; it is restarted whenever it dies or hangs."""

    def __init__(
        self, start: Callable[[], _Processes], work_s: Callable[[RecordColumns], float]
    ) -> None:
        self._start = start
        self._work_s = work_s
        self._process: _Processes | None = None

    def prepare(self, records: RecordColumns, refused: Mapping[int, Rejection]) -> SketchedBatch:
        """Prepare records in as few parts as possible; refuse those that kill a process alone."""
        suspects = [row for row in range(len(records)) if row not in refused]
        batch = self._attempt(records, refused)
        if batch is None and len(suspects) > 1:
            middle = suspects[len(suspects) // 2]
            after = {row - middle: why for row, why in refused.items() if row >= middle}
            before = {row: why for row, why in refused.items() if row < middle}
            first = self.prepare(records[:middle], before)
            return merge(first, self.prepare(records[middle:], after))
        if batch is None:  # perhaps an accident, such as a short lack of memory
            batch = self._attempt(records, refused)
        if batch is None:
            batch = self._attempt(records, {**refused, **dict.fromkeys(suspects, _DIED)})
        if batch is None:
            raise PoolUnusable("sketch processes die even when every record is refused")
        return batch

    def _attempt(
        self, records: RecordColumns, refused: Mapping[int, Rejection]
    ) -> SketchedBatch | None:
        """Prepare records; return None if the process dies or hangs."""
        if self._process is None:
            self._process = self._tested()
        try:
            future = self._process.submit(records, dict(refused))
            return self._process.result(future, self._work_s(records))
        except (BrokenProcessPool, TimeoutError):
            self._process.kill()
            self._process = None
            return None

    def _tested(self) -> _Processes:
        """Start a process, and test it with an empty batch: is the environment at fault?"""
        process = self._start()
        try:
            process.result(process.submit(RecordColumns.of([]), {}), _START_S)
        except (BrokenProcessPool, TimeoutError) as error:
            process.kill()
            raise PoolUnusable(
                "sketch processes end, or do not answer, before they get a record; their messages "
                "may say why. Raise the memory limit, or lower pool.workers; a Python script that "
                'starts them must be a file, and needs `if __name__ == "__main__":`'
            ) from error
        return process


class _Processes:
    """A fixed number of processes. If one dies, all end; their batches raise BrokenProcessPool."""

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
        """Send a batch to a process, which is started if none is free."""
        # Ctrl-C reaches every process of the terminal, and a process that starts here and is still
        # loading would print a traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return self._executor.submit(self._task, RawBatch.of(records, self._schemas), refused)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            # The executor is about to notice, and has closed its pipe already.
            raise BrokenProcessPool("a sketch process has died") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def result(self, future: Future[SketchedBatch], patience_s: float) -> SketchedBatch:
        """Return the result of a future; raise a TimeoutError if no process will send it."""
        for wait_s in self.waits(patience_s):
            with suppress(TimeoutError):
                return future.result(wait_s)
        raise TimeoutError

    def waits(self, patience_s: float) -> Iterator[float]:
        """Yield for how long to wait for a result, in seconds, as often as it makes sense."""
        end, has_died = time.monotonic() + patience_s, False
        while not has_died and (left := end - time.monotonic()) > 0:
            # A result that was sent before the death, or the executor's error, arrives meanwhile.
            sentinels = [process.sentinel for process in self._alive()]
            has_died = bool(multiprocessing.connection.wait(sentinels, 0))
            yield min(_LOOK_S, left)

    def compile_seconds(self) -> float:
        """Return for how long one of the processes has compiled kernels."""
        return self._executor.submit(compile_seconds).result()

    def kill(self) -> None:
        """End all processes at once, also those that are stopped or hang."""
        self.stop(0.0)

    def stop(self, grace_s: float) -> None:
        """End all processes after their current batch, or kill them after some seconds."""
        executor: Any = self._executor
        manager, results = executor._executor_manager_thread, executor._result_queue  # noqa: SLF001
        processes = self._alive()
        executor.shutdown(wait=False, cancel_futures=grace_s > 0)
        running = {process.sentinel for process in processes}
        end = time.monotonic() + grace_s
        while running and (left := end - time.monotonic()) > 0:
            running.difference_update(multiprocessing.connection.wait(list(running), left))
        for process in processes:
            if process.sentinel in running:
                process.kill()
        if manager is not None:
            # Else it would wait without an end for the rest of a result, and Python for it.
            results._writer.close()  # noqa: SLF001
            # Before 3.12, an exit of Python that meets the end of this thread prints a traceback.
            manager.join(_GRACE_S)

    def _alive(self) -> list[multiprocessing.Process]:
        # Python 3.14 has a public kill_workers(). The dictionary is gone after a shutdown.
        return list((self._executor._processes or {}).values())  # noqa: SLF001


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
