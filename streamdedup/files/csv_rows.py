"""*Blocking.* The rows of CSV and TSV files, with their bytes."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from streamdedup.columns import NO_BLOBS, Blobs, Fields
from streamdedup.engine.arrow import ArrowRows, id_column, invalid_time, is_column, no_column
from streamdedup.errors import InputError
from streamdedup.files.lines import LineReader
from streamdedup.formats.records import parse_time
from streamdedup.model import NO_TIMESTAMP, Rejection
from streamdedup.settings.sections import RecordSettings

_NUMBER = re.compile(r"\d{9,}(?:\.\d+)?")
"""A time in seconds since 1973, or in smaller units; a shorter one is a date of ISO 8601."""


_OTHER_DELIMITERS = ";\t|"
"""What separates columns if a header of CSV has no comma."""


class CsvRow(NamedTuple):
    """A row: the number of its first line from 0, and its bytes without the last line feed.

    The fields are None if it is not CSV. Invalid UTF-8 is in lone surrogates.
    """

    number: int
    content: bytes
    fields: list[str] | None


class CsvReader:
    """Reads rows of up to ``most_bytes``; a quoted field may contain line feeds.

    Only this reader reads the ``lines`` of the file.
    """

    def __init__(self, lines: LineReader, delimiter: str, most_bytes: int) -> None:
        self._lines = lines
        self._delimiter = delimiter
        self._most_bytes = most_bytes
        # Longer rows are refused here, with a better message.
        csv.field_size_limit(max(csv.field_size_limit(), most_bytes))

    def header(self) -> CsvRow | None:
        """Return the first row, without a byte order mark; None if the file is empty."""
        rows = self.read(1, 1)
        return rows[0] if rows else None

    def read(self, most: int, most_bytes: int) -> list[CsvRow]:
        """Return the next rows, of ``most`` lines and ``most_bytes`` except that the last is whole.

        If a row is too long, or its last quote is missing, raise an InputError.
        """
        first = self._line()
        if first is None:
            return []
        content = [first]
        if most > 1:
            content += self._lines.read_buffered(most - 1, most_bytes)
        return list(self._parsed(content, self._lines.lines - len(content)))

    def _parsed(self, content: Sequence[bytes], number: int) -> Iterator[CsvRow]:
        taken: list[bytes] = []

        def feed() -> Iterator[str]:
            for line in content:
                taken.append(line)
                yield line.decode("utf-8", "surrogateescape") + "\n"
            size = sum(map(len, taken))
            while taken:  # within quotes
                more = self._line()
                if more is None:
                    raise self._unclosed(number, "the file ends")
                size += len(more) + 1
                if size > self._most_bytes:
                    raise self._unclosed(number, f"it has over {self._most_bytes} bytes")
                taken.append(more)
                yield more.decode("utf-8", "surrogateescape") + "\n"

        parser = csv.reader(feed(), delimiter=self._delimiter)
        while True:
            fields: list[str] | None
            try:
                fields = next(parser)
            except StopIteration:
                return
            except csv.Error:
                fields = None
            yield CsvRow(number, b"\n".join(taken), fields)
            number += len(taken)
            taken.clear()

    def _line(self) -> bytes | None:
        line = self._lines.read()
        if line is None:
            return None
        if line.size > self._most_bytes:
            raise self._unclosed(line.number, f"it has {line.size} bytes")
        return line.content

    def _unclosed(self, number: int, problem: str) -> InputError:
        return InputError(
            f"{self._lines.name}: the row at line {number + 1} does not end: {problem}; close its "
            "quotes, or raise limits.value_bytes"
        )


def split_header(header: CsvRow, delimiter: str, text_fields: Sequence[str]) -> tuple[str, CsvRow]:
    """Return the delimiter of a file by its header, and the header split by it.

    A header without a comma, and without the columns of texts, may have another delimiter: the one
    that finds these columns, or else the most columns, which an error then names.
    """
    wanted = set(text_fields)
    if delimiter != "," or b"," in header.content or wanted <= set(header.fields or ()):
        return delimiter, header
    content = header.content.decode("utf-8", "surrogateescape")
    splits = [(delimiter, header.fields or [])]
    for other in _OTHER_DELIMITERS:
        with suppress(csv.Error):  # of quotes, for example one that is closed in a later line
            splits.append((other, next(csv.reader([content], delimiter=other, strict=True))))
    found, fields = max(splits, key=lambda split: (wanted <= set(split[1]), len(split[1])))
    return found, header._replace(fields=fields)


class CsvFields:
    """Reads fields from the columns that the settings name; an InputError unless each is one."""

    def __init__(self, header: Sequence[str], records: RecordSettings, name: str) -> None:
        self._header = header
        self._name = name
        self._records = records
        self._texts = [self._find(field) for field in records.text_fields]
        self._id = self._optional(id_column(header, records))
        self._namespace = self._optional(records.namespace_field)
        self._time = self._optional(records.event_time_field)
        self._time_field = records.event_time_field or ""

    def read(self, rows: Sequence[CsvRow]) -> ArrowRows:
        """Return the fields of rows."""
        texts: list[bytes] = []
        ids: list[bytes] = []
        namespaces: list[bytes] = []
        times_ms = np.full(len(rows), NO_TIMESTAMP, dtype=np.int64)
        refused: dict[int, Rejection] = {}
        width, only = len(self._header), self._texts[0]
        for index, row in enumerate(rows):
            fields = row.fields
            if fields is None or len(fields) != width:
                message = "the row has a carriage return outside quotes"
                if fields is not None:
                    message = f"the row has {len(fields)} fields, the header {width}"
                refused[index] = Rejection("decode", "InvalidCsv", message)
                fields = [""] * width
            text = fields[only]
            if len(self._texts) > 1:
                text = "\n".join(filter(None, (fields[column] for column in self._texts)))
            texts.append(text.encode("utf-8", "surrogateescape"))
            ids.append(self._bytes(fields, self._id))
            if self._namespace is not None:
                namespaces.append(self._bytes(fields, self._namespace))
            if self._time is not None and fields[self._time]:
                time = fields[self._time]
                try:
                    times_ms[index] = parse_time(float(time) if _NUMBER.fullmatch(time) else time)
                except (ValueError, OverflowError) as error:
                    refused[index] = invalid_time(self._time_field, error)
        columns = Blobs.of(namespaces) if namespaces else NO_BLOBS
        return ArrowRows(Fields(Blobs.of(texts), Blobs.of(ids), columns, times_ms), refused)

    def _bytes(self, fields: Sequence[str], column: int | None) -> bytes:
        return b"" if column is None else fields[column].encode("utf-8", "surrogateescape")

    def _optional(self, field: str | None) -> int | None:
        return self._find(field) if field else None

    def _find(self, field: str) -> int:
        if not is_column(field, self._header, self._name):
            raise no_column(field, self._header, self._name, self._records)
        return self._header.index(field)
