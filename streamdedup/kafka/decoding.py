"""*Async.* Changes two things in how aiokafka decodes batches of records.

It copies what Zstandard decompressed. :func:`install` gives it a decoder that needs half the memory
and time: a batch of 50 KB can expand to a gigabyte.

Kafka allows any bytes in a header's name. aiokafka expects UTF-8, and raises UnicodeDecodeError
whenever it reaches such a record. Its consumers then decode this batch again with
aiokafka's decoder in Python, which is slower. The invalid bytes of a name become lone surrogates
(PEP 383). No other name has them, so :func:`is_invalid` finds these names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import zstandard
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch, _DefaultRecordBatchPy

_decode_quickly = fetcher.MemoryRecords
_LENGTH = struct.Struct(">qi")
"""Begin of a batch: its base offset, and the number of bytes that follow."""


def install() -> None:
    """Change the consumers of this process; repeated calls have no effect."""
    fetcher.MemoryRecords = Batches
    # The module is another one if aiokafka has its extensions.
    module: Any = import_module(DefaultRecordBatch.__module__)
    module.zstd_decode = _decompress


def _decompress(data: bytes) -> bytes:
    """Decompress all frames; most producers omit their size."""
    decompressor = zstandard.ZstdDecompressor()
    return decompressor.decompressobj(read_across_frames=True).decompress(data)


def is_invalid(name: str) -> bool:
    """Tell whether the name of a header was not valid UTF-8."""
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

    def next_batch(self) -> Batch:
        """Return the next batch."""
        _, length = _LENGTH.unpack_from(self._data, self._begin)
        begin, self._begin = self._begin, self._begin + _LENGTH.size + length
        return Batch(self._batches.next_batch(), memoryview(self._data)[begin : self._begin])


class Batch:
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
