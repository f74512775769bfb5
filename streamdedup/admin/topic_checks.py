"""*Pure.* What ``config check`` says about topics: retention, sizes, replicas, access."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from streamdedup.admin.findings import ADMINISTRATOR, Findings
from streamdedup.errors import BrokerRefused, BrokerUnavailable, TopicError
from streamdedup.kafka.compose import Composer
from streamdedup.kafka.messages import ClusterFacts, TopicFacts
from streamdedup.kafka.sizes import Additions, roomy_message_bytes
from streamdedup.kafka.topics import FOREVER, retention_warning, topic_names, topic_problems
from streamdedup.settings.sections import Settings
from streamdedup.settings.units import format_duration

_NUMBERS = {5: "five", 7: "seven"}
_TO_READ = frozenset({"Read", "Describe", "DescribeConfigs"})
_TO_WRITE = frozenset({"Write", "Describe", "DescribeConfigs"})


def check_topics(settings: Settings, facts: ClusterFacts, findings: Findings) -> bool:
    """Check the configuration of the topics; return whether a worker can use them."""
    topics = facts.topics
    problems = topic_problems(settings, topics)
    for problem in problems:
        findings.fail("topics", TopicError(problem))
    if problems:
        return False
    source = topics[settings.topics.source]
    findings.ok(
        "topics",
        f"all {_NUMBERS[len(topics)]} exist; {source.name} has {source.partitions} partitions",
    )
    # Some brokers only speak Kafka's protocol, and do not list all settings.
    unlisted = sorted(frozenset[str]().union(*(topic.unlisted for topic in topics.values())))
    if unlisted:
        findings.warn(
            "topic settings",
            f"unknown, not listed by these brokers: {', '.join(unlisted)}; the checks of them are "
            "left out: make sure yourself that the brokers keep the changelog for the window, and "
            "confirm a write when more than one replica has it",
            ADMINISTRATOR,
        )
    check_retention(settings, topics[settings.topics.changelog], findings)
    check_sizes(settings, facts, findings)
    check_replicas(topics, findings)
    return True


def check_retention(settings: Settings, changelog: TopicFacts, findings: Findings) -> None:
    """Check that the changelog is kept for as long as the window."""
    warning = retention_warning(settings, changelog)
    if warning is not None:
        findings.warn("retention", warning, ADMINISTRATOR)
        return
    if "retention.ms" in changelog.unlisted:
        findings.skip("retention", "the brokers do not list retention.ms")
        return
    kept = (
        "without a time limit"
        if changelog.retention_ms == FOREVER
        else f"for {format_ms(changelog.retention_ms)}, which covers the window"
    )
    findings.ok("retention", f"{changelog.name} keeps its records {kept}")


def check_sizes(settings: Settings, facts: ClusterFacts, findings: Findings) -> None:
    """Check that the output topics accept every message that the source topic accepts."""
    check, topics = "message sizes", settings.topics
    with findings.guarded(check):
        Composer(settings, facts)  # raises TopicError if a topic has no room for our messages
        additions = Additions.from_settings(settings)
        source_bytes = facts.topics[topics.source].max_message_bytes
        too_small = []
        for name, added, consequence in (
            (topics.clean, additions.clean, "larger records go to the dead-letter topic"),
            (topics.dead_letter, additions.dead_letter, "larger dead letters lose their value"),
        ):
            limit = facts.topics[name].max_message_bytes
            if limit < source_bytes + added:
                too_small.append(
                    f"{name} accepts {limit}, which leaves {limit - added} for them: {consequence}"
                )
        if too_small:
            findings.warn(
                check,
                f"{topics.source} accepts records of {source_bytes} bytes after compression; "
                f"{'; '.join(too_small)}; set max.message.bytes of these topics to "
                f"{roomy_message_bytes(settings, source_bytes)} with 'kafka-configs.sh --alter "
                f"--add-config', or lower it on {topics.source}",
                ADMINISTRATOR,
            )
        else:
            findings.ok(check, f"{topics.source} accepts {source_bytes} bytes, the others more")


def check_replicas(topics: Mapping[str, TopicFacts], findings: Findings) -> None:
    """Check that the topics accept writes now, and that losing one broker loses no record."""
    check = "replicas"
    leaderless = [name for name, topic in topics.items() if not topic.in_sync]
    lacking = [name for name, topic in topics.items() if topic.in_sync < topic.min_insync_replicas]
    for names, problem in (
        (leaderless, "partitions without a leader"),
        (lacking, "fewer replicas in sync than min.insync.replicas"),
    ):
        if names:
            message = f"{problem}: {', '.join(names)}; restart the missing brokers"
            findings.fail(check, BrokerUnavailable(message))
            return
    single = [name for name, topic in topics.items() if topic.replicas == 1]
    weak = [
        name
        for name, topic in topics.items()
        if topic.min_insync_replicas == 1 < topic.replicas
        and "min.insync.replicas" not in topic.unlisted
    ]
    risks = []
    if single:
        risks.append(
            f"only one replica, which is lost with its broker: {', '.join(single)}; add replicas"
        )
    if weak:
        risks.append(
            "min.insync.replicas is 1, so a broker confirms records that no other broker holds: "
            f"{', '.join(weak)}; set it to 2"
        )
    if risks:
        findings.warn(check, "; ".join(risks), ADMINISTRATOR)
    else:
        fewest = min(topic.replicas for topic in topics.values())
        known = not any("min.insync.replicas" in topic.unlisted for topic in topics.values())
        confirmed = "2 must confirm a write" if known else "how many confirm a write is unknown"
        findings.ok(check, f"at least {fewest} replicas, and {confirmed}")


def check_access(settings: Settings, facts: ClusterFacts, findings: Findings) -> None:
    """Check that access control allows what a worker does with its topics."""
    check = "access"
    topics = settings.topics
    both = [topics.changelog, topics.sketches, topics.verdicts]
    needed = dict.fromkeys(topic_names(settings), _TO_WRITE) | {topics.source: _TO_READ}
    needed |= dict.fromkeys(both, _TO_READ | _TO_WRITE)
    denied = []
    for name, topic in facts.topics.items():
        if topic.allowed is None:
            findings.skip(check, "the brokers do not report the allowed operations")
            return
        missing = needed[name] - topic.allowed
        if missing:
            denied.append(f"{', '.join(sorted(missing))} on {name}")
    if denied:
        findings.fail(check, BrokerRefused(f"not allowed: {'; '.join(denied)}; add these ACLs"))
    elif facts.topics:
        findings.ok(check, "the operations of a worker on its topics are allowed")


def format_ms(ms: int) -> str:
    """Write milliseconds as a duration, such as ``7d``."""
    return format_duration(dt.timedelta(milliseconds=ms))
