"""*Pure.* Every metric: its name, kind, labels, buckets and help text.

docs/metrics.md explains each of them. A test compares its names, kinds and labels with this file.
The dashboard of the Helm chart repeats the help texts, which a test compares too.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    """A metric of the catalogue.

    Attributes:
        name: the exposed name without the prefix.
        kind: the type of the metric; a ``batch histogram`` is a histogram that takes whole arrays.
        help: what it measures, in one sentence.
        label: the name of its only label, or empty.
        values: the values of the label if they are known; their series begin at zero.
        buckets: upper bounds of a histogram, ascending, without infinity.
    """

    name: str
    kind: Kind
    help: str
    label: str = ""
    values: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        """The exposed name."""
        return PREFIX + self.name


CATALOGUE = (
    # Flow
    MetricSpec("documents_received_total", "counter", "Records read from the source.", "partition"),
    MetricSpec("bytes_received_total", "counter", "Bytes of the values of the records read."),
    MetricSpec(
        "documents_total", "counter", "Records judged, by verdict.", "verdict", tuple(Outcome)
    ),
    MetricSpec("rejections_total", "counter", "Records sent to the dead-letter topic.", "reason"),
    MetricSpec("batch_documents", "histogram", "Records per batch.", buckets=_SIZES),
    MetricSpec(
        "batch_duration_seconds",
        "histogram",
        "Time that a batch spends in a stage.",
        "stage",
        STAGES,
        _DURATIONS,
    ),
    MetricSpec(
        "end_to_end_latency_seconds",
        "batch histogram",
        "Time from a record's timestamp to the commit of its verdict.",
        buckets=_LATENCIES,
    ),
    # Verdicts
    MetricSpec(
        "candidates_total", "counter", "Kept documents that shared a bucket with a judged document."
    ),
    MetricSpec(
        "verified_pairs_total",
        "counter",
        "Candidates at or above the threshold (verified), or below it (refuted).",
        "result",
        ("verified", "refuted"),
    ),
    MetricSpec(
        "exact_verifications_total",
        "counter",
        "Candidates near the threshold, by the result of comparing their texts.",
        "result",
        ("confirmed", "refuted", "without_text", "over_budget"),
    ),
    MetricSpec("buckets_truncated_total", "counter", "Lookups that hit a full bucket."),
    MetricSpec(
        "candidate_similarity",
        "batch histogram",
        "Estimated Jaccard similarity of the candidates.",
        buckets=_SIMILARITIES,
    ),
    # Quality
    MetricSpec(
        "quality_documents_total",
        "counter",
        "Duplicates and kept repeats, by estimated truth.",
        "result",
        QUALITY_RESULTS,
    ),
    MetricSpec(
        "quality_missed_variance_total",
        "counter",
        "Variance of the estimated number of kept repeats.",
    ),
    MetricSpec(
        "quality_window_documents", "gauge", "Judged documents that the estimates are about."
    ),
    MetricSpec("quality_recall", "gauge", "Estimated share of repeats that are dropped."),
    MetricSpec("quality_recall_standard_error", "gauge", "Standard error of the estimated recall."),
    MetricSpec("quality_precision", "gauge", "Estimated share of duplicates that are right."),
    MetricSpec(
        "quality_precision_standard_error", "gauge", "Standard error of the estimated precision."
    ),
    MetricSpec(
        "quality_pair_recall", "gauge", "Estimated share of similar pairs that share a bucket."
    ),
    MetricSpec(
        "quality_pair_recall_standard_error", "gauge", "Standard error of the recall of pairs."
    ),
    MetricSpec(
        "quality_recall_target",
        "gauge",
        "Share of pairs at the threshold that should share a bucket.",
    ),
    MetricSpec(
        "shadow_documents_total",
        "counter",
        "Documents compared exactly with recent kept ones, by result.",
        "result",
        SHADOW_RESULTS,
    ),
    # Edges and judge
    MetricSpec(
        "sketched_records_total",
        "counter",
        "Records that a judge read as sketches, by what became of them.",
        "result",
        ("accepted", "repeated", "ahead"),
    ),
    MetricSpec("sketches_lag", "gauge", "Sketched ranges that the judge has not read yet."),
    MetricSpec("awaiting_verdict", "gauge", "Records that an edge has read and not written yet."),
    # Kafka
    MetricSpec(
        "consumer_lag",
        "gauge",
        "Records of the partition that have not been read yet.",
        "partition",
    ),
    MetricSpec("consumer_position", "gauge", "Offset that will be read next.", "partition"),
    MetricSpec(
        "transactions_total",
        "counter",
        "Kafka transactions, by result.",
        "result",
        ("committed", "unknown", "fenced"),
    ),
    MetricSpec("last_commit_timestamp_seconds", "gauge", "Time of the last committed transaction."),
    MetricSpec(
        "sessions_total",
        "counter",
        "Sessions with the brokers, by the reason for their start.",
        "reason",
    ),
    # Index
    MetricSpec(
        "replayed_entries_total",
        "counter",
        "Changelog entries applied to the index by a replay or a standby.",
    ),
    MetricSpec("index_documents", "gauge", "Kept documents in the index."),
    MetricSpec("index_postings", "gauge", "Entries in the buckets of the index."),
    MetricSpec("index_segments", "gauge", "Immutable segments of the index on disk."),
    MetricSpec("index_delta_documents", "gauge", "Kept documents that are only in memory."),
    MetricSpec("index_bytes", "gauge", "Bytes that the index uses on disk."),
    MetricSpec("index_room_bytes", "gauge", "Bytes that the index may still use on disk."),
    MetricSpec("index_reserve_bytes", "gauge", "Bytes of disk that the next merge may need."),
    MetricSpec(
        "index_memory_bytes", "gauge", "Bytes of memory used by unwritten documents and by filters."
    ),
    MetricSpec(
        "index_applied_offset", "gauge", "Changelog offset up to which the index is complete."
    ),
    MetricSpec("index_durable_offset", "gauge", "Changelog offset that a restart begins from."),
    MetricSpec("index_clock_timestamp_seconds", "gauge", "Event time that the stream has reached."),
    MetricSpec("index_oldest_timestamp_seconds", "gauge", "Earliest effective event time on disk."),
    MetricSpec("index_flushes_total", "counter", "Flushes of documents from memory to a segment."),
    MetricSpec("index_merges_total", "counter", "Merges of segments."),
    MetricSpec("index_expired_segments_total", "counter", "Segments that left the window."),
    MetricSpec("index_stalls_total", "counter", "Updates that had to wait for a flush."),
    MetricSpec(
        "index_scrubbed_bytes_total", "counter", "Bytes on disk whose checksums were compared."
    ),
    MetricSpec(
        "index_damaged_blocks_total", "counter", "Blocks on disk that are not what was written."
    ),
    MetricSpec(
        "index_lookups_total",
        "counter",
        "Segment lookups that passed the filters, by result.",
        "result",
        ("found", "absent"),
    ),
    MetricSpec("disk_free_bytes", "gauge", "Free bytes on the disk of the index."),
    # Pool and process
    MetricSpec("pool_processes", "gauge", "Processes that compute sketches."),
    MetricSpec("pool_batches_in_flight", "gauge", "Batches that are read but not judged yet."),
    MetricSpec("pool_restarts_total", "counter", "Restarts of the process pool."),
    MetricSpec(
        "event_loop_lag_seconds",
        "histogram",
        "Delay with which the event loop wakes a task.",
        buckets=_DURATIONS,
    ),
    MetricSpec("ready", "gauge", "1 while documents are judged, or the worker stands by."),
    MetricSpec("active", "gauge", "1 while documents are judged; 0 for a standby."),
    MetricSpec("standby_behind", "gauge", "Changelog offsets that the index of a standby lacks."),
    MetricSpec(
        "degraded",
        "gauge",
        "1 while something keeps the worker from full service, by reason.",
        "reason",
        ("broker", "disk", "pool", "registry", "replay", "stuck"),
    ),
    MetricSpec("build_info", "info", "Version of streamdedup and of Python."),
    MetricSpec("role_info", "info", "What the process is: worker, edge or judge."),
    MetricSpec("settings_info", "info", "Fingerprint of the parameters, threshold and bands."),
)
