"""*Async.* The checks of ``streamdedup config check``, in order: from the disk to the offsets.

Rule 1: a check changes nothing. It writes no record, commits no offset, creates no topic and takes
no lock, and a running worker is not fenced.
Rule 2: a condition that would end a worker is an error, with the exit code of that worker.
Rule 3: a check that could not be made is reported too.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from streamdedup.admin.clients import started
from streamdedup.admin.disk import check_disk
from streamdedup.admin.findings import ADMINISTRATOR, Finding, Findings
from streamdedup.admin.topic_checks import check_access, check_topics, format_ms
from streamdedup.errors import (
    BrokerRefused,
    BrokerUnavailable,
    IndexDamaged,
    IndexMismatch,
    SettingsError,
    TopicError,
)
from streamdedup.formats import changelog
from streamdedup.formats.written import SchemaError, compile_schema
from streamdedup.index.directory import holds_index
from streamdedup.index.layout import FORMAT, Checkpoint, Header
from streamdedup.index.manifest import Manifest
from streamdedup.index.state import SourcePartitions
from streamdedup.kafka.brokers import describe_tested, release_warning
from streamdedup.kafka.claim import check_claims
from streamdedup.kafka.cluster import check_identity, longest_transaction_ms, look_at_topics
from streamdedup.kafka.connection import try_servers
from streamdedup.kafka.messages import ClusterFacts
from streamdedup.kafka.readers import ChangelogReader
from streamdedup.kafka.source import Source
from streamdedup.kafka.topics import recreated_topics
from streamdedup.registry.opening import id_of_duplicates, open_registry, schemas_in_files
from streamdedup.settings.kafka import KafkaSettings
from streamdedup.settings.sections import Settings
from streamdedup.settings.units import format_duration, milliseconds

if TYPE_CHECKING:
    from streamdedup.registry.client import Registry

_PAUSE_S = 0.2
"""Time for a worker to finish writing its manifest, and for brokers to end a transaction."""


async def check(settings: Settings) -> list[Finding]:
    """Look at everything that a worker with these settings needs."""
    findings = Findings()
    check_disk(settings, findings)
    await _check_registry(settings, findings)
    servers = settings.kafka.bootstrap_servers
    failed = await try_servers(settings.kafka, servers)
    refusals = [error for error in failed.values() if isinstance(error, BrokerRefused)]
    if refusals or len(failed) == len(servers):
        # As for a worker, one refusal decides.
        findings.fail("bootstrap servers", [*refusals, *failed.values()][0])
        findings.skip("the rest", "topics, access, index and offsets: no usable broker")
        return findings.collected
    if failed:
        findings.warn("bootstrap servers", "; ".join(map(str, failed.values())), ADMINISTRATOR)
    else:
        findings.ok("bootstrap servers", f"all answer: {', '.join(servers)}")
    await _check_cluster(settings, findings)
    return findings.collected


async def _check_registry(settings: Settings, findings: Findings) -> None:
    """Check that the registry answers, and that the schemas that it has can be used."""
    check = "schema registry"
    with findings.guarded(check):
        schemas_in_files(settings)
        if not settings.uses_registry():
            return
        registry = open_registry(settings, {})
        try:
            await registry.reach()
            findings.ok(check, f"{', '.join(settings.registry.urls)} answers")
            if settings.records.format == "registry":
                # By Confluent's TopicNameStrategy; producers may name their subjects otherwise.
                subject = f"{settings.topics.source}-value"
                await _check_source_schema(registry, subject, findings)
            if settings.output.duplicates_format == "avro":
                number = await id_of_duplicates(registry, settings)
                subject = settings.duplicates_subject()
                findings.ok("schema of duplicate records", f"{subject} has it, with id {number}")
        finally:
            await registry.close()


async def _check_source_schema(registry: Registry, subject: str, findings: Findings) -> None:
    check = "schema of records"
    latest = await registry.latest(subject)
    if latest is None:
        findings.skip(check, f"the registry has no subject {subject}")
        return
    try:
        compile_schema(latest)
    except SchemaError as error:
        raise SettingsError(
            f"the latest schema of {subject} {error}; records with it become dead letters; "
            "correct the schema"
        ) from error
    findings.ok(check, f"the latest one of {subject} is {latest.kind}")


async def _check_cluster(settings: Settings, findings: Findings) -> None:
    facts: ClusterFacts | None = None
    with findings.guarded("access"):
        facts = await look_at_topics(settings)
    if facts is None:
        findings.skip("the rest", "topics, index and offsets: the brokers did not describe them")
        return
    failed = await try_servers(settings.kafka, list(facts.brokers.values()))
    for error in failed.values():
        advertised = f"{error}; the broker advertises this address (advertised.listeners)"
        findings.fail("brokers", BrokerUnavailable(advertised))
    if not failed:
        findings.ok("brokers", f"cluster {facts.cluster_id}, {len(facts.brokers)} reachable")
    if warning := release_warning(facts.release_level):
        findings.warn("release of Kafka", warning, ADMINISTRATOR)
    else:
        findings.ok("release of Kafka", f"one of those tested, {describe_tested()}")
    usable = check_topics(settings, facts, findings)
    check_access(settings, facts, findings)
    await _check_identity(settings, facts, findings)
    await _check_timeout(settings.kafka, findings)
    checkpoint = await _check_index(settings, facts, findings)
    topics = settings.topics
    with findings.guarded("claims"):
        await check_claims(settings)
        findings.ok("claims", f"no other changelog is used for {topics.source} and {topics.clean}")
    if not usable:
        findings.skip("offsets", "the topics cannot be used")
        return
    empty = await _check_changelog_offsets(settings, checkpoint, findings)
    if checkpoint is not None:
        for problem in recreated_topics(settings, facts.topics, checkpoint.notes.get):
            findings.fail("recreated topics", TopicError(problem))
    await _check_group_offsets(settings, facts, checkpoint, findings, changelog_is_empty=empty)


async def _check_identity(settings: Settings, facts: ClusterFacts, findings: Findings) -> None:
    check = "transactional id"
    topics, group = settings.topics, settings.kafka.group_id
    name, edges = topics.transactional_id, list[str]()
    if settings.mode == "split" and (source := facts.topics.get(topics.source)):
        edges = topics.edge_ids(source.partitions)
    with findings.guarded(check):
        await check_identity(settings, [name, *edges])
        findings.ok(
            check,
            f"{', '.join([name, *edges[:1]])}{' etc.' if edges else ''} and group {group} may be "
            "used; whether another worker uses them is not checked",
        )


async def _check_timeout(kafka: KafkaSettings, findings: Findings) -> None:
    check, timeout = "transaction timeout", kafka.transaction_timeout
    with findings.guarded(check):
        limit_ms = await longest_transaction_ms(kafka)
        if limit_ms is None:
            reason = "the brokers do not show this client their transaction.max.timeout.ms"
            findings.skip(check, reason)
        elif limit_ms < milliseconds(timeout):
            raise SettingsError(
                f"kafka.transaction_timeout is {format_duration(timeout)}, above the brokers' "
                f"transaction.max.timeout.ms {limit_ms}; lower the setting, or raise the limit of "
                "the brokers"
            )
        else:
            allowed = f"the brokers allow {format_ms(limit_ms)}"
            findings.ok(check, f"{format_duration(timeout)}; {allowed}")


async def _check_index(
    settings: Settings, facts: ClusterFacts, findings: Findings
) -> Checkpoint | None:
    """Compare the index with the settings; return its checkpoint, None without a usable index."""
    check, directory = "index", settings.index.directory
    parameters = settings.dedup.sketch_parameters().described()
    wanted = Header(FORMAT, parameters, facts.log(settings.topics.changelog))
    with findings.guarded(check):
        if not holds_index(directory):
            findings.ok(check, "none yet: the first start builds it from the changelog")
            return None
        try:
            checkpoint = _checkpoint(directory, wanted)
        except IndexDamaged:
            # A worker may be in the middle of a write: read again.
            await asyncio.sleep(_PAUSE_S)
            checkpoint = _checkpoint(directory, wanted)
        if settings.dedup.keeps_texts and not checkpoint.has_all_texts:
            raise IndexMismatch(
                f"{directory}: the index was built without the texts that dedup.verify exact "
                "compares; set dedup.verify to estimate, or use another index.directory and "
                "topics.changelog"
            )
        size = f"{checkpoint.next_number} documents up to offset {checkpoint.applied}"
        findings.ok(check, f"built with these settings; on the disk {size}")
        return checkpoint
    return None


def _checkpoint(directory: Path, wanted: Header) -> Checkpoint:
    with closing(Manifest(directory, wanted, readonly=True)) as manifest:
        return manifest.checkpoint()


async def _check_changelog_offsets(
    settings: Settings, checkpoint: Checkpoint | None, findings: Findings
) -> bool:
    """Check that the changelog continues the index; return whether the changelog is empty."""
    check, empty = "changelog offsets", False
    with findings.guarded(check):
        async with started(ChangelogReader(settings)) as reader:
            empty = reader.end == reader.first
            # A new index begins where the topic does.
            applied = (checkpoint.applied if checkpoint else 0) or reader.first
            reader.check(applied)
            findings.ok(check, f"a start replays {reader.end - applied} offsets")
    return empty


async def _judged(
    settings: Settings, checkpoint: Checkpoint, findings: Findings
) -> SourcePartitions:
    """Return the source partitions, with the offsets up to which they were judged.

    This reads the entries that a start replays, and reports records of other programs among them. A
    running worker commits all the time, so this comes after the committed offsets were read. The
    pause lets the last transaction become visible in the changelog too.
    """
    judged = SourcePartitions(checkpoint.sources, checkpoint.written)
    fingerprint = settings.fingerprint
    await asyncio.sleep(_PAUSE_S)
    async with started(ChangelogReader(settings)) as reader:
        async for _, data in reader.entries(checkpoint.applied or reader.first):
            update = changelog.decode(data, fingerprint)
            judged.judge(update.ranges, is_ahead=update.is_ahead)
    if reader.strangers:
        findings.warn(
            "changelog records",
            f"another program has written {reader.strangers} records to "
            f"{settings.topics.changelog}, the first one at offset {reader.first_stranger}; a "
            "worker leaves them out; stop that program",
            ADMINISTRATOR,
        )
    return judged


async def _check_group_offsets(
    settings: Settings,
    facts: ClusterFacts,
    checkpoint: Checkpoint | None,
    findings: Findings,
    *,
    changelog_is_empty: bool,
) -> None:
    """Check that the committed offsets are still in the source topic, and skip no record."""
    check = "group offsets"
    partitions = facts.topics[settings.topics.source].partitions
    with findings.guarded(check):
        async with started(Source(settings, partitions)) as source:
            if source.follows_edges() and settings.mode == "single":
                await check_identity(settings, settings.topics.edge_ids(partitions))
            known = SourcePartitions()
            if checkpoint is not None:
                known = await _judged(settings, checkpoint, findings)
            await source.begin(known)
            committed = len(source.notes())
        if committed and changelog_is_empty:
            findings.warn(
                check,
                f"the group has judged records of {committed} partitions, but the "
                f"changelog is empty: copies of kept documents pass as new; restore the topic "
                f"{settings.topics.changelog}, or accept this",
                ADMINISTRATOR,
            )
        else:
            findings.ok(check, f"{committed} of {partitions} partitions have one, all in the topic")
