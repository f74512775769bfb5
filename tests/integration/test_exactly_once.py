"""Exactly once: the outcomes of a stream whose worker is killed repeatedly."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from deploy.broker.broker import Broker
from streamdedup.formats import changelog
from streamdedup.model import SourceRange
from tests.support.corpora import stream_of_documents
from tests.support.stage import Stage

pytestmark = pytest.mark.kafka

PARTITIONS = 3
KILLS = 5
DOCUMENTS = 20_000


def ranges_in_order(stage: Stage) -> list[SourceRange]:
    """Return the source ranges in the order of judgement."""
    fingerprint = stage.settings().dedup.sketch_parameters().fingerprint()
    return [
        source_range
        for record in stage.read("changelog")
        for source_range in changelog.decode(record.value, fingerprint).ranges
    ]


def positions_in_order(stage: Stage) -> list[tuple[int, int]]:
    """Return partition and offset of every record in the order of judgement."""
    existing = {(record.partition, record.offset) for record in stage.read("source")}
    return [
        (partition, offset)
        for _, partition, start, stop in ranges_in_order(stage)
        for offset in range(start, stop)
        if (partition, offset) in existing
    ]


def embedded_verdicts(folder: Path, documents: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Run the embedded mode over documents; return the matches of each, empty for kept ones."""
    source = folder / "in-order.jsonl"
    source.write_text("".join(json.dumps(document) + "\n" for document in documents))
    kept, duplicates = folder / "kept.jsonl", folder / "duplicates.jsonl"
    command = [sys.executable, "-m", "streamdedup", "dedup", str(source)]
    outputs = ["--kept", str(kept), "--duplicates", str(duplicates)]
    subprocess.run([*command, *outputs], check=True, capture_output=True)
    verdicts: dict[str, list[Any]] = {
        json.loads(line)["id"]: [] for line in kept.read_text().splitlines()
    }
    for line in duplicates.read_text().splitlines():
        record = json.loads(line)
        verdicts[record["id"]] = [
            (match["id"], match["jaccard_estimate"]) for match in record["matches"]
        ]
    return verdicts


def worker_verdicts(stage: Stage) -> dict[str, list[Any]]:
    """Return the worker's verdicts from the topics, in the same form."""
    verdicts: dict[str, list[Any]] = {
        json.loads(record.value)["id"]: [] for record in stage.read("clean")
    }
    for record in stage.read("duplicates"):
        content = json.loads(record.value)
        assert content["id"] not in verdicts
        verdicts[content["id"]] = [
            (match["id"], match["jaccard_estimate"]) for match in content["matches"]
        ]
    return verdicts


def kill_repeatedly(stage: Stage, random_: random.Random) -> None:
    """Kill the worker at random moments: during replay, read, commit or index update."""
    for turn in range(KILLS):
        threshold = DOCUMENTS * (turn + random_.random()) / (KILLS + 2)
        with stage.start_worker() as worker:
            while sum(stage.ends().values()) < threshold:
                worker.assert_running()
            time.sleep(random_.uniform(0.0, 0.4))
            worker.kill()


@pytest.mark.timeout(420)
@pytest.mark.long
def test_a_repeatedly_killed_worker_gives_every_record_one_verdict(
    broker: Broker, tmp_path: Path
) -> None:
    """Each position has one outcome, none matches itself, and the verdicts are undisturbed."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(batch={"documents": 500})
    stage.create_topics(PARTITIONS)
    documents = stream_of_documents(DOCUMENTS)
    for partition in range(PARTITIONS):
        stage.produce_json(documents[partition::PARTITIONS], partition)
    kill_repeatedly(stage, random.Random(20261121))
    stage.run_until_judged(len(documents))

    outcomes = stage.outcomes()
    order = positions_in_order(stage)
    assert set(outcomes) == {(record.partition, record.offset) for record in stage.read("source")}
    assert sorted(order) == sorted(outcomes)
    assert_matches_are_earlier_kept_documents(stage, outcomes, order)

    document_at = {
        (partition, offset): document
        for partition in range(PARTITIONS)
        for offset, document in enumerate(documents[partition::PARTITIONS])
    }
    expected = embedded_verdicts(tmp_path, [document_at[position] for position in order])
    assert worker_verdicts(stage) == expected
    assert sum(bool(matches) for matches in expected.values()) > len(documents) // 100


def assert_matches_are_earlier_kept_documents(
    stage: Stage, outcomes: dict[tuple[int, int], str], order: list[tuple[int, int]]
) -> None:
    """Check every match of every duplicate record."""
    turn = {position: number for number, position in enumerate(order)}
    for record in stage.read("duplicates"):
        content = json.loads(record.value)
        position = (content["position"]["partition"], content["position"]["offset"])
        assert content["matches"]
        for match in content["matches"]:
            original = (match["position"]["partition"], match["position"]["offset"])
            assert original != position
            assert match["id"] != content["id"]
            assert outcomes[original] == "clean"
            assert turn[original] < turn[position]
