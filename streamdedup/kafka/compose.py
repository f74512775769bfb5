"""*Pure.* Composes the messages of one transaction from the verdicts on a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from streamdedup.batches import DUPLICATE, KEPT, REJECTED, IndexUpdate, Verdicts
from streamdedup.columns import I64, RecordColumns
from streamdedup.errors import TopicError
from streamdedup.formats import changelog
from streamdedup.formats.outputs import (
    OutputRule,
    clean_headers,
    dead_letter_headers,
    duplicate_record,
    kept_headers,
)
from streamdedup.kafka.dead_letter_limit import DeadLetterLimit, OutcomeTally
from streamdedup.kafka.decoding import MOST_BYTES, escaped, is_invalid, is_withheld
from streamdedup.kafka.messages import ClusterFacts, Messages, Outgoing, TopicFacts, Transaction
from streamdedup.kafka.sizes import RECORD_OVERHEAD, Additions, fits, taken
from streamdedup.model import NO_TIMESTAMP, Headers, Record, Rejection, Verdict
from streamdedup.settings.sections import Settings

_LEAST, _MOST = -(2**63), 2**63 - 1
"""Limits of a timestamp."""


class Composer:
    """Turns the verdicts on a batch into a transaction.

    Raises:
        TopicError: an output topic is too small for what is written without any value.
    """

    def __init__(self, settings: Settings, facts: ClusterFacts) -> None:
        self._topics = settings.topics
        self._facts = facts.topics
        self._annotate = settings.output.route == "annotate"
        self._limit = DeadLetterLimit.from_settings(settings.limits)
        self._tally = OutcomeTally()
        self._entry_bytes = settings.batch.changelog_entry_bytes
        self._rule = OutputRule.from_settings(settings, facts.duplicates_schema_id)
        self._compression = settings.kafka.compression
        self._additions = Additions.from_settings(settings)
        for role in ("clean", "duplicates", "dead_letter"):
            name, needed = getattr(self._topics, role), getattr(self._additions, role)
            allowed = self._facts[name].max_message_bytes
            if allowed < needed:
                raise TopicError(
                    f"topic {name} accepts messages of {allowed} bytes, but what streamdedup adds "
                    f"to a record may take {needed}; raise its max.message.bytes, or lower "
                    "limits.id_bytes or output.max_matches"
                )

    def resume(self, tally: OutcomeTally) -> None:
        """Continue the dead letters that were counted before."""
        self._tally = tally

    def refused(self, records: Sequence[Record], now_ms: int) -> dict[int, Rejection]:
        """Return the rejections of records that the clean topic would not accept, by their row.

        This compresses large records, which takes time.
        """
        columns = RecordColumns.of(records)
        clean = self._facts[self._topics.clean]
        sizes = columns.sizes()
        if any(columns.keys):
            sizes += np.array([len(key or b"") for key in columns.keys])
        suspect = sizes > clean.max_message_bytes - self._additions.clean
        suspect |= ~accepts_timestamps(clean, columns.timestamps_ms, now_ms)
        if any(columns.headers):
            suspect |= np.array([bool(headers) for headers in columns.headers])
        return {
            row: rejection
            for row in np.flatnonzero(suspect).tolist()
            if (rejection := self._refuse(columns[row], now_ms)) is not None
        }

    def _refuse(self, record: Record, now_ms: int) -> Rejection | None:
        if is_withheld(record.headers):
            message = (
                f"the record is in a compressed batch that expands to more than {MOST_BYTES >> 20} "
                "MiB; its content is only in the source topic"
            )
            return Rejection("decode", "BatchTooLarge", message)
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
        if accepts_timestamps(clean, np.array([record.timestamp_ms]), now_ms).all():
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
        self, records: Sequence[Record], verdicts: Verdicts, update: IndexUpdate, now_ms: int
    ) -> Transaction:
        """Return the transaction of a judged batch, whose dead letters count from now on.

        If the transaction is not committed, the session ends, and this composer with it. The
        verdicts are in the order of the records; ``now_ms`` is the wall clock, in milliseconds
        since the epoch, as in other methods.

        Raises:
            TooManyDeadLetters: a limit on dead letters is reached.
        """
        columns = RecordColumns.of(records)
        self._tally = self._limit.after(self._tally, columns.positions, verdicts.rejections)
        messages = self.outputs(columns, verdicts, now_ms)
        offsets = {(topic, partition): offset for topic, partition, _, offset in update.ranges}
        entries = changelog.encode(update, self._rule.fingerprint, self._entry_bytes)
        return Transaction(messages, entries, offsets, self._tally.note())

    def outputs(self, records: RecordColumns, verdicts: Verdicts, now_ms: int) -> list[Messages]:
        """Return the messages of :meth:`compose`; one of the output topics gets each record."""
        messages = [self._clean(records, verdicts, now_ms)]
        if not self._annotate:
            messages.append(self._duplicates(records, verdicts, now_ms))
        dead = [
            self._dead_letter(records[row], rejection, now_ms)
            for row, rejection in sorted(verdicts.rejections.items())
        ]
        messages.append(Messages.of(self._topics.dead_letter, dead))
        return list(filter(len, messages))

    def _clean(self, records: RecordColumns, verdicts: Verdicts, now_ms: int) -> Messages:
        clean, outcomes = self._facts[self._topics.clean], verdicts.outcomes
        rows = np.flatnonzero(outcomes != REJECTED if self._annotate else outcomes == KEPT)
        chosen = records.take(rows)
        headers: Sequence[Sequence[tuple[str, bytes | None]]]
        if self._annotate or self._rule.headers == "full":
            headers = [clean_headers(verdicts[row], self._rule) for row in rows.tolist()]
        else:
            headers = kept_headers(chosen.positions, self._rule)
        if any(chosen.headers):
            headers = [[*own, *added] for own, added in zip(chosen.headers, headers, strict=True)]
        return Messages(
            clean.name,
            chosen.keys,
            chosen.values,
            headers,
            accepted_timestamps(clean, chosen.timestamps_ms, now_ms),
            chosen.positions.partitions,
        )

    def _duplicates(self, records: RecordColumns, verdicts: Verdicts, now_ms: int) -> Messages:
        topic = self._facts[self._topics.duplicates]
        rows = verdicts.rows_with(DUPLICATE)
        values, keys, headers = records.values, records.keys, records.headers
        # Any size below this one fits whatever the key and the headers; nearly all do.
        room = topic.max_message_bytes - RECORD_OVERHEAD
        parts: list[tuple[bytes, bytes | None, Headers]] = []
        for row in rows:
            verdict = verdicts[row]
            content = duplicate_record(values[row], verdict, self._rule)
            if headers[row] or len(content) + len(keys[row] or b"") > room:
                parts.append(self._fitting(topic, records[row], content, verdict))
            else:
                parts.append((content, keys[row], ()))
        return Messages(
            topic.name,
            [key for _, key, _ in parts],
            [content for content, _, _ in parts],
            [own for _, _, own in parts],
            accepted_timestamps(topic, records.timestamps_ms[rows], now_ms),
            records.positions.partitions[rows],
        )

    def _fitting(
        self, topic: TopicFacts, record: Record, content: bytes, verdict: Verdict
    ) -> tuple[bytes, bytes | None, Headers]:
        """Return a duplicate record, its key and headers, without parts that are too large.

        It leaves out the value first, then the headers, then the key: the source still has them.
        """
        if self._rule.include_value and not self._fits(topic, replace(record, value=content)):
            content = duplicate_record(None, verdict, replace(self._rule, include_value=False))
        record = replace(record, value=content)
        if not self._fits(topic, record):
            record = replace(record, headers=())
        if not self._fits(topic, record):
            record = replace(record, key=None)
        return content, record.key, record.headers

    def _dead_letter(self, record: Record, rejection: Rejection, now_ms: int) -> Outgoing:
        """Return the original record with the reason, without parts too large for the topic.

        The source still has the whole record; the headers name its position.
        """
        topic = self._facts[self._topics.dead_letter]
        original = record
        if is_withheld(record.headers):
            record = replace(record, headers=())
        elif not self._fits(topic, record):
            record = replace(record, value=None)
        if not self._fits(topic, record):
            record = replace(record, key=None, headers=())
        omitted = record is not original
        named = tuple((escaped(name), value) for name, value in record.headers)
        record = replace(record, headers=named)
        # The headers contain the size of the value, so they are made from the original record.
        headers = dead_letter_headers(
            replace(original, headers=record.headers), rejection, omitted=omitted
        )
        [timestamp_ms] = accepted_timestamps(topic, np.array([record.timestamp_ms]), now_ms)
        partition = record.position.partition
        return Outgoing(topic.name, record.key, record.value, headers, timestamp_ms, partition)

    def _fits(self, topic: TopicFacts, record: Record) -> bool:
        return fits(topic, record, self._compression)


def accepts_timestamps(topic: TopicFacts, timestamps_ms: I64, now_ms: int) -> NDArray[np.bool_]:
    """Return which timestamps, ``(n,)``, the broker accepts; it accepts missing ones."""
    earliest, latest = now_ms - topic.timestamp_before_max_ms, now_ms + topic.timestamp_after_max_ms
    inside = (timestamps_ms >= max(earliest, _LEAST)) & (timestamps_ms <= min(latest, _MOST))
    accepted: NDArray[np.bool_] = inside | (timestamps_ms == NO_TIMESTAMP)
    return accepted


def accepted_timestamps(topic: TopicFacts, timestamps_ms: I64, now_ms: int) -> list[int | None]:
    """Return the timestamps, ``(n,)``, that the broker accepts, and None for the others."""
    accepted = accepts_timestamps(topic, timestamps_ms, now_ms)
    pairs = zip(timestamps_ms.tolist(), accepted.tolist(), strict=True)
    return [time_ms if is_accepted else None for time_ms, is_accepted in pairs]
