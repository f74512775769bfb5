"""The page of a live worker: what went through the topics is what it shows."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from deploy.broker.broker import Broker
from tests.support.browser.samples import article
from tests.support.stage import Stage, WorkerProcess, wait_until

pytestmark = pytest.mark.kafka


def ask(worker: WorkerProcess, path: str) -> Any:
    """Return an answer's content."""
    status, text = worker.get(path)
    assert status == 200, text
    return json.loads(text)


def seen(worker: WorkerProcess, outcome: str) -> int:
    """Return how many verdicts of a kind the page has seen in the last minutes."""
    return sum(ask(worker, "/page/state")["minutes"][outcome])


@pytest.mark.parametrize("show_text", [True, False], ids=["with text", "without"])
def test_a_live_worker_shows_its_duplicates(
    broker: Broker, tmp_path: Path, show_text: bool
) -> None:
    """Pairs across batches and within one, with positions, and with texts only where wanted."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(status={"show_text": show_text})
    stage.create_topics()
    text = article(random.Random(1))
    with stage.start_worker() as worker:
        worker.wait_until_ready()
        assert worker.get("/page")[0] == 200
        stage.produce_json([{"id": "first", "text": text}])
        wait_until(lambda: seen(worker, "kept") == 1, "the original to be kept")
        near = {"id": "near", "text": f"{text} One more sentence."}
        stage.produce_json([near, {"id": "copy", "text": text}, {"id": "nothing"}])
        wait_until(lambda: seen(worker, "rejected") == 1, "all verdicts")

        state = ask(worker, "/page/state")
        assert sum(state["minutes"]["duplicate"]) == 2
        assert sum(state["similarities"]) == worker.metric("candidate_similarity_count") == 2
        source = stage.topics["source"]
        shown = {one["id"]: one for one in ask(worker, "/page/duplicates")["duplicates"]}
        assert {id_: one["position"] for id_, one in shown.items()} == {
            "near": f"{source}:0:1",
            "copy": f"{source}:0:2",
        }
        assert {one["original_position"] for one in shown.values()} == {f"{source}:0:0"}
        if show_text:
            mine, _ = shown["near"]["texts"]
            assert [words for words, differs in mine if differs] == ["One more sentence."]
        else:
            assert {one["texts"] for one in shown.values()} == {None}
        worker.drain()


def test_a_live_worker_has_no_page_where_none_is_wanted(broker: Broker, tmp_path: Path) -> None:
    """status.page switches it off, and documents are judged all the same."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(status={"page": False})
    stage.create_topics()
    stage.produce_json([{"id": "first", "text": "a text"}])
    with stage.start_worker() as worker:
        stage.wait_until_committed({0: 1}, worker)
        assert worker.get("/page")[0] == worker.get("/page/state")[0] == 404
        worker.drain()
