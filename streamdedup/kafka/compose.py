"""*Pure.* Composes the messages of one transaction from the verdicts on a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from streamdedup.batches import IndexUpdate, Verdicts
from streamdedup.errors import TopicError
from streamdedup.formats import changelog
from streamdedup.formats.outputs import (
    OutputRule,
    clean_headers,
    dead_letter_headers,
    duplicate_record,
)
from streamdedup.kafka.dead_letter_limit import DeadLetterLimit, Tally
from streamdedup.kafka.decoding import escaped, is_invalid
from streamdedup.kafka.messages import ClusterFacts, Outgoing, TopicFacts, Transaction
from streamdedup.kafka.sizes import Additions, fits, taken
from streamdedup.model import NO_TIMESTAMP, Outcome, Record, Rejection, Verdict
from streamdedup.settings.sections import Settings


class Composer:
    """Turns the verdicts on a batch into a transaction.

    Args:
        settings: all settings.
        facts: the output topics, with their limits.
        fingerprint: that of the sketch parameters.
        tally: the dead letters so far.

    Raises:
        TopicError: an output topic is too small for what is written without any value.
    """

    def __init__(
        self, settings: Settings, facts: ClusterFacts, fingerprint: str, tally: Tally | None = None
    ) -> None:
        self._topics = settings.topics
        self._facts = facts.topics
        self._annotate = settings.output.route == "annotate"
        self._limit = DeadLetterLimit.from_settings(settings.limits)
        self._tally = tally or Tally()
        self._entry_bytes = settings.batch.changelog_entry_bytes
        self._rule = OutputRule.from_settings(settings, fingerprint)
        self._compression = settings.kafka.compression
        self._additions = Additions.from_settings(settings)
        self._check_room()

    def _check_room(self) -> None:
        """Refuse topics whose limit is below what is written in addition to a record."""
        for name, needed in (
            (self._topics.clean, self._additions.clean),
            (self._topics.duplicates, self._additions.duplicates),
            (self._topics.dead_letter, self._additions.dead_letter),
        ):
            allowed = self._facts[name].max_message_bytes
            if allowed < needed:
                raise TopicError(
                    f"topic {name} accepts messages of {allowed} bytes, but what streamdedup adds "
                    f"to a record may take {needed}; raise its max.message.bytes, or lower "
                    "limits.id_bytes or output.max_matches"
                )

    def refused(self, records: Sequence[Record], now_ms: int) -> dict[int, Rejection]:
        """Find the records that the clean topic would not accept, before they are judged.

        This compresses large records, which takes time.

        Args:
            records: a polled batch.
            now_ms: the wall clock, in milliseconds since the epoch.

        Returns:
            The rejections, by the record's row in the batch.
        """
        rejections = {}
        for row, record in enumerate(records):
            rejection = self._refuse(record, now_ms)
            if rejection is not None:
                rejections[row] = rejection
        return rejections

    def _refuse(self, record: Record, now_ms: int) -> Rejection | None:
        clean = self._facts[self._topics.clean]
        room = clean.max_message_bytes - self._additions.clean
        size = taken(clean, record, self._compression, self._additions.clean)
        if size > room:
            message = (
                f"the record takes {size} bytes with kafka.compression {self._compression}, the "
                f"clean topic has room for {room}"
            )
            return Rejection("produce", "RecordTooLarge", message)
        invalid = [escaped(name) for name, _ in record.headers if is_invalid(name)]
        if invalid:
            message = f"the header name {invalid[0]!r} is not valid UTF-8, and cannot be written"
            return Rejection("produce", "InvalidHeaderName", message)
        if accepts_timestamp(clean, record, now_ms):
            return None
        reason, direction, limit = (
            ("TimestampInFuture", "ahead of", "after")
            if record.timestamp_ms > now_ms
            else ("TimestampInPast", "behind", "before")
        )
        message = (
            f"the timestamp {record.timestamp_ms} is further {direction} the clock than the clean "
            f"topic's message.timestamp.{limit}.max.ms allows"
        )
        return Rejection("produce", reason, message)

    def compose(
        self,
        records: Sequence[Record],
        verdicts: Verdicts,
        update: IndexUpdate,
        now_ms: int,
    ) -> Transaction:
        """Return the transaction of a judged batch, whose dead letters count from now on.

        If the transaction is not committed, the session ends, and this composer with it.

        Args:
            records: the batch.
            verdicts: one per record, in the same order.
            update: what the index gains, and the offsets that the batch covers.
            now_ms: the wall clock, in milliseconds since the epoch.

        Raises:
            TooManyDeadLetters: a limit on dead letters is reached.
        """
        self._tally = self._limit.after(self._tally, verdicts)
        messages = [
            self._message(record, verdict, now_ms)
            for record, verdict in zip(records, verdicts, strict=True)
        ]
        offsets: dict[tuple[str, int], int] = {}
        for topic, partition, _, next_offset in update.ranges:
            offsets[topic, partition] = next_offset
        entries = changelog.encode(update, self._rule.fingerprint, self._entry_bytes)
        return Transaction(messages, entries, offsets, self._tally.note())

    def _message(self, record: Record, verdict: Verdict, now_ms: int) -> Outgoing:
        if verdict.rejection is not None:
            return self._dead_letter(record, verdict.rejection, now_ms)
        if verdict.outcome is Outcome.KEPT or self._annotate:
            clean = self._facts[self._topics.clean]
            headers = clean_headers(record, verdict, self._rule)
            return self._outgoing(clean, record, record.value, headers, now_ms)
        return self._duplicate(record, verdict, now_ms)

    def _duplicate(self, record: Record, verdict: Verdict, now_ms: int) -> Outgoing:
        """Return the duplicate record, without parts that are too large for the topic.

        It leaves out the value first, then the headers, then the key: the source still has them.
        """
        topic = self._facts[self._topics.duplicates]
        value = duplicate_record(record, verdict, self._rule)
        if self._rule.include_value and not self._fits(topic, replace(record, value=value)):
            value = duplicate_record(record, verdict, replace(self._rule, include_value=False))
        if not self._fits(topic, replace(record, value=value)):
            record = replace(record, headers=())
        if not self._fits(topic, replace(record, value=value)):
            record = replace(record, key=None)
        return self._outgoing(topic, record, value, record.headers, now_ms)

    def _dead_letter(self, record: Record, rejection: Rejection, now_ms: int) -> Outgoing:
        """Return the original record with the reason, without parts too large for the topic.

        The source still has the whole record; the headers name its position.
        """
        topic = self._facts[self._topics.dead_letter]
        original = record
        if not self._fits(topic, record):
            record = replace(record, value=None)
        if not self._fits(topic, record):
            record = replace(record, key=None, headers=())
        omitted = record is not original
        names = [escaped(name) for name, _ in record.headers]
        values = [value for _, value in record.headers]
        record = replace(record, headers=tuple(zip(names, values, strict=True)))
        # The headers contain the size of the value, so they are made from the original record.
        headers = dead_letter_headers(
            replace(original, headers=record.headers), rejection, omitted=omitted
        )
        return self._outgoing(topic, record, record.value, headers, now_ms)

    def _fits(self, topic: TopicFacts, record: Record) -> bool:
        return fits(topic, record, self._compression)

    def _outgoing(
        self,
        topic: TopicFacts,
        record: Record,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        now_ms: int,
    ) -> Outgoing:
        """Return a message with the record's key, and its timestamp if the topic accepts it."""
        timestamp_ms = record.timestamp_ms if accepts_timestamp(topic, record, now_ms) else None
        return Outgoing(
            topic.name, record.key, value, headers, timestamp_ms, record.position.partition
        )


def accepts_timestamp(topic: TopicFacts, record: Record, now_ms: int) -> bool:
    """Tell whether the broker accepts the record's timestamp; it accepts a missing one."""
    if record.timestamp_ms == NO_TIMESTAMP:
        return True
    ahead_ms = record.timestamp_ms - now_ms
    return -topic.timestamp_before_max_ms <= ahead_ms <= topic.timestamp_after_max_ms
