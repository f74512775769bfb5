"""*Pure.* Verdicts to the messages of one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from streamdedup import changelog
from streamdedup.model import (
    NO_TIMESTAMP,
    ClusterFacts,
    IndexUpdate,
    Outcome,
    Outgoing,
    Record,
    Rejection,
    Transaction,
    Verdict,
)
from streamdedup.outputs import (
    OutputRule,
    clean_headers,
    dead_letter_headers,
    duplicate_record,
)
from streamdedup.settings import Settings

_RECORD_OVERHEAD = 4096
"""Bytes that our headers and Kafka's own framing add to a record, matches aside."""
_MATCH_OVERHEAD = 1024
"""Bytes of a match beside its id."""


class Composer:
    """Turns the verdicts on a batch into a transaction, under fixed settings."""

    def __init__(self, settings: Settings, facts: ClusterFacts, fingerprint: str) -> None:
        self._topics = settings.topics
        self._facts = facts.topics
        self._annotate = settings.output.route == "annotate"
        self._entry_bytes = settings.batch.changelog_entry_bytes
        self._rule = OutputRule(
            settings.dedup.threshold, fingerprint, settings.output.include_value
        )
        self._overhead = _RECORD_OVERHEAD + settings.output.max_matches * (
            _MATCH_OVERHEAD + 2 * settings.limits.id_bytes
        )

    def refused(self, records: Sequence[Record], now_ms: int) -> dict[int, Rejection]:
        """Find the records that the clean topic would not take, before they are judged."""
        clean = self._facts[self._topics.clean]
        most = clean.max_message_bytes - self._overhead
        latest = now_ms + clean.timestamp_after_max_ms
        found = {}
        for place, record in enumerate(records):
            size = _size(record)
            if size > most:
                message = f"the record has {size} bytes, the clean topic has room for {most}"
                found[place] = Rejection("produce", "RecordTooLarge", message)
            elif record.timestamp_ms > latest:
                message = (
                    f"the timestamp {record.timestamp_ms} is further ahead of the clock than the "
                    "clean topic's message.timestamp.after.max.ms allows"
                )
                found[place] = Rejection("produce", "TimestampInFuture", message)
        return found

    def compose(
        self,
        records: Sequence[Record],
        verdicts: Sequence[Verdict],
        update: IndexUpdate,
        now_ms: int,
    ) -> Transaction:
        """Return the transaction of a judged batch."""
        messages = [
            self._message(record, verdict, now_ms)
            for record, verdict in zip(records, verdicts, strict=True)
        ]
        offsets: dict[tuple[str, int], int] = {}
        for topic, partition, _, next_offset in update.ranges:
            offsets[topic, partition] = next_offset
        entries = changelog.encode(update, self._rule.fingerprint, self._entry_bytes)
        return Transaction(messages, entries, offsets)

    def _message(self, record: Record, verdict: Verdict, now_ms: int) -> Outgoing:
        if verdict.rejection is not None:
            return self._dead_letter(record, verdict.rejection, now_ms)
        if verdict.outcome is Outcome.KEPT or self._annotate:
            return self._outgoing(
                self._topics.clean, record, record.value, clean_headers(record, verdict, self._rule)
            )
        value = duplicate_record(record, verdict, self._rule)
        if len(value) + self._overhead > self._facts[self._topics.duplicates].max_message_bytes:
            value = duplicate_record(record, verdict, replace(self._rule, include_value=False))
        return self._outgoing(self._topics.duplicates, record, value, record.headers)

    def _dead_letter(self, record: Record, rejection: Rejection, now_ms: int) -> Outgoing:
        """Return the original record with the reason; what is too large for the topic is left out.

        The record stays where it came from: the headers say where.
        """
        topic = self._facts[self._topics.dead_letter]
        room = topic.max_message_bytes - self._overhead
        value = record.value
        omitted = _size(record) > room
        if omitted:
            value = None
            if _size(replace(record, value=None)) > room:
                record = replace(record, key=None, headers=())
        headers = dead_letter_headers(record, rejection, omitted=omitted)
        message = self._outgoing(topic.name, record, value, headers)
        if record.timestamp_ms > now_ms + topic.timestamp_after_max_ms:
            return replace(message, timestamp_ms=NO_TIMESTAMP)
        return message

    def _outgoing(
        self,
        topic: str,
        record: Record,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> Outgoing:
        return Outgoing(
            topic, record.key, value, headers, record.timestamp_ms, record.position.partition
        )


def _size(record: Record) -> int:
    headers = sum(len(name) * 4 + len(value or b"") + 10 for name, value in record.headers)
    return len(record.value or b"") + len(record.key or b"") + headers
