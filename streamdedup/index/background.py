"""*Blocking.* The background thread of an index: it performs one job after the other.

The thread never changes what the callers read: a job's outcome waits in a queue until the index
adopts it between two calls. A flush is urgent, since callers wait for it when both deltas are full.
So a merge looks for urgent jobs between two columns, and performs them first. Without a job, the
thread does its chores: it reads ahead, and later scrubs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from streamdedup.failpoints import reach
from streamdedup.index.jobs import Flush, Job, Merge, Remove, Workshop
from streamdedup.index.segment import Segment

BACKGROUND = "index-background"
"""The name of the thread."""


@dataclass(slots=True)
class JobOutcome:
    """A finished job, or the error that ended it; without a job, that of a chore."""

    job: Job | None
    error: BaseException | None = None


class Chore(Protocol):
    """What to do without a job, in short steps."""

    def due_in(self) -> float | None:
        """Return the seconds until the next step; None if there is nothing left to do."""

    def step(self) -> None:
        """Perform the next step."""


class JobThread:
    """The thread and its queues of jobs.

    Args:
        workshop: performs the jobs.
        chores: what to do without a job, in order of preference.
    """

    def __init__(self, workshop: Workshop, chores: Sequence[Chore]) -> None:
        self._workshop, self._chores = workshop, list(chores)
        self._urgent: deque[Job] = deque()
        self._patient: deque[Job] = deque()
        self._outcomes: deque[JobOutcome] = deque()
        self._pending = 0
        self._stopping = False
        # An interrupt cannot come between taking a plain lock and the block that releases it.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._work, name=BACKGROUND, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job."""
        with self._lock:
            urgent = isinstance(job, Flush) or (isinstance(job, Remove) and job.delta is not None)
            (self._urgent if urgent else self._patient).append(job)
            self._pending += 1
            self._changed.notify_all()

    @property
    def pending(self) -> int:
        """Number of jobs whose outcome was not taken yet."""
        return self._pending

    def outcome(self, *, wait: bool) -> JobOutcome | None:
        """Take the next outcome.

        Args:
            wait: whether to wait for one; then at least one job must be pending.

        Returns:
            The outcome; None if there is none yet.

        Raises:
            RuntimeError: the index is closed, or there is nothing to wait for.
        """
        if self._stopping:
            raise RuntimeError("the index is closed")
        if not wait and not self._outcomes:
            return None
        with self._lock:
            while not self._outcomes:
                if not self._pending:
                    raise RuntimeError("no job is pending: waiting for one would never end")
                self._changed.wait()
            self._pending -= 1
            return self._outcomes.popleft()

    def close(self) -> None:
        """Stop the thread, and close the segments that only its queues know.

        An unfinished merge is abandoned; it is due again after a restart.
        """
        with self._lock:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()
        for job in (*self._urgent, *self._patient, *(outcome.job for outcome in self._outcomes)):
            _close_segments(job)

    def _work(self) -> None:
        while True:
            with self._lock:
                job = self._next()
                if self._stopping:
                    return
            try:
                if job is None:
                    self._do_chore()
                else:
                    self._perform(job)
            except _Abandoned:
                return

    def _next(self) -> Job | None:
        """Wait for a job, or until a chore is due; then there is none."""
        while not (self._urgent or self._patient or self._stopping):
            due_in = min(self._due_in(), default=None)
            if due_in == 0 or not self._changed.wait(due_in):
                return None
        queue = self._urgent or self._patient
        return queue.popleft() if queue else None

    def _due_in(self) -> list[float]:
        """Return the seconds until each chore is due."""
        times = (chore.due_in() for chore in self._chores)
        return [seconds for seconds in times if seconds is not None]

    def _do_chore(self) -> None:
        due = (chore for chore in self._chores if chore.due_in() == 0)
        chore = next(due, None)
        if chore is None:  # the clock was read a moment too early
            return
        try:
            chore.step()
        except BaseException as error:  # noqa: BLE001 - the index raises it in its caller
            with self._lock:
                self._pending += 1
                self._outcomes.append(JobOutcome(None, error))
                self._changed.notify_all()

    def _perform(self, job: Job) -> None:
        error: BaseException | None = None
        try:
            self._workshop.perform(job, self._give_way)
        except _Abandoned:
            raise
        except BaseException as caught:  # noqa: BLE001 - the index raises it in its caller
            error = caught
            _close_segments(job)
        with self._lock:
            self._outcomes.append(JobOutcome(job, error))
            self._changed.notify_all()

    def _give_way(self) -> None:
        """Perform urgent jobs between two parts of a merge, or abandon the merge."""
        reach("merge-part")
        while self._urgent:
            self._perform(self._urgent.popleft())
        if self._stopping:
            raise _Abandoned


def _close_segments(job: Job | None) -> None:
    """Close the segments that the index does not know of yet, or no longer."""
    match job:
        case Flush(segment=Segment() as segment) | Merge(segment=Segment() as segment):
            segment.close()
        case Remove(segments=segments):
            for segment in segments:
                segment.close()
        case _:
            pass


class _Abandoned(BaseException):
    """The index closes; an unfinished merge has no outcome."""
