"""*Blocking.* The lines of a job's inputs, in batches of records."""

from __future__ import annotations

import codecs
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

from streamdedup.errors import InputError
from streamdedup.files.job import Job, Ledger
from streamdedup.files.lines import STANDARD, Line, LineReader, Mark
from streamdedup.model import Position, Record, Rejection
from streamdedup.settings.sections import Settings

LINGER_S = 0.5
"""Seconds after which a line no longer waits for others, if the input has none to read."""


class _CatchUpError(Exception):
    """Carries an error past the code that reads, for which it would be a failure of the input."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True)
class Batch:
    """A batch of lines, and how far the inputs are judged once it has its verdicts.

    Attributes:
        records: the lines that hold a document, in order.
        refused: the reasons for records that are rejected without a look at their value, by row.
        marks: the new mark of each input of the batch, by topic.
        size_bytes: total size of the values.
        blank_lines: lines of white space, which get no verdict.
        unfinished_lines: last lines that are left for a later run.
        judged_before: lines that earlier runs of the job have judged.
        bytes_read: bytes read from all inputs so far, compressed as they are on disk.
        began: when the first of the records was read, in seconds of the monotonic clock.
    """

    records: list[Record] = field(default_factory=list)
    refused: dict[int, Rejection] = field(default_factory=dict)
    marks: dict[str, Mark] = field(default_factory=dict)
    size_bytes: int = 0
    blank_lines: int = 0
    unfinished_lines: int = 0
    judged_before: int = 0
    bytes_read: int = 0
    began: float = 0.0

    def is_empty(self) -> bool:
        """Whether the batch covers no line."""
        return not (self.records or self.blank_lines or self.unfinished_lines or self.judged_before)


class BatchReader:
    """Reads the inputs of a job one after the other, from where earlier runs stopped.

    Attributes:
        failure: why an input could not be read to its end; the batches hold the lines before.
    """

    def __init__(self, job: Job, settings: Settings, ledger: Ledger) -> None:
        self.failure: InputError | None = None
        self._inputs = job.inputs
        self._continues = job.index is not None
        self._is_whole = _never if settings.records.format == "text" else _is_json_object
        self._batch_settings = settings.batch
        self._most_bytes = settings.limits.value_bytes
        self._ledger = ledger
        self._batch = Batch()
        self._bytes_read = 0
        self._reading: tuple[str, LineReader, int] | None = None
        self._catch_up: Callable[[Batch], None] = lambda _: None

    def batches(self, catch_up: Callable[[Batch], None]) -> Iterator[Batch]:
        """Yield the batches, up to the end of the inputs or a failure.

        Args:
            catch_up: called with the lines so far, which may be none, if the input has no further
                ones yet.
        """
        self._catch_up = catch_up
        try:
            for path in self._inputs:
                with closing(self._reader(path)) as lines:
                    yield from self._of_input(path, lines)
        except InputError as error:
            self.failure = error
        except _CatchUpError as error:
            raise error.reason from None
        if not self._batch.is_empty():
            yield self._batch

    def _reader(self, path: str) -> LineReader:
        # Only a file can grow, and only a job can continue with it.
        may_grow = self._continues and path != STANDARD and os.path.isfile(path)
        is_whole = self._is_whole if may_grow else None
        return LineReader(path, self._most_bytes, is_whole, self._wait)

    def _wait(self, is_ready: Callable[[float], bool]) -> None:
        """Hand over the lines so far if no further ones come in time."""
        left = self._batch.began + LINGER_S - time.monotonic() if self._batch.records else 0
        if is_ready(max(0, left)):
            return
        if self._reading is not None:
            self._note_progress(*self._reading)
        batch, self._batch = self._batch, Batch()
        try:
            self._catch_up(batch)
        except (InputError, OSError) as error:
            raise _CatchUpError(error) from error

    def _of_input(self, path: str, lines: LineReader) -> Iterator[Batch]:
        """Yield the batches that an input fills; its last lines go to the batch of the next."""
        # Standard input gets its topic here.
        self._batch.judged_before += self._skip_judged(path, lines)
        topic, before = self._ledger.topic(path), self._bytes_read
        self._reading = topic, lines, before
        try:
            for line in iter(lines.read, None):
                self._add(path, Position(topic, 0, line.number), line)
                if self._is_full():
                    self._note_progress(topic, lines, before)
                    yield self._batch
                    self._batch = Batch()
            self._batch.unfinished_lines += lines.left_unfinished
        finally:
            self._note_progress(topic, lines, before)
            self._reading = None

    def _skip_judged(self, path: str, lines: LineReader) -> int:
        """Skip the lines that this job has judged; return how many there are."""
        if path == STANDARD and not lines.begins_with(self._ledger.judged(path)):
            self._ledger.restart_standard_input()
        known, judged = self._ledger.known(path), self._ledger.judged(path)
        if known.length > judged.length:
            # Another job has judged more lines. Its verdicts hold only if the lines are the same.
            with closing(LineReader(path, self._most_bytes)) as same:
                same.skip(known)
        lines.skip(judged)
        return judged.lines

    def _note_progress(self, topic: str, lines: LineReader, before: int) -> None:
        self._bytes_read = before + lines.packed_bytes_read
        self._batch.bytes_read = self._bytes_read
        self._batch.marks[topic] = lines.mark()

    def _is_full(self) -> bool:
        batch, most = self._batch, self._batch_settings
        return len(batch.records) >= most.documents or batch.size_bytes >= most.bytes

    def _add(self, path: str, position: Position, line: Line) -> None:
        batch, value = self._batch, line.content
        if not batch.records:
            batch.began = time.monotonic()
        key = f"{_label(path)}:{line.number + 1}".encode()
        if line.size > self._most_bytes:
            batch.refused[len(batch.records)] = self._too_large(line)
            batch.records.append(Record(position, None, key))
        elif value.strip():
            batch.records.append(Record(position, value, key))
            batch.size_bytes += len(value)
        else:
            batch.blank_lines += 1

    def _too_large(self, line: Line) -> Rejection:
        message = (
            f"the line has {line.size} bytes, limits.value_bytes is {self._most_bytes}; its value "
            "is left out; raise limits.value_bytes to judge it"
        )
        return Rejection("decode", "ValueTooLarge", message)


def _is_json_object(line: bytes) -> bool:
    """Whether a line is a JSON object, which cannot grow into another one."""
    try:
        return isinstance(json.loads(line.removeprefix(codecs.BOM_UTF8)), dict)
    except (ValueError, RecursionError):
        return False


def _never(_: bytes) -> bool:
    """Any text may be the beginning of a longer one."""
    return False


def _label(path: str) -> str:
    """Return the name of an input in the ids of documents that have none."""
    if path == STANDARD:
        return "stdin"
    return os.fsencode(os.path.basename(path)).decode("utf-8", "backslashreplace")
