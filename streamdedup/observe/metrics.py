"""*Blocking* (reads clocks, takes a lock). The metrics of the catalogue, in a Prometheus registry.

Rule 1: every metric is in ``CATALOGUE`` and in docs/metrics.md, which explains how to react to it.
Rule 2: label values are few and known: partitions, and names from the model. Never an id or a text.
Rule 3: a batch is counted as a whole, not document by document.
Rule 4: a gauge is NaN until its value is known, because zero would trigger alerts.
"""

from __future__ import annotations

import math
import platform
import time
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import streamdedup
from streamdedup.batches import JudgementCounts, Verdicts
from streamdedup.columns import I64, RecordColumns
from streamdedup.model import NO_TIMESTAMP, DiskRoom, IndexStats, Record
from streamdedup.observe.catalogue import (
    CATALOGUE,
    QUALITY_RESULTS,
    SHADOW_RESULTS,
    MetricSpec,
    Stage,
    TransactionResult,
)
from streamdedup.observe.quality import LiveQuality
from streamdedup.settings.sections import Settings

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_Totals = defaultdict[tuple[str, str | None], float]
"""What counters that follow a total have counted of it, by name and label."""


class Metrics:
    """The metrics of one worker, in a new registry by default.

    ``now`` is the wall clock, in seconds since the epoch, and ``clock`` a monotonic one.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._registry = registry if registry is not None else CollectorRegistry()
        self._now = now
        self._clock = clock
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        self._batch_histograms: dict[str, BatchHistogram] = {}
        self._infos: dict[str, Info] = {}
        self._estimates: _Totals = defaultdict(float)
        self._index_totals: _Totals = defaultdict(float)
        for entry in CATALOGUE:
            self._declare(entry)
        self._infos["build_info"].info(
            {"version": streamdedup.__version__, "python": platform.python_version()}
        )

    def describe(self, settings: Settings, role: str = "worker") -> None:
        """Expose the role, the parameters that verdicts depend on, and the size of the pool."""
        self._infos["role_info"].info({"role": role})
        parameters = settings.dedup.sketch_parameters()
        self._infos["settings_info"].info(
            {
                "fingerprint": parameters.fingerprint(),
                "threshold": str(settings.dedup.threshold),
                "bands": str(parameters.bands),
                "rows": str(parameters.rows),
            }
        )
        self.set_gauge("pool_processes", 0 if role == "judge" else settings.pool.size())

    def set_gauge(self, name: str, value: float, label: object = None) -> None:
        """Set a gauge, or its series with a value of the label; a label has few values (rule 2)."""
        gauge = self._gauges[name]
        (gauge if label is None else gauge.labels(label)).set(value)

    def count(self, name: str, amount: float = 1, label: object = None) -> None:
        """Raise a counter, or its series with a value of the label; any thread may call this."""
        counter = self._counters[name]
        (counter if label is None else counter.labels(label)).inc(amount)

    def count_received(self, records: Sequence[Record]) -> None:
        """Count a polled batch, and set the positions of its partitions."""
        self._histograms["batch_documents"].observe(len(records))
        columns = RecordColumns.of(records)
        self.count("bytes_received_total", int(columns.sizes().sum()))
        partitions, offsets = columns.positions.partitions, columns.positions.offsets
        for partition, count in enumerate(np.bincount(partitions).tolist()):
            if count:
                self.count("documents_received_total", count, partition)
                next_offset = int(offsets[partitions == partition].max()) + 1
                self.set_gauge("consumer_position", next_offset, partition)

    def count_verdicts(
        self, verdicts: Verdicts, records: Sequence[Record] = (), now_ms: int | None = None
    ) -> None:
        """Count verdicts, and the latencies of their records up to ``now_ms`` since the epoch."""
        for outcome, count in verdicts.tally().items():
            if count:
                self.count("documents_total", count, outcome)
        reasons = Tally(rejection.reason for rejection in verdicts.rejections.values())
        for reason, count in reasons.items():
            self.count("rejections_total", count, reason)
        committed_ms = self._now() * 1000 if now_ms is None else now_ms
        # A producer's clock may be ahead of ours; a latency is never negative.
        times_ms = RecordColumns.of(records).timestamps_ms
        latencies_ms = np.maximum(0, committed_ms - times_ms[times_ms != NO_TIMESTAMP])
        self._batch_histograms["end_to_end_latency_seconds"].observe(latencies_ms / 1000)

    def count_comparisons(self, counts: JudgementCounts) -> None:
        """Count the candidates of a judged batch."""
        self.count("candidates_total", counts.candidates)
        self.count("verified_pairs_total", counts.verified, "verified")
        self.count("verified_pairs_total", counts.refuted, "refuted")
        for result, count in (
            ("confirmed", counts.exact_confirmed),
            ("refuted", counts.exact_refuted),
            ("without_text", counts.exact_without_text),
            ("over_budget", counts.exact_over_budget),
        ):
            self.count("exact_verifications_total", count, result)
        self.count("buckets_truncated_total", counts.buckets_truncated)
        self._batch_histograms["candidate_similarity"].observe(
            counts.similarities, counts.by_similarity
        )

    def observe_quality(self, quality: LiveQuality) -> None:
        """Record how good the verdicts are."""
        for result in QUALITY_RESULTS:
            total = getattr(quality.sums, result)
            self._raise_to(self._estimates, "quality_documents_total", total, result)
        variance = quality.sums.missed_variance
        self._raise_to(self._estimates, "quality_missed_variance_total", variance)
        results = quality.shadow_results()
        for result in SHADOW_RESULTS:
            self._raise_to(self._estimates, "shadow_documents_total", results[result], result)
        self.set_gauge("quality_recall_target", quality.target)
        figures = quality.figures()
        if figures is None:
            return
        self.set_gauge("quality_window_documents", figures.documents)
        for name, figure in (
            ("recall", figures.recall),
            ("precision", figures.precision),
            ("pair_recall", figures.pairs.recall),
        ):
            self.set_gauge(f"quality_{name}", figure.value)
            self.set_gauge(f"quality_{name}_standard_error", figure.error)

    def _raise_to(self, totals: _Totals, name: str, total: float, label: str | None = None) -> None:
        """Raise a counter by what a total has grown; a ValueError if one of the index has fallen.

        Totals of the quality have estimates: one that falls a little waits.
        """
        if totals is self._estimates:
            total = max(totals[name, label], total)
        self.count(name, total - totals[name, label], label)
        totals[name, label] = total

    @contextmanager
    def stage(self, name: Stage) -> Iterator[None]:
        """Time one stage of a batch, also if it fails."""
        started = self._clock()
        try:
            yield
        finally:
            self.observe_stage(name, self._clock() - started)

    def observe_stage(self, name: Stage, seconds: float) -> None:
        """Record how long a batch spent in a stage."""
        self._histograms["batch_duration_seconds"].labels(name).observe(seconds)

    def count_transaction(self, result: TransactionResult) -> None:
        """Count a Kafka transaction; a committed one also sets the time of the last commit."""
        self.count("transactions_total", label=result)
        if result == "committed":
            self.set_gauge("last_commit_timestamp_seconds", self._now())

    def observe_lag(self, lag: Mapping[int, int]) -> None:
        """Record the number of unread records of each partition."""
        for partition, records in lag.items():
            self.set_gauge("consumer_lag", records, partition)

    def forget_partitions(self) -> None:
        """Forget the lag and the position of every partition: another worker reads them."""
        self._gauges["consumer_lag"].clear()
        self._gauges["consumer_position"].clear()

    def observe_index(self, stats: IndexStats, room: DiskRoom) -> None:
        """Record the size and the work of the index, and its free disk space."""
        for name, value in (
            ("documents", stats.documents),
            ("postings", stats.postings),
            ("segments", stats.segments),
            ("delta_documents", stats.delta_documents),
            ("bytes", stats.bytes_used),
            ("room_bytes", room.bytes_left),
            ("reserve_bytes", stats.reserve_bytes),
            ("memory_bytes", stats.memory_bytes),
            ("applied_offset", stats.applied),
            ("durable_offset", stats.durable),
        ):
            self.set_gauge(f"index_{name}", value)
        for name, time_ms in (("clock", stats.clock_ms), ("oldest", stats.oldest_ms)):
            if time_ms != NO_TIMESTAMP:
                self.set_gauge(f"index_{name}_timestamp_seconds", time_ms / 1000)
        for name in ("flushes", "merges", "stalls", "scrubbed_bytes", "damaged_blocks"):
            self._raise_to(self._index_totals, f"index_{name}_total", getattr(stats, name))
        self._raise_to(self._index_totals, "index_expired_segments_total", stats.expired)
        absent = stats.lookups - stats.lookups_found
        for result, total in (("found", stats.lookups_found), ("absent", absent)):
            self._raise_to(self._index_totals, "index_lookups_total", total, result)
        self.set_gauge("disk_free_bytes", room.free_bytes)

    def begin_index(self) -> None:
        """Expect totals from zero: an index counts from when it was opened."""
        self._index_totals.clear()

    def observe_loop_lag(self, seconds: float) -> None:
        """Record how late the event loop woke a task."""
        self._histograms["event_loop_lag_seconds"].observe(seconds)

    def render(self) -> tuple[bytes, str]:
        """Return all metrics in Prometheus's text format, and its content type."""
        return generate_latest(_WithoutCreated(self._registry)), CONTENT_TYPE

    def _declare(self, entry: MetricSpec) -> None:
        name, labels = entry.full_name, (entry.label,) if entry.label else ()
        metric: Counter | Gauge | Histogram
        match entry.kind:
            case "counter":
                metric = Counter(name, entry.help, labels, registry=self._registry)
                self._counters[entry.name] = metric
            case "gauge":
                metric = Gauge(name, entry.help, labels, registry=self._registry)
                if not labels:
                    metric.set(math.nan)
                self._gauges[entry.name] = metric
            case "histogram":
                metric = Histogram(
                    name, entry.help, labels, registry=self._registry, buckets=entry.buckets
                )
                self._histograms[entry.name] = metric
            case "batch histogram":
                self._batch_histograms[entry.name] = BatchHistogram(entry)
                self._registry.register(self._batch_histograms[entry.name])
                return
            case "info":
                name = name.removesuffix("_info")
                self._infos[entry.name] = Info(name, entry.help, registry=self._registry)
                return
        for value in entry.values:
            metric.labels(value)


class BatchHistogram(Collector):
    """A histogram that takes arrays: one call per batch instead of one per document."""

    def __init__(self, entry: MetricSpec) -> None:
        self._entry = entry
        self._bounds = np.array(entry.buckets)
        self._counts = np.zeros(len(entry.buckets) + 1, dtype=np.int64)
        self._sum = 0.0
        self._lock = Lock()

    def observe(self, values: NDArray[np.float64], counts: I64 | None = None) -> None:
        """Count each value, ``(k,)``, in the first bucket whose bound is not below it.

        ``counts``, ``(k,)``, is how often each occurs; once by default.
        """
        times = np.ones(len(values), dtype=np.int64) if counts is None else counts
        buckets = np.searchsorted(self._bounds, values, side="left")
        with self._lock:
            self._counts += np.bincount(buckets, times, minlength=len(self._counts)).astype(int)
            self._sum += float(values @ times)

    def collect(self) -> Iterable[Metric]:
        """Return the histogram as a metric family, with cumulative counts."""
        with self._lock:
            cumulative, total = np.cumsum(self._counts).tolist(), self._sum
        bounds = [*(str(bound) for bound in self._entry.buckets), "+Inf"]
        buckets = list(zip(bounds, cumulative, strict=True))
        yield HistogramMetricFamily(
            self._entry.full_name, self._entry.help, buckets=buckets, sum_value=total
        )


class _WithoutCreated(Collector):
    """A registry's metrics without the unused ``_created`` series, which would double the page."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        for metric in self._registry.collect():
            created = f"{metric.name}_created"
            metric.samples = [sample for sample in metric.samples if sample.name != created]
            yield metric
