"""*Blocking.* The lines and rows of a job's inputs, in batches of records."""

from __future__ import annotations

import codecs
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np

from streamdedup.columns import I64
from streamdedup.engine.arrow import ArrowRows, TableFields
from streamdedup.errors import InputError
from streamdedup.files.batch import InputBatch
from streamdedup.files.csv_rows import CsvFields, CsvReader
from streamdedup.files.job import Job, Ledger
from streamdedup.files.kinds import Kind
from streamdedup.files.lines import RENAME, STANDARD, Line, LineReader
from streamdedup.files.sources import InputSources
from streamdedup.files.tables import TableFile
from streamdedup.model import Rejection
from streamdedup.settings.sections import Settings

LINGER_S = 0.5
"""Seconds after which a line no longer waits for others, if the input has none to read."""


class _CatchUpError(Exception):
    """Carries an error past the code that reads, for which it would be a failure of the input."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(reason)
        self.reason = reason


class BatchReader:
    """Reads the inputs of a job one after the other, from where earlier runs stopped.

    Args:
        job: the job.
        sources: what its inputs have in common.
        settings: the settings of this run.
        ledger: the progress of the job.
        whole_rows: whether all columns of tables are needed, or only those of the documents.

    Attributes:
        failure: why an input could not be read to its end; the batches hold the lines before.
    """

    def __init__(
        self,
        job: Job,
        sources: InputSources,
        settings: Settings,
        ledger: Ledger,
        *,
        whole_rows: bool,
    ) -> None:
        self.failure: InputError | None = None
        self._inputs = tuple(zip(job.inputs, sources.kinds, strict=True))
        self._fields = sources.fields
        self._whole_rows = whole_rows
        self._continues = job.index is not None
        is_text = settings.records.format == "text" or bool(sources.kind.delimiter)
        self._is_whole = _never if is_text else _is_json_object
        self._batch_settings = settings.batch
        self._most_bytes = settings.limits.value_bytes
        self._ledger = ledger
        self._batch = InputBatch()
        self._bytes_read = 0
        self._reading: tuple[str, LineReader, int] | None = None
        self._catch_up: Callable[[InputBatch], None] = lambda _: None

    def batches(self, catch_up: Callable[[InputBatch], None]) -> Iterator[InputBatch]:
        """Yield the batches, up to the end of the inputs or a failure.

        Args:
            catch_up: called with the lines so far, which may be none, if the input has no further
                ones yet.
        """
        self._catch_up = catch_up
        try:
            for path, kind in self._inputs:
                if kind.is_table:
                    with TableFile(path, kind) as table:
                        yield from self._of_table(path, table)
                else:
                    with closing(self._reader(path, kind)) as lines:
                        of_input = self._of_csv if kind.delimiter else self._of_lines
                        yield from of_input(path, lines, kind)
        except InputError as error:
            self.failure = error
        except _CatchUpError as error:
            raise error.reason from None
        if not self._batch.is_empty():
            yield self._batch

    def _reader(self, path: str, kind: Kind) -> LineReader:
        # Only a file can grow, and only a job can continue with it.
        may_grow = self._continues and path != STANDARD and os.path.isfile(path)
        is_whole = self._is_whole if may_grow else None
        # A row of CSV may have several lines, so that it cannot be judged at any wait.
        on_wait = None if kind.delimiter else self._wait
        return LineReader(path, self._most_bytes, is_whole, on_wait)

    def _wait(self, is_ready: Callable[[float], bool]) -> None:
        """Hand over the lines so far if no further ones come in time."""
        left = self._batch.began + LINGER_S - time.monotonic() if self._batch.offsets else 0
        if is_ready(max(0, left)):
            return
        if self._reading is not None:
            self._note_progress(*self._reading)
        batch, self._batch = self._batch, InputBatch()
        try:
            self._catch_up(batch)
        except (InputError, OSError) as error:
            raise _CatchUpError(error) from error

    def _of_lines(self, path: str, lines: LineReader, _: Kind) -> Iterator[InputBatch]:
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
                    self._batch = InputBatch()
            self._batch.unfinished_lines += lines.left_unfinished
        finally:
            self._note_progress(topic, lines, before)
            self._reading = None

    def _of_csv(self, path: str, lines: LineReader, kind: Kind) -> Iterator[InputBatch]:
        """Yield the batches that an input of CSV fills."""
        self._batch.judged_before += self._skip_judged(path, lines)
        topic, before, label = self._ledger.topic(path), self._bytes_read, _label(path)
        reader = CsvReader(lines, kind.delimiter, self._most_bytes)
        columns = self._fields
        if not lines.lines:
            reader.header()
        if not isinstance(columns, CsvFields):
            return  # no input had a header when they were examined
        while rows := reader.read(*self._room()):
            filled = [row for row in rows if row.fields != []]
            self._batch.blank_lines += len(rows) - len(filled)
            if filled:
                numbers = [row.number for row in filled]
                self._batch.add_rows(topic, label, numbers, columns.read(filled))
                self._batch.values += [row.content for row in filled]
            # Not before: after a damaged row, the lines that were read are not judged.
            self._note_progress(topic, lines, before)
            if self._is_full():
                yield self._batch
                self._batch = InputBatch()
        self._batch.unfinished_lines += lines.left_unfinished
        self._note_progress(topic, lines, before)

    def _of_table(self, path: str, table: TableFile) -> Iterator[InputBatch]:
        """Yield the batches that a table fills."""
        columns = self._fields
        if not isinstance(columns, TableFields):
            raise TypeError("the columns of a table are not known")
        topic, before, label = self._ledger.topic(path), self._bytes_read, _label(path)
        digest = table.digest() if self._continues else b""
        number = self._judged_rows(path, digest)
        self._batch.judged_before += number
        names = None if self._whole_rows else columns.columns()
        most = self._batch_settings
        for part in table.batches(number, most.documents, most.bytes, names):
            fields, refused = columns.read(part)
            start = 0
            while start < len(part):
                stop = self._rows_that_fit(fields.texts.ends, start)
                rows = ArrowRows(
                    fields.take(slice(start, stop)),
                    {row - start: why for row, why in refused.items() if start <= row < stop},
                )
                numbers = range(number + start, number + stop)
                self._batch.add_rows(topic, label, numbers, rows)
                self._batch.tables.append(part.slice(start, stop - start))
                self._batch.marks[topic] = table.mark(number + stop, digest)
                self._batch.bytes_read = self._bytes_read = before + table.bytes_read
                if self._is_full():
                    yield self._batch
                    self._batch = InputBatch()
                start = stop
            number += len(part)

    def _judged_rows(self, path: str, digest: bytes) -> int:
        """Return how many rows of a table this job has judged."""
        known, judged = self._ledger.known(path), self._ledger.judged(path)
        for mark in (known, judged):
            if mark.lines and mark.digest != digest:
                raise InputError(
                    f"{path} has changed since earlier runs judged {mark.lines} rows; {RENAME}"
                )
        return judged.lines

    def _rows_that_fit(self, ends: I64, start: int) -> int:
        """Return up to which row texts fit into the batch, but at least one."""
        batch, most = self._batch, self._batch_settings
        most_rows, most_bytes = most.documents - len(batch.offsets), most.bytes - batch.size_bytes
        before = int(ends[start - 1]) if start else 0
        fitting = int(np.searchsorted(ends, before + most_bytes, side="right"))
        return max(start + 1, min(fitting, start + most_rows, len(ends)))

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
        return most.documents - len(batch.offsets), left_bytes

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
