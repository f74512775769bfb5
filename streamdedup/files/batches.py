"""*Blocking.* The lines and rows of a job's inputs, in batches of records."""

from __future__ import annotations

import codecs
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any

import numpy as np

from streamdedup.columns import Fields, Positions, RecordColumns
from streamdedup.engine.arrow import ArrowRows, TableFields, labelled
from streamdedup.errors import InputError
from streamdedup.files.csv_rows import CsvFields, CsvReader
from streamdedup.files.job import Job, Ledger
from streamdedup.files.lines import RENAME, STANDARD, InputMark, LineReader
from streamdedup.files.paths import Kind
from streamdedup.files.sources import InputSources
from streamdedup.files.tables import RowValues, TableFile
from streamdedup.model import NO_TIMESTAMP, Rejection
from streamdedup.settings.sections import Settings

LINGER_S = 0.5
"""Seconds after which a line no longer waits for others, if the input has none to read."""


@dataclass(slots=True)
class InputBatch:
    """A batch of lines or rows, and how far the inputs are judged once it has its verdicts.

    Attributes:
        values, keys: the lines that hold a document, None for one that is too long, and their
            names. Rows of CSV have no keys, those of tables neither.
        fields, tables: the documents of rows in parts, and the record batches of tables.
        offsets: the number of each line or row in its input.
        topics: the topic of each input in the batch, and the row of its first document.
        default_ids: by the row of each input's first document, the id that it gets without one.
        refused: rejections of records without a look at their value, by row.
        marks: the new mark of each input of the batch, by topic.
        bytes_read: of all inputs so far, compressed as they are on disk.
        began: when the first of the records was read, in seconds of the monotonic clock.
    """

    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    fields: list[Fields] = field(default_factory=list)
    tables: list[Any] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    topics: list[tuple[str, int]] = field(default_factory=list)
    default_ids: dict[int, str] = field(default_factory=dict)
    refused: dict[int, Rejection] = field(default_factory=dict)
    marks: dict[str, InputMark] = field(default_factory=dict)
    size_bytes: int = 0
    blank_lines: int = 0
    unfinished_lines: int = 0
    judged_before: int = 0
    bytes_read: int = 0
    began: float = 0.0

    def is_empty(self) -> bool:
        """Whether the batch covers no line."""
        return not (self.offsets or self.blank_lines or self.unfinished_lines or self.judged_before)

    def records(self) -> RecordColumns:
        """Return the lines that hold a document as records."""
        rows = len(self.offsets)
        names, firsts = zip(*self.topics, strict=True) if self.topics else ((), ())
        inputs = np.repeat(np.arange(len(names)), np.diff([*firsts, rows]))
        positions = Positions(
            names, inputs, np.zeros(rows, dtype=np.int64), np.array(self.offsets, dtype=np.int64)
        )
        times_ms = np.full(rows, NO_TIMESTAMP, dtype=np.int64)
        values = RowValues(self.tables) if self.tables else self.values
        fields = Fields.concatenate(self.fields) if self.fields else None
        keys = self.keys if fields is None else [None] * rows
        return RecordColumns(positions, values, keys, [()] * rows, times_ms, fields)

    def add(self, topic: str, label: bytes, number: int, lines: Sequence[bytes]) -> None:
        """Add consecutive lines of an input, whose ``label`` is in their keys.

        The first one has the ``number``, counted from 0.
        """
        numbers: Iterable[int] = range(number, number + len(lines))
        blank = [not line or line.isspace() for line in lines]
        if any(blank):
            self.blank_lines += sum(blank)
            filled = [not one for one in blank]
            lines, numbers = list(compress(lines, filled)), list(compress(numbers, filled))
        self._append_lines(topic, label, numbers, lines)
        self.size_bytes += sum(map(len, lines))

    def add_rows(self, topic: str, label: bytes, numbers: Sequence[int], rows: ArrowRows) -> None:
        """Add rows of CSV or of a table to the positions and fields.

        A row without an id gets one of the input's label and its number, which counts from 0.
        """
        fields, before = rows.fields, len(self.offsets)
        ids = labelled(fields.ids, lambda row: b"%b:%d" % (label, numbers[row] + 1))
        self.fields.append(replace(fields, ids=ids))
        self.refused |= {before + row: rejection for row, rejection in rows.refused.items()}
        self._append(topic, label, numbers)
        self.size_bytes += fields.texts.size

    def refuse(self, topic: str, label: bytes, number: int, rejection: Rejection) -> None:
        """Add a line that is rejected, without its value."""
        self.refused[len(self.offsets)] = rejection
        self._append_lines(topic, label, [number], [None])

    def _append(self, topic: str, label: bytes, numbers: Iterable[int]) -> None:
        row = len(self.offsets)
        if not row:
            self.began = time.monotonic()
        self.offsets += numbers
        if row < len(self.offsets) and (not self.topics or self.topics[-1][0] != topic):
            self.topics.append((topic, row))
            self.default_ids[row] = f"{label.decode()}:{self.offsets[row] + 1}"

    def _append_lines(
        self, topic: str, label: bytes, numbers: Iterable[int], values: Sequence[bytes | None]
    ) -> None:
        self._append(topic, label, numbers)
        self.values += values
        self.keys += [b"%b:%d" % (label, number + 1) for number in numbers]


class _CatchUpError(Exception):
    """Carries an error past the code that reads, for which it would be a failure of the input."""


class BatchReader:
    """Reads the inputs of a job one after the other, from where earlier runs stopped.

    With ``whole_rows``, all columns of tables are read, else only those of the documents.

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
        self._delimiter = sources.delimiter
        self._standard = sources.standard
        self._whole_rows = whole_rows
        self._continues = job.index is not None
        self._is_json = settings.records.format == "json" and sources.kind is Kind.LINES
        # Any text may be the beginning of a longer one.
        self._is_whole = _is_json_object if self._is_json else (lambda _: False)
        self._batch_settings = settings.batch
        self._most_bytes = settings.limits.value_bytes
        self._ledger = ledger
        self._batch = InputBatch()
        self._bytes_read = 0
        self._reading: tuple[str, LineReader, int] | None = None
        self._catch_up: Callable[[InputBatch], None] = lambda _: None

    def batches(self, catch_up: Callable[[InputBatch], None]) -> Iterator[InputBatch]:
        """Yield the batches, up to the end of the inputs or a failure.

        If an input has no further lines yet, ``catch_up`` gets those so far, which may be none.
        """
        self._catch_up = catch_up
        try:
            for path, kind in self._inputs:
                if kind.is_table:
                    with closing(TableFile(path, kind)) as table:
                        yield from self._of_table(path, table)
                    continue
                # Only a file can grow, and only a job can continue with it.
                may_grow = self._continues and path != STANDARD and os.path.isfile(path)
                is_whole = self._is_whole if may_grow else None
                # A row of CSV may have several lines, so that it cannot be judged at any wait.
                on_wait = None if kind.delimiter else self._wait
                reader = self._standard if path == STANDARD else None
                if reader is None:
                    reader = LineReader(
                        path, self._most_bytes, is_whole, on_wait, is_json=self._is_json
                    )
                with closing(reader) as lines:
                    of_input = self._of_csv if kind.delimiter else self._of_lines
                    yield from of_input(path, lines)
        except InputError as error:
            self.failure = error
        except _CatchUpError as error:
            raise error.args[0] from None
        if not self._batch.is_empty():
            yield self._batch

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

    def _of_lines(self, path: str, lines: LineReader) -> Iterator[InputBatch]:
        """Yield the batches that an input fills; its last lines go to the batch of the next."""
        # Standard input gets its topic here.
        self._batch.judged_before += self._skip_judged(path, lines)
        topic, before, label = self._ledger.topic(path), self._bytes_read, _label(path)
        self._reading = topic, lines, before
        try:
            for line in iter(lines.read, None):
                if line.size > self._most_bytes:
                    message = (
                        f"the line has {line.size} bytes, limits.value_bytes is "
                        f"{self._most_bytes}; its value is left out; raise limits.value_bytes to "
                        "judge it"
                    )
                    rejection = Rejection("decode", "ValueTooLarge", message)
                    self._batch.refuse(topic, label, line.number, rejection)
                else:
                    self._batch.add(topic, label, line.number, [line.content])
                while not self._is_full() and (more := lines.read_buffered(*self._room())):
                    self._batch.add(topic, label, lines.lines - len(more), more)
                if self._is_full():
                    self._note_progress(topic, lines, before)
                    yield from self._full()
            self._batch.unfinished_lines += lines.left_unfinished
        finally:
            self._note_progress(topic, lines, before)
            self._reading = None

    def _of_csv(self, path: str, lines: LineReader) -> Iterator[InputBatch]:
        self._batch.judged_before += self._skip_judged(path, lines)
        topic, before, label = self._ledger.topic(path), self._bytes_read, _label(path)
        reader = CsvReader(lines, self._delimiter, self._most_bytes)
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
            yield from self._full()
        self._batch.unfinished_lines += lines.left_unfinished
        self._note_progress(topic, lines, before)

    def _of_table(self, path: str, table: TableFile) -> Iterator[InputBatch]:
        columns = self._fields
        if not isinstance(columns, TableFields):
            raise TypeError("the columns of a table are not known")
        topic, before, label = self._ledger.topic(path), self._bytes_read, _label(path)
        digest = table.digest() if self._continues else b""
        known, judged = self._ledger.known(path), self._ledger.judged(path)
        for mark in (known, judged):
            if mark.lines and mark.digest != digest:
                raise InputError(
                    f"{path} has changed since earlier runs judged {mark.lines} rows; {RENAME}"
                )
        number = judged.lines
        self._batch.judged_before += number
        names = None if self._whole_rows else columns.columns()
        most = self._batch_settings
        for part in table.batches(number, most.documents, most.bytes, names):
            fields, refused = columns.read(part)
            start = 0
            while start < len(part):
                # At least one row, and those whose texts fit into the batch.
                ends, batch = fields.texts.ends, self._batch
                before_start = int(ends[start - 1]) if start else 0
                most_end = before_start + most.bytes - batch.size_bytes
                fitting = int(np.searchsorted(ends, most_end, side="right"))
                most_rows = most.documents - len(batch.offsets)
                stop = max(start + 1, min(fitting, start + most_rows, len(ends)))
                rows = ArrowRows(
                    fields.take(slice(start, stop)),
                    {row - start: why for row, why in refused.items() if start <= row < stop},
                )
                numbers = range(number + start, number + stop)
                self._batch.add_rows(topic, label, numbers, rows)
                self._batch.tables.append(part.slice(start, stop - start))
                self._batch.marks[topic] = table.mark(number + stop, digest)
                self._batch.bytes_read = self._bytes_read = before + table.bytes_read
                yield from self._full()
                start = stop
            number += len(part)

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

    def _full(self) -> Iterator[InputBatch]:
        """Yield the batch if it is full, and begin another one."""
        if self._is_full():
            yield self._batch
            self._batch = InputBatch()


def _is_json_object(line: bytes) -> bool:
    """Whether a line is a JSON object, which cannot grow into another one."""
    try:
        return isinstance(json.loads(line.removeprefix(codecs.BOM_UTF8)), dict)
    except (ValueError, RecursionError):
        return False


def _label(path: str) -> bytes:
    """Return the name of an input in the ids of documents that have none."""
    if path == STANDARD:
        return b"stdin"
    return os.fsencode(os.path.basename(path)).decode("utf-8", "backslashreplace").encode()
