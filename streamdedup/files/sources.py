"""*Blocking.* What the inputs of a job have in common, and which outputs can follow from it.

Also the rows of an input from its beginning to its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any

from streamdedup.engine.arrow import ArrowRows, TableFields
from streamdedup.errors import InputError
from streamdedup.files.compression import packer
from streamdedup.files.csv_rows import CsvFields, CsvReader, CsvRow, split_header
from streamdedup.files.job import Job
from streamdedup.files.lines import STANDARD, LineReader
from streamdedup.files.paths import InputFormat, Kind, kind_of_input, kind_of_name
from streamdedup.files.tables import TableFile, difference
from streamdedup.settings.sections import Settings

_TABLES = ".parquet, .arrow or .feather"


@dataclass(frozen=True, slots=True)
class InputSources:
    """What all inputs have in common.

    Tables have a schema and the codec of the first one, CSV a header and a delimiter; both read
    fields of rows. Standard input of CSV is open, and its header is read.
    """

    kinds: tuple[Kind, ...]
    schema: Any = None
    fields: TableFields | CsvFields | None = None
    header: CsvRow | None = None
    compression: str | None = None
    delimiter: str = ""
    standard: LineReader | None = None

    @property
    def kind(self) -> Kind:
        """The kind of the first input."""
        return self.kinds[0] if self.kinds else Kind.LINES


def examine(
    inputs: Sequence[str], settings: Settings, standard: InputFormat = "json"
) -> InputSources:
    """Compare the inputs, and find the columns that the settings name.

    If inputs are damaged, or differ in kind or columns, or lack a column, raise an InputError.
    """
    if standard != "json" and STANDARD not in inputs:
        raise InputError(
            f"the input format {standard} is that of standard input, which is not read; remove "
            f"--input-format, and let names of files end with .{standard}"
        )
    kinds = tuple(kind_of_input(path, standard) for path in inputs)
    for path, kind in zip(inputs, kinds, strict=True):
        if kind is not kinds[0] and not (kind.is_table and kinds[0].is_table):
            raise InputError(
                f"{path} is {kind}, and {inputs[0]} is {kinds[0]}; give files of one kind, and run "
                "again for the others"
            )
    if kinds and kinds[0].is_table:
        return _examine_tables(inputs, kinds, settings)
    if kinds and kinds[0].delimiter:
        return _examine_csv(inputs, kinds, settings)
    return InputSources(kinds)


def _examine_tables(
    inputs: Sequence[str], kinds: tuple[Kind, ...], settings: Settings
) -> InputSources:
    schema, compression = None, None
    for path, kind in zip(inputs, kinds, strict=True):
        with closing(TableFile(path, kind)) as file:
            if schema is None:
                schema, compression = file.schema, file.compression
            elif not schema.equals(file.schema):
                raise InputError(
                    f"{path} has other columns than {inputs[0]}: "
                    f"{difference(schema, file.schema)}; give files of one schema"
                )
    fields = TableFields(schema, settings.records, inputs[0])
    return InputSources(kinds, schema, fields, compression=compression)


def _examine_csv(
    inputs: Sequence[str], kinds: tuple[Kind, ...], settings: Settings
) -> InputSources:
    first: CsvRow | None = None
    named, delimiter, standard = inputs[0], kinds[0].delimiter, None
    most_bytes = settings.limits.value_bytes
    for path in inputs:
        lines = LineReader(path, most_bytes)
        if path == STANDARD:
            standard = lines  # it can be read only once
        with nullcontext() if path == STANDARD else closing(lines):
            header = CsvReader(lines, delimiter, most_bytes).header()
        if header is None:
            continue  # an empty part of an export
        if not header.fields:
            raise InputError(
                f"{lines.name} has no header; the first line of {kinds[0]} names the columns"
            )
        if first is None:
            delimiter, first = split_header(header, delimiter, settings.records.text_fields)
            named = lines.name
        elif header.fields != first.fields:
            raise InputError(
                f"{lines.name} has other columns than {named}: {', '.join(header.fields)} instead "
                f"of {', '.join(first.fields or ())}; give files with one header"
            )
    if first is None or first.fields is None:
        return InputSources(kinds, delimiter=delimiter, standard=standard)
    fields = CsvFields(first.fields, settings.records, named)
    return InputSources(kinds, None, fields, first, delimiter=delimiter, standard=standard)


def table_kind(path: str) -> Kind | None:
    """Return the kind of an output that is a table; None for an output of lines."""
    kind = None if path == STANDARD else kind_of_name(path)
    return kind if kind is not None and kind.is_table else None


def check_outputs(sources: InputSources, job: Job) -> None:
    """Raise an InputError if the extension of an output does not fit what is written to it."""
    kind, kept, duplicates, rejected = sources.kind, job.kept, job.duplicates, job.rejected
    for output in filter(None, (kept, duplicates, rejected)):
        if packer(output) is not None and table_kind(output) is not None:
            raise InputError(
                f"{output}: tables are compressed inside; give a name that ends with {_TABLES}"
            )
    if kept is not None:
        named = None if kept == STANDARD else kind_of_name(kept)
        if kind.is_table and table_kind(kept) is None:
            raise InputError(
                f"the kept rows of {kind} cannot be written to {kept}; give a file that ends with "
                f"{_TABLES}"
            )
        if not kind.is_table and named not in {None, kind}:
            raise InputError(
                f"the kept lines of {kind} are written unchanged, and {kept} stands for {named}; "
                "give another extension, or convert the input first"
            )
    if duplicates is not None and kind_of_name(duplicates) in {Kind.CSV, Kind.TSV}:
        raise InputError(
            f"duplicates are JSON Lines or a table, and not {kind_of_name(duplicates)}; give a "
            f"file that ends with .jsonl, {_TABLES}"
        )
    if rejected is not None and kind_of_name(rejected) not in {None, Kind.LINES}:
        raise InputError(f"rejected lines are JSON Lines; give another extension than {rejected}")


def read_rows(
    path: str, kind: Kind, settings: Settings, first: InputSources, second: InputSources | None
) -> Iterator[tuple[ArrowRows, ArrowRows | None]]:
    """Yield the rows of CSV, Parquet or Arrow in parts; blank lines are left out.

    ``first`` reads the fields, and ``second`` other fields of the same rows, if needed.
    """
    if first.fields is None or (second is not None and second.fields is None):
        raise TypeError("lines have no fields")
    others = second.fields if second is not None else None
    for part in _parts(path, kind, settings, first.delimiter):
        yield first.fields.read(part), others.read(part) if others is not None else None


def _parts(path: str, kind: Kind, settings: Settings, delimiter: str) -> Iterator[Any]:
    most = settings.batch
    if kind.is_table:
        with closing(TableFile(path, kind)) as table:
            yield from table.batches(0, most.documents, most.bytes)
        return
    most_bytes = settings.limits.value_bytes
    with closing(LineReader(path, most_bytes)) as lines:
        reader = CsvReader(lines, delimiter, most_bytes)
        reader.header()
        while rows := reader.read(most.documents, most_bytes):
            yield [row for row in rows if row.fields != []]
