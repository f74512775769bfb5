"""*Async.* What an operator does about single records: list and replay dead letters, reinstate."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from streamdedup.admin.clients import look_at_brokers, started
from streamdedup.errors import InputError
from streamdedup.formats.corrections import (
    Copy,
    DeadLetter,
    count_replays,
    read_dead_letter,
    reinstated_headers,
    replay_headers,
)
from streamdedup.formats.objects import Refusal
from streamdedup.formats.outputs import Headers, OutputRule
from streamdedup.formats.records import Decoder
from streamdedup.kafka.append import Appender
from streamdedup.kafka.compose import accepted_timestamps
from streamdedup.kafka.messages import ClusterFacts, Outgoing, TopicFacts
from streamdedup.kafka.partition import partitions_of
from streamdedup.kafka.readers import Reader
from streamdedup.kafka.sizes import fits
from streamdedup.model import Position, Record, format_position
from streamdedup.registry.opening import schemas_of
from streamdedup.settings.sections import Settings

MOST_REPLAYS = 3
"""How often a record is replayed, unless the operator names its position."""

_CHUNK_BYTES = 4 * 1024**2
"""Bytes of values that are held in memory before they are appended."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter without its contents.

    Attributes:
        position: of the source record; ``stored`` is that of the dead letter itself.
        stage: the step that refused the record.
        reason: a class name; ``message`` says it in one sentence.
        timestamp_ms: of the dead letter; -1 if it has none.
        omitted: whether its value was too large for the topic.
        replays: how often the record was replayed before it became this dead letter.
    """

    position: Position
    stage: str
    reason: str
    message: str
    timestamp_ms: int
    omitted: bool
    replays: int
    stored: Position


async def _dead_letters(
    settings: Settings, facts: ClusterFacts, reader: Reader
) -> AsyncIterator[tuple[Position, DeadLetter]]:
    """Yield the dead letters of the source topic, each with its own position."""
    topic = facts.topics[settings.topics.dead_letter]
    async for record in reader.records(topic.name, topic.partitions):
        letter = read_dead_letter(record)
        if letter is not None and letter.original.position.topic == settings.topics.source:
            yield record.position, letter


async def list_letters(settings: Settings) -> list[Letter]:
    """Return the dead letters, the oldest timestamp first.

    If a replayed record became a dead letter again, only the last one is returned. If a source
    record has several, because the group's offsets were moved back, the last one is returned.
    """
    letters: dict[Position, Letter] = {}
    copies: dict[Position, Copy] = {}
    facts = await look_at_brokers(settings)
    async with started(Reader(settings.kafka)) as reader:
        async for stored, letter in _dead_letters(settings, facts, reader):
            original = letter.original
            letters[original.position] = Letter(
                original.position,
                letter.stage,
                letter.reason,
                letter.message,
                original.timestamp_ms,
                letter.omitted,
                0,
                stored,
            )
            copies[original.position] = letter.copy
    counts = count_replays(copies)
    superseded = {copies[position].replayed_from for position, count in counts.items() if count}
    latest = [
        replace(letter, replays=counts[position])
        for position, letter in letters.items()
        if position not in superseded
    ]
    return sorted(latest, key=lambda letter: letter.timestamp_ms)


def choose(
    letters: Sequence[Letter], reason: str | None = None, positions: Sequence[Position] = ()
) -> list[Letter]:
    """Return the letters with a reason (None: any), and at source positions (empty: any).

    If a position has no dead letter with the reason, raise an InputError.
    """
    chosen = [
        letter
        for letter in letters
        if reason in (None, letter.reason) and (not positions or letter.position in positions)
    ]
    unknown = set(positions) - {letter.position for letter in chosen}
    if unknown:
        raise InputError(
            f"no dead letter of {', '.join(map(format_position, sorted(unknown)))}"
            + (f" with reason {reason}" if reason else "")
            + "; 'streamdedup dlq list' shows them"
        )
    return chosen


async def replay(settings: Settings, letters: Sequence[Letter]) -> list[Position]:
    """Append the original records of dead letters to the source topic.

    Return the positions that were not replayed: the dead letter does not have the value, and the
    source does not have the record any more.
    """
    replays = {letter.stored: letter.replays for letter in letters}
    missing: list[Position] = []
    facts = await look_at_brokers(settings)
    source = facts.topics[settings.topics.source]
    async with (
        started(Reader(settings.kafka)) as reader,
        started(Appender(settings.kafka, facts)) as appender,
    ):
        waiting: list[tuple[int, Outgoing]] = []
        omitted: list[tuple[DeadLetter, int]] = []
        size = 0
        async for stored, letter in _dead_letters(settings, facts, reader):
            if stored not in replays:
                continue
            if letter.omitted:
                omitted.append((letter, replays[stored]))
                continue
            waiting.append(_replayed(source, letter.original, replays[stored]))
            size += len(letter.original.value or b"")
            if size > _CHUNK_BYTES:
                await appender.append(waiting)
                waiting, size = [], 0
        await appender.append(waiting)
        for letter, count in omitted:
            original = await reader.at(letter.original.position)
            if original is None:
                missing.append(letter.original.position)
            else:
                await appender.append([_replayed(source, original, count)])
    return missing


def _replayed(source: TopicFacts, original: Record, replays: int) -> tuple[int, Outgoing]:
    headers = replay_headers(original, replays)
    return original.position.partition, _outgoing(source, original, headers)


def _outgoing(topic: TopicFacts, record: Record, headers: Headers) -> Outgoing:
    """Return a message with the record's timestamp, unless the topic refuses it."""
    now_ms = time.time_ns() // 1_000_000
    [timestamp_ms] = accepted_timestamps(topic, np.array([record.timestamp_ms]), now_ms)
    return Outgoing(
        topic.name, record.key, record.value, headers, timestamp_ms, record.position.partition
    )


async def find_records(
    settings: Settings, positions: Sequence[Position]
) -> Mapping[Position, Record]:
    """Return source records; an InputError if one does not exist, or was not judged yet."""
    records = {}
    source = (await look_at_brokers(settings)).topics[settings.topics.source]
    async with started(Reader(settings.kafka)) as reader:
        for position in positions:
            record = None
            if position.topic == source.name and position.partition < source.partitions:
                record = await reader.at(position)
            if record is None:
                raise InputError(
                    f"{format_position(position)} is not a record of the source topic "
                    f"{source.name}; nothing was written"
                )
            if position.offset >= await reader.judged(*position[:2]):
                raise InputError(
                    f"{format_position(position)} was not judged yet; nothing was written"
                )
            records[position] = record
    return records


async def reinstate(settings: Settings, records: Sequence[Record]) -> None:
    """Append source records to the clean topic; the index does not change.

    If a record is too large for the topic, raise an InputError, and write nothing.
    """
    facts = await look_at_brokers(settings)
    clean = facts.topics[settings.topics.clean]
    for record in records:
        if not fits(clean, record, settings.kafka.compression):
            raise InputError(
                f"{format_position(record.position)} is too large for topic {clean.name}; raise "
                "its max.message.bytes; nothing was written"
            )
    decoder = Decoder(settings.records, settings.limits, await schemas_of(records, settings))
    now = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    rule = OutputRule.from_settings(settings)
    messages = []
    for record in records:
        try:
            document_id = decoder.decode(record).id
        except Refusal:
            document_id = ""
        document_id = document_id or format_position(record.position)
        headers = reinstated_headers(record, document_id, now, rule)
        messages.append(_outgoing(clean, record, headers))
    partitions = partitions_of(
        [message.key for message in messages],
        np.array([message.source_partition for message in messages], dtype=np.int64),
        clean.partitions,
    )
    async with started(Appender(settings.kafka, facts)) as appender:
        await appender.append(zip(partitions.tolist(), messages, strict=True))
