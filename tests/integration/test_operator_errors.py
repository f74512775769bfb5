"""Mistakes of the operator: one line that explains each, and its documented exit code."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from deploy.broker.broker import Broker
from tests.support.corpora import documents
from tests.support.credentials import login, tls
from tests.support.stage import Stage
from tests.support.topics import Message
from tests.support.workers import WorkerProcess

pytestmark = pytest.mark.kafka

DOCUMENTS = [
    {"id": "first", "text": "The quick brown fox jumps over the lazy dog."},
    {"id": "second", "text": "Pack my box with five dozen liquor jugs."},
]

UNKNOWN = {"dedup": {"treshold": 0.9}}


@dataclass(frozen=True)
class Mistake:
    """Settings that a worker must refuse.

    Attributes:
        code: the exit code.
        fragments: texts in the message.
        settings: changed settings, by section.
        flags: arguments of the command.
    """

    code: int
    fragments: Sequence[str]
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    flags: Sequence[str] = ()


def assert_all_refused(stage: Stage, mistakes: dict[str, Mistake]) -> None:
    """Start a worker for each mistake, in parallel, on copies of the stage's index."""
    with ExitStack() as running:
        workers = {}
        for name, mistake in mistakes.items():
            variant = stage.variant(name)
            if stage.index.exists():
                shutil.copytree(stage.index, variant.index)
            variant.configure(**mistake.settings)
            workers[name] = running.enter_context(variant.start_worker(*mistake.flags))
        for name, worker in workers.items():
            worker.assert_ends(mistakes[name].code, *mistakes[name].fragments)


def test_wrong_settings_are_refused_before_anything_starts(tmp_path: Path) -> None:
    """An unknown, unreadable or invalid setting ends the start with exit code 3."""
    stage = Stage("127.0.0.1:9", tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = str(used.getsockname()[1])
        assert_all_refused(
            stage,
            {
                "unknown": Mistake(3, ["dedup.treshold", "dedup.threshold"], UNKNOWN),
                "missing": Mistake(3, ["no-such.yaml"], flags=["--config", "no-such.yaml"]),
                "no-port": Mistake(3, ["host:port"], {"kafka": {"bootstrap_servers": "broker"}}),
                "used-port": Mistake(3, [port, "status.port"], flags=["--status-port", port]),
            },
        )


def test_unusable_topics_are_named(broker: Broker, tmp_path: Path) -> None:
    """Missing topics, and a changelog with 2 partitions or compaction, end with exit code 5."""
    empty, split, compacted = (
        Stage(broker.bootstrap, tmp_path / name) for name in ("empty", "split", "compacted")
    )
    split.create_topics(1)
    split.add_partitions("changelog", 2)
    compacted.create_topics(1, changelog={"cleanup.policy": "compact,delete"})
    with (
        empty.start_worker() as first,
        split.start_worker() as second,
        compacted.start_worker() as third,
    ):
        first.assert_ends(5, *empty.topics.values())
        second.assert_ends(5, split.topics["changelog"], "2 partitions")
        third.assert_ends(5, compacted.topics["changelog"], "cleanup.policy compact,delete")


def test_an_index_refuses_other_workers_and_settings(broker: Broker, tmp_path: Path) -> None:
    """A second process, other parameters and another changelog have their own exit codes."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics()
    stage.produce_json(DOCUMENTS)
    with stage.start_worker() as worker:
        stage.wait_for(2, worker)
        second = stage.variant("locked")
        with second.start_worker("--index", str(stage.index)) as other:
            other.assert_ends(10, str(stage.index), "another process")
        worker.drain()

    other_log = stage.topics["duplicates"]
    swapped = {"changelog": other_log, "duplicates": stage.topics["changelog"]}
    under_a_file = str(stage.config / "index")
    assert_all_refused(
        stage,
        {
            "seed": Mistake(11, ["seed 1", "say 2"], {"dedup": {"seed": 2}}),
            "shingles": Mistake(11, ["shingle_size 5", "say 7"], {"dedup": {"shingle_size": 7}}),
            "log": Mistake(11, [stage.topics["changelog"], other_log], {"topics": swapped}),
            "unwritable": Mistake(9, [under_a_file], flags=["--index", under_a_file]),
        },
    )


def test_an_index_that_is_removed_under_a_worker(broker: Broker, tmp_path: Path) -> None:
    """It ends with one line and exit code 9; the next start rebuilds the index."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics()
    stage.produce_json(DOCUMENTS)
    with stage.start_worker() as worker:
        stage.wait_for(2, worker)
        shutil.rmtree(stage.index)
        stage.produce_json(DOCUMENTS)
        worker.assert_ends(9, str(stage.index), "removed, moved or replaced")
    stage.run_until_judged(4)
    assert sorted(stage.outcomes().values()) == ["clean", "clean", "duplicates", "duplicates"]


def test_a_recreated_changelog(broker: Broker, tmp_path: Path) -> None:
    """It ends with exit code 5."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics()
    stage.produce_json(DOCUMENTS)
    stage.run_until_judged(2)
    stage.delete_topic("changelog")
    stage.create_topics()
    with stage.start_worker() as worker:
        worker.assert_ends(5, stage.topics["changelog"], "index directory")


def test_a_changelog_recreated_under_a_running_worker(broker: Broker, tmp_path: Path) -> None:
    """The next commit ends the worker with 5; an index that no longer grows would pass copies."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(batch={"documents": 5})
    stage.create_topics()
    stage.produce_json(documents(0, 50))
    with stage.start_worker() as worker:
        stage.wait_until_committed({0: 50}, worker)
        stage.delete_topic("changelog")
        stage.create_topics()
        stage.produce_json(documents(50, 55))
        worker.assert_ends(5, stage.topics["changelog"], "recreated", "index directory")


def test_no_secret_and_no_document_is_logged(secured_broker: Broker, tmp_path: Path) -> None:
    """At level debug the log has neither the password nor the key or text of a document."""
    stage = Stage(secured_broker.bootstrap, tmp_path)
    stage.create_topics()
    text, key = "a text that only its readers may see", b"a-secret-key"
    good = json.dumps({"text": text}).encode()
    stage.produce([Message(good, key), Message(good[:-1], key), Message(good, key)])
    password = secured_broker.secured.password
    stage.configure(**login(secured_broker, password), log={"level": "debug"})
    # Without compression, requests contain the documents as they are.
    stage.configure(kafka=stage.overrides["kafka"] | {"compression": "none"})
    log = stage.run_until_judged(3).log()
    assert '"running"' in log
    assert [secret for secret in (password, text, key.decode()) if secret in log] == []


def test_a_secured_broker_accepts_only_the_right_credentials(
    secured_broker: Broker, tmp_path: Path
) -> None:
    """A wrong password or authority ends with exit code 6; the right ones let records pass."""
    listeners = secured_broker.secured
    right = {
        "login": login(secured_broker, listeners.password),
        "tls": tls(secured_broker, listeners.ca_pem_path),
    }
    stages = {name: Stage(secured_broker.bootstrap, tmp_path / name) for name in right}
    with ExitStack() as running:
        workers: dict[str, WorkerProcess] = {}
        for name, stage in stages.items():
            stage.create_topics()
            stage.produce([Message(b'{"text": "a text that passes"}')])
            stage.configure(**right[name])
            workers[name] = running.enter_context(stage.start_worker())
        assert_all_refused(
            stages["login"],
            {
                "password": Mistake(6, ["Authentication"], login(secured_broker, "wrong")),
                "authority": Mistake(6, ["TLS"], tls(secured_broker, listeners.other_ca_pem_path)),
            },
        )
        for name, stage in stages.items():
            stage.wait_for(1, workers[name])
            workers[name].drain()
            assert stage.outcomes() == {(0, 0): "clean"}
