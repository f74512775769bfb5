"""*Pure.* Columns as the bytes of little-endian arrays, as the topics' formats hold them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamdedup.columns import Strings

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of the decoder. Bytes of another program may be nested too deeply for it."""


class Version(msgspec.Struct):
    """The first field of every value in a topic of ours."""

    version: int


def has_version(data: bytes) -> bool:
    """Tell whether the value of a record begins with a version, so that it may be ours."""
    try:
        msgspec.msgpack.decode(data, type=Version)
    except UNREADABLE:
        return False
    return True


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
