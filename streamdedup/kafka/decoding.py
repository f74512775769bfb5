"""*Async.* Changes two things in how aiokafka decodes batches of records.

A compressed batch of 50 KB can expand to a gigabyte, and aiokafka decompresses it whole.
:func:`install` gives it decoders that stop at :data:`MOST_BYTES`. Of a batch that is larger every
record is *withheld*: it has its offset, and nothing else. :func:`is_withheld` finds these records.

Kafka allows any bytes in a header's name. aiokafka expects UTF-8, and raises UnicodeDecodeError
whenever it reaches such a record. Its consumers then decode this batch again with
aiokafka's decoder in Python, which is slower. The invalid bytes of a name become lone surrogates
(PEP 383). No other name has them, so :func:`is_invalid` finds these names.
"""

from __future__ import annotations

import gzip
import io
import struct
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import cramjam
import numpy as np
import zstandard
from aiokafka.codec import snappy_decode
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import (
    DefaultRecordBatch,
    _DefaultRecordBatchPy,
    _DefaultRecordPy,
)

from streamdedup.model import Headers

MOST_BYTES = 128 * 1024**2
"""Bytes of an expanded batch. Producers fill batches of a few MB at most."""
_WITHHELD = "\ud800"
"""The name of the header of a withheld record; no name in a topic is decoded to it."""
_decode_quickly = fetcher.MemoryRecords
_LENGTH = struct.Struct(">qi")
"""Begin of a batch: its base offset, and the number of bytes that follow."""


def install() -> None:
    """Change the consumers of this process; repeated calls have no effect."""
    fetcher.MemoryRecords = Batches
    # The module is another one if aiokafka has its extensions.
    module: Any = import_module(DefaultRecordBatch.__module__)
    module.gzip_decode = _from_gzip
    module.snappy_decode = _from_snappy
    module.lz4_decode = _from_lz4
    module.zstd_decode = _from_zstandard


class _TooLargeError(Exception):
    """A batch expands to more than MOST_BYTES."""


def _from_gzip(data: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        return _checked(file.read(MOST_BYTES + 1))


def _from_snappy(data: bytes) -> bytes:
    return _checked(snappy_decode(data))  # expands 21 times at most


def _from_lz4(data: bytes) -> bytes:
    room = np.empty(min(MOST_BYTES, 255 * len(data)), dtype=np.uint8)  # its greatest expansion
    try:
        size = cramjam.lz4.decompress_into(data, room.data)
    except cramjam.DecompressionError as error:
        if "write whole buffer" in str(error):
            raise _TooLargeError from error
        raise
    return room[:size].tobytes()


def _from_zstandard(data: bytes) -> bytes:
    """Decompress all frames; most producers omit their size."""
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        return _checked(reader.read(MOST_BYTES + 1))


def _checked(expanded: bytes) -> bytes:
    if len(expanded) > MOST_BYTES:
        raise _TooLargeError
    return expanded


def is_withheld(headers: Headers) -> bool:
    """Return whether these are the headers of a record whose batch is too large to read."""
    return len(headers) == 1 and headers[0][0] == _WITHHELD


def is_invalid(name: str) -> bool:
    """Return whether the name of a header was not valid UTF-8."""
    return not name.isascii() and any("\udc80" <= character <= "\udcff" for character in name)


def escaped(name: str) -> str:
    r"""Return the name with its invalid bytes as ``\xff``."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class Batches:
    """The batches of one fetched partition, in the place of aiokafka's MemoryRecords."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._begin = 0
        self._batches = _decode_quickly(data)
        self.has_next = self._batches.has_next
        self.size_in_bytes = self._batches.size_in_bytes

    def next_batch(self) -> TolerantBatch:
        """Return the next batch."""
        _, length = _LENGTH.unpack_from(self._data, self._begin)
        begin, self._begin = self._begin, self._begin + _LENGTH.size + length
        return TolerantBatch(
            self._batches.next_batch(), memoryview(self._data)[begin : self._begin]
        )


class TolerantBatch:
    """A batch of records; its attributes are those of aiokafka's batch."""

    def __init__(self, quick: Any, data: memoryview) -> None:
        self._quick = quick
        self._data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._quick, name)

    def __iter__(self) -> Iterator[Any]:
        """Yield the records; after a failure all records again, of which the reader skips some."""
        try:
            yield from self._quick
        except (UnicodeDecodeError, CorruptRecordException) as error:
            # aiokafka without its extensions raises the second error because of the first one.
            if not isinstance(error.__cause__ or error, UnicodeDecodeError):
                raise
            yield from _LenientBatch(self._data)
        except _TooLargeError:
            batch = _DefaultRecordBatchPy(self._data[: _DefaultRecordBatchPy.HEADER_STRUCT.size])
            for offset in range(batch.base_offset, batch.next_offset):
                times = (batch.max_timestamp, batch.timestamp_type)
                yield _DefaultRecordPy(offset, *times, None, None, [(_WITHHELD, b"")])

    def __next__(self) -> Any:
        return next(self._quick)


class _LenientBatch(_DefaultRecordBatchPy):  # type: ignore[misc] # it is only final for aiokafka
    def _maybe_uncompress(self) -> None:
        super()._maybe_uncompress()
        self._buffer: bytearray = _LenientBytes(self._buffer)


class _LenientBytes(bytearray):
    """A buffer whose slices can always be decoded."""

    def __getitem__(self, where: Any) -> Any:
        found = super().__getitem__(where)
        return _LenientBytes(found) if isinstance(where, slice) else found

    def decode(self, encoding: str = "utf-8", errors: str = "surrogateescape") -> str:
        return super().decode(encoding, errors)
