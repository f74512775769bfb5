"""``streamdedup config check`` against a live broker: it finds problems and changes nothing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from aiokafka.structs import OffsetAndMetadata

from deploy.broker import layout
from deploy.broker.broker import Broker
from deploy.broker.obtain import own_broker
from streamdedup.admin.checks import check
from streamdedup.admin.findings import Finding, Severity, exit_code
from streamdedup.kafka.cluster import create_topics, look_at_topics
from streamdedup.kafka.offsets import Metadata
from tests.support import topics
from tests.support.access_control import Permission, allow, revoke
from tests.support.credentials import limited
from tests.support.patience import wait_until
from tests.support.stage import Stage

pytestmark = pytest.mark.kafka

DOCUMENTS = [
    {"id": "first", "text": "The quick brown fox jumps over the lazy dog."},
    {"id": "second", "text": "Pack my box with five dozen liquor jugs."},
]
HOUR_MS = 3_600_000


def findings_of(stage: Stage) -> list[Finding]:
    """Check the settings of a stage."""
    return asyncio.run(check(stage.settings()))


def finding_of(stage: Stage, name: str) -> Finding:
    """Return the only finding of a check."""
    (finding,) = [finding for finding in findings_of(stage) if finding.check == name]
    return finding


def assert_fails(stage: Stage, name: str, code: int, *fragments: str) -> None:
    """Assert that a check is the first error, with this exit code and these fragments."""
    findings = findings_of(stage)
    assert exit_code(findings) == code, findings
    first = next(finding for finding in findings if finding.level is Severity.ERROR)
    assert first.check == name
    assert first.who
    for fragment in fragments:
        assert fragment in first.message


def assert_warns(stage: Stage, name: str, *fragments: str) -> None:
    """Assert that a check warns, and that the exit code is 0."""
    findings = findings_of(stage)
    assert exit_code(findings) == 0, findings
    (warning,) = [finding for finding in findings if finding.check == name]
    assert warning.level is Severity.WARNING
    for fragment in fragments:
        assert fragment in warning.message


def test_a_running_worker_is_not_disturbed(broker: Broker, tmp_path: Path) -> None:
    """Every check passes beside a running worker, which continues; nothing is written."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics(2)
    stage.produce_json(DOCUMENTS)
    with stage.start_worker() as worker:
        stage.wait_until_committed({0: 2, 1: 0}, worker)
        before = stage.ends(), stage.committed()
        command = [sys.executable, "-m", "streamdedup", "config", "check", "--json"]
        ran = subprocess.run(
            [*command, "--config", str(stage.config)], capture_output=True, text=True, check=True
        )
        assert (stage.ends(), stage.committed()) == before
        stage.produce_json([{"text": "Sphinx of black quartz, judge my vow."}], partition=1)
        stage.wait_until_committed({0: 2, 1: 1}, worker)
        worker.drain()
    assert ran.stderr == ""
    report = json.loads(ran.stdout)
    assert report["ok"] is True
    by_check = {finding["check"]: finding for finding in report["findings"]}
    assert by_check.pop("replicas")["level"] == "warning"
    by_check.pop("file system")  # depends on the machine
    by_check.pop("disk room")
    assert {finding["level"] for finding in by_check.values()} == {"ok"}, by_check
    for name in ("index", "access", "transactional id", "changelog offsets", "group offsets"):
        assert name in by_check
    assert "2 of 2 partitions" in by_check["group offsets"]["message"]

    assert "on the disk 3 documents" in finding_of(stage, "index").message


def test_unusable_topics(broker: Broker, tmp_path: Path) -> None:
    """Each ends with 5, as in the worker; the check creates no topics."""
    stage = Stage(broker.bootstrap, tmp_path)
    assert_fails(stage, "topics", 5, *stage.topics.values())
    assert_fails(stage, "topics", 5, *stage.topics.values())
    assert finding_of(stage, "offsets").level is Severity.SKIPPED
    limits = {"cleanup.policy": "compact", "max.message.bytes": "1000"}
    stage.create_topics(1, changelog=limits, clean={"min.insync.replicas": "2"})
    messages = [finding.message for finding in findings_of(stage) if finding.check == "topics"]
    assert len(messages) == 3
    for fragment in (
        "cleanup.policy compact",
        "messages of 1000 bytes",
        "min.insync.replicas is 2",
    ):
        assert any(fragment in message for message in messages)


def test_new_topics_of_mode_split(broker: Broker, tmp_path: Path) -> None:
    """The verdicts get the partitions of a source that exists; then every check passes."""
    stage = Stage(broker.bootstrap, tmp_path, mode="split")
    names, settings = stage.topics, stage.settings()
    asyncio.run(topics.create(broker.bootstrap, {names["source"]: {}}, 3, 1))
    asyncio.run(create_topics(settings, 2, 1))
    found = asyncio.run(look_at_topics(settings)).topics
    assert {role: found[name].partitions for role, name in names.items()} == {
        "source": 3,
        "clean": 2,
        "duplicates": 2,
        "dead_letter": 2,
        "changelog": 1,
        "sketches": 1,
        "verdicts": 3,
    }
    assert found[names["sketches"]].retention_ms == 24 * HOUR_MS
    assert found[names["verdicts"]].retention_ms == 28 * 24 * HOUR_MS
    findings = findings_of(stage)
    assert exit_code(findings) == 0, findings
    first_edge = f"{names['changelog']}-edge-0 etc. and group {stage.name} may be used"
    assert first_edge in finding_of(stage, "transactional id").message


def test_a_check_creates_no_topics(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This holds for brokers that create topics on first use, which is Kafka's default."""
    monkeypatch.setitem(layout.SINGLE_NODE, "auto.create.topics.enable", "true")
    with own_broker() as creating:
        stage = Stage(creating.bootstrap, tmp_path)
        for _ in range(2):
            assert_fails(stage, "topics", 5, "missing topics", *stage.topics.values())
        with stage.start_worker() as worker:
            worker.assert_ends(5, "missing topics", *stage.topics.values())
        assert_fails(stage, "topics", 5, "missing topics", *stage.topics.values())


def test_a_changelog_retention_below_the_window(broker: Broker, tmp_path: Path) -> None:
    """The check and the worker's log have the same warning; `topics create` avoids it."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(index={"directory": str(stage.index), "window": "7d"})
    correct = stage.variant("correct")
    stage.create_topics(1, changelog={"retention.ms": str(HOUR_MS)})
    assert_warns(stage, "retention", f"1h (retention.ms {HOUR_MS})", "14d (index.window 7d")
    with stage.start_worker() as worker:
        worker.wait_until_ready()
        event = worker.wait_for_event("the changelog is not kept for as long as the window")
        worker.drain()
    assert event["reason"] == finding_of(stage, "retention").message

    correct.name = f"{stage.name}-correct"
    correct.configure()
    correct.create_topics()
    finding = finding_of(correct, "retention")
    assert finding.level is Severity.OK
    assert "15d" in finding.message


def test_message_sizes_that_do_not_fit(broker: Broker, tmp_path: Path) -> None:
    """An output topic without room for the source's records is a warning with the consequence."""
    stage = Stage(broker.bootstrap, tmp_path)
    limit = {"max.message.bytes": "2000000"}
    stage.create_topics(1, source=limit, clean=limit)
    assert_warns(stage, "message sizes", "2000000", stage.topics["clean"], "dead-letter topic")
    assert stage.topics["dead_letter"] not in finding_of(stage, "message sizes").message
    tight = Stage(broker.bootstrap, tmp_path / "tight")
    tight.create_topics(1, clean={"max.message.bytes": "5000"})
    assert_fails(tight, "message sizes", 5, tight.topics["clean"], "5000")


def test_an_index_of_other_settings(broker: Broker, tmp_path: Path) -> None:
    """Other parameters, or another changelog, end with 11, as in the worker."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics()
    assert "none yet" in finding_of(stage, "index").message
    stage.produce_json(DOCUMENTS)
    stage.run_until_judged(2)
    index = {"directory": str(stage.index)}
    seed = stage.variant("seed", dedup={"seed": 2}, index=index)
    assert_fails(seed, "index", 11, "seed 1", "say 2")
    swapped = {"changelog": stage.topics["duplicates"], "duplicates": stage.topics["changelog"]}
    log = stage.variant("log", topics=stage.topics | swapped, index=index)
    assert_fails(log, "index", 11, stage.topics["changelog"])
    texts = stage.variant("texts", dedup={"verify": "exact"}, index=index)
    assert_fails(texts, "index", 11, "dedup.verify")


def test_deleted_offsets(broker: Broker, tmp_path: Path) -> None:
    """Records deleted unread end with 5; offsets without a changelog are a warning."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics()
    stage.produce_json(DOCUMENTS)
    stage.run_until_judged(2)
    stage.produce_json(DOCUMENTS * 2)
    stage.delete_records("source", 5)
    assert_fails(stage, "group offsets", 5, "at offset 2, the topic begins at 5", "--to-earliest")
    stage.commit({0: 5})
    assert finding_of(stage, "group offsets").level is Severity.OK
    stage.delete_topic("changelog")
    stage.create_topics()
    assert_fails(stage, "changelog offsets", 5, stage.topics["changelog"], "deleted and recreated")
    elsewhere = stage.variant("elsewhere")
    assert_warns(elsewhere, "group offsets", "1 partitions", "changelog is empty")


def test_a_server_that_does_not_answer(broker: Broker, tmp_path: Path) -> None:
    """One of several servers without an answer is a warning."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(kafka={"bootstrap_servers": ["127.0.0.1:9", broker.bootstrap]})
    stage.create_topics()
    assert_warns(stage, "bootstrap servers", "127.0.0.1:9")


def test_a_transaction_timeout_above_the_limit(broker: Broker, tmp_path: Path) -> None:
    """A timeout above the brokers' limit ends with 3 before anything is started."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(kafka={"transaction_timeout": "1h"})
    stage.create_topics()
    assert_fails(stage, "transaction timeout", 3, "transaction.max.timeout.ms 900000")


def test_access_control(secured_broker: Broker, tmp_path: Path) -> None:
    """Each missing operation is named, also for the transactional id."""
    broker, user = secured_broker, secured_broker.secured.limited_username
    stage = Stage(broker.bootstrap, tmp_path)
    stage.create_topics()
    clean, identity = stage.topics["clean"], stage.settings().topics.transactional_id
    write = Permission("topic", clean, "Write")
    produce = Permission("transactional id", identity, "Write")
    others = {
        Permission("topic", topic, operation)
        for topic in stage.topics.values()
        for operation in ("Read", "Write", "DescribeConfigs")
    } | {Permission("group", group, "Read") for group in (stage.name, f"{clean}-claims")}
    asyncio.run(allow(broker, user, others | {write, produce}))
    stage.configure(**limited(broker))
    wait_until(lambda: exit_code(findings_of(stage)) == 0, "the broker to apply the entries")
    asyncio.run(revoke(broker, user, {write}))
    wait_until(lambda: exit_code(findings_of(stage)) == 6, "the broker to apply the entry")
    assert_fails(stage, "access", 6, f"not allowed: Write on {clean}")
    asyncio.run(allow(broker, user, {write}))
    wait_until(lambda: exit_code(findings_of(stage)) == 0, "the broker to apply the entry")
    asyncio.run(revoke(broker, user, {produce}))
    wait_until(lambda: exit_code(findings_of(stage)) == 6, "the broker to apply the entry")
    assert_fails(stage, "transactional id", 6, identity)
    asyncio.run(allow(broker, user, {produce}))
    wait_until(lambda: exit_code(findings_of(stage)) == 0, "the broker to apply the entry")
    claims = Permission("group", f"{clean}-claims", "Read")
    asyncio.run(revoke(broker, user, {claims}))
    wait_until(lambda: exit_code(findings_of(stage)) == 6, "the broker to apply the entry")
    assert_fails(stage, "claims", 6, f"{clean}-claims")
    asyncio.run(allow(broker, user, {claims}))
    wait_until(lambda: exit_code(findings_of(stage)) == 0, "the broker to apply the entry")
    stage.commit({0: OffsetAndMetadata(0, Metadata(verdicts=0).encoded())})
    assert_fails(stage, "group offsets", 6, f"{identity}-edge-0")


def test_a_refused_login(secured_broker: Broker, tmp_path: Path) -> None:
    """A wrong password ends with 6, and the other checks are skipped."""
    stage = Stage(secured_broker.bootstrap, tmp_path)
    security = {"protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
    login = {"sasl_username": secured_broker.secured.username, "sasl_password": "wrong"}
    server = secured_broker.secured.sasl_bootstrap
    stage.configure(kafka={"bootstrap_servers": server, "security": security | login})
    assert_fails(stage, "bootstrap servers", 6, "Authentication")
    assert finding_of(stage, "the rest").level is Severity.SKIPPED
