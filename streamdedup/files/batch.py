"""*Blocking.* A batch of lines or rows on its way to the engine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any

import numpy as np

from streamdedup.columns import Fields, Positions, RecordColumns
from streamdedup.engine.arrow import ArrowRows, labelled
from streamdedup.files.lines import InputMark
from streamdedup.files.tables import RowValues
from streamdedup.model import NO_TIMESTAMP, Rejection


@dataclass(slots=True)
class InputBatch:
    """A batch of lines or rows, and how far the inputs are judged once it has its verdicts.

    Attributes:
        values: the lines that hold a document, in order; None for one that is too long. Empty for
            the rows of tables.
        keys: the name of each line; empty for rows.
        fields: the documents, if they are rows of CSV or tables: their parts, in order.
        tables: the record batches with the rows of tables.
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
    fields: list[Fields] = field(default_factory=list)
    tables: list[Any] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    topics: list[tuple[str, int]] = field(default_factory=list)
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
        self._append(topic, numbers)
        self._name(label, lines, numbers)
        self.size_bytes += sum(map(len, lines))

    def add_rows(self, topic: str, label: bytes, numbers: Sequence[int], rows: ArrowRows) -> None:
        """Add rows of CSV or of a table to the positions and fields.

        Args:
            topic: the topic in the positions of the input's rows.
            label: the name of the input in the ids of rows without one.
            numbers: the number of each row or its line, counted from 0.
            rows: the fields and the rejected rows.
        """
        fields, before = rows.fields, len(self.offsets)
        ids = labelled(fields.ids, lambda row: b"%b:%d" % (label, numbers[row] + 1))
        self.fields.append(replace(fields, ids=ids))
        self.refused |= {before + row: rejection for row, rejection in rows.refused.items()}
        self._append(topic, numbers)
        self.size_bytes += fields.texts.size

    def refuse(self, topic: str, label: bytes, number: int, rejection: Rejection) -> None:
        """Add a line that is rejected, without its value."""
        self.refused[len(self.offsets)] = rejection
        self._append(topic, [number])
        self._name(label, [None], [number])

    def _append(self, topic: str, numbers: Iterable[int]) -> None:
        if not self.offsets:
            self.began = time.monotonic()
        if not self.topics or self.topics[-1][0] != topic:
            self.topics.append((topic, len(self.offsets)))
        self.offsets += numbers

    def _name(self, label: bytes, values: Sequence[bytes | None], numbers: Iterable[int]) -> None:
        self.values += values
        self.keys += [b"%b:%d" % (label, number + 1) for number in numbers]
