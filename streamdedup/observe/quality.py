"""*Blocking* (a thread, clocks). How good the verdicts are: the estimates and the shadow sample.

The shadow sample audits some documents beside the work.

Rule 1: it changes no verdict, and no batch waits for it. A sample is left out and counted if the
thread is busy, or has used up its share of the processor. Whether one is left out does not depend
on its verdicts, so that the others are still a fair sample.
Rule 2: the memory is bounded by ``audit.DOCUMENTS`` and ``audit.VALUES_BYTES``.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import structlog

from streamdedup.batches import JudgementCounts, Verdicts
from streamdedup.columns import RecordColumns
from streamdedup.dedup.quality import Figure, Figures, Quality, Sums, interval
from streamdedup.formats.schemas import NO_SCHEMAS, Schema
from streamdedup.observe.audit import (
    DOCUMENTS,
    VALUES_BYTES,
    Audit,
    RecentKept,
    Sample,
    take_sample,
)
from streamdedup.observe.catalogue import QUALITY_RESULTS, SHADOW_RESULTS
from streamdedup.settings.sections import Settings

log = structlog.get_logger(__name__)

_SHARE = 0.02  # largest share of one processor that the thread uses
_AHEAD_S = 2.0
"""Processor time that the thread may use ahead of its share: it loads its kernels first, and short
streams need a sample, too."""
_DECIMALS = 6


class Shadow:
    """Samples batches, and audits the samples in a thread; ``shadow_sample`` is at least 1.

    The schemas of the values may grow. The clocks count seconds: a monotonic one, and the processor
    time of the calling thread.
    """

    def __init__(
        self,
        settings: Settings,
        schemas: Mapping[bytes, Schema] = NO_SCHEMAS,
        clock: Callable[[], float] = time.monotonic,
        processor_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        # How many sampled documents had each result; the thread replaces it as a whole.
        self.results = Counter[str]()
        self.skipped = 0  # sampled documents that were left out
        self._settings = settings
        self._schemas = schemas
        self._clock = clock
        self._processor_clock = processor_clock
        self._one_in = settings.quality.shadow_sample
        self._most_documents = min(DOCUMENTS, settings.index.window_documents)
        self._recent = deque[RecentKept]()
        self._audit: Audit | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="shadow")
        self.running: Future[None] | None = None  # the latest audit
        self._next_at = clock() - _AHEAD_S / _SHARE

    def add(self, records: RecordColumns, verdicts: Verdicts) -> None:
        """Add a batch whose verdicts, in its order, are committed; the event loop calls this."""
        current, sample = take_sample(records, verdicts, tuple(self._recent), self._one_in)
        recent = self._recent
        if len(current.rows):
            recent.append(current)
        # The oldest batches go while the others are enough, or there are too many bytes.
        documents, size = sum(len(each.rows) for each in recent), sum(each.size for each in recent)
        while recent and (
            size > VALUES_BYTES or documents - len(recent[0].rows) >= self._most_documents
        ):
            oldest = recent.popleft()
            documents, size = documents - len(oldest.rows), size - oldest.size
        if sample is None:
            return
        if self._clock() < self._next_at or (self.running and not self.running.done()):
            self.skipped += len(sample.rows)
            return
        self.running = self._thread.submit(self._run, sample)
        self.running.add_done_callback(_report)

    def _run(self, sample: Sample) -> None:
        started = self._processor_clock()
        if self._audit is None:
            self._audit = Audit(self._settings, self._schemas)
        self.results = self.results + self._audit.compare(sample)
        used_s = self._processor_clock() - started
        earliest = self._clock() - _AHEAD_S / _SHARE
        self._next_at = max(self._next_at, earliest) + used_s / _SHARE

    def close(self) -> None:
        """Wait for the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)


def _report(future: Future[None]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.error("the shadow sample failed", error=repr(error))


class LiveQuality:
    """What a process knows of the quality of its verdicts.

    ``judges`` is whether it compares signatures, which an edge does not. A judge has no texts,
    and so no shadow sample.
    """

    def __init__(self, settings: Settings, *, judges: bool, shadow: Shadow | None) -> None:
        dedup = settings.dedup
        # Share of the pairs at the threshold that the settings promise to find.
        self.target = min(dedup.recall, dedup.banding().candidate_probability(dedup.threshold))
        self.sums = Sums()  # since the start, each by what was known when it was judged
        self.shadow = shadow
        self._one_in = settings.quality.shadow_sample
        self._quality = Quality(dedup) if judges else None

    def add_comparisons(self, counts: JudgementCounts, documents: int) -> None:
        """Add a judgement that is committed, on this number of documents."""
        if self._quality is not None:
            added = self._quality.add(counts, documents)
            self.sums = Sums(*(sum(pair) for pair in zip(self.sums, added, strict=True)))

    def add_records(self, records: RecordColumns, verdicts: Verdicts) -> None:
        """Add a batch whose verdicts, in its order, are committed."""
        if self.shadow is not None:
            self.shadow.add(records, verdicts)

    def figures(self) -> Figures | None:
        """Return the estimates; None for a process that does not judge."""
        return None if self._quality is None else self._quality.figures()

    def shadow_results(self) -> Counter[str]:
        """Return how many sampled documents had each result, and how many were skipped."""
        if self.shadow is None:
            return Counter()
        return self.shadow.results + Counter(skipped=self.shadow.skipped)

    def close(self) -> None:
        """Wait for the shadow sample."""
        if self.shadow is not None:
            self.shadow.close()

    def described(self) -> dict[str, Any]:
        """Return everything as /status shows it; an unknown number is None."""
        figures = self.figures()
        return {
            "target": _rounded(self.target),
            "estimate": None if figures is None else _described(figures),
            "shadow": None if self.shadow is None else self._described_shadow(),
        }

    def _described_shadow(self) -> dict[str, Any]:
        results = self.shadow_results()
        found = results["found"]
        shares = {
            "recall": found + results["missed"] + results["refuted"],
            "bucket_recall": found + results["missed"],
            "precision": found + results["wrong"],
        }
        return {
            "one_in": self._one_in,
            "documents": {name: results[name] for name in SHADOW_RESULTS},
            **{name: _share(found, count) for name, count in shares.items()},
        }


def _described(figures: Figures) -> dict[str, Any]:
    sums = figures.sums
    return {
        "documents": figures.documents,
        "repeats": {name: _rounded(getattr(sums, name)) for name in QUALITY_RESULTS},
        "recall": _figure(figures.recall),
        "precision": _figure(figures.precision),
        "pairs": {"pairs": figures.pairs.pairs, **_figure(figures.pairs.recall)},
        "levels": [
            {
                "low": _rounded(level.low),
                "high": _rounded(level.high),
                "pairs": level.pairs,
                **_figure(level.recall),
            }
            for level in figures.levels
        ],
    }


def _figure(figure: Figure) -> dict[str, float | None]:
    return {"value": _rounded(figure.value), "standard_error": _rounded(figure.error)}


def _share(found: int, count: int) -> dict[str, float | int | None]:
    low, high = interval(found, count)
    return {
        "value": _rounded(found / count if count else math.nan),
        "low": _rounded(low),
        "high": _rounded(high),
        "documents": count,
    }


def _rounded(number: float) -> float | None:
    """Return a number as JSON has it: NaN is not JSON."""
    return None if math.isnan(number) else round(number, _DECIMALS)
