"""*Blocking.* The rows of a file of CSV, Parquet or Arrow, from its beginning to its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from streamdedup.engine.arrow import ArrowRows
from streamdedup.files.csv_rows import CsvReader
from streamdedup.files.kinds import Kind
from streamdedup.files.lines import LineReader
from streamdedup.files.sources import InputSources
from streamdedup.files.tables import TableFile
from streamdedup.settings.sections import Settings


def read_rows(
    path: str, kind: Kind, settings: Settings, first: InputSources, second: InputSources | None
) -> Iterator[tuple[ArrowRows, ArrowRows | None]]:
    """Yield some rows after others; blank lines are left out.

    Args:
        path: the file.
        kind: its kind.
        settings: the sections ``batch`` and ``limits`` are used.
        first: reads the fields.
        second: reads other fields of the same rows, if needed.
    """
    for part in _parts(path, kind, settings):
        yield _read(first, part), None if second is None else _read(second, part)


def _read(sources: InputSources, part: Any) -> ArrowRows:
    if sources.fields is None:
        raise TypeError("lines have no fields")
    return sources.fields.read(part)


def _parts(path: str, kind: Kind, settings: Settings) -> Iterator[Any]:
    most = settings.batch
    if kind.is_table:
        with TableFile(path, kind) as table:
            yield from table.batches(0, most.documents, most.bytes)
        return
    most_bytes = settings.limits.value_bytes
    with closing(LineReader(path, most_bytes)) as lines:
        reader = CsvReader(lines, kind.delimiter, most_bytes)
        reader.header()
        while rows := reader.read(most.documents, most_bytes):
            yield [row for row in rows if row.fields != []]
