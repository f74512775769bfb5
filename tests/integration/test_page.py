"""The page of a live worker: it shows what passed through the topics."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from deploy.broker.broker import Broker
from tests.support.browser.samples import article
from tests.support.patience import wait_until
from tests.support.stage import Stage
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.kafka


def get_json(worker: WorkerProcess, path: str) -> Any:
    """Return the JSON content of a path."""
    status, text = worker.get(path)
    assert status == 200, text
    return json.loads(text)


def count_shown(worker: WorkerProcess, outcome: str) -> int:
    """Return the number of verdicts with an outcome in the last minutes."""
    return sum(get_json(worker, "/page/state")["minutes"][outcome])


@pytest.mark.parametrize("show_text", [True, False], ids=["with text", "without"])
def test_a_live_worker_shows_its_duplicates(
    broker: Broker, tmp_path: Path, show_text: bool
) -> None:
    """It shows pairs across and within batches, with positions, and texts only if configured."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(status={"show_text": show_text})
    stage.create_topics()
    text = article(random.Random(1))
    with stage.start_worker() as worker:
        worker.wait_until_ready()
        assert worker.get("/page")[0] == 200
        stage.produce_json([{"id": "first", "text": text}])
        wait_until(lambda: count_shown(worker, "kept") == 1, "the original to be kept")
        near = {"id": "near", "text": f"{text} One more sentence."}
        stage.produce_json([near, {"id": "copy", "text": text}, {"id": "nothing"}])
        wait_until(lambda: count_shown(worker, "rejected") == 1, "all verdicts")

        state = get_json(worker, "/page/state")
        assert sum(state["minutes"]["duplicate"]) == 2
        assert state["judged"] == {"kept": 1, "duplicate": 2, "rejected": 1}
        assert state["documents"] == 1
        assert state["pipeline"]["source"] == stage.topics["source"]
        assert sum(state["similarities"]) == worker.metric("candidate_similarity_count") == 2
        source = stage.topics["source"]
        duplicates = get_json(worker, "/page/duplicates")["duplicates"]
        shown = {duplicate["id"]: duplicate for duplicate in duplicates}
        assert {duplicate["id"]: duplicate["position"] for duplicate in duplicates} == {
            "near": f"{source}:0:1",
            "copy": f"{source}:0:2",
        }
        assert {duplicate["original_position"] for duplicate in duplicates} == {f"{source}:0:0"}
        if show_text:
            parts, _ = shown["near"]["texts"]
            assert [text for text, differs in parts if differs] == ["One more sentence."]
        else:
            assert {duplicate["texts"] for duplicate in duplicates} == {None}
        worker.drain()


def test_status_page_false_switches_the_page_off(broker: Broker, tmp_path: Path) -> None:
    """The worker judges documents, and its page is not found."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(status={"page": False})
    stage.create_topics()
    stage.produce_json([{"id": "first", "text": "a text"}])
    with stage.start_worker() as worker:
        stage.wait_until_committed({0: 1}, worker)
        assert worker.get("/page")[0] == worker.get("/page/state")[0] == 404
        worker.drain()
