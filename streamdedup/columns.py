"""*Pure.* Columns of bytes, strings and positions: a few arrays instead of an object per document.

Each is a sequence, so code that is not in a hurry reads it like a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, Generic, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from streamdedup.model import Headers, Position, Record

U8 = NDArray[np.uint8]
U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
T = TypeVar("T")

_CONTINUATION_MASK, _CONTINUATION = 0xC0, 0x80
"""In UTF-8 a byte that continues a character has the upper two bits 10."""


class Column(Sequence[T], Generic[T]):
    """A read-only sequence whose elements are made when they are read."""

    def _element(self, row: int) -> T:
        raise NotImplementedError

    def take(self, rows: Any) -> Self:
        """Return the given rows, in the given order."""
        raise NotImplementedError

    @overload
    def __getitem__(self, row: int) -> T: ...
    @overload
    def __getitem__(self, row: slice) -> Self: ...
    def __getitem__(self, row: int | slice) -> T | Self:
        if isinstance(row, slice):
            return self.take(row)
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self._element(row + len(self) if row < 0 else row)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment] # the arrays can change

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"


class Columns:
    """Base of the dataclasses whose fields are columns of ``n`` rows, in the same order.

    A column is an array, a :class:`Column`, or :class:`Columns` again. It has no rows if it is left
    out. The first one is never left out.
    """

    __slots__ = ()

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all parts, in order; there is at least one part."""
        # Parts without rows may not know how wide a column is.
        parts = [part for part in parts if len(part)] or parts[:1]
        if len(parts) == 1:
            return parts[0]
        return cls(*map(_joined, zip(*(part.columns() for part in parts), strict=True)))

    def __len__(self) -> int:
        return len(self.columns()[0])

    def take(self, rows: Any) -> Self:
        """Return the given rows, in the given order."""
        return type(self)(*(_taken(column, rows) for column in self.columns()))

    def columns(self) -> list[Any]:
        """Return the columns, in the order of their declaration."""
        return [getattr(self, each.name) for each in fields(self)]  # type: ignore[arg-type]


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return type(parts[0]).concatenate(parts)


def _taken(column: Any, rows: Any) -> Any:
    if not len(column):
        return column
    return column[rows] if isinstance(column, np.ndarray) else column.take(rows)


class _Concatenated(Column[T]):
    """Byte strings, one behind the other in ``data``, ``(size,)`` uint8.

    ``ends``, ``(n,)`` int64, are where each ends; the first begins at 0.
    """

    def __init__(self, data: U8, ends: I64) -> None:
        self.data = data
        self.ends = ends

    @classmethod
    def _joined(cls, parts: Sequence[bytes]) -> Self:
        lengths = np.fromiter(map(len, parts), dtype=np.int64, count=len(parts))
        return cls(np.frombuffer(b"".join(parts), dtype=np.uint8), np.cumsum(lengths))

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all parts, in order."""
        data = np.concatenate([part.data[: part.size] for part in parts])
        return cls(data, np.cumsum(np.concatenate([part.lengths() for part in parts])))

    @property
    def size(self) -> int:
        """Bytes of all strings."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def __len__(self) -> int:
        return len(self.ends)

    def lengths(self) -> I64:
        """Return the length of each in bytes, ``(n,)``."""
        return np.diff(self.ends, prepend=0)

    def take(self, rows: Any) -> Self:
        """Return the given rows, in the given order; a slice without gaps takes little time."""
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step == 1:
                stop = max(start, stop)
                first, last = (int(self.ends[row - 1]) if row else 0 for row in (start, stop))
                return type(self)(self.data[first:last], self.ends[start:stop] - first)
        lengths = self.lengths()[rows]
        ends = np.cumsum(lengths)
        # For each byte of the result: where it is in ``data``.
        shifts = self.ends[rows] - ends
        where = np.repeat(shifts, lengths) + np.arange(ends[-1] if len(ends) else 0)
        return type(self)(self.data[where], ends)

    def _raw(self, row: int) -> bytes:
        start = self.ends[row - 1] if row else 0
        return self.data[start : self.ends[row]].tobytes()


class Blobs(_Concatenated[bytes]):
    """A column of byte strings."""

    @classmethod
    def of(cls, values: Sequence[bytes]) -> Self:
        """Return a column of the given byte strings."""
        return cls._joined(values)

    def tolist(self) -> list[bytes]:
        """Return all byte strings; faster than one after the other."""
        data, ends = self.data[: self.size].tobytes(), self.ends.tolist()
        return [data[start:end] for start, end in pairwise([0, *ends])]

    def views(self) -> list[memoryview]:
        """Return all byte strings without a copy; they end with this column."""
        data, ends = self.data.data, self.ends.tolist()
        return [data[start:end] for start, end in pairwise([0, *ends])]

    def _element(self, row: int) -> bytes:
        return self._raw(row)


NO_BLOBS = Blobs.of([])
"""A column without byte strings."""


@dataclass(frozen=True, slots=True)
class Fields(Columns):
    """The fields of ``n`` documents that come from the columns of a table."""

    texts: Blobs  # n texts in UTF-8, which is not checked
    ids: Blobs  # n ids in UTF-8; empty if the document has none
    namespaces: Blobs  # n namespaces in UTF-8; no rows if no document has one
    event_times_ms: I64  # (n,), milliseconds since the epoch or NO_TIMESTAMP


class Strings(_Concatenated[str]):
    """A column of strings, in UTF-8."""

    @classmethod
    def of(cls, values: Sequence[str]) -> Self:
        """Return a column of the given strings."""
        data = "".join(values).encode()
        lengths = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
        if lengths.sum() != len(data):  # some characters take several bytes
            return cls._joined([value.encode() for value in values])
        return cls(np.frombuffer(data, dtype=np.uint8), np.cumsum(lengths))

    def check(self) -> Self:
        """Return this column; ValueError for invalid UTF-8, or ends that do not fit."""
        data, ends = self.data, self.ends
        if (self.lengths() < 0).any() or self.size != len(data):
            raise ValueError("the strings do not fill their bytes")
        data.tobytes().decode()
        inner = ends[ends < len(data)]
        if (data[inner] & _CONTINUATION_MASK == _CONTINUATION).any():
            raise ValueError("a string ends within a character")
        return self

    def tolist(self) -> list[str]:
        """Return all strings; faster than one after the other."""
        data, ends = self.data[: self.size].tobytes(), self.ends.tolist()
        return [data[start:end].decode() for start, end in pairwise([0, *ends])]

    def _element(self, row: int) -> str:
        return self._raw(row).decode()


@dataclass(eq=False, repr=False)
class Positions(Column[Position]):
    """A column of positions."""

    topics: tuple[str, ...]  # the distinct topics
    topic_indices: I64  # (n,), of each position's topic
    partitions: I64  # (n,)
    offsets: I64  # (n,)

    @classmethod
    def of(cls, positions: Sequence[Position]) -> Positions:
        """Return a column of the given positions; a column is returned as it is."""
        if isinstance(positions, Positions):
            return positions
        of_topics, partitions, offsets = list(zip(*positions, strict=True)) or [()] * 3
        topics = {topic: index for index, topic in enumerate(dict.fromkeys(of_topics))}
        return cls(
            tuple(topics),
            np.array([topics[topic] for topic in of_topics], dtype=np.int64),
            np.array(partitions, dtype=np.int64),
            np.array(offsets, dtype=np.int64),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all parts, in order."""
        distinct = dict.fromkeys(topic for part in parts for topic in part.topics)
        topics = {topic: index for index, topic in enumerate(distinct)}
        # The last entry serves parts without positions.
        indices = [
            np.array([*(topics[topic] for topic in part.topics), 0])[part.topic_indices]
            for part in parts
        ]
        return cls(
            tuple(topics),
            np.concatenate(indices),
            np.concatenate([part.partitions for part in parts]),
            np.concatenate([part.offsets for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.offsets)

    def take(self, rows: Any) -> Self:
        """Return the given rows, in the given order."""
        return type(self)(
            self.topics, self.topic_indices[rows], self.partitions[rows], self.offsets[rows]
        )

    def sources(self) -> tuple[list[tuple[str, int]], I64]:
        """Return the distinct (topic, partition) in order of appearance, and each row's index.

        These are ``k`` sources, and ``(n,)`` int64 with values below ``k``.
        """
        if not len(self):
            return [], np.empty(0, dtype=np.int64)
        changes = np.flatnonzero(
            (np.diff(self.topic_indices) != 0) | (np.diff(self.partitions) != 0)
        )
        starts = np.concatenate([[0], changes + 1])
        # One lookup per run of a partition: batches are sorted by partition, or have few of them.
        numbers: dict[tuple[str, int], int] = {}
        of_runs = [
            numbers.setdefault((self.topics[topic], partition), len(numbers))
            for topic, partition in zip(
                self.topic_indices[starts].tolist(), self.partitions[starts].tolist(), strict=True
            )
        ]
        lengths = np.diff(starts, append=len(self))
        return list(numbers), np.repeat(np.array(of_runs, dtype=np.int64), lengths)

    def _element(self, row: int) -> Position:
        return Position(
            self.topics[self.topic_indices[row]],
            int(self.partitions[row]),
            int(self.offsets[row]),
        )


@dataclass(eq=False, repr=False)
class RecordColumns(Column[Record]):
    """A batch of ``n`` records as columns."""

    positions: Positions
    values: Sequence[bytes | None]  # n undecoded documents; None for a tombstone
    keys: Sequence[bytes | None]  # n keys; None for a record without one
    headers: Sequence[Headers]
    timestamps_ms: I64  # (n,), milliseconds since the epoch or NO_TIMESTAMP
    fields: Fields | None = None  # the documents of a table; values and keys are then not decoded
    _sizes: I64 | None = field(default=None, init=False)

    @classmethod
    def of(cls, records: Sequence[Record]) -> RecordColumns:
        """Return the columns of records; columns are returned as they are."""
        if isinstance(records, RecordColumns):
            return records
        return cls(
            Positions.of([record.position for record in records]),
            [record.value for record in records],
            [record.key for record in records],
            [record.headers for record in records],
            np.array([record.timestamp_ms for record in records], dtype=np.int64),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[RecordColumns]) -> RecordColumns:
        """Return the rows of all parts, in order; none of them comes from a table."""
        if len(parts) <= 1:
            return parts[0] if parts else cls.of([])
        joined = cls(
            Positions.concatenate([part.positions for part in parts]),
            [value for part in parts for value in part.values],
            [key for part in parts for key in part.keys],
            [headers for part in parts for headers in part.headers],
            np.concatenate([part.timestamps_ms for part in parts]),
        )
        joined._sizes = np.concatenate([part.sizes() for part in parts])
        return joined

    def __len__(self) -> int:
        return len(self.values)

    def sizes(self) -> I64:
        """Return the bytes of each value, or text of a table, ``(n,)``; 0 for a tombstone."""
        if self._sizes is None:
            sizes = (len(value) if value else 0 for value in self.values)
            self._sizes = (
                np.fromiter(sizes, dtype=np.int64, count=len(self))
                if self.fields is None
                else self.fields.texts.lengths()
            )
        return self._sizes

    def take(self, rows: Any) -> RecordColumns:
        """Return the given rows, in the given order."""
        lists: list[Sequence[Any]] = [self.values, self.keys, self.headers]
        if isinstance(rows, slice):
            lists = [each[rows] for each in lists]
        else:
            chosen = np.asarray(rows).tolist()
            lists = [[each[row] for row in chosen] for each in lists]
        values, keys, headers = lists
        fields = None if self.fields is None else self.fields.take(rows)
        positions, times_ms = self.positions.take(rows), self.timestamps_ms[rows]
        taken = RecordColumns(positions, values, keys, headers, times_ms, fields)
        if self._sizes is not None:
            taken._sizes = self._sizes[rows]
        return taken

    def _element(self, row: int) -> Record:
        return Record(
            self.positions[row],
            self.values[row],
            self.keys[row],
            self.headers[row],
            int(self.timestamps_ms[row]),
        )
