"""What a worker logs in its life: few lines, each in its place, and nothing of the documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.broker.broker import Broker
from tests.support.stage import Message, Stage

pytestmark = pytest.mark.kafka

SECRET = "a sentence that nobody but its readers may see"  # noqa: S105 - a text, not a password


def test_each_step_is_one_line_of_json_without_texts(broker: Broker, tmp_path: Path) -> None:
    """By default, and away from a terminal: five steps, and no text, key or header."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(log={"format": "auto"})
    stage.create_topics(2)
    kept = Message(json.dumps({"id": "1", "text": SECRET}).encode(), b"secret-key")
    broken = Message(b'{"text": "' + SECRET.encode(), headers=[("h", SECRET.encode())])
    stage.produce([kept, kept, broken])
    worker = stage.run_until_judged(3)
    assert sorted(stage.outcomes().values()) == ["clean", "dead_letter", "duplicates"]

    lines = worker.log().splitlines()
    events = [json.loads(line) for line in lines]
    ours = [event["event"] for event in events if event["logger"].startswith("streamdedup")]
    assert ours == ["listening", "replaying the changelog", "running", "draining", "stopped"]
    for event in events:
        assert {"event", "level", "logger", "timestamp"} <= event.keys()
        # What brokers say while they make their own topics; never a flood of it.
        assert event["level"] == "info" or event["logger"].startswith("aiokafka")
    assert len(lines) <= len(ours) + 3, lines
    for word in ("sentence", "secret-key"):
        assert word not in worker.log()
