"""The log of a worker from start to end: few lines, and no contents of documents."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

from deploy.broker.broker import Broker
from deploy.processes import worker as worker_command
from tests.support.patience import PATIENCE_S
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


def test_a_terminal_shows_the_page_and_the_progress(broker: Broker, tmp_path: Path) -> None:
    """A person sees where the page is, what was judged, and the end; no text is shown."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(log={"format": "auto"})
    stage.create_topics()
    texts = [SENTENCE, SENTENCE, "the ferries stayed in port", "nothing else happened"]
    stage.produce_json({"id": str(row), "text": text} for row, text in enumerate(texts))
    ours, theirs = pty.openpty()
    process = subprocess.Popen(worker_command(stage.config), stderr=theirs)
    os.close(theirs)
    try:
        log = _read_until(ours, "serving the page", "address=")
        (address,) = re.findall(r"http://127\.0\.0\.1:\d+/page", log)
        with urllib.request.urlopen(address, timeout=PATIENCE_S) as response:  # noqa: S310 - ours
            assert b"<title>streamdedup</title>" in response.read()
        log = _read_until(ours, "documents=4")
        assert re.search(r"judged +.*documents=4 duplicates=25\.0% lag=0 per_second=\d+", log), log
        process.send_signal(signal.SIGINT)
        log += _read_until(ours, "stopped")
        assert process.wait(PATIENCE_S) == 0
        assert "Traceback" not in log
        assert "sentence" not in log
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _read_until(terminal: int, *parts: str) -> str:
    """Return what a terminal shows, without colours, up to a line with these parts."""
    shown = ""
    while True:
        shown += os.read(terminal, 4096).decode()
        plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
        for line in plain.split("\n")[:-1]:
            if all(part in line for part in parts):
                return plain
