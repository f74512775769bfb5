"""*Pure.* Tables and columns of Arrow, pandas and Polars as the fields of documents.

What cannot be read as columns is read row by row, see :mod:`streamdedup.engine.documents`.
"""

from __future__ import annotations

from typing import Any

from streamdedup.columns import Fields
from streamdedup.engine.arrow import TableFields, load
from streamdedup.errors import InputError
from streamdedup.settings.sections import RecordSettings

_CHUNK_ROWS = 10_000
_COLUMN = RecordSettings(text_fields=("text",), id_field=None)


def repeatable(items: Any) -> Any:
    """Return what can be read twice: a stream of Arrow, which cannot, as a table or column.

    Args:
        items: what a caller passes as documents.

    Raises:
        InputError: this is a stream, and pyarrow is not installed.
    """
    if not hasattr(items, "__arrow_c_stream__") or hasattr(items, "__len__"):
        return items
    arrow = load()
    column = arrow.chunked_array(items)
    is_table = arrow.types.is_struct(column.type)
    return arrow.Table.from_struct_array(column) if is_table else column


def to_fields(items: Any, records: RecordSettings) -> Fields | None:
    """Return the fields of a table or of a column of texts, without an object for each value.

    Args:
        items: what a caller passes as documents.
        records: names the columns of a table.

    Returns:
        The fields; None if this is not a table, pyarrow is not installed, or a row is not a
        document, which the caller must find and name.
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
        is_column = table.column_names == [""]
        settings = _COLUMN if is_column else records
        table = table.rename_columns(["text"]) if is_column else table
        return _fields(table, settings)
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


def _fields(table: Any, records: RecordSettings) -> Fields | None:
    columns = TableFields(table.schema, records, "the table")
    parts: list[Fields] = []
    for batch in table.to_batches(max_chunksize=_CHUNK_ROWS):
        fields, refused = columns.read(batch)
        if refused:
            return None
        parts.append(fields)
    return Fields.concatenate(parts) if parts else None
