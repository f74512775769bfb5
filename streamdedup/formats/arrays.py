"""*Pure.* Columns as the bytes of little-endian arrays, as the topics' formats hold them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamdedup.columns import I64, Strings
from streamdedup.model import SourceRange

T = TypeVar("T")

_MOST_PARTITIONS, _MOST_OFFSETS = 2**31, 2**62
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of the decoder. Bytes of another program may be nested too deeply for it."""


class _Version(msgspec.Struct):
    """The first field of every value in a topic of ours."""

    version: int


def has_version(data: bytes) -> bool:
    """Tell whether the value of a record begins with a version, so that it may be ours."""
    try:
        msgspec.msgpack.decode(data, type=_Version)
    except _UNREADABLE:
        return False
    return True


class Unreadable(Exception):  # noqa: N818 - each format has an error of its own for it
    """The bytes are not what was expected; the message is one line."""


class OtherVersion(Exception):  # noqa: N818 - each format has an error of its own for it
    """The bytes are of another version, which is the argument."""


def parse(data: bytes, decoder: msgspec.msgpack.Decoder[T], version: int) -> T:
    """Parse a value whose first field is its version.

    Raises:
        OtherVersion: it has another one.
        Unreadable: it cannot be parsed.
    """
    try:
        found = msgspec.msgpack.decode(data, type=_Version).version
        if found == version:
            return decoder.decode(data)
    except _UNREADABLE as error:
        # The message may quote the name of a field, with line breaks.
        raise Unreadable(" ".join(str(error).split())) from error
    raise OtherVersion(found)


def pack(values: ArrayLike, kind: str) -> bytes:
    """Return the bytes of values as a numpy type such as ``<i8``."""
    return np.ascontiguousarray(values, dtype=kind).tobytes()


def unpack(data: bytes, kind: str, count: int, *, columns: bool = False) -> NDArray[Any]:
    """Return ``count`` values: ``(count,)``, with ``columns`` ``(count, n)``.

    Raises:
        ValueError: there are more or fewer.
    """
    values = np.frombuffer(data, dtype=kind)
    if columns:
        return values.reshape(count, -1) if count else values.reshape(0, 0)
    if len(values) != count:
        raise ValueError(f"{len(values)} values for {count}")
    return values


def check_range(source: SourceRange, offsets: I64, others: Iterable[int]) -> None:
    """Check a source range, and that what is said of it lies within.

    Args:
        source: the range.
        offsets: of documents, ``(n,)``; they must ascend.
        others: more offsets, in any order.

    Raises:
        ValueError: the range is none, or an offset is not in it.
    """
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
    """Return the strings that :func:`pack_strings` has packed.

    Raises:
        ValueError: a string is not valid UTF-8, or the ends do not fit the data.
    """
    places = np.frombuffer(ends, dtype="<u4").astype(np.int64)
    return Strings(np.frombuffer(data, dtype=np.uint8), places).check()
