"""What ``config check`` says about topics, from the facts of a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from streamdedup.admin.findings import ADMINISTRATOR, Finding, Findings, Severity
from streamdedup.admin.topic_checks import check_access, check_topics
from streamdedup.kafka.messages import ClusterFacts, TopicFacts
from streamdedup.kafka.topics import topic_names
from streamdedup.settings.load import load_settings

SETTINGS = load_settings()
SOUND = TopicFacts(
    name="",
    partitions=1,
    max_message_bytes=2_000_000,
    timestamp_before_max_ms=2**62,
    timestamp_after_max_ms=2**62,
    min_insync_replicas=2,
    replicas=3,
    in_sync=3,
    allowed=frozenset({"Read", "Write", "Describe", "DescribeConfigs"}),
)


def cluster(**changes: dict[str, Any]) -> ClusterFacts:
    """Return a cluster with five sound topics, except for the changes, by role."""
    names = topic_names(SETTINGS)
    topics = {name: replace(SOUND, name=name) for name in names}
    source = SETTINGS.topics.source
    topics[source] = replace(topics[source], max_message_bytes=1_900_000)
    for role, facts in changes.items():
        name = getattr(SETTINGS.topics, role)
        topics[name] = replace(topics[name], **facts)
    return ClusterFacts("cluster", topics)


def findings_on(facts: ClusterFacts) -> dict[str, Finding]:
    """Return the findings on a cluster, by check."""
    findings = Findings()
    assert check_topics(SETTINGS, facts, findings)
    check_access(SETTINGS, facts, findings)
    return {one.check: one for one in findings.collected}


def test_sound_topics_pass_every_check() -> None:
    """Each of the five checks reports once."""
    findings = findings_on(cluster())
    assert list(findings) == ["topics", "retention", "message sizes", "replicas", "access"]
    assert {one.level for one in findings.values()} == {Severity.OK}
    assert [one.message for one in findings.values()] == [
        "all five exist; documents has 1 partitions",
        "documents-changelog keeps its records without a time limit",
        "documents accepts 1900000 bytes, the others more",
        "at least 3 replicas, and 2 must confirm a write",
        "the operations of a worker on its topics are allowed",
    ]


def test_settings_that_the_brokers_do_not_list() -> None:
    """The check says which were left out, and what to make sure of."""
    findings = findings_on(cluster(clean={"unlisted": frozenset({"min.insync.replicas"})}))
    assert findings["topic settings"] == Finding(
        "topic settings",
        Severity.WARNING,
        "unknown, not listed by these brokers: min.insync.replicas; the checks of them are left "
        "out: make sure yourself that the brokers keep the changelog for the window, and confirm a "
        "write when more than one replica has it",
        ADMINISTRATOR,
    )
    assert findings["replicas"].message.endswith("how many confirm a write is unknown")


def test_a_missing_topic_ends_the_check() -> None:
    """The exit code is 5, and nothing more is said about the topics."""
    findings = Findings()
    assert not check_topics(SETTINGS, ClusterFacts("cluster", {}), findings)
    [finding] = findings.collected
    assert (finding.level, finding.exit_code, finding.who) == (Severity.ERROR, 5, ADMINISTRATOR)


@pytest.mark.parametrize(
    ("check", "level", "changes", "words"),
    [
        (
            "retention",
            Severity.WARNING,
            {"changelog": {"retention_ms": 1000}},
            "set its retention.ms to -1",
        ),
        (
            "message sizes",
            Severity.WARNING,
            {"source": {"max_message_bytes": 3_000_000}},
            "set max.message.bytes of these topics to 60",
        ),
        (
            "message sizes",
            Severity.WARNING,
            {"source": {"max_message_bytes": 2_000_000}},
            "leaves 1992832 for them: larger records go to the dead-letter topic",
        ),
        ("message sizes", Severity.ERROR, {"clean": {"max_message_bytes": 500}}, "500 bytes"),
        ("replicas", Severity.ERROR, {"clean": {"in_sync": 0}}, "without a leader"),
        ("replicas", Severity.ERROR, {"clean": {"in_sync": 1}}, "fewer replicas in sync"),
        (
            "replicas",
            Severity.WARNING,
            {"clean": {"replicas": 1, "in_sync": 1, "min_insync_replicas": 1}},
            "only one replica",
        ),
        ("replicas", Severity.WARNING, {"clean": {"min_insync_replicas": 1}}, "set it to 2"),
        (
            "access",
            Severity.ERROR,
            {"source": {"allowed": frozenset({"Describe", "DescribeConfigs"})}},
            "not allowed: Read on",
        ),
        ("access", Severity.SKIPPED, {"clean": {"allowed": None}}, "do not report"),
    ],
    ids=[
        "changelog kept too briefly",
        "source messages too large",
        "no room for the additions",
        "no room in the clean topic",
        "no leader",
        "too few replicas in sync",
        "one replica",
        "one broker confirms",
        "no read access",
        "brokers hide access control",
    ],
)
def test_an_unsuitable_topic_is_reported(
    check: str, level: Severity, changes: dict[str, dict[str, Any]], words: str
) -> None:
    """The message names the problem, and no other check is affected."""
    findings = findings_on(cluster(**changes))
    finding = findings.pop(check)
    assert finding.level is level
    assert words in finding.message
    assert {one.level for one in findings.values()} == {Severity.OK}
