"""*Pure.* Every metric: its name, kind, labels, buckets and help text.

docs/metrics.md explains each of them. A test compares its names, kinds and labels with this file.
The dashboard of the Helm chart repeats the help texts, which a test compares too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from streamdedup.model import Outcome

PREFIX = "streamdedup_"

Kind = Literal["counter", "gauge", "histogram", "batch histogram", "info"]
Stage = Literal["poll", "sketch", "probe", "resolve", "encode", "transaction", "index"]
TransactionResult = Literal["committed", "unknown", "fenced"]

QUALITY_RESULTS = ("found", "missed", "refuted", "false")
SHADOW_RESULTS = ("found", "missed", "refuted", "wrong", "alone", "skipped")
STAGES = ("poll", "sketch", "probe", "resolve", "encode", "transaction", "index")
_SIMILARITIES = tuple(share / 100 for share in (*range(10, 50, 10), *range(50, 100, 5), 98, 100))
_DURATIONS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LATENCIES = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0, 86400.0)
_SIZES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0, 30_000.0, 100_000.0)


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A metric of the catalogue."""

    kind: Kind  # a batch histogram takes whole arrays
    name: str  # without the prefix
    help: str  # what it measures, in one sentence
    label: str = ""  # its only one
    values: tuple[str, ...] = ()  # of the label if they are known; their series begin at zero
    buckets: tuple[float, ...] = ()  # upper bounds of a histogram, ascending, without infinity

    @property
    def full_name(self) -> str:
        """The exposed name."""
        return PREFIX + self.name


_counter = partial(MetricSpec, "counter")
_gauge = partial(MetricSpec, "gauge")
_histogram = partial(MetricSpec, "histogram")
_batch_histogram = partial(MetricSpec, "batch histogram")
_info = partial(MetricSpec, "info")

CATALOGUE = (
    # Flow
    _counter("documents_received_total", "Records read from the source.", "partition"),
    _counter("bytes_received_total", "Bytes of the values of the records read."),
    _counter("documents_total", "Records judged, by verdict.", "verdict", tuple(Outcome)),
    _counter("rejections_total", "Records sent to the dead-letter topic.", "reason"),
    _histogram("batch_documents", "Records per batch.", buckets=_SIZES),
    _histogram(
        "batch_duration_seconds",
        "Time that a batch spends in a stage.",
        "stage",
        STAGES,
        _DURATIONS,
    ),
    _batch_histogram(
        "end_to_end_latency_seconds",
        "Time from a record's timestamp to the commit of its verdict.",
        buckets=_LATENCIES,
    ),
    # Verdicts
    _counter("candidates_total", "Kept documents that shared a bucket with a judged document."),
    _counter(
        "verified_pairs_total",
        "Candidates at or above the threshold (verified), or below it (refuted).",
        "result",
        ("verified", "refuted"),
    ),
    _counter(
        "exact_verifications_total",
        "Candidates near the threshold, by the result of comparing their texts.",
        "result",
        ("confirmed", "refuted", "without_text", "over_budget"),
    ),
    _counter("buckets_truncated_total", "Lookups that hit a full bucket."),
    _batch_histogram(
        "candidate_similarity",
        "Estimated Jaccard similarity of the candidates.",
        buckets=_SIMILARITIES,
    ),
    # Quality
    _counter(
        "quality_documents_total",
        "Duplicates and kept repeats, by estimated truth.",
        "result",
        QUALITY_RESULTS,
    ),
    _counter("quality_missed_variance_total", "Variance of the estimated number of kept repeats."),
    _gauge("quality_window_documents", "Judged documents that the estimates are about."),
    _gauge("quality_recall", "Estimated share of repeats that are dropped."),
    _gauge("quality_recall_standard_error", "Standard error of the estimated recall."),
    _gauge("quality_precision", "Estimated share of duplicates that are right."),
    _gauge("quality_precision_standard_error", "Standard error of the estimated precision."),
    _gauge("quality_pair_recall", "Estimated share of similar pairs that share a bucket."),
    _gauge("quality_pair_recall_standard_error", "Standard error of the recall of pairs."),
    _gauge("quality_recall_target", "Share of pairs at the threshold that should share a bucket."),
    _counter(
        "shadow_documents_total",
        "Documents compared exactly with recent kept ones, by result.",
        "result",
        SHADOW_RESULTS,
    ),
    # Edges and judge
    _counter(
        "sketched_records_total",
        "Records that a judge read as sketches, by what became of them.",
        "result",
        ("accepted", "repeated", "ahead"),
    ),
    _gauge("sketches_lag", "Sketched ranges that the judge has not read yet."),
    _gauge("awaiting_verdict", "Records that an edge has read and not written yet."),
    # Kafka
    _gauge("consumer_lag", "Records of the partition that have not been read yet.", "partition"),
    _gauge("consumer_position", "Offset that will be read next.", "partition"),
    _counter(
        "transactions_total",
        "Kafka transactions, by result.",
        "result",
        ("committed", "unknown", "fenced"),
    ),
    _gauge("last_commit_timestamp_seconds", "Time of the last committed transaction."),
    _counter(
        "sessions_total", "Sessions with the brokers, by the reason for their start.", "reason"
    ),
    # Index
    _counter(
        "replayed_entries_total", "Changelog entries applied to the index by a replay or a standby."
    ),
    _gauge("index_documents", "Kept documents in the index."),
    _gauge("index_postings", "Entries in the buckets of the index."),
    _gauge("index_segments", "Immutable segments of the index on disk."),
    _gauge("index_delta_documents", "Kept documents that are only in memory."),
    _gauge("index_bytes", "Bytes that the index uses on disk."),
    _gauge("index_room_bytes", "Bytes that the index may still use on disk."),
    _gauge("index_reserve_bytes", "Bytes of disk that the next merge may need."),
    _gauge("index_memory_bytes", "Bytes of memory used by unwritten documents and by filters."),
    _gauge("index_applied_offset", "Changelog offset up to which the index is complete."),
    _gauge("index_durable_offset", "Changelog offset that a restart begins from."),
    _gauge("index_clock_timestamp_seconds", "Event time that the stream has reached."),
    _gauge("index_oldest_timestamp_seconds", "Earliest effective event time on disk."),
    _counter("index_flushes_total", "Flushes of documents from memory to a segment."),
    _counter("index_merges_total", "Merges of segments."),
    _counter("index_expired_segments_total", "Segments that left the window."),
    _counter("index_stalls_total", "Updates that had to wait for a flush."),
    _counter("index_scrubbed_bytes_total", "Bytes on disk whose checksums were compared."),
    _counter("index_damaged_blocks_total", "Blocks on disk that are not what was written."),
    _counter(
        "index_lookups_total",
        "Segment lookups that passed the filters, by result.",
        "result",
        ("found", "absent"),
    ),
    _gauge("disk_free_bytes", "Free bytes on the disk of the index."),
    # Pool and process
    _gauge("pool_processes", "Processes that compute sketches."),
    _gauge("pool_batches_in_flight", "Batches that are read but not judged yet."),
    _counter("pool_restarts_total", "Restarts of the process pool."),
    _histogram(
        "event_loop_lag_seconds",
        "Delay with which the event loop wakes a task.",
        buckets=_DURATIONS,
    ),
    _gauge("ready", "1 while documents are judged, or the worker stands by."),
    _gauge("active", "1 while documents are judged; 0 for a standby."),
    _gauge("standby_behind", "Changelog offsets that the index of a standby lacks."),
    _gauge(
        "degraded",
        "1 while something keeps the worker from full service, by reason.",
        "reason",
        ("broker", "disk", "pool", "registry", "replay", "stuck"),
    ),
    _info("build_info", "Version of streamdedup and of Python."),
    _info("role_info", "What the process is: worker, edge or judge."),
    _info("settings_info", "Fingerprint of the parameters, threshold and bands."),
)
