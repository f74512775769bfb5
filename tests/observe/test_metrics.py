"""The metrics: what each call counts, the exposed page, and docs/metrics.md."""

from __future__ import annotations

import ast
import contextlib
import math
import re
from collections import Counter as Tally
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from streamdedup.batches import DocumentColumns, IndexUpdate, Judgement, JudgementCounts, Sketches
from streamdedup.columns import Positions, Strings
from streamdedup.dedup.quality import Sums
from streamdedup.model import DiskRoom, IndexStats, Outcome, Position, Record, Rejection, Verdict
from streamdedup.observe import catalogue
from streamdedup.observe.catalogue import CATALOGUE, MetricSpec
from streamdedup.observe.metrics import BatchHistogram, Metrics
from streamdedup.observe.quality import LiveQuality, Shadow
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import PoolSettings, Settings
from tests.support.builders import verdicts_of
from tests.support.clock import Clock
from tests.support.paths import ROOT

DOCUMENT = ROOT / "docs" / "metrics.md"
NOW = 1_700_000_000.0


STATS = IndexStats(
    documents=10,
    postings=210,
    segments=3,
    bytes_used=4096,
    memory_bytes=512,
    delta_documents=4,
    applied=7,
    durable=5,
    next_number=10,
    clock_ms=1_500,
    oldest_ms=-1,
    flushes=3,
    merges=1,
    expired=2,
    stalls=0,
    lookups=50,
    lookups_found=20,
    reserve_bytes=99,
    scrubbed_bytes=0,
    damaged_blocks=0,
)


class Page:
    """Metrics, and their exposed page, parsed as Prometheus would."""

    def __init__(self) -> None:
        self.clock = Clock(100.0)
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry, now=lambda: NOW, clock=self.clock)

    def value(self, name: str, **labels: Any) -> float:
        """Return the value of a series on the page."""
        text = self.metrics.render()[0].decode()
        wanted = {key: str(value) for key, value in labels.items()}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == f"streamdedup_{name}" and sample.labels == wanted:
                    return sample.value
        raise KeyError(name)


@pytest.fixture
def page() -> Page:
    """Return fresh metrics."""
    return Page()


def record(
    partition: int, offset: int, value: bytes | None = b"abc", timestamp_ms: int = -1
) -> Record:
    """Return a record at a position."""
    return Record(Position("t", partition, offset), value, timestamp_ms=timestamp_ms)


def judgement(outcomes: list[Outcome | str], counts: JudgementCounts | None = None) -> Judgement:
    """Return a judgement with these outcomes; a string is the reason of a rejection."""
    none = np.zeros(0, dtype=np.int64)
    empty = Sketches(np.zeros((0, 8), np.uint8), np.zeros((0, 3), np.uint64))
    columns = DocumentColumns(Strings.of([]), Positions.of([]), none, none.astype(np.uint64), empty)
    verdicts = [
        Verdict(outcome, "id", Position("t", 0, row))
        if isinstance(outcome, Outcome)
        else Verdict(
            Outcome.REJECTED,
            "id",
            Position("t", 0, row),
            rejection=Rejection("decode", outcome, "why"),
        )
        for row, outcome in enumerate(outcomes)
    ]
    return Judgement(
        verdicts_of(verdicts), IndexUpdate(0, columns, (), none), counts or JudgementCounts()
    )


def test_received_records_are_counted_by_partition(page: Page) -> None:
    """A poll counts records, bytes and the batch, and sets the positions."""
    page.metrics.count_received([record(0, 5), record(0, 6, None), record(3, 9, b"12345")])
    page.metrics.count_received([record(0, 7)])
    assert page.value("documents_received_total", partition=0) == 3
    assert page.value("documents_received_total", partition=3) == 1
    assert page.value("bytes_received_total") == 11
    assert page.value("consumer_position", partition=0) == 8
    assert page.value("consumer_position", partition=3) == 10
    assert page.value("batch_documents_count") == 2
    assert page.value("batch_documents_sum") == 4


def test_one_call_counts_a_judgement(page: Page) -> None:
    """It counts verdicts, reasons, candidates and their similarities."""
    similarities = np.array([0.95, 0.81, 0.7, 0.42])
    counts = JudgementCounts(4, 3, 1, 2, similarities, np.array([2, 1, 0, 1]), 7, 6, 5, 8)
    judged = judgement(
        [Outcome.KEPT, Outcome.DUPLICATE, Outcome.DUPLICATE, "BadJson", "BadJson"], counts
    )
    page.metrics.count_verdicts(judged.verdicts)
    page.metrics.count_comparisons(judged.counts)
    assert page.value("documents_total", verdict="kept") == 1
    assert page.value("documents_total", verdict="duplicate") == 2
    assert page.value("documents_total", verdict="rejected") == 2
    assert page.value("rejections_total", reason="BadJson") == 2
    assert page.value("candidates_total") == 4
    assert page.value("verified_pairs_total", result="verified") == 3
    assert page.value("verified_pairs_total", result="refuted") == 1
    assert page.value("exact_verifications_total", result="confirmed") == 7
    assert page.value("exact_verifications_total", result="refuted") == 6
    assert page.value("exact_verifications_total", result="without_text") == 5
    assert page.value("exact_verifications_total", result="over_budget") == 8
    assert page.value("buckets_truncated_total") == 2
    assert page.value("candidate_similarity_count") == 4
    assert page.value("candidate_similarity_bucket", le="0.8") == 1
    assert page.value("candidate_similarity_bucket", le="0.85") == 2
    assert page.value("candidate_similarity_bucket", le="0.95") == 4


def test_quality_is_observed(page: Page) -> None:
    """Counters rise with the sums, gauges are the figures, and a total that falls waits."""
    settings = load_settings(dedup={"bands": 9, "rows": 13}, quality={"shadow_sample": 7})
    shadow = Shadow(settings)
    one = LiveQuality(settings, judges=True, shadow=shadow)
    page.metrics.observe_quality(one)
    assert page.value("quality_recall_target") == pytest.approx(0.399, abs=1e-3)
    assert page.value("quality_window_documents") == 0
    assert math.isnan(page.value("quality_recall"))
    assert math.isnan(page.value("quality_precision_standard_error"))
    one.sums = Sums(found=9.5, missed=2.0, refuted=0.25, false=0.5, missed_variance=1.5)
    shadow.results = Tally({"found": 3, "missed": 1})
    shadow.skipped = 4
    page.metrics.observe_quality(one)
    one.sums = one.sums._replace(found=9.0, missed=3.0)
    page.metrics.observe_quality(one)
    assert page.value("quality_documents_total", result="found") == 9.5
    assert page.value("quality_documents_total", result="missed") == 3.0
    assert page.value("quality_missed_variance_total") == 1.5
    assert page.value("shadow_documents_total", result="found") == 3
    assert page.value("shadow_documents_total", result="skipped") == 4
    one.close()


def test_an_edge_has_no_estimates(page: Page) -> None:
    """Only the shadow sample is observed; the gauges stay unknown."""
    settings = Settings()
    one = LiveQuality(settings, judges=False, shadow=None)
    one.add_comparisons(JudgementCounts(), 5)
    page.metrics.observe_quality(one)
    assert math.isnan(page.value("quality_window_documents"))
    assert page.value("quality_recall_target") == settings.dedup.recall
    assert one.described() == {"target": 0.99, "estimate": None, "shadow": None}
    one.close()


def test_latencies_run_from_the_records_timestamps(page: Page) -> None:
    """A record without timestamp does not count, and no latency is negative."""
    now_ms = int(NOW * 1000)
    batch = [
        record(0, 0, timestamp_ms=now_ms - 2000),
        record(0, 1),
        record(0, 2, timestamp_ms=now_ms + 5000),
    ]
    page.metrics.count_verdicts(judgement([Outcome.KEPT] * 3).verdicts, batch, now_ms)
    assert page.value("end_to_end_latency_seconds_count") == 2
    assert page.value("end_to_end_latency_seconds_sum") == 2.0
    page.metrics.count_verdicts(judgement([Outcome.KEPT]).verdicts, batch[:1])
    assert page.value("end_to_end_latency_seconds_sum") == 4.0


def test_a_stage_is_timed_even_if_it_fails(page: Page) -> None:
    """A stage that raises is observed like one that returns."""
    with page.metrics.stage("probe"):
        page.clock.time += 0.25
    with contextlib.suppress(ZeroDivisionError), page.metrics.stage("probe"):
        page.clock.time += 1.0
        raise ZeroDivisionError
    page.metrics.observe_stage("index", 0.5)
    assert page.value("batch_duration_seconds_count", stage="probe") == 2
    assert page.value("batch_duration_seconds_sum", stage="probe") == 1.25
    assert page.value("batch_duration_seconds_sum", stage="index") == 0.5
    assert page.value("batch_duration_seconds_count", stage="sketch") == 0


def test_only_a_commit_sets_the_time_of_the_last_commit(page: Page) -> None:
    """A transaction with an unknown outcome is counted, but not as a commit."""
    page.metrics.count_transaction("unknown")
    assert page.value("transactions_total", result="unknown") == 1
    assert math.isnan(page.value("last_commit_timestamp_seconds"))
    page.metrics.count_transaction("committed")
    assert page.value("last_commit_timestamp_seconds") == NOW


def test_names_are_of_the_catalogue() -> None:
    """Gauges and counters are named by texts: of one of that kind, with its label if it has one."""
    methods = {"set_gauge": ("gauge", 3), "count": ("counter", 3)}
    known: dict[tuple[str, str], bool] = {
        (one.kind, one.name): bool(one.label) for one in CATALOGUE
    }
    found = 0
    for path in sorted((ROOT / "streamdedup").rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            kind, most = methods.get(call.func.attr, ("", 0))
            first = call.args[0] if call.args else None
            if not kind or "metrics" not in ast.unparse(call.func):
                continue
            assert isinstance(first, ast.Constant), f"{path}:{call.lineno}"
            name = str(first.value)
            found += 1
            assert (kind, name) in known, f"{path}:{call.lineno}"
            is_labelled = len(call.args) == most or any(one.arg == "label" for one in call.keywords)
            assert is_labelled == known[kind, name], f"{path}:{call.lineno}"
    assert found >= 15


def test_the_index_is_observed(page: Page) -> None:
    """The figures of the index are gauges and counters, with the free disk space."""
    page.metrics.observe_index(STATS, DiskRoom(free_bytes=5, bytes_left=4))
    assert page.value("index_documents") == 10
    assert page.value("index_postings") == 210
    assert page.value("index_bytes") == 4096
    assert page.value("index_applied_offset") == 7
    assert page.value("index_durable_offset") == 5
    assert page.value("index_clock_timestamp_seconds") == 1.5
    assert math.isnan(page.value("index_oldest_timestamp_seconds"))
    assert page.value("index_reserve_bytes") == 99
    assert page.value("disk_free_bytes") == 5
    assert page.value("index_room_bytes") == 4
    page.metrics.observe_index(replace(STATS, flushes=5, lookups=70), DiskRoom(5, 4))
    assert page.value("index_flushes_total") == 5
    assert page.value("index_expired_segments_total") == 2
    assert page.value("index_lookups_total", result="found") == 20
    assert page.value("index_lookups_total", result="absent") == 50
    with pytest.raises(ValueError, match="non-negative"):  # a defect, which must not be silent
        page.metrics.observe_index(replace(STATS, flushes=4), DiskRoom(5, 4))


def test_an_index_that_is_opened_again_counts_from_zero(page: Page) -> None:
    """A session with an unknown outcome opens it again; counters only rise."""
    room = DiskRoom(free_bytes=5, bytes_left=4)
    page.metrics.observe_index(replace(STATS, flushes=5), room)
    page.metrics.begin_index()
    page.metrics.observe_index(replace(STATS, flushes=1), room)
    assert page.value("index_flushes_total") == 6


def test_settings_are_exposed(page: Page) -> None:
    """The fingerprint, the bands and the size of the pool are metrics."""
    settings = Settings(pool=PoolSettings(workers=3))
    page.metrics.describe(settings)
    dedup = settings.dedup
    assert page.value("pool_processes") == 3
    assert (
        page.value(
            "settings_info",
            fingerprint=dedup.sketch_parameters().fingerprint(),
            threshold=dedup.threshold,
            bands=dedup.banding().bands,
            rows=dedup.banding().rows,
        )
        == 1
    )


@pytest.mark.parametrize(("role", "processes"), [("worker", 3), ("edge", 3), ("judge", 0)])
def test_the_role_is_exposed(page: Page, role: str, processes: int) -> None:
    """Only a judge has no sketch processes."""
    page.metrics.describe(Settings(pool=PoolSettings(workers=3)), role)
    assert page.value("role_info", role=role) == 1
    assert page.value("pool_processes") == processes


@pytest.mark.parametrize(
    ("call", "arguments", "series", "labels", "value"),
    [
        ("count", ("sessions_total", 1, "start"), "sessions_total", {"reason": "start"}, 1),
        ("count", ("replayed_entries_total",), "replayed_entries_total", {}, 1),
        ("count", ("replayed_entries_total", 5), "replayed_entries_total", {}, 5),
        ("observe_lag", ({0: 7},), "consumer_lag", {"partition": 0}, 7),
        ("set_gauge", ("consumer_lag", 3, 0), "consumer_lag", {"partition": 0}, 3),
        ("set_gauge", ("pool_batches_in_flight", 2), "pool_batches_in_flight", {}, 2),
        ("observe_loop_lag", (0.25,), "event_loop_lag_seconds_sum", {}, 0.25),
        ("set_gauge", ("ready", True), "ready", {}, 1),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_one_line_method_changes_its_series(
    page: Page,
    call: str,
    arguments: tuple[Any, ...],
    series: str,
    labels: dict[str, Any],
    value: float,
) -> None:
    """The value of the series follows the call."""
    getattr(page.metrics, call)(*arguments)
    assert page.value(series, **labels) == value


def test_the_page_has_its_type_and_no_created_series(page: Page) -> None:
    """The page is in Prometheus's text format, without series that repeat the start time."""
    body, content_type = page.metrics.render()
    assert content_type.startswith("text/plain; version=0.0.4")
    assert b"_created" not in body
    assert body.endswith(b"\n")


def test_series_with_known_labels_begin_at_zero(page: Page) -> None:
    """A rate over a counter that was never incremented is zero, not missing."""
    assert page.value("documents_total", verdict="duplicate") == 0
    assert page.value("transactions_total", result="fenced") == 0


def test_gauges_are_unknown_at_first(page: Page) -> None:
    """No gauge without labels shows a zero that was not measured."""
    for entry in CATALOGUE:
        if entry.kind == "gauge" and not entry.label:
            assert math.isnan(page.value(entry.name)), entry.name


def test_nothing_is_global() -> None:
    """Two Metrics share no registry, and the library's default registry stays unchanged."""
    before = {metric.name for metric in REGISTRY.collect()}
    first, second = Metrics(), Metrics()
    first.count("pool_restarts_total")
    assert first.render() != second.render()
    assert {metric.name for metric in REGISTRY.collect()} == before


@pytest.mark.parametrize("values", [[], [0.5], [0.1, 0.5, 0.50001, 1.0, 7.0], [-1.0, 0.5] * 50])
def test_a_batch_histogram_equals_single_observations(values: list[float]) -> None:
    """An array changes the same buckets as one call per value."""
    entry = MetricSpec("batch histogram", "x", "An x.", buckets=(0.1, 0.5, 1.0))
    histogram = BatchHistogram(entry)
    histogram.observe(np.array(values, dtype=np.float64))
    histogram.observe(np.array([0.3]))
    (metric,) = histogram.collect()
    series = {sample.labels.get("le", sample.name): sample.value for sample in metric.samples}
    seen = [*values, 0.3]
    for bound in entry.buckets:
        assert series[str(bound)] == sum(value <= bound for value in seen)
    assert series["+Inf"] == series["streamdedup_x_count"] == len(seen)
    assert series["streamdedup_x_sum"] == pytest.approx(sum(seen))


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_the_catalogue_follows_the_conventions(entry: MetricSpec) -> None:
    """Counters end in _total, units are base units, and every metric has a sentence."""
    assert (entry.kind == "counter") == entry.name.endswith("_total")
    assert (entry.kind == "info") == entry.name.endswith("_info")
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", entry.name)
    assert not re.search(r"_(ms|millis|kb|mb|percent)(_|$)", entry.name)
    assert entry.help.endswith(".")
    assert bool(entry.buckets) == entry.kind.endswith("histogram")
    assert list(entry.buckets) == sorted(set(entry.buckets))


def test_stages_and_results_are_those_of_the_types() -> None:
    """The values that the type checker allows are those that begin at zero."""
    values = {entry.name: entry.values for entry in CATALOGUE}
    assert values["batch_duration_seconds"] == get_args(catalogue.Stage)
    assert values["transactions_total"] == get_args(catalogue.TransactionResult)


def test_similarity_buckets_are_fine_near_the_threshold() -> None:
    """The buckets are narrow in the range of usual thresholds."""
    buckets = {entry.name: entry.buckets for entry in CATALOGUE}["candidate_similarity"]
    assert buckets == (
        *(0.1, 0.2, 0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7),
        *(0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 1.0),
    )


def test_the_document_and_the_catalogue_agree() -> None:
    """docs/metrics.md lists exactly the catalogue, with types, labels and values."""
    rows = re.findall(
        r"^\| `(\w+)` (\w+)([^|]*) \| ([^|]+) \| ([^|]+) \|$",
        DOCUMENT.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    documented = {name: (kind, re.findall(r"`(\w+)`", labels)) for name, kind, labels, *_ in rows}
    labels_of_infos = {
        "build_info": ["version", "python"],
        "role_info": ["role"],
        "settings_info": ["fingerprint", "threshold", "bands", "rows"],
    }
    declared = {
        entry.full_name: (
            entry.kind.removeprefix("batch "),
            labels_of_infos.get(entry.name, [entry.label] * bool(entry.label) + [*entry.values]),
        )
        for entry in CATALOGUE
    }
    assert documented == declared
    assert len(rows) == len(CATALOGUE)
    for name, *_, meaning, remedy in rows:
        assert meaning.endswith("."), name
        assert remedy.endswith("."), name


def test_the_page_shows_what_the_catalogue_declares(page: Page) -> None:
    """The page has exactly the declared metrics."""
    page.metrics.describe(Settings())
    shown = set(re.findall(r"^# TYPE (\w+) ", page.metrics.render()[0].decode(), re.MULTILINE))
    assert shown == {entry.full_name for entry in CATALOGUE}
