"""*Blocking.* Outputs that are Parquet or Arrow files, which nothing can be appended to.

Rule 1: the table appears when the run completes, by a rename of a temporary file.
Rule 2: until then, the rows of a job with an index are also in a spool. It is cut to its committed
length like an output of lines, and the table of an interrupted run is written again from it.
Rule 3: the index notes the rows of a completed table. A table with the rows of the note and of the
spool was completed by a run that was killed before it could note that.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from streamdedup.batches import KEPT, Verdicts
from streamdedup.columns import RecordColumns
from streamdedup.engine.arrow import load
from streamdedup.errors import InputError
from streamdedup.files.job import SPOOL
from streamdedup.files.kinds import Kind
from streamdedup.files.lines import OutputFile, sync_directory
from streamdedup.files.tables import RowValues, TableFile, difference, translated
from streamdedup.index.directory import fsync

_UNFINISHED = ".tmp"
"""What follows the name of a table while it is written."""
_GROUP_BYTES = 32 * 1024**2
"""Arrow bytes that become a row group of Parquet, or a record batch."""
_READ_ROWS = 10_000

Content = Callable[[RecordColumns, Verdicts], Any]


class TableSink:
    """An output that is a table.

    Args:
        path: the table.
        kind: its kind.
        schema: of the table.
        content: returns the rows of a batch as a table.
        spool_length: committed length of the spool in bytes; None without an index: then there is
            no spool, and a table that exists is replaced.
        rows: rows of the table when it was completed last.
        compression: the codec of Parquet.

    Raises:
        InputError: the file cannot be written, is not the one that earlier runs wrote, or its
            format cannot store the schema.
    """

    def __init__(
        self,
        path: str,
        kind: Kind,
        schema: Any,
        content: Content,
        *,
        spool_length: int | None,
        rows: int,
        compression: str | None = None,
    ) -> None:
        self._path = os.path.realpath(path)
        _check_file(self._path)
        self._kind = kind
        self._schema = schema
        self._compression = compression
        self.content = content
        self._writer: _Writer | None = None
        self._spool: OutputFile | None = None
        self.rows = rows
        # A folder or schema that does not fit is found before the first batch.
        self._new_writer().discard()
        if spool_length is not None:
            self._spool = OutputFile(self._path + SPOOL, spool_length, durable=True)
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
        if self._spool is not None:
            self._spool.append(_stream(content))
            self._spool.sync()
        writer.write(content)

    def finish(self) -> None:
        """Complete the table, unless it is complete already."""
        is_new = self._spool is None or not os.path.exists(self._path)
        if is_new or self._writer is not None or self.length:
            writer = self._open()
            self._writer = None
            writer.finish(durable=self._spool is not None)
            self._complete(writer.rows)

    def _complete(self, rows: int) -> None:
        """Note that all rows are in the table; the spool stays on disk up to the commit."""
        self.rows = rows
        if self._spool is not None:
            self._spool.length = 0

    def clean(self) -> None:
        """Cut the spool if the table is complete."""
        if self._spool is not None and not self._spool.length:
            self._spool.close()
            self._spool = OutputFile(self._path + SPOOL, 0, durable=True)

    def close(self) -> None:
        """Remove temporary files; a spool with rows stays for the next run."""
        if self._writer is not None:
            self._writer.discard()
        if self._spool is not None:
            self._spool.close()
            with suppress(OSError):
                if not os.path.getsize(self._path + SPOOL):
                    os.remove(self._path + SPOOL)

    def _new_writer(self) -> _Writer:
        return _Writer(self._path, self._kind, self._schema, self._compression)

    def _open(self) -> _Writer:
        """Return the writer of the table, which has all rows of earlier batches."""
        if self._writer is None:
            self._writer = self._new_writer()
            if self._spool is not None:
                for batch in self._written():
                    self._writer.write(_table(batch))
                for batch in self._spooled():
                    self._writer.write(_table(batch))
        return self._writer

    def _written(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the completed table."""
        if not os.path.exists(self._path) or not os.path.getsize(self._path):
            return
        with TableFile(self._path, self._kind) as file:
            self._check_schema(file.schema)
            yield from file.batches(0, _READ_ROWS, _GROUP_BYTES, columns)

    def _spooled(self) -> Iterator[Any]:
        """Yield the rows of the spool: a stream of Arrow for each batch."""
        ipc = load("pyarrow.ipc")
        path = self._path + SPOOL
        with translated(f"cannot read {path}"), load().OSFile(os.fsencode(path), "rb") as source:
            while source.tell() < self.length:
                stream = ipc.open_stream(source)
                self._check_schema(stream.schema)
                yield from stream

    def _check_schema(self, schema: Any) -> None:
        if not schema.equals(self._schema):
            problem = difference(self._schema, schema)
            raise InputError(f"earlier runs wrote {self._path} with other columns: {problem}")


class _Writer:
    """Writes a table to a temporary file, a row group whenever there are enough rows."""

    def __init__(self, path: str, kind: Kind, schema: Any, compression: str | None) -> None:
        self._path = path
        self._temporary = path + _UNFINISHED
        self._schema = schema
        self._tables: list[Any] = []
        self._bytes = 0
        self._thread = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None
        self.rows = 0
        with translated(f"cannot write {path}"):
            if kind is Kind.PARQUET:
                parquet = load("pyarrow.parquet")
                self._file = parquet.ParquetWriter(
                    self._temporary, schema, compression=compression or "snappy"
                )
            else:
                ipc = load("pyarrow.ipc")
                options = ipc.IpcWriteOptions(compression="lz4")
                self._file = ipc.new_file(self._temporary, schema, options=options)

    def write(self, table: Any) -> None:
        """Write the rows of a table."""
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
            if durable:
                fsync(Path(self._temporary))
            os.replace(self._temporary, self._path)
            if durable:
                sync_directory(self._path)

    def discard(self) -> None:
        """Remove the temporary file."""
        self._thread.shutdown()
        with suppress(OSError, load().ArrowException):
            self._file.close()
        with suppress(OSError):
            os.remove(self._temporary)


def kept_rows(records: RecordColumns, verdicts: Verdicts) -> Any:
    """Return the kept rows of a batch as a table."""
    values = records.values
    if not isinstance(values, RowValues):
        raise TypeError(f"the records of a table have RowValues, found {type(values).__name__}")
    return values.table().filter(load().array(verdicts.outcomes == KEPT))


def _table(batch: Any) -> Any:
    return load().Table.from_batches([batch])


def _stream(table: Any) -> bytes:
    """Return a table as a stream of Arrow."""
    sink = load().BufferOutputStream()
    with load("pyarrow.ipc").new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue()
    return content


def _check_file(path: str) -> None:
    """Refuse a device or pipe, which a rename would replace."""
    if os.path.lexists(path) and not stat.S_ISREG(os.stat(path).st_mode):
        raise InputError(f"{path} is not a regular file; a table needs one")
