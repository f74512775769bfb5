"""*Async.* What ``streamdedup config check`` finds out about the disk, the brokers and the topics.

Rule 1: a check changes nothing. No record is written, no offset committed, no topic made, no lock
taken, and a worker that runs is not fenced.
Rule 2: what would end a worker is an error, under the exit code that the worker would end with.
Rule 3: what could not be checked is told as well.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from streamdedup.admin.disk import (
    NETWORK,
    PASSING,
    document_bytes,
    existing,
    file_system,
    needed_bytes,
    used_bytes,
)
from streamdedup.admin.findings import ADMINISTRATOR, OPERATOR, Finding, Level
from streamdedup.admin.topic_checks import _TO_READ, _TO_WRITE, _duration
from streamdedup.errors import (
    BrokerRefused,
    BrokerUnavailable,
    IndexDamaged,
    IndexMismatch,
    IndexUnusable,
    SettingsError,
    StreamdedupError,
    TopicError,
)
from streamdedup.index.entries import Checkpoint
from streamdedup.index.header import FORMAT, Header
from streamdedup.index.manifest import Manifest
from streamdedup.kafka.cluster import check_identity, longest_transaction_ms, look_at_topics
from streamdedup.kafka.compose import Composer
from streamdedup.kafka.connection import try_servers
from streamdedup.kafka.log import ChangelogReader
from streamdedup.kafka.messages import ClusterFacts, TopicFacts
from streamdedup.kafka.source import Source
from streamdedup.kafka.topics import FOREVER, retention_warning, topic_names, topic_problems
from streamdedup.settings.sections import Settings
from streamdedup.settings.units import format_duration, milliseconds

_PAUSE_S = 0.2


async def check(settings: Settings) -> list[Finding]:
    """Look at everything that a worker with these settings needs."""
    checkup = _Checkup(settings)
    await checkup.run()
    return checkup.findings


class _Checkup:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.findings: list[Finding] = []

    async def run(self) -> None:
        self._check_disk()
        if not await self._check_servers():
            skipped = "topics, access, index and offsets: no broker could be asked"
            self._say("the rest", Level.SKIPPED, skipped)
            return
        facts: ClusterFacts | None = None
        with self._guarded("access"):
            facts = await look_at_topics(self._settings)
        if facts is None:
            self._say("the rest", Level.SKIPPED, "topics, index and offsets: nobody told of them")
            return
        await self._check_brokers(facts)
        usable = self._check_topics(facts)
        self._check_access(facts)
        await self._check_identity()
        await self._check_timeout()
        checkpoint = await self._check_index(facts)
        if usable:
            await self._check_offsets(facts, checkpoint)
        else:
            self._say("offsets", Level.SKIPPED, "the topics cannot be used")

    # What is told, and how.

    def _say(self, check: str, level: Level, message: str, who: str = "") -> None:
        self.findings.append(Finding(check, level, message, who))

    def _fail(self, check: str, error: StreamdedupError) -> None:
        from_kafka = isinstance(error, TopicError | BrokerRefused | BrokerUnavailable)
        who = ADMINISTRATOR if from_kafka else OPERATOR
        self.findings.append(Finding(check, Level.ERROR, str(error), who, error.exit_code))

    @contextmanager
    def _guarded(self, check: str) -> Iterator[None]:
        try:
            yield
        except StreamdedupError as error:
            self._fail(check, error)

    # The disk.

    def _check_disk(self) -> None:
        directory = self._settings.index.directory
        there = existing(directory)
        with self._guarded("index directory"):
            if not there.is_dir():
                raise IndexUnusable(f"{directory}: {there} is no directory")
            if not os.access(there, os.W_OK | os.X_OK):
                raise IndexUnusable(f"{directory}: this user may not write into {there}")
            made = "there" if there == directory.absolute() else "made by the first start"
            self._say("index directory", Level.OK, f"{directory} ({made})")
        self._check_file_system(file_system(there))
        self._check_room()

    def _check_file_system(self, kind: str | None) -> None:
        check = "file system"
        if kind is None:
            self._say(check, Level.SKIPPED, "this system does not say what the directory lies on")
        elif kind in NETWORK or kind.startswith("fuse"):
            self._say(
                check,
                Level.WARNING,
                f"{kind} may be shared over a network, where LMDB does not work; use a local disk "
                "or a block device",
                OPERATOR,
            )
        elif kind in PASSING:
            self._say(
                check,
                Level.WARNING,
                f"{kind} goes with the container or with the machine's power: the next start then "
                "replays the whole changelog; mount a volume",
                OPERATOR,
            )
        else:
            self._say(check, Level.OK, kind)

    def _check_room(self) -> None:
        settings, check = self._settings, "disk room"
        directory, budget = settings.index.directory, settings.index.disk_budget
        used = used_bytes(directory) if directory.is_dir() else 0
        needed, free = needed_bytes(settings), shutil.disk_usage(existing(directory)).free
        room = used + free if budget is None else min(used + free, budget)
        whose = "the disk has" if budget is None or budget > used + free else "disk_budget allows"
        texts = ", and the texts on top" if settings.dedup.keeps_texts else ""
        reckoning = (
            f"{settings.index.window_documents} documents (index.window_documents) of "
            f"{document_bytes(settings)} bytes, and room to merge, want {_human(needed)}{texts}; "
            f"{whose} {_human(room)}"
        )
        if room < needed:
            remedy = "make room, or lower index.window_documents"
            self._say(check, Level.WARNING, f"{reckoning}: {remedy}", OPERATOR)
        else:
            self._say(check, Level.OK, reckoning)

    async def _check_index(self, facts: ClusterFacts) -> Checkpoint | None:
        """Compare the index with the settings; return what it stands for, None without one."""
        settings, check = self._settings, "index"
        directory = settings.index.directory
        if not (directory / "manifest" / "data.mdb").exists():
            self._say(check, Level.OK, "none yet: the first start makes it from the changelog")
            return None
        parameters = settings.dedup.sketch_parameters().described()
        wanted = Header(FORMAT, parameters, facts.log(settings.topics.changelog))
        with self._guarded(check):
            checkpoint = await _read_manifest(directory, wanted)
            if settings.dedup.keeps_texts and not checkpoint.has_all_texts:
                raise IndexMismatch(
                    f"{directory}: the index was built without the texts that dedup.verify exact "
                    "compares; set dedup.verify to estimate, or use another index directory and "
                    "changelog"
                )
            numbers = f"{checkpoint.next_number} documents up to offset {checkpoint.applied}"
            self._say(check, Level.OK, f"made with these settings; on the disk {numbers}")
            return checkpoint
        return None

    # The brokers.

    async def _check_servers(self) -> bool:
        servers, check = self._settings.kafka.bootstrap_servers, "bootstrap servers"
        failed = await try_servers(self._settings.kafka, servers)
        if not failed:
            self._say(check, Level.OK, f"all answer: {', '.join(servers)}")
        elif len(failed) < len(servers) and not any(
            isinstance(error, BrokerRefused) for error in failed.values()
        ):
            told = "; ".join(str(error) for error in failed.values())
            self._say(check, Level.WARNING, told, ADMINISTRATOR)
        else:
            # As a worker would: one that refuses decides.
            refusals = [one for one in failed.values() if isinstance(one, BrokerRefused)]
            self._fail(check, [*refusals, *failed.values()][0])
            return False
        return True

    async def _check_brokers(self, facts: ClusterFacts) -> None:
        """Whether the addresses that brokers give of themselves can be reached from here."""
        check, count = "brokers", len(facts.brokers)
        failed = await try_servers(self._settings.kafka, list(facts.brokers.values()))
        for error in failed.values():
            told = BrokerUnavailable(f"{error}; it is the address that a broker gives of itself")
            self._fail(check, told)
        if not failed:
            self._say(check, Level.OK, f"cluster {facts.cluster_id}, {count} reachable")

    async def _check_identity(self) -> None:
        kafka, check = self._settings.kafka, "transactional id"
        with self._guarded(check):
            await check_identity(kafka)
            self._say(
                check,
                Level.OK,
                f"{kafka.transactional_id} and group {kafka.group_id} may be used; whether another "
                "worker uses them is not asked",
            )

    async def _check_timeout(self) -> None:
        check, wanted = "transaction timeout", self._settings.kafka.transaction_timeout
        with self._guarded(check):
            most = await longest_transaction_ms(self._settings.kafka)
            if most is None:
                told = "the brokers do not tell this client their transaction.max.timeout.ms"
                self._say(check, Level.SKIPPED, told)
            elif most < milliseconds(wanted):
                raise SettingsError(
                    f"kafka.transaction_timeout is {format_duration(wanted)}, above the brokers' "
                    f"transaction.max.timeout.ms {most}"
                )
            else:
                told = f"{format_duration(wanted)}; the brokers allow {_duration(most)}"
                self._say(check, Level.OK, told)

    # The topics.

    def _check_topics(self, facts: ClusterFacts) -> bool:
        settings, topics = self._settings, facts.topics
        problems = topic_problems(settings, topics)
        for problem in problems:
            self._fail("topics", TopicError(problem))
        if problems:
            return False
        source = topics[settings.topics.source]
        self._say("topics", Level.OK, f"all five; {source.name} has {source.partitions} partitions")
        self._check_retention(topics[settings.topics.changelog])
        self._check_sizes(facts)
        self._check_replicas(topics)
        return True

    def _check_retention(self, changelog: TopicFacts) -> None:
        warning = retention_warning(self._settings, changelog)
        if warning is not None:
            self._say("retention", Level.WARNING, warning, ADMINISTRATOR)
            return
        kept = (
            "for ever"
            if changelog.retention_ms == FOREVER
            else f"for {_duration(changelog.retention_ms)}, which spans the window"
        )
        self._say("retention", Level.OK, f"{changelog.name} keeps its records {kept}")

    def _check_sizes(self, facts: ClusterFacts) -> None:
        settings, check = self._settings, "message sizes"
        topics = settings.topics
        with self._guarded(check):
            Composer(settings, facts, "")  # refuses topics without room for what we write
            most = facts.topics[topics.source].max_message_bytes
            told = []
            for name, fate in (
                (topics.clean, "larger records go to the dead-letter topic"),
                (topics.dead_letter, "of larger dead letters the value is left out"),
            ):
                least = facts.topics[name].max_message_bytes
                if least < most:
                    told.append(f"{name} takes {least} bytes: {fate}")
            if told:
                message = f"{topics.source} takes messages of {most} bytes, {'; '.join(told)}"
                remedy = "raise max.message.bytes of these, or lower that of the source"
                self._say(check, Level.WARNING, f"{message}; {remedy}", ADMINISTRATOR)
            else:
                told_well = f"{topics.source}: {most} bytes, the others no less"
                self._say(check, Level.OK, told_well)

    def _check_replicas(self, topics: Mapping[str, TopicFacts]) -> None:
        check, told = "replicas", []
        without_leader = [name for name, topic in topics.items() if not topic.in_sync]
        if without_leader:
            names = ", ".join(without_leader)
            self._fail(check, BrokerUnavailable(f"partitions without a leader: {names}"))
            return
        lacking = [n for n, topic in topics.items() if topic.in_sync < topic.min_insync_replicas]
        if lacking:
            names = ", ".join(lacking)
            too_few = f"fewer replicas in sync than min.insync.replicas: {names}"
            self._fail(check, BrokerUnavailable(f"{too_few}; bring the missing brokers back"))
            return
        single = [name for name, topic in topics.items() if topic.replicas == 1]
        if single:
            told.append(f"one copy only, which its broker takes along: {', '.join(single)}")
        weak = [
            name
            for name, topic in topics.items()
            if topic.min_insync_replicas == 1 < topic.replicas
        ]
        if weak:
            told.append(
                "min.insync.replicas is 1, so that one broker may confirm what it alone has: "
                + ", ".join(weak)
            )
        if told:
            self._say(check, Level.WARNING, "; ".join(told), ADMINISTRATOR)
        else:
            fewest = min(topic.replicas for topic in topics.values())
            self._say(check, Level.OK, f"at least {fewest}, and 2 must confirm a write")

    def _check_access(self, facts: ClusterFacts) -> None:
        check, topics = "access", self._settings.topics
        needed = dict.fromkeys(topic_names(topics), _TO_WRITE)
        needed[topics.source] = _TO_READ
        needed[topics.changelog] = _TO_READ | _TO_WRITE
        lacking = []
        for name, topic in facts.topics.items():
            if topic.allowed is None:
                self._say(check, Level.SKIPPED, "the brokers do not tell what is allowed")
                return
            missing = needed[name] - topic.allowed
            if missing:
                lacking.append(f"{', '.join(sorted(missing))} on {name}")
        if lacking:
            self._fail(check, BrokerRefused(f"not allowed: {'; '.join(lacking)}"))
        elif facts.topics:
            self._say(check, Level.OK, "what a worker does with its topics is allowed")

    # The offsets.

    async def _check_offsets(self, facts: ClusterFacts, checkpoint: Checkpoint | None) -> None:
        reader, empty = ChangelogReader(self._settings), False
        try:
            with self._guarded("changelog offsets"):
                await reader.start()
                empty = reader.end == reader.first
                # A new index begins where the topic does.
                applied = (checkpoint.applied if checkpoint else 0) or reader.first
                reader.check(applied)
                told = f"a start replays {reader.end - applied}"
                self._say("changelog offsets", Level.OK, told)
        finally:
            await reader.close()
        await self._check_group(facts, checkpoint, empty=empty)

    async def _check_group(
        self, facts: ClusterFacts, checkpoint: Checkpoint | None, *, empty: bool
    ) -> None:
        check, topic = "group offsets", self._settings.topics.source
        judged = {
            (name, partition): offset
            for name, partition, offset in (checkpoint.sources if checkpoint else ())
        }
        source = Source(self._settings, facts.topics[topic].partitions)
        try:
            with self._guarded(check):
                fresh = await source.start(lambda *at: judged.get(at, 0))
                known = source.partitions - len(fresh)
                if known and empty:
                    self._say(
                        check,
                        Level.WARNING,
                        f"the group has judged records of {known} partitions, and the changelog is "
                        "empty: copies of what was kept pass as new; restore the topic, or accept "
                        "it",
                        ADMINISTRATOR,
                    )
                else:
                    told = f"{known} of {source.partitions} partitions have one, all in the topic"
                    self._say(check, Level.OK, told)
        finally:
            await source.close()


async def _read_manifest(directory: Path, wanted: Header) -> Checkpoint:
    """Read what the index stands for, beside a worker that may have it open."""
    try:
        return _checkpoint(directory, wanted)
    except IndexDamaged:
        # A worker that has just written may not be done with its file: look once more.
        await asyncio.sleep(_PAUSE_S)
        return _checkpoint(directory, wanted)


def _checkpoint(directory: Path, wanted: Header) -> Checkpoint:
    with closing(Manifest(directory, wanted, readonly=True)) as manifest:
        return manifest.checkpoint()


def _human(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"  # noqa: PLR2004
