"""*Pure.* Tables and columns of Arrow, pandas and Polars as the fields of documents.

pyarrow is optional: it is imported when a table is read. What cannot be read as columns is read row
by row, see :mod:`streamdedup.engine.documents`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamdedup.columns import I64, NO_BLOBS, Blobs, Fields
from streamdedup.errors import InputError
from streamdedup.extras import install
from streamdedup.formats.records import is_missing, parse_time
from streamdedup.model import NO_TIMESTAMP, Rejection
from streamdedup.settings.sections import RecordSettings

_LAST_MS = 253_402_300_799_999  # the last millisecond of the calendar, in the year 9999
_TEXTS = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
_NAMES = (*_TEXTS, "integer")
_TIMES = (*_TEXTS, "timestamp", "date", "integer", "floating")
"""Types of columns that hold texts, names and times, as pyarrow calls them."""
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_MS = 86_400_000
_SHOWN_CHARACTERS = 300
_CHUNK_ROWS = 10_000
_COLUMN = RecordSettings(text_fields=("text",), id_field=None)  # reads a column of texts as a table


def load(name: str = "pyarrow") -> Any:
    """Return pyarrow, or a module of it; an InputError says how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(
            f"Parquet and Arrow need pyarrow, which is not installed; run {install('arrow')}"
        ) from error


class ArrowRows(NamedTuple):
    """The fields of some rows, and the rows that are not documents."""

    fields: Fields
    refused: dict[int, Rejection]


class TableFields:
    """Reads the fields of documents from the columns of a table that the settings name.

    The name of a column counts before a dotted path into structs.

    Raises:
        InputError: a column is missing, has the wrong type, or there are several of its name.
    """

    def __init__(self, schema: Any, records: RecordSettings, name: str) -> None:
        self._arrow = load()
        self._compute = load("pyarrow.compute")
        self._schema = schema
        self._name = name
        self._records = records
        self._texts = [self._find(field, _TEXTS, "text") for field in records.text_fields]
        names = "string or integer"
        self._id = self._find(id_column(schema.names, records), _NAMES, names)
        self._namespace = self._find(records.namespace_field, _NAMES, names)
        self._time = self._find(records.event_time_field, _TIMES, "time")
        self._texts_named = ", ".join(map(repr, records.text_fields))

    def columns(self) -> list[str] | None:
        """Return the names of the columns that are read; None if the table must be read whole."""
        if any("." in name for name in self._schema.names):
            return None  # a reader would take such a name for a path
        paths = [*self._texts, self._id, self._namespace, self._time]
        return list(dict.fromkeys(path[0] for path in paths if path))

    def read(self, batch: Any) -> ArrowRows:
        """Return the fields of a record batch."""
        refused: dict[int, Rejection] = {}
        texts = self._read_texts(batch, refused)
        ids = self._read_names(batch, self._id)
        if ids is None:
            ids = Blobs(np.empty(0, dtype=np.uint8), np.zeros(len(batch), dtype=np.int64))
        namespaces = self._read_names(batch, self._namespace)
        times_ms = self._read_times(batch, refused)
        return ArrowRows(Fields(texts, ids, namespaces or NO_BLOBS, times_ms), refused)

    def _read_texts(self, batch: Any, refused: dict[int, Rejection]) -> Blobs:
        arrow, compute = self._arrow, self._compute
        binary = arrow.large_binary()
        columns = [self._plain(batch, path).cast(binary) for path in self._texts]
        missing = columns[0].is_null()
        for column in columns[1:]:
            missing = compute.and_(missing, column.is_null())
        joined = columns[0]
        if len(columns) > 1:
            # pyarrow 26 leaves out rows of which all values are null.
            columns[0] = compute.if_else(missing, arrow.scalar(b"", binary), columns[0])
            joined = compute.binary_join_element_wise(
                *columns, arrow.scalar(b"\n", binary), null_handling="skip"
            )
        for row in np.flatnonzero(missing.to_numpy(zero_copy_only=False)).tolist():
            message = f"the row has no text in {self._texts_named}"
            refused[row] = Rejection("decode", "MissingText", message)
        return blobs(joined)

    def _read_names(self, batch: Any, path: tuple[str, ...]) -> Blobs | None:
        if not path:
            return None
        column = self._plain(batch, path)
        if not self._is_one_of(column.type, _TEXTS):
            column = column.cast(self._arrow.large_string())
        return blobs(column.cast(self._arrow.large_binary()))

    def _read_times(self, batch: Any, refused: dict[int, Rejection]) -> I64:
        if not self._time:
            return np.full(len(batch), NO_TIMESTAMP, dtype=np.int64)
        column = self._plain(batch, self._time)
        if not self._is_one_of(column.type, ("timestamp", "date")):
            return self._parsed_times(column.to_pylist(), refused)
        times_ms = self._clock_times(column)
        missing = column.is_null().to_numpy(zero_copy_only=False)
        is_out = (times_ms < 0) | (times_ms > _LAST_MS)
        for row in np.flatnonzero(is_out & ~missing).tolist():
            self._refuse_time(row, refused, f"{column[row].value!r} is out of range")
        return np.where(missing | is_out, NO_TIMESTAMP, times_ms)

    def _clock_times(self, column: Any) -> I64:
        """Return timestamps or dates in milliseconds; a missing one is any number."""
        arrow = self._arrow
        if not arrow.types.is_timestamp(column.type):
            days = column.cast(arrow.date32()).cast(arrow.int32()).cast(arrow.int64())
            return _integers(days) * _DAY_MS
        per_second = _PER_SECOND[column.type.unit]
        numbers = _integers(column.cast(arrow.int64()))
        if per_second == 1:
            return np.clip(numbers, -1, _LAST_MS) * 1000
        return numbers // (per_second // 1000)

    def _parsed_times(self, values: Sequence[Any], refused: dict[int, Rejection]) -> I64:
        times_ms = np.full(len(values), NO_TIMESTAMP, dtype=np.int64)
        for row, value in enumerate(values):
            try:
                if not is_missing(value):
                    times_ms[row] = parse_time(value)
            except (TypeError, ValueError, OverflowError) as error:
                self._refuse_time(row, refused, str(error))
        return times_ms

    def _refuse_time(self, row: int, refused: dict[int, Rejection], problem: str) -> None:
        refused.setdefault(row, invalid_time(".".join(self._time), problem))

    def _find(self, field: str | None, kinds: Sequence[str], expected: str) -> tuple[str, ...]:
        """Return the path of a column of the right type; it is empty if no field is named."""
        if not field:
            return ()
        names = self._schema.names
        path = (field,) if is_column(field, names, self._name) else tuple(field.split("."))
        found = self._type_of(path)
        if found is None:
            raise no_column(field, names, self._name, self._records)
        if self._arrow.types.is_dictionary(found):
            found = found.value_type
        if not self._is_one_of(found, (*kinds, "null")):
            raise InputError(
                f"the column {field!r} of {self._name} is of type {found}, expected {expected}"
            )
        return path

    def _type_of(self, path: tuple[str, ...]) -> Any:
        if self._schema.get_field_index(path[0]) < 0:
            return None
        found = self._schema.field(path[0]).type
        for name in path[1:]:
            if not self._arrow.types.is_struct(found) or found.get_field_index(name) < 0:
                return None
            found = found.field(name).type
        return found

    def _plain(self, batch: Any, path: tuple[str, ...]) -> Any:
        """Return a column as an array without a dictionary."""
        column = batch.column(path[0])
        if len(path) > 1:
            column = self._compute.struct_field(column, list(path[1:]))
        if hasattr(column, "combine_chunks"):  # of a table
            column = column.combine_chunks()
        if self._arrow.types.is_dictionary(column.type):
            # Not all types have a cast from a dictionary.
            return self._castable(column.dictionary).take(column.indices)
        return self._castable(column)

    def _castable(self, column: Any) -> Any:
        """Return a column of a type of text that can become all others."""
        if self._arrow.types.is_null(column.type):
            return column.cast(self._arrow.large_string())
        is_view = self._is_one_of(column.type, ("string_view", "binary_view"))
        return column.cast(self._arrow.large_binary()) if is_view else column

    def _is_one_of(self, found: Any, kinds: Sequence[str]) -> bool:
        return any(getattr(self._arrow.types, f"is_{kind}")(found) for kind in kinds)


def id_column(names: Sequence[str], records: RecordSettings) -> str | None:
    """Return the column of ids; None if there is none, which only the default name allows."""
    is_optional = records.id_field == RecordSettings.model_fields["id_field"].default
    return None if is_optional and records.id_field not in names else records.id_field


def is_column(field: str, names: Sequence[str], table: str) -> bool:
    """Return whether a column has the name; an InputError if several have it."""
    if (count := names.count(field)) > 1:
        raise InputError(
            f"{table} has {count} columns {field!r}; rename one, or name another column"
        )
    return count == 1


def no_column(field: str, names: Sequence[str], table: str, records: RecordSettings) -> InputError:
    """Return the error for a column that is missing; a column of text has a flag."""
    known = ", ".join(names)
    if len(known) > _SHOWN_CHARACTERS:
        known = known[:_SHOWN_CHARACTERS] + "..."
    is_text = field in records.text_fields
    remedy = "; set records.text_fields (--text-field)" if is_text else ""
    return InputError(f"{table} has no column {field!r}; its columns are {known}{remedy}")


def invalid_time(column: str, problem: object) -> Rejection:
    """Return the rejection of a row whose event time cannot be read."""
    message = f"column {column!r} is not a valid time: {problem}"
    return Rejection("decode", "InvalidEventTime", message[:500])


def labelled(ids: Blobs, names: Callable[[int], bytes]) -> Blobs:
    """Return ids of which the empty ones are replaced by the names of their rows."""
    lengths = ids.lengths()
    if len(lengths) and lengths.min() > 0:
        return ids
    return Blobs.of([id_ or names(row) for row, id_ in enumerate(ids.tolist())])


def blobs(column: Any) -> Blobs:
    """Return a column of large binary values without a copy; a missing one is empty."""
    if column.null_count:
        column = column.fill_null(b"")
    _, offsets, data = column.buffers()
    if not len(column):
        return Blobs.of([])
    ends = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    first, last = int(ends[0]), int(ends[-1])
    content = np.frombuffer(data or b"", dtype=np.uint8)[first:last]
    return Blobs(content, ends[1:] - first)


def _integers(column: Any) -> NDArray[np.int64]:
    numbers: I64 = column.fill_null(0).to_numpy(zero_copy_only=False)
    return numbers


def repeatable(items: Any) -> Any:
    """Return what can be read twice: a stream of Arrow as a table or column.

    An InputError says that it is a stream, and that pyarrow is not installed.
    """
    if not hasattr(items, "__arrow_c_stream__") or hasattr(items, "__len__"):
        return items
    arrow = load()
    column = arrow.chunked_array(items)
    is_table = arrow.types.is_struct(column.type)
    return arrow.Table.from_struct_array(column) if is_table else column


def to_fields(items: Any, records: RecordSettings) -> Fields | None:
    """Return the fields of a table or of a column of texts, without an object for each value.

    None if this is not a table, pyarrow is missing, or a row, which the caller names, is invalid.
    """
    if not (hasattr(items, "__arrow_c_stream__") or hasattr(items, "__arrow_c_array__")):
        return None
    try:
        arrow = load()
    except InputError:
        return None  # Polars needs no pyarrow
    try:
        table = _table(arrow, items, records)
        if table is None:
            return None
        if table.column_names == [""]:
            table, records = table.rename_columns(["text"]), _COLUMN
        columns = TableFields(table.schema, records, "the table")
        parts: list[Fields] = []
        for batch in table.to_batches(max_chunksize=_CHUNK_ROWS):
            fields, refused = columns.read(batch)
            if refused:
                return None
            parts.append(fields)
        return Fields.concatenate(parts) if parts else None
    except (arrow.ArrowException, InputError, TypeError, ValueError):
        return None


def _table(arrow: Any, items: Any, records: RecordSettings) -> Any:
    """Return a table; a column of texts becomes a table whose only column has no name."""
    if hasattr(items, "schema") and hasattr(items, "column_names"):  # of Arrow
        return arrow.table(items)
    if hasattr(items, "columns"):  # of pandas or Polars
        fields = (records.id_field, records.event_time_field, records.namespace_field)
        names = [*records.text_fields, *filter(None, fields)]
        wanted = {*names, *(name.split(".")[0] for name in names)}
        chosen = items[[name for name in items.columns if name in wanted]]
        if hasattr(items, "iloc"):
            return arrow.Table.from_pandas(chosen, preserve_index=False)
        return arrow.table(chosen)
    column = items if isinstance(items, arrow.Array) else arrow.chunked_array(items)
    return None if arrow.types.is_struct(column.type) else arrow.table([column], [""])
