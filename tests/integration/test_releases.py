"""A release of Kafka that is not tested gives a warning; one that lacks a request ends a worker."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from deploy.broker.broker import Broker
from streamdedup.admin.checks import check
from streamdedup.admin.findings import Finding, Severity
from tests.support.paths import ROOT
from tests.support.stage import Stage

pytestmark = pytest.mark.kafka

_OTHER_LEVELS = "from streamdedup.kafka import brokers\nbrokers._LEVELS = range(90, 91)\n"
_FEWER_REQUESTS = """
from aiokafka.conn import AIOKafkaConnection
complete = AIOKafkaConnection._do_version_lookup
async def without(connection):
    await complete(connection)
    connection._versions.{change}
AIOKafkaConnection._do_version_lookup = without
"""
"""Connections that look as if the broker did not list a request, or not in these versions."""


def changed_python(folder: Path, code: str) -> dict[str, str]:
    """Return the environment of a Python that runs some code first."""
    (folder / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}


def finding_of_release(stage: Stage) -> Finding:
    """Return what ``config check`` says about the release."""
    findings = asyncio.run(check(stage.settings()))
    (finding,) = [finding for finding in findings if finding.check == "release of Kafka"]
    return finding


def test_the_release_of_the_suite_is_one_of_those_tested(broker: Broker, tmp_path: Path) -> None:
    """The broker reports a level between those of the oldest and the newest."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics()
    assert finding_of_release(stage).level is Severity.OK


@pytest.mark.long
def test_another_release_gives_a_warning(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check has it, and the worker's log once; the worker runs."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics()
    stage.produce_json([{"id": "a", "text": "A story."}])
    with stage.start_worker(env=changed_python(tmp_path, _OTHER_LEVELS)) as worker:
        stage.wait_until_committed({0: 1}, worker)
        worker.drain()
    events = [event for event in worker.events() if "not tested" in event["event"]]
    assert [event["level"] for event in events] == ["warning"]
    monkeypatch.setattr("streamdedup.kafka.brokers._LEVELS", range(90, 91))
    finding = finding_of_release(stage)
    assert finding.level is Severity.WARNING
    assert finding.message == events[0]["reason"]
    assert "older than 3.9.2" in finding.message


@pytest.mark.parametrize(
    ("change", "request_name"),
    [
        pytest.param("pop(22)", "InitProducerId", id="missing"),
        pytest.param("update({22: (90, 91)})", "InitProducerId", id="other versions"),
        pytest.param("update({3: (90, 91)})", "Metadata", id="no topics"),
    ],
)
def test_a_broker_without_a_needed_request_ends_the_worker(
    broker: Broker, tmp_path: Path, change: str, request_name: str
) -> None:
    """Retrying cannot fix it; the line names the request and the releases that have it."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics()
    code = _FEWER_REQUESTS.replace("{change}", change)
    with stage.start_worker(env=changed_python(tmp_path, code)) as worker:
        worker.assert_ends(6, request_name, "Apache Kafka 3.9 to 4.3")
    assert stage.outcomes() == {}
