"""*Pure.* Requirements on the topics, retentions, and recreated topics."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping

from streamdedup.kafka.messages import TopicFacts
from streamdedup.settings.kafka import TopicSettings
from streamdedup.settings.sections import Settings
from streamdedup.settings.units import format_duration, milliseconds

FOREVER = -1
"""Kafka's value for a retention without a limit."""
_CHECKPOINTS = dt.timedelta(minutes=15)
"""Longest interval. An entry waits for at most two intervals."""
_CHECKPOINTS_PER_RETENTION = 4
_SHORTEST_INTERVAL = dt.timedelta(seconds=1)
NEW_SOURCE = (
    "use another kafka.group_id, index.directory, topics.changelog, and with mode split other "
    "topics.sketches and topics.verdicts"
)
"""The remedy if the source topic was recreated."""
NEW_CHANGELOG = "remove the index directory, or restore the topic"
"""The remedy if the changelog topic was recreated."""
_MARGIN = dt.timedelta(days=1)
"""Retention beyond the window, because clocks differ and a rebuild takes time."""
SKETCHES_RETENTION = dt.timedelta(days=1)
"""Retention of a new topic of sketches. Edges append again what the judge did not read in time."""
VERDICTS_RETENTION = dt.timedelta(days=28)
"""Retention of a new topic of verdicts. Edges that are away for longer cannot continue."""


def topic_names(settings: Settings) -> list[str]:
    """Return the names of the topics in use, the source first."""
    topics = settings.topics
    names = [topics.source, *output_names(topics), topics.changelog]
    return [*names, topics.sketches, topics.verdicts] if settings.mode == "split" else names


def output_names(topics: TopicSettings) -> list[str]:
    """Return the names of the topics of which one gets each record."""
    return [topics.clean, topics.duplicates, topics.dead_letter]


def topic_problems(settings: Settings, topics: Mapping[str, TopicFacts]) -> list[str]:
    """Return a sentence for each problem that keeps a worker from using its topics, with the fix.

    Missing topics are not in ``topics``.
    """
    names, problems = topic_names(settings), list[str]()
    if missing := [name for name in names if name not in topics]:
        problems.append(
            f"missing topics: {', '.join(missing)}; create them, e.g. with "
            "'streamdedup topics create'"
        )
    if changelog := topics.get(settings.topics.changelog):
        problems += _log_problems(settings, changelog, "changelog", "the index")
    if settings.mode == "split":
        if sketches := topics.get(settings.topics.sketches):
            problems += _log_problems(settings, sketches, "sketches", "judgement")
        source = topics.get(settings.topics.source)
        verdicts = topics.get(settings.topics.verdicts)
        if verdicts is not None and source is not None:
            problems += _compaction_problems(verdicts, "verdicts")
            if verdicts.partitions < source.partitions:
                problems.append(
                    f"the verdicts topic {verdicts.name} has {verdicts.partitions} partitions, but "
                    f"{source.name} has {source.partitions}; it must have at least as many: add "
                    "partitions"
                )
    for name in names[1:]:
        topic = topics.get(name)
        if topic is not None and topic.min_insync_replicas > topic.replicas:
            problems.append(
                f"topic {name} has {topic.replicas} replicas, but its min.insync.replicas is "
                f"{topic.min_insync_replicas}, so it rejects every write; lower "
                "min.insync.replicas, or add replicas"
            )
    return problems


def _log_problems(settings: Settings, log: TopicFacts, kind: str, order: str) -> list[str]:
    problems = []
    if log.partitions != 1:
        problems.append(
            f"the {kind} topic {log.name} has {log.partitions} partitions; it must have exactly "
            f"one, because its order is the order of {order}; recreate it with one"
        )
    problems += _compaction_problems(log, kind)
    entry = settings.batch.changelog_entry_bytes
    if log.max_message_bytes < entry:
        problems.append(
            f"the {kind} topic accepts messages of {log.max_message_bytes} bytes, but "
            f"batch.changelog_entry_bytes is {entry}; lower the setting, or raise the topic's "
            "max.message.bytes"
        )
    return problems


def _compaction_problems(log: TopicFacts, kind: str) -> list[str]:
    if "compact" not in log.cleanup_policy:
        return []
    problem = (
        f"the {kind} topic {log.name} has cleanup.policy {log.cleanup_policy}, but its records "
        "have no keys; set cleanup.policy to delete"
    )
    return [problem]


def topic_notes(settings: Settings, topics: Mapping[str, TopicFacts]) -> dict[str, bytes]:
    """Return what an index notes of its topics: the id of the source and of the changelog."""
    names = (settings.topics.source, settings.topics.changelog)
    return {_note(name): topics[name].id for name in names if topics[name].id}


def recreated_topics(
    settings: Settings, topics: Mapping[str, TopicFacts], noted: Callable[[str], bytes | None]
) -> list[str]:
    """Return a sentence for each topic of an index that was deleted and recreated, with the fix.

    Offsets alone do not tell: a recreated topic may have been filled beyond the old offsets.
    ``noted`` returns what the index has noted under a key of :func:`topic_notes`, or None.
    """
    remedies = {
        settings.topics.source: f"its offsets name other records; {NEW_SOURCE}",
        settings.topics.changelog: f"the index is not a copy of it; {NEW_CHANGELOG}",
    }
    return [
        f"topic {name} was deleted and recreated since the index was built: {remedy}"
        for name, remedy in remedies.items()
        if (old := noted(_note(name))) and topics[name].id and topics[name].id != old
    ]


def _note(name: str) -> str:
    return f"id of topic {name}"


def changelog_retention_ms(settings: Settings) -> int:
    """Return the retention that fits the window; ``FOREVER`` if the window has no time limit."""
    span = settings.index.reach()
    return FOREVER if span is None else milliseconds(span + _MARGIN)


def checkpoint_interval(changelog: TopicFacts) -> dt.timedelta:
    """Return the interval at which the index is written to disk, however slow the stream is.

    A restart replays the changelog from the last checkpoint, so the topic's retention must not
    delete entries that are newer than that.
    """
    if changelog.retention_ms == FOREVER:
        return _CHECKPOINTS
    part = dt.timedelta(milliseconds=changelog.retention_ms) / _CHECKPOINTS_PER_RETENTION
    return min(_CHECKPOINTS, max(part, _SHORTEST_INTERVAL))


def retention_warning(settings: Settings, changelog: TopicFacts) -> str | None:
    """Return what a rebuild would lose if the changelog's retention is shorter than the window."""
    span = settings.index.reach()
    limits = []
    if changelog.retention_ms != FOREVER and (
        span is None or changelog.retention_ms < milliseconds(span)
    ):
        duration = format_duration(dt.timedelta(milliseconds=changelog.retention_ms))
        limits.append(f"{duration} (retention.ms {changelog.retention_ms})")
    if changelog.retention_bytes != FOREVER:
        limits.append(f"{changelog.retention_bytes} bytes (retention.bytes)")
    if not limits:
        return None
    index = settings.index
    window = (
        f"the newest {index.window_documents} documents of any age (index.window_documents)"
        if span is None or index.window is None
        else f"{format_duration(span)} (index.window {format_duration(index.window)} and "
        f"index.allowed_lateness {format_duration(span - index.window)})"
    )
    return (
        f"the changelog topic {changelog.name} keeps {' and at most '.join(limits)}, but the "
        f"window covers {window}: a rebuilt index would lack the kept documents that the topic has "
        "deleted, and their copies would pass as new; set its retention.ms to "
        f"{changelog_retention_ms(settings)} and its retention.bytes to -1"
    )
