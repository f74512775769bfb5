"""*Blocking* (a thread, clocks). The shadow sample: audits some documents beside the work.

Rule 1: nothing here changes a verdict, and no batch waits for it. A sample is left out and counted
if the thread is busy, or has used up its share of the processor. Whether one is left out does not
depend on its verdicts, so that the others are still a fair sample.
Rule 2: the memory is bounded by ``audit.DOCUMENTS`` and ``audit.VALUES_BYTES``.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import structlog

from streamdedup.batches import Verdicts
from streamdedup.columns import RecordColumns
from streamdedup.formats.schemas import NO_SCHEMAS, Schema
from streamdedup.observe.audit import (
    DOCUMENTS,
    VALUES_BYTES,
    Audit,
    RecentKept,
    Sample,
    take_sample,
)
from streamdedup.settings.sections import Settings

log = structlog.get_logger(__name__)

_SHARE = 0.02
"""Largest share of one processor that the thread uses."""


class Shadow:
    """Samples batches, and audits the samples in a thread.

    Args:
        settings: all settings; ``quality.shadow_sample`` is at least 1.
        schemas: the schemas of the values, by prefix; may grow.
        clock: a monotonic clock, in seconds.
        processor_clock: the processor time of the calling thread, in seconds.

    Attributes:
        results: how many sampled documents had each result; the thread replaces it as a whole.
        skipped: sampled documents that were left out.
    """

    def __init__(
        self,
        settings: Settings,
        schemas: Mapping[bytes, Schema] = NO_SCHEMAS,
        clock: Callable[[], float] = time.monotonic,
        processor_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.results = Counter[str]()
        self.skipped = 0
        self._settings = settings
        self._schemas = schemas
        self._clock = clock
        self._processor_clock = processor_clock
        self._one_in = settings.quality.shadow_sample
        self._most_documents = min(DOCUMENTS, settings.index.window_documents)
        self._recent = deque[RecentKept]()
        self._audit: Audit | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="shadow")
        self._running: Future[None] | None = None
        self._next_at = 0.0

    def add(self, records: RecordColumns, verdicts: Verdicts) -> None:
        """Add a batch whose verdicts are committed; the event loop calls this.

        Args:
            records: the batch.
            verdicts: the verdicts on it, in the order of the records.
        """
        current, sample = take_sample(records, verdicts, tuple(self._recent), self._one_in)
        if len(current.rows):
            self._recent.append(current)
        self._forget()
        if sample is None:
            return
        if self._clock() < self._next_at or (self._running and not self._running.done()):
            self.skipped += len(sample.rows)
            return
        self._running = self._thread.submit(self._run, sample)
        self._running.add_done_callback(_report)

    def _forget(self) -> None:
        """Forget the oldest batches while the others are enough, or there are too many bytes."""
        recent = self._recent
        documents, size = sum(len(each.rows) for each in recent), sum(each.size for each in recent)
        while recent and (
            size > VALUES_BYTES or documents - len(recent[0].rows) >= self._most_documents
        ):
            oldest = recent.popleft()
            documents, size = documents - len(oldest.rows), size - oldest.size

    def _run(self, sample: Sample) -> None:
        started = self._processor_clock()
        if self._audit is None:
            self._audit = Audit(self._settings, self._schemas)
        self.results = self.results + self._audit.compare(sample)
        used_s = self._processor_clock() - started
        self._next_at = self._clock() + used_s / _SHARE

    def wait(self) -> None:
        """Wait for the audit that runs."""
        if self._running is not None:
            self._running.result()

    def close(self) -> None:
        """Wait for the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)


def _report(future: Future[None]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.error("the shadow sample failed", error=repr(error))
