"""*Pure.* The columns of an Arrow table as the fields of documents.

pyarrow is optional: it is imported when a table is read.
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

_LAST_MS = 253_402_300_799_999
"""The last millisecond of the calendar, in the year 9999."""
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_MS = 86_400_000
_DEFAULT_ID = RecordSettings.model_fields["id_field"].default
_SHOWN_CHARACTERS = 300


def load(name: str = "pyarrow") -> Any:
    """Return pyarrow, or a module of it.

    Raises:
        InputError: it is not installed.
    """
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
    """Reads the fields of documents from the columns that the settings name.

    Args:
        schema: of the table.
        records: names the columns. The name of a column counts before a dotted path into structs.
        name: name of the table in messages.

    Raises:
        InputError: a column is missing, has the wrong type, or there are several of its name.
    """

    def __init__(self, schema: Any, records: RecordSettings, name: str) -> None:
        self._arrow = load()
        self._compute = load("pyarrow.compute")
        self._schema = schema
        self._name = name
        self._texts = [self._find(field, self._is_text, "text") for field in records.text_fields]
        is_default = records.id_field == _DEFAULT_ID and _top(schema, records.id_field) is None
        id_field = None if is_default else records.id_field
        self._id = self._optional(id_field, self._is_name, "string or integer")
        self._namespace = self._optional(
            records.namespace_field, self._is_name, "string or integer"
        )
        self._time = self._optional(records.event_time_field, self._is_time, "time")
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
        if not self._is_text(column.type):
            column = column.cast(self._arrow.large_string())
        return blobs(column.cast(self._arrow.large_binary()))

    def _read_times(self, batch: Any, refused: dict[int, Rejection]) -> I64:
        if not self._time:
            return np.full(len(batch), NO_TIMESTAMP, dtype=np.int64)
        column = self._plain(batch, self._time)
        types = self._arrow.types
        if not (types.is_timestamp(column.type) or types.is_date(column.type)):
            return self._parsed_times(column.to_pylist(), refused)
        times_ms = self._clock_times(column)
        missing = column.is_null().to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(((times_ms < 0) | (times_ms > _LAST_MS)) & ~missing).tolist():
            self._refuse_time(row, refused, f"{column[row].value!r} is out of range")
        invalid = missing | (times_ms < 0) | (times_ms > _LAST_MS)
        return np.where(invalid, NO_TIMESTAMP, times_ms)

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
        message = f"column {'.'.join(self._time)!r} is not a valid time: {problem}"
        refused.setdefault(row, Rejection("decode", "InvalidEventTime", message[:500]))

    def _optional(
        self, field: str | None, fits: Callable[[Any], bool], kind: str
    ) -> tuple[str, ...]:
        return self._find(field, fits, kind) if field else ()

    def _find(self, field: str, fits: Callable[[Any], bool], kind: str) -> tuple[str, ...]:
        """Return the path of a column of the right type."""
        if (count := self._schema.names.count(field)) > 1:
            raise InputError(
                f"{self._name} has {count} columns {field!r}; rename one, or name another column"
            )
        path = _top(self._schema, field) or tuple(field.split("."))
        found = self._type_of(path)
        if found is None:
            names = ", ".join(self._schema.names)
            if len(names) > _SHOWN_CHARACTERS:
                names = names[:_SHOWN_CHARACTERS] + "..."
            raise InputError(f"{self._name} has no column {field!r}; its columns are {names}")
        if self._arrow.types.is_dictionary(found):
            found = found.value_type
        if not (fits(found) or self._arrow.types.is_null(found)):
            raise InputError(
                f"the column {field!r} of {self._name} is of type {found}, expected {kind}"
            )
        return path

    def _type_of(self, path: tuple[str, ...]) -> Any:
        """Return the type of a column; None if there is none."""
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
        types = self._arrow.types
        if types.is_dictionary(column.type):
            # Not all types have a cast from a dictionary.
            return self._castable(column.dictionary).take(column.indices)
        return self._castable(column)

    def _castable(self, column: Any) -> Any:
        """Return a column of a type of text that can become all others."""
        types = self._arrow.types
        if types.is_null(column.type):
            return column.cast(self._arrow.large_string())
        is_view = types.is_string_view(column.type) or types.is_binary_view(column.type)
        return column.cast(self._arrow.large_binary()) if is_view else column

    def _is_text(self, kind: Any) -> bool:
        types = self._arrow.types
        tests = (types.is_string, types.is_large_string, types.is_string_view, types.is_binary)
        return any(test(kind) for test in (*tests, types.is_large_binary, types.is_binary_view))

    def _is_name(self, kind: Any) -> bool:
        return self._is_text(kind) or self._arrow.types.is_integer(kind)

    def _is_time(self, kind: Any) -> bool:
        types = self._arrow.types
        tests = (types.is_timestamp, types.is_date, types.is_integer, types.is_floating)
        return self._is_text(kind) or any(test(kind) for test in tests)


def labelled(ids: Blobs, names: Callable[[int], bytes]) -> Blobs:
    """Return ids of which the empty ones are replaced.

    Args:
        ids: the ids.
        names: returns the id of a row that has none.
    """
    lengths = ids.lengths()
    if len(lengths) and lengths.min() > 0:
        return ids
    return Blobs.of([id_ or names(row) for row, id_ in enumerate(ids.tolist())])


def _top(schema: Any, field: str | None) -> tuple[str, ...] | None:
    return (field,) if field is not None and field in schema.names else None


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
