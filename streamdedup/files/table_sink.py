"""*Blocking.* Outputs that are Parquet or Arrow files, which nothing can be appended to.

Rule 1: the table appears when the run completes, by a rename of a temporary file.
Rule 2: until then, the rows of a job with an index are also in a spool, another temporary file. It
is cut to its committed length like an output of lines, and the table of an interrupted run is
written again from it.
Rule 3: the index notes the rows of a completed table. A table with the rows of the note and of the
spool was completed by a run that was killed before it could note that.
Rule 4: Polars writes texts as views. pyarrow has no kernels to select some of them, and writes all
bytes behind the views of a slice. So rows become plain texts first, and views again when they are
written.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from streamdedup.batches import KEPT, Verdicts
from streamdedup.columns import RecordColumns
from streamdedup.engine.arrow import load
from streamdedup.errors import InputError
from streamdedup.files.lines import OutputFile, sync_directory
from streamdedup.files.paths import Kind, temporary
from streamdedup.files.tables import RowValues, TableFile, difference, translated
from streamdedup.index.directory import fsync

_GROUP_BYTES = 32 * 1024**2
"""Arrow bytes that become a row group of Parquet, or a record batch."""
_READ_ROWS = 10_000

Content = Callable[[RecordColumns, Verdicts], Any]


@dataclass(frozen=True, slots=True)
class Format:
    """How a table of Parquet or Arrow is written; ``compression`` is the codec of Parquet."""

    kind: Kind
    schema: Any
    compression: str | None = None

    def open(self, sink: Any) -> Any:
        """Return a writer of a table to an open file of pyarrow."""
        if self.kind is Kind.PARQUET:
            codec = self.compression or "snappy"
            return load("pyarrow.parquet").ParquetWriter(sink, self.schema, compression=codec)
        ipc = load("pyarrow.ipc")
        return ipc.new_file(sink, self.schema, options=ipc.IpcWriteOptions(compression="lz4"))


class TableSink:
    """An output that is a table.

    ``content`` returns the rows of a batch as a table without views. The names of the temporary
    files have the token of the job and the name of the output. The spool has a committed length in
    bytes; None without an index: then there is no spool, and a table that exists is replaced. The
    table had ``rows`` when it was completed last.

    Raises:
        InputError: the file cannot be written, is not the one that earlier runs wrote, or its
            format cannot store the schema.
    """

    def __init__(
        self,
        path: str,
        form: Format,
        content: Content,
        *,
        token: str,
        name: str,
        spool_length: int | None,
        rows: int,
    ) -> None:
        self._path = os.path.realpath(path)
        self._temporary = temporary(self._path, token, f"{name}.tmp")
        self._spool_path = temporary(self._path, token, f"{name}.partial")
        # Files can hold views, but no dictionaries of views.
        schema = _plain(form.schema, load().types.is_dictionary)
        self._format = replace(form, schema=schema)
        self.content = content
        self._writer: _Writer | None = None
        self._has_spool = spool_length is not None
        self._spool: OutputFile | None = None
        self.rows = rows
        # What does not fit is found before the first batch.
        if os.path.lexists(self._path) and not stat.S_ISREG(os.stat(self._path).st_mode):
            # A rename would replace a device or pipe.
            raise InputError(f"{self._path} is not a regular file; a table needs one")
        with translated(f"cannot write {self._path}"):
            tempfile.TemporaryFile(dir=os.path.dirname(self._path)).close()
            self._format.open(load().BufferOutputStream()).close()
        if spool_length:
            self._spool = OutputFile(self._spool_path, spool_length, durable=True)
        if self._has_spool:
            try:
                self._resume()
            except BaseException:
                self.close()
                raise

    def _resume(self) -> None:
        """Compare the table and the spool with what earlier runs wrote."""
        spooled = sum(len(batch) for batch in self._spooled())
        found = sum(len(batch) for batch in self._written(columns=[]))
        if found == self.rows + spooled:
            self._complete(found)
        elif found != self.rows:
            raise InputError(
                f"{self._path} has {found} rows, earlier runs wrote {self.rows}: restore the "
                "file, or pass other output files, which are written from the start"
            )

    @property
    def length(self) -> int:
        """Bytes of the spool."""
        return 0 if self._spool is None else self._spool.length

    def append(self, content: Any) -> None:
        """Append a table to the spool, and to the file that is being written."""
        if not content.num_rows:
            return
        writer = self._open()
        if self._has_spool:
            self._spool = self._spool or OutputFile(self._spool_path, 0, durable=True)
            stream = load().BufferOutputStream()
            with load("pyarrow.ipc").new_stream(stream, content.schema) as spool:
                spool.write_table(content)
            self._spool.append(stream.getvalue())
            self._spool.sync()
        writer.write(content)

    def finish(self) -> None:
        """Complete the table, unless it is complete already."""
        is_new = not (self._has_spool and os.path.exists(self._path))
        if is_new or self._writer is not None or self.length:
            writer = self._open()
            self._writer = None
            writer.finish(durable=self._has_spool)
            self._complete(writer.rows)

    def _complete(self, rows: int) -> None:
        """Note that all rows are in the table; the spool stays on disk up to the commit."""
        self.rows = rows
        if self._spool is not None:
            self._spool.length = 0

    def clean(self) -> None:
        """Remove the temporary files if the table is complete, also those of a killed run."""
        if self._has_spool and not self.length:
            self._close_spool()
            unused = [self._spool_path] if self._writer else [self._spool_path, self._temporary]
            for path in unused:
                with translated(f"cannot remove {path}"), suppress(FileNotFoundError):
                    os.remove(path)

    def close(self) -> None:
        """Remove the unfinished table; the spool stays for the next run."""
        if self._writer is not None:
            self._writer.discard()
        self._close_spool()

    def _close_spool(self) -> None:
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    def _open(self) -> _Writer:
        """Return the writer of the table, which has all rows of earlier batches."""
        if self._writer is None:
            self._writer = _Writer(self._path, self._temporary, self._format)
            if self._has_spool:
                for batch in self._written():
                    self._writer.write(_as_plain(_table(batch)))
                for batch in self._spooled():
                    self._writer.write(_table(batch))
        return self._writer

    def _written(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        if not os.path.exists(self._path) or not os.path.getsize(self._path):
            return
        with closing(TableFile(self._path, self._format.kind)) as file:
            self._check_schema(self._format.schema, file.schema)
            yield from file.batches(0, _READ_ROWS, _GROUP_BYTES, columns)

    def _spooled(self) -> Iterator[Any]:
        """Yield the rows of the spool: a stream of Arrow for each batch."""
        if not self.length:
            return
        ipc, path = load("pyarrow.ipc"), self._spool_path
        with translated(f"cannot read {path}"), load().OSFile(os.fsencode(path), "rb") as source:
            while source.tell() < self.length:
                stream = ipc.open_stream(source)
                self._check_schema(_plain(self._format.schema), stream.schema)
                yield from stream

    def _check_schema(self, expected: Any, found: Any) -> None:
        if not found.equals(expected):
            problem = difference(expected, found)
            raise InputError(f"earlier runs wrote {self._path} with other columns: {problem}")


class _Writer:
    """Writes a table to a temporary file, a row group whenever there are enough rows."""

    def __init__(self, path: str, temporary_path: str, form: Format) -> None:
        self._path, self._temporary, self._schema = path, temporary_path, form.schema
        self._tables: list[Any] = []
        self._bytes = 0
        self._thread = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None
        self.rows = 0
        with translated(f"cannot write {path}"):
            # As bytes, because pyarrow takes only paths in UTF-8.
            self._sink = load().OSFile(os.fsencode(temporary_path), "wb")
            self._file = form.open(self._sink)

    def write(self, table: Any) -> None:
        if not table.schema.equals(self._schema, check_metadata=True):
            table = table.cast(self._schema)
        self._tables.append(table)
        self._bytes += table.nbytes
        self.rows += table.num_rows
        if self._bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Write a row group in a thread, once the one before is written."""
        self._wait()
        table = load().concat_tables(self._tables)
        self._writing = self._thread.submit(self._file.write_table, table)
        self._tables, self._bytes = [], 0

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            with translated(f"cannot write {self._path}"):
                writing.result()

    def finish(self, *, durable: bool) -> None:
        """Give the file its name."""
        if self._tables:
            self._flush()
        self._wait()
        self._thread.shutdown()
        with translated(f"cannot write {self._path}"):
            self._file.close()
            self._sink.close()
            if durable:
                fsync(Path(self._temporary))
            os.replace(self._temporary, self._path)
            if durable:
                sync_directory(self._path)

    def discard(self) -> None:
        self._thread.shutdown()
        with suppress(OSError, load().ArrowException):
            self._file.close()
            self._sink.close()
        with suppress(OSError):
            os.remove(self._temporary)


def kept_rows(records: RecordColumns, verdicts: Verdicts) -> Any:
    """Return the kept rows of a batch as a table without views."""
    values = records.values
    if not isinstance(values, RowValues):
        raise TypeError(f"the records of a table have RowValues, found {type(values).__name__}")
    with translated("cannot select the kept rows"):
        return _as_plain(values.table()).filter(load().array(verdicts.outcomes == KEPT))


def _plain(schema: Any, changes: Callable[[Any], bool] = lambda _: True) -> Any:
    """Return a schema without views in the types that change: as large strings and binaries."""
    fields = [
        field.with_type(_plain_type(field.type)) if changes(field.type) else field
        for field in schema
    ]
    return load().schema(fields, schema.metadata)


def _as_plain(table: Any) -> Any:
    """Return a table without views."""
    schema = _plain(table.schema)
    if schema.equals(table.schema):
        return table
    is_dictionary = load().types.is_dictionary
    for number, field in enumerate(schema):
        if is_dictionary(field.type) and field.type != table.schema.field(number).type:
            chunks = [
                load().DictionaryArray.from_arrays(
                    chunk.indices,
                    chunk.dictionary.cast(field.type.value_type),
                    ordered=field.type.ordered,
                )
                for chunk in table.column(number).chunks
            ]
            table = table.set_column(number, field, load().chunked_array(chunks, field.type))
    return table.cast(schema)


def _plain_type(kind: Any) -> Any:
    """Return a type whose parts are no views, as far as pyarrow casts them."""
    arrow = load()
    types, found = arrow.types, kind
    if types.is_string_view(kind):
        found = arrow.large_string()
    elif types.is_binary_view(kind):
        found = arrow.large_binary()
    elif types.is_dictionary(kind):
        found = arrow.dictionary(kind.index_type, _plain_type(kind.value_type), kind.ordered)
    elif types.is_struct(kind):
        found = arrow.struct([field.with_type(_plain_type(field.type)) for field in kind])
    elif types.is_map(kind):
        found = arrow.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        item = kind.value_field.with_type(_plain_type(kind.value_type))
        if types.is_fixed_size_list(kind):
            return arrow.list_(item, kind.list_size)
        found = arrow.large_list(item) if types.is_large_list(kind) else arrow.list_(item)
    # An equal type may lack details, such as the names in a map.
    return kind if found.equals(kind) else found


def _table(batch: Any) -> Any:
    return load().Table.from_batches([batch])
