"""*Blocking.* The lines of a job's inputs, in batches of records."""

from __future__ import annotations

import codecs
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import compress

import numpy as np

from streamdedup.columns import Positions, RecordColumns
from streamdedup.errors import InputError
from streamdedup.files.job import Job, Ledger
from streamdedup.files.lines import STANDARD, Line, LineReader, Mark
from streamdedup.model import NO_TIMESTAMP, Rejection
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
        values: the lines that hold a document, in order; None for one that is too long.
        keys: the name of each line.
        offsets: the number of each line in its input.
        topics: the topic of each input with such lines, and the row of its first one.
        refused: the reasons for records that are rejected without a look at their value, by row.
        marks: the new mark of each input of the batch, by topic.
        size_bytes: total size of the values.
        blank_lines: lines of white space, which get no verdict.
        unfinished_lines: last lines that are left for a later run.
        judged_before: lines that earlier runs of the job have judged.
        bytes_read: bytes read from all inputs so far, compressed as they are on disk.
        began: when the first of the records was read, in seconds of the monotonic clock.
    """

    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    topics: list[tuple[str, int]] = field(default_factory=list)
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
        return not (self.values or self.blank_lines or self.unfinished_lines or self.judged_before)

    def records(self) -> RecordColumns:
        """Return the lines that hold a document as records."""
        rows = len(self.values)
        names, firsts = zip(*self.topics, strict=True) if self.topics else ((), ())
        inputs = np.repeat(np.arange(len(names)), np.diff([*firsts, rows]))
        positions = Positions(
            names, inputs, np.zeros(rows, dtype=np.int64), np.array(self.offsets, dtype=np.int64)
        )
        times_ms = np.full(rows, NO_TIMESTAMP, dtype=np.int64)
        return RecordColumns(positions, self.values, self.keys, [()] * rows, times_ms)

    def add(self, topic: str, label: bytes, number: int, lines: Sequence[bytes]) -> None:
        """Add consecutive lines of an input.

        Args:
            topic: the topic in the positions of the input's lines.
            label: the name of the input in the keys of its lines.
            number: the number of the first of the lines, counted from 0.
            lines: the lines.
        """
        numbers: Iterable[int] = range(number, number + len(lines))
        blank = [not line or line.isspace() for line in lines]
        if any(blank):
            self.blank_lines += sum(blank)
            filled = [not one for one in blank]
            lines, numbers = list(compress(lines, filled)), list(compress(numbers, filled))
        self._append(topic, label, lines, numbers)
        self.size_bytes += sum(map(len, lines))

    def refuse(self, topic: str, label: bytes, number: int, rejection: Rejection) -> None:
        """Add a line that is rejected, without its value."""
        self.refused[len(self.values)] = rejection
        self._append(topic, label, [None], [number])

    def _append(
        self, topic: str, label: bytes, values: Sequence[bytes | None], numbers: Iterable[int]
    ) -> None:
        if not self.values:
            self.began = time.monotonic()
        if not self.topics or self.topics[-1][0] != topic:
            self.topics.append((topic, len(self.values)))
        self.values += values
        self.offsets += numbers
        self.keys += [b"%b:%d" % (label, number + 1) for number in numbers]


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
        left = self._batch.began + LINGER_S - time.monotonic() if self._batch.values else 0
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
        topic, before, label = self._ledger.topic(path), self._bytes_read, _label(path)
        self._reading = topic, lines, before
        try:
            for line in iter(lines.read, None):
                if line.size > self._most_bytes:
                    self._batch.refuse(topic, label, line.number, self._too_large(line))
                else:
                    self._batch.add(topic, label, line.number, [line.content])
                while not self._is_full() and (more := lines.read_buffered(*self._room())):
                    self._batch.add(topic, label, lines.lines - len(more), more)
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

    def _room(self) -> tuple[int, int]:
        """Return how many lines and bytes the batch may still get, of lines within the limit."""
        batch, most = self._batch, self._batch_settings
        left_bytes = min(most.bytes - batch.size_bytes, self._most_bytes)
        return most.documents - len(batch.values), left_bytes

    def _is_full(self) -> bool:
        return min(self._room()) <= 0

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


def _label(path: str) -> bytes:
    """Return the name of an input in the ids of documents that have none."""
    if path == STANDARD:
        return b"stdin"
    return os.fsencode(os.path.basename(path)).decode("utf-8", "backslashreplace").encode()
