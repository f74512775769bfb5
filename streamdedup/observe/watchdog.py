"""*Blocking.* The watchdog: a thread that notices when the event loop or the work stands still.

It writes the stacks of all threads to standard error, once for each time that something stands
still. While the work does, /livez fails, so that the process is restarted: nothing is lost.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
from collections.abc import Callable

import structlog

from streamdedup.observe.state import WorkerState

log = structlog.get_logger(__name__)

LOOP_S = 10.0
"""Seconds after which a blocked event loop is reported; probes fail at once."""
WORK_S = 600.0
"""Seconds without a step of the work. A transaction, the recovery of a batch in parts, and a flush
on a slow disk take less."""
_LOOK_S = 1.0


class Watchdog:
    """Looks at the state every second, once started, and writes ``stuck``.

    The event loop may be blocked for ``loop_s``, a step of the work take ``work_s`` seconds.
    """

    def __init__(
        self,
        state: WorkerState,
        loop_s: float = LOOP_S,
        work_s: float = WORK_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._loop_s, self._work_s = loop_s, work_s
        self._clock = clock
        self._looked_at = self._beat_at = self._advanced_at = clock()
        self._steps = state.steps
        self._has_dumped = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        self._thread.join()

    def beat(self) -> None:
        """Note that the event loop runs."""
        self._beat_at = self._clock()

    def _watch(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            self.look()

    def look(self) -> None:
        """Compare the state with that of the last look."""
        now, state = self._clock(), self._state
        if now - self._looked_at > _LOOK_S + self._loop_s / 2:
            # The whole process or machine was stopped, this thread included.
            self._beat_at = self._advanced_at = now
        self._looked_at = now
        if state.steps != self._steps or not state.must_advance:
            self._steps, self._advanced_at, state.stuck = state.steps, now, ""
        if now - self._advanced_at > self._work_s:
            state.stuck = f"no step in {self._work_s:.0f} seconds while {state.phase}"
            self._dump("the work stands still", now - self._advanced_at)
        elif now - self._beat_at > self._loop_s:
            self._dump("the event loop is blocked", now - self._beat_at)
        else:
            self._has_dumped = False

    def _dump(self, event: str, seconds: float) -> None:
        if self._has_dumped:
            return
        self._has_dumped = True
        log.error(event, seconds=round(seconds, 1), phase=self._state.phase)
        faulthandler.dump_traceback(sys.stderr)
