"""*Pure.* Columns as the bytes of little-endian arrays, as the topics' formats hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamdedup.batches import DocumentColumns, Sketches
from streamdedup.columns import I64, Blobs, Positions, Strings
from streamdedup.errors import StreamdedupError
from streamdedup.model import Rejection, SourceRange

T = TypeVar("T")

_MOST_PARTITIONS, _MOST_OFFSETS = 2**31, 2**62
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of the decoder. Bytes of another program may be nested too deeply for it."""


class _Version(msgspec.Struct):
    """The first field of every value in a topic of ours."""

    version: int


def has_version(data: bytes) -> bool:
    """Return whether the value of a record begins with a version, so that it may be ours."""
    try:
        msgspec.msgpack.decode(data, type=_Version)
    except _UNREADABLE:
        return False
    return True


@dataclass(frozen=True)
class Codec(Generic[T]):
    """Encodes and decodes the values of one format: MessagePack maps that begin with a version."""

    struct: type[T]  # the map
    version: int  # that this release writes and reads
    unreadable: tuple[type[StreamdedupError], str]  # the error, and what its message begins with
    other_version: tuple[type[StreamdedupError], str]  # the error, and its message

    def encode(self, **fields: Any) -> bytes:
        """Return the bytes of a map with these fields, and the version."""
        make: Callable[..., T] = self.struct
        return _ENCODER.encode(make(version=self.version, **fields))

    def decode(self, data: bytes) -> T:
        """Return the map, or raise the error of bytes that are not one or have another version."""
        try:
            found = msgspec.msgpack.decode(data, type=_Version).version
            if found == self.version:
                return msgspec.msgpack.decode(data, type=self.struct)
        except _UNREADABLE as error:
            # The message may quote the name of a field, with line breaks.
            kind, message = self.unreadable
            raise kind(f"{message}: {' '.join(str(error).split())}") from error
        kind, message = self.other_version
        raise kind(message.format(found=found, own=self.version))


_ENCODER = msgspec.msgpack.Encoder()


def encoded_parts(
    item: T,
    encode: Callable[[T], bytes],
    halves: Callable[[T, int], Sequence[T]],
    most_bytes: int,
) -> list[bytes]:
    """Encode an item as one value, or as several if one would exceed ``most_bytes``.

    ``halves`` cuts an item, of so many bytes, into two; it returns nothing if that is not possible.
    """
    value = encode(item)
    parts = halves(item, len(value)) if len(value) > most_bytes else ()
    if not parts:
        return [value]
    return [each for part in parts for each in encoded_parts(part, encode, halves, most_bytes)]


def document_fields(documents: DocumentColumns) -> dict[str, Any]:
    """Return the fields of documents that all formats of topics have."""
    ids, id_ends = pack_strings(documents.ids)
    return {
        "ids": ids,
        "id_ends": id_ends,
        "offsets": pack(documents.positions.offsets, "<i8"),
        "event_times_ms": pack(documents.event_times_ms, "<i8"),
        "namespaces": pack(documents.namespaces, "<u8"),
        "signatures": pack(documents.sketches.signatures, "u1"),
        "band_keys": pack(documents.sketches.band_keys, "<u8"),
        "texts": tuple(documents.texts),
    }


def read_documents(row: Any, positions: Callable[[I64], Positions]) -> DocumentColumns:
    """Return the documents of a map with :func:`document_fields`.

    ``positions`` returns the positions, given the ``(n,)`` offsets. The arrays are copies: kernels
    have another variant for arrays that cannot be changed.

    Raises:
        ValueError: the fields do not fit together.
    """
    ids = unpack_strings(row.ids, row.id_ends)
    count = len(ids)
    if len(row.texts) not in (0, count):
        raise ValueError(f"{len(row.texts)} texts for {count} documents")
    return DocumentColumns(
        ids=ids,
        positions=positions(unpack(row.offsets, "<i8", count).copy()),
        event_times_ms=unpack(row.event_times_ms, "<i8", count).copy(),
        namespaces=unpack(row.namespaces, "<u8", count).copy(),
        sketches=Sketches(
            signatures=unpack(row.signatures, "u1", count, columns=True).copy(),
            band_keys=unpack(row.band_keys, "<u8", count, columns=True).copy(),
        ),
        texts=Blobs.of(row.texts),
    )


def position_fields(positions: Positions) -> dict[str, Any]:
    """Return the fields of positions, without the offsets."""
    return {
        "topics": list(positions.topics),
        "topic_indices": pack(positions.topic_indices, "<u4"),
        "partitions": pack(positions.partitions, "<i4"),
    }


def read_positions(topics: list[str], indices: bytes, partitions: bytes, offsets: I64) -> Positions:
    """Return the positions of :func:`position_fields`, offsets ``(n,)``, or a ValueError."""
    count = len(offsets)
    of_topics = unpack(indices, "<u4", count).astype(np.int64)
    if count and of_topics.max() >= len(topics):
        raise ValueError(f"topic {of_topics.max()} of {len(topics)}")
    return Positions(
        tuple(topics), of_topics, unpack(partitions, "<i4", count).astype(np.int64), offsets
    )


def rejection_field(rejections: Mapping[int, Rejection]) -> dict[int, tuple[str, str, str]]:
    """Return rejections by offset as a field of a map."""
    return {
        offset: (rejection.stage, rejection.reason, rejection.message)
        for offset, rejection in rejections.items()
    }


def read_rejections(field: Mapping[int, tuple[str, str, str]]) -> dict[int, Rejection]:
    """Return the rejections of :func:`rejection_field`."""
    return {offset: Rejection(*why) for offset, why in field.items()}


def pack(values: ArrayLike, kind: str) -> bytes:
    """Return the bytes of values as a numpy type such as ``<i8``."""
    return np.ascontiguousarray(values, dtype=kind).tobytes()


def unpack(data: bytes, kind: str, count: int, *, columns: bool = False) -> NDArray[Any]:
    """Return ``(count,)`` values, with ``columns`` ``(count, n)``; ValueError for other sizes."""
    values = np.frombuffer(data, dtype=kind)
    if columns:
        return values.reshape(count, -1) if count else values.reshape(0, 0)
    if len(values) != count:
        raise ValueError(f"{len(values)} values for {count}")
    return values


def check_range(source: SourceRange, offsets: I64, others: Iterable[int]) -> None:
    """Check a range, and that ascending offsets and others lie within, else raise a ValueError."""
    _, partition, start, stop = source
    if not (0 <= partition < _MOST_PARTITIONS and 0 <= start <= stop < _MOST_OFFSETS):
        raise ValueError(f"{partition}:{start}-{stop} is not a range of a partition")
    inside = not len(offsets) or (start <= offsets[0] and offsets[-1] < stop)
    if not inside or (offsets[1:] <= offsets[:-1]).any():
        raise ValueError("the offsets do not ascend within the range")
    if not all(start <= offset < stop for offset in others):
        raise ValueError("an offset is not in the range")


def pack_strings(strings: Strings) -> tuple[bytes, bytes]:
    """Return the bytes of strings, and those of their ends."""
    return strings.data[: strings.size].tobytes(), pack(strings.ends, "<u4")


def unpack_strings(data: bytes, ends: bytes) -> Strings:
    """Return the strings of :func:`pack_strings`; ValueError for invalid UTF-8 or invalid ends."""
    places = np.frombuffer(ends, dtype="<u4").astype(np.int64)
    return Strings(np.frombuffer(data, dtype=np.uint8), places).check()
