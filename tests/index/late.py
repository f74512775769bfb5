"""A background whose jobs all finish at an awkward moment."""

from __future__ import annotations

from streamdedup.index.jobs import JobOutcome, JobThread
from streamdedup.index.store import Index


class _LateBackground(JobThread):
    """Finishes every job just after the index has looked for outcomes without waiting."""

    def outcome(self, *, wait: bool) -> JobOutcome | None:
        """Take the next outcome only if the index waits for it."""
        outcome = super().outcome(wait=True) if wait else None
        with self._changed:
            self._changed.wait_for(lambda: len(self._outcomes) == self.pending)
        return outcome


def finish_jobs_late(index: Index) -> None:
    """Let an index adopt nothing until it must wait; the manifest is then ahead of it."""
    index._layers._background.__class__ = _LateBackground  # noqa: SLF001 - a schedule to test
