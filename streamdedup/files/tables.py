"""*Blocking.* Reads Parquet and Arrow files, a record batch at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

import xxhash

from streamdedup.columns import Column
from streamdedup.engine.arrow import load
from streamdedup.errors import InputError
from streamdedup.files import lines
from streamdedup.files.lines import InputMark
from streamdedup.files.paths import Kind

_HASHED_BYTES = 1024**2
_BUFFER_BYTES = 1024**2
"""How much of each column chunk of Parquet is in memory at once."""
_UNPACKED = "UNCOMPRESSED"


class TableFile:
    """An open Parquet or Arrow file, or an InputError.

    ``compression`` is how Parquet compresses the first column, in lower case; None if unknown.
    """

    def __init__(self, path: str, kind: Kind) -> None:
        self.name = path
        self._kind = kind
        self.compression: str | None = None
        arrow = load()
        with translated(f"cannot read {path}"):
            self._source = arrow.OSFile(os.fsencode(path), "rb")
            try:
                self._open()
            except BaseException:
                self._source.close()
                raise
        self.schema = self._file.schema_arrow if kind is Kind.PARQUET else self._file.schema
        self._size = os.path.getsize(path)
        self._read_rows = 0

    def _open(self) -> None:
        if self._kind is Kind.PARQUET:
            parquet = load("pyarrow.parquet")
            self._file = parquet.ParquetFile(
                self._source, pre_buffer=False, buffer_size=_BUFFER_BYTES
            )
            metadata = self._file.metadata
            if metadata.num_row_groups and metadata.num_columns:
                codec = metadata.row_group(0).column(0).compression
                self.compression = "none" if codec == _UNPACKED else codec.lower()
            return
        ipc = load("pyarrow.ipc")
        is_file = self._source.read(6) == b"ARROW1"
        self._source.seek(0)
        self._file = ipc.open_file(self._source) if is_file else ipc.open_stream(self._source)
        self._is_stream = not is_file

    def mark(self, rows: int, digest: bytes) -> InputMark:
        """Return the mark after so many rows."""
        return InputMark(rows, self._size, digest) if rows else InputMark()

    def digest(self) -> bytes:
        """Return XXH3-128 of the whole file."""
        hashed = xxhash.xxh3_128()
        with translated(f"cannot read {self.name}"), open(self.name, "rb") as file:
            while part := file.read(_HASHED_BYTES):
                hashed.update(part)
        return hashed.digest()

    @property
    def bytes_read(self) -> int:
        """The part of the file that was read, in bytes; estimated by the rows."""
        if self._kind is Kind.PARQUET:
            return self._size * self._read_rows // max(1, int(self._file.metadata.num_rows))
        return min(self._size, int(self._source.tell()))

    def batches(
        self, skip: int, most_rows: int, most_bytes: int, columns: Sequence[str] | None = None
    ) -> Iterator[Any]:
        """Yield record batches without the first ``skip`` rows.

        A batch has ``most_rows`` at most, and one of Parquet about ``most_bytes``. Of Parquet, only
        the named columns are read, or all for None.

        Raises:
            InputError: the file is damaged, or has fewer rows than ``skip``.
        """
        self._read_rows = 0
        for batch in self._all_batches(most_rows, most_bytes, columns, skip):
            first = min(max(0, skip - self._read_rows), len(batch))
            self._read_rows += len(batch)
            for start in range(first, len(batch), most_rows):
                yield batch.slice(start, most_rows)
        if self._read_rows < skip:
            raise InputError(
                f"{self.name} has {self._read_rows} rows, earlier runs judged {skip}; restore it"
            )

    def _all_batches(
        self, most_rows: int, most_bytes: int, columns: Sequence[str] | None, skip: int
    ) -> Iterator[Any]:
        if self._kind is Kind.PARQUET:
            batches = self._parquet_batches(most_rows, most_bytes, columns, skip)
        elif self._is_stream:
            batches = iter(self._file)
        else:
            file = self._file
            batches = (file.get_batch(number) for number in range(file.num_record_batches))
        while True:
            with translated(f"cannot read {self.name}"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _parquet_batches(
        self, most_rows: int, most_bytes: int, columns: Sequence[str] | None, skip: int
    ) -> Iterator[Any]:
        metadata = self._file.metadata
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            if self._read_rows + group.num_rows <= skip:
                self._read_rows += group.num_rows
                continue
            row_bytes = max(1, group.total_byte_size // max(1, group.num_rows))
            rows = max(1, min(most_rows, most_bytes // row_bytes))
            yield from self._file.iter_batches(rows, [number], columns)

    def close(self) -> None:
        """Close the file."""
        self._source.close()


class RowValues(Column[bytes]):
    """The rows of record batches, each as a JSON object when it is read."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = tuple(batches)
        self._count = sum(map(len, self._batches))

    def __len__(self) -> int:
        return self._count

    def table(self) -> Any:
        """Return the rows as a table."""
        return load().Table.from_batches(self._batches)

    def take(self, rows: Any) -> Self:
        """Return the rows of a slice without a step."""
        start, stop, _ = rows.indices(len(self))
        return type(self)(self.table().slice(start, max(0, stop - start)).to_batches())

    def _element(self, row: int) -> bytes:
        for batch in self._batches:
            if row < len(batch):
                break
            row -= len(batch)
        [content] = batch.slice(row, 1).to_pylist()
        return json.dumps(content, ensure_ascii=False, default=_shown).encode(
            "utf-8", "backslashreplace"
        )


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def translated(what: str) -> AbstractContextManager[None]:
    """Raise an error of pyarrow or of the operating system as an InputError of one line."""
    return lines.translated(what, (load().ArrowException, OSError))


def difference(expected: Any, found: Any) -> str:
    """Return in which columns two schemas differ."""
    before = {field.name: str(field.type) for field in expected}
    after = {field.name: str(field.type) for field in found}
    for name in [*before, *after]:
        if before.get(name) != after.get(name):
            types = (one.get(name, "missing") for one in (before, after))
            return f"{name!r} was {' and is '.join(types)}"
    return "their order, or whether values may be missing"
