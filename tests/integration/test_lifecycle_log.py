"""The log of a worker from start to end: few lines, and no contents of documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.broker.broker import Broker
from tests.support.stage import Stage
from tests.support.topics import Message

pytestmark = pytest.mark.kafka

SENTENCE = "a sentence that must not appear in the log"


def test_each_step_is_one_line_of_json_without_texts(broker: Broker, tmp_path: Path) -> None:
    """Without a terminal the default is JSON: five steps, and no text, key or header."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(log={"format": "auto"})
    stage.create_topics(2)
    kept = Message(json.dumps({"id": "1", "text": SENTENCE}).encode(), b"secret-key")
    broken = Message(b'{"text": "' + SENTENCE.encode(), headers=[("h", SENTENCE.encode())])
    stage.produce([kept, kept, broken])
    worker = stage.run_until_judged(3)
    assert sorted(stage.outcomes().values()) == ["clean", "dead_letter", "duplicates"]

    lines = worker.log().splitlines()
    events = [json.loads(line) for line in lines]
    ours = [event["event"] for event in events if event["logger"].startswith("streamdedup")]
    assert ours == ["listening", "replaying the changelog", "running", "draining", "stopped"]
    for event in events:
        assert {"event", "level", "logger", "timestamp"} <= event.keys()
        # The client also logs while a new broker creates its internal topics.
        assert event["level"] == "info" or event["logger"].startswith("aiokafka")
    assert len(lines) <= len(ours) + 3, lines
    for fragment in ("sentence", "secret-key"):
        assert fragment not in worker.log()
