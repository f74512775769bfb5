"""The status server of a live worker: its pages agree with the topics."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from deploy.broker.broker import Broker
from tests.support.patience import wait_until
from tests.support.stage import Stage
from tests.support.topics import Message
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.kafka

HISTOGRAMS = {
    "batch_documents": {},
    "batch_duration_seconds": {"stage": "transaction"},
    "end_to_end_latency_seconds": {},
    "candidate_similarity": {},
    "event_loop_lag_seconds": {},
}


def watch_until_ready(worker: WorkerProcess) -> list[str]:
    """Return the answers of /readyz until the worker is ready."""
    answers: list[str] = []

    def ready() -> bool:
        worker.assert_running()
        assert worker.get("/livez") == (200, "live\n")
        status, text = worker.get("/readyz")
        answers.append(text.strip())
        return status == 200

    wait_until(ready, "the worker to be ready")
    return answers


def test_the_pages_of_a_live_worker_agree_with_the_topics(broker: Broker, tmp_path: Path) -> None:
    """It is ready after the replay, the counts equal the records, and the lag reaches 0."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(batch={"documents": 10}, quality={"shadow_sample": 1})
    stage.create_topics(2)
    texts = [f"{number} {number * 7_919} {number * 104_729}" for number in range(300)]
    stage.produce_json([{"id": text, "text": text} for text in texts[:200]])
    stage.run_until_committed({0: 200, 1: 0})
    shutil.rmtree(stage.index)
    entries = len(stage.read("changelog"))

    with stage.start_worker() as worker:
        answers = watch_until_ready(worker)
        assert answers[-1] == "ready"
        assert all(answer.startswith(("starting", "replaying")) for answer in answers[:-1])
        assert worker.metric("replayed_entries_total") == entries
        assert worker.metric("index_documents") == 200

        stage.produce_json([{"id": f"{text}'", "text": text} for text in texts[150:]])
        stage.produce([Message(b"not JSON", partition=1), Message(None, partition=1)])
        stage.wait_until_committed({0: 350, 1: 2}, worker)
        wait_until(
            lambda: worker.metric("documents_total", verdict="kept") == 100, "the kept documents"
        )
        assert_counts(worker)
        assert_status(worker)
        assert_quality(worker)
        worker.drain()
    assert {role: len(stage.read(role)) for role in ("clean", "duplicates", "dead_letter")} == {
        "clean": 200 + 100,
        "duplicates": 50,
        "dead_letter": 2,
    }


def assert_counts(worker: WorkerProcess) -> None:
    """Check the counters, gauges and histograms of a worker that has judged 152 records."""
    wait_until(lambda: worker.metric("documents_total", verdict="rejected") == 2, "the rejections")
    assert worker.metric("documents_total", verdict="duplicate") == 50
    assert worker.metric("rejections_total", reason="InvalidJson") == 1
    assert worker.metric("rejections_total", reason="NullValue") == 1
    assert worker.metric("documents_received_total", partition="0") == 150
    assert worker.metric("documents_received_total", partition="1") == 2
    assert worker.metric("consumer_position", partition="0") == 350
    assert worker.metric("verified_pairs_total", result="verified") == 50
    assert worker.metric("index_documents") == 300
    assert worker.metric("transactions_total", result="committed") >= 15
    assert worker.metric("transactions_total", result="unknown") == 0
    assert worker.metric("sessions_total", reason="start") == 1
    assert worker.metric("ready") == 1
    for name, labels in HISTOGRAMS.items():
        assert worker.metric(f"{name}_count", **labels) > 0, name
    assert worker.metric("end_to_end_latency_seconds_count") == 152
    for partition in ("0", "1"):
        assert worker.metric("consumer_lag", partition=partition) == 0


def assert_status(worker: WorkerProcess) -> None:
    """Check the status page of the same worker."""
    status = json.loads(worker.get("/status")[1])
    assert status["ready"] is True
    assert status["phase"] == "running"
    assert status["partitions"] == 2
    assert status["positions"] == {"0": 350, "1": 2}
    assert status["lag"] == {"0": 0, "1": 0}
    assert status["replay"]["done"] == status["replay"]["total"] > 0
    assert status["applied_offset"] > status["replay"]["total"]


def assert_quality(worker: WorkerProcess) -> None:
    """Check what the same worker estimates, and that it samples every document."""
    estimate = json.loads(worker.get("/status")[1])["quality"]["estimate"]
    assert estimate["documents"] == 152
    assert estimate["repeats"] == {"found": 50.0, "missed": 0.0, "refuted": 0.0, "false": 0.0}
    assert estimate["recall"]["value"] == estimate["precision"]["value"] == 1.0
    assert 0.0 < estimate["recall"]["standard_error"] < 0.1
    assert worker.metric("quality_documents_total", result="found") == 50
    assert worker.metric("quality_recall") == 1.0
    assert worker.metric("quality_recall_target") == 0.99

    def sampled() -> bool:
        shadow = json.loads(worker.get("/status")[1])["quality"]["shadow"]["documents"]
        return bool(sum(shadow.values()) == 150)

    wait_until(sampled, "the shadow sample")
    # The originals of the duplicates were kept before this start.
    assert worker.metric("shadow_documents_total", result="found") == 0
    assert worker.metric("shadow_documents_total", result="alone") > 0
