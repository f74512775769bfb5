"""*Blocking.* A pool of processes that decode and sketch, off the event loop.

When a process dies (killed, out of memory, an unexpected error), the whole pool breaks. The pool is
restarted, and the batch is retried. If a process dies again, the batch is retried in isolation, in
ever smaller parts, and a record that kills a process alone is refused. A process that does not
answer is killed, and its batch retried in isolation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass

from streamdedup.batches import SketchedBatch
from streamdedup.columns import RecordColumns
from streamdedup.engine.prepare import NONE_REFUSED, merge
from streamdedup.engine.processes import Processes, Task, prepare
from streamdedup.errors import PoolUnusable
from streamdedup.formats.schemas import Schema
from streamdedup.model import Record, Rejection
from streamdedup.settings.sections import Settings

_DIED = Rejection(
    "sketch",
    "ProcessDied",
    "a sketch process died or did not answer, twice, while it prepared this record",
)

_START_S = 60.0
"""How long a process may take to start; at its first start ever it compiles the kernels."""
_WORK_S = 30.0
"""How long a batch may take, whatever its size: the machine may be busy."""
_BYTE_S = 1e-8
"""Additional seconds per byte and signature value: several times the slowest sketch measured."""


@dataclass(frozen=True, slots=True)
class PendingBatch:
    """A batch on its way through the pool."""

    records: RecordColumns
    refused: dict[int, Rejection]
    future: Future[SketchedBatch]


class SketchPool:
    """A pool of processes, each with a :class:`~streamdedup.engine.prepare.Preparer`.

    Args:
        settings: all settings; ``pool.size()`` is the number of processes.
        on_restart: called after each restart of the pool.
        task: what a process does with a batch; a module-level function, so that it can be pickled.

    Attributes:
        patience_s: if the oldest batch takes longer than this, its process hangs.
        schemas: the schemas that values name, by prefix; the owner of the pool adds to them.
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
        self.patience_s = _START_S + _WORK_S + largest * self._byte_s
        self.schemas: dict[bytes, Schema] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._has_worked = False
        self._processes = Processes(settings, self.size, self._task, self.schemas)
        self._isolated: Processes | None = None

    def warm(self) -> float:
        """Start one process, and wait until its kernels are loaded; others start when needed.

        Returns:
            Seconds that this process compiled kernels; 0 if numba's cache holds them.
        """
        self.submit([]).future.result()
        return self._processes.compile_seconds()

    def submit(
        self, records: Sequence[Record], refused: Mapping[int, Rejection] = NONE_REFUSED
    ) -> PendingBatch:
        """Send a batch to the pool.

        Args:
            records: the batch, in order of judgement.
            refused: rejections of records that the pool does not look at, by row.
        """
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
            return pending.future.result(self.patience_s)
        return self.recover(pending)

    def recover(self, pending: PendingBatch) -> SketchedBatch:
        """Prepare a batch whose process died, or has not answered until now.

        Raises:
            PoolUnusable: processes die without a record.
        """
        if self._is_lost(pending) and self._has_worked:
            try:
                pending = self.submit(pending.records, pending.refused)
                return pending.future.result(self.patience_s)
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
        self._processes = Processes(self._settings, self.size, self._task, self.schemas)
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

    def _start_isolated(self) -> Processes:
        with self._lock:
            self._check_open()
            self._isolated = Processes(self._settings, 1, self._task, self.schemas)
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
        self._processes.stop()


class _Quarantine:
    """One process for suspect records; it is restarted whenever it dies or hangs.

    Args:
        start: starts the process.
        work_s: returns how long records may take.
    """

    def __init__(
        self, start: Callable[[], Processes], work_s: Callable[[RecordColumns], float]
    ) -> None:
        self._start = start
        self._work_s = work_s
        self._process: Processes | None = None

    def prepare(self, records: RecordColumns, refused: Mapping[int, Rejection]) -> SketchedBatch:
        """Prepare records in as few parts as possible; refuse those that kill a process alone.

        Raises:
            PoolUnusable: processes die without a record.
        """
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
            return self._process.submit(records, dict(refused)).result(self._work_s(records))
        except (BrokenProcessPool, TimeoutError):
            self._process.kill()
            self._process = None
            return None

    def _tested(self) -> Processes:
        """Start a process, and test it with an empty batch: is the environment at fault?"""
        process = self._start()
        try:
            process.submit(RecordColumns.of([]), {}).result(_START_S)
        except (BrokenProcessPool, TimeoutError) as error:
            process.kill()
            raise PoolUnusable(
                "sketch processes end, or do not answer, before they get a record; their messages "
                "may say why. Raise the memory limit, or lower pool.workers; a Python script that "
                'starts them must be a file, and needs `if __name__ == "__main__":`'
            ) from error
        return process
