"""*Pure.* Blocks of documents: columns of up to 1,024 documents as one value, read by address.

Layout, little-endian: ``u32 documents, u32 bytes of a signature``; seven times ``i64 base, u32
width, u32 place`` for the event time, the effective time, the source, the offset, the namespace,
and the ends of ids and of texts; ``u32 place of the ids, u32 place of the texts``; the signatures
as they are; the seven arrays, each as its difference to the base in 0, 1, 2, 4 or 8 bytes (frame of
reference); the ids, end to end; the texts, end to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamdedup.index.memory import address, load8, load16, load32, load64
from streamdedup.kernels import kernel
from streamdedup.model import I64, U8, U64, DocumentColumns, Position, Sketches

Bools = NDArray[np.bool_]

BLOCK_DOCUMENTS = 1024
FIELDS = 5
EVENT_TIME, EFFECTIVE_TIME, SOURCE, OFFSET, NAMESPACE = range(FIELDS)
_ID_ENDS, _TEXT_ENDS = FIELDS, FIELDS + 1
_IDS = 8 + 16 * (FIELDS + 2)
_TEXTS = _IDS + 4
_HEAD = _TEXTS + 4


@dataclass(frozen=True, slots=True)
class Rows:
    """Documents as they are stored.

    Attributes:
        signatures: ``(n, num_bytes)`` uint8.
        fields: ``(n, 5)`` int64: event time, effective time (both milliseconds), source, offset,
            namespace (the bits of a uint64).
        id_ends: ``(n,)`` int64: where each id ends in ``ids``.
        ids: UTF-8, end to end.
        text_ends: ``(n,)`` int64: where each text ends in ``texts``.
        texts: packed texts, end to end; empty where texts are not stored.
    """

    signatures: U8
    fields: I64
    id_ends: I64
    ids: U8
    text_ends: I64
    texts: U8

    def __len__(self) -> int:
        return len(self.fields)

    def id_list(self) -> list[str]:
        """Return the ids."""
        raw = self.ids.tobytes()
        return [raw[start:end].decode() for start, end in pairwise([0, *self.id_ends.tolist()])]

    def text_list(self) -> list[bytes]:
        """Return the texts; empty ones where texts are not stored."""
        raw = self.texts.tobytes()
        return [raw[start:end] for start, end in pairwise([0, *self.text_ends.tolist()])]

    def namespaces(self) -> U64:
        """Return the namespaces, ``(n,)``."""
        return np.ascontiguousarray(self.fields[:, NAMESPACE]).view(np.uint64)

    def documents(self, sources: Sequence[tuple[str, int]], *, texts: bool) -> DocumentColumns:
        """Return the documents, without band keys.

        Args:
            sources: topic and partition of each source, by its number.
            texts: whether the texts are stored.
        """
        of_sources = map(sources.__getitem__, self.fields[:, SOURCE].tolist())
        offsets = self.fields[:, OFFSET].tolist()
        return DocumentColumns(
            ids=self.id_list(),
            positions=[
                Position(topic, partition, offset)
                for (topic, partition), offset in zip(of_sources, offsets, strict=True)
            ],
            event_times_ms=self.fields[:, EVENT_TIME].copy(),
            namespaces=self.namespaces(),
            sketches=Sketches(self.signatures, np.empty((len(self), 0), dtype=np.uint64)),
            texts=self.text_list() if texts else (),
        )

    def places_of(self, id_: str) -> list[int]:
        """Return the places of the documents with an id."""
        # One search through all ids at once; an id may also lie across two others.
        if id_.encode("utf-8", "surrogatepass") not in self.ids.tobytes():
            return []
        return [place for place, each in enumerate(self.id_list()) if each == id_]

    def erase(self, gone: I64) -> Rows:
        """Return the rows with some of them blanked: no signature, no id, no text.

        Args:
            gone: their places, ``(k,)``.
        """
        if len(gone) == 0:
            return self
        signatures = self.signatures.copy()
        signatures[gone] = 0
        fields = self.fields.copy()
        fields[gone, NAMESPACE] = 0
        id_ends, ids = _without(self.id_ends, self.ids, gone)
        text_ends, texts = _without(self.text_ends, self.texts, gone)
        return Rows(signatures, fields, id_ends, ids, text_ends, texts)


def concatenate(parts: list[Rows]) -> Rows:
    """Return the rows of all parts, in order; there is at least one part."""
    if len(parts) == 1:
        return parts[0]
    return Rows(
        np.concatenate([part.signatures for part in parts]),
        np.concatenate([part.fields for part in parts]),
        _one_after_the_other([part.id_ends for part in parts]),
        np.concatenate([part.ids for part in parts]),
        _one_after_the_other([part.text_ends for part in parts]),
        np.concatenate([part.texts for part in parts]),
    )


def _one_after_the_other(ends: list[I64]) -> I64:
    return np.cumsum(np.concatenate([np.diff(each, prepend=0) for each in ends]))


def _without(ends: I64, data: U8, gone: I64) -> tuple[I64, U8]:
    lengths = np.diff(ends, prepend=0)
    cut = np.zeros(len(ends), dtype=bool)
    cut[gone] = True
    kept = data[~np.repeat(cut, lengths)]
    return np.cumsum(np.where(cut, 0, lengths)), kept


def encode(rows: Rows) -> bytes:
    """Return the block of up to ``BLOCK_DOCUMENTS`` rows."""
    count, width = rows.signatures.shape
    head = bytearray(_HEAD)
    head[0:8] = count.to_bytes(4, "little") + width.to_bytes(4, "little")
    parts = [rows.signatures.tobytes()]
    place = _HEAD + count * width
    for field, values in enumerate((*rows.fields.T, rows.id_ends, rows.text_ends)):
        base, size, raw = _frame(values)
        at = 8 + 16 * field
        head[at : at + 16] = (
            base.to_bytes(8, "little", signed=True)
            + size.to_bytes(4, "little")
            + place.to_bytes(4, "little")
        )
        parts.append(raw)
        place += len(raw)
    head[_IDS:_HEAD] = place.to_bytes(4, "little") + (place + len(rows.ids)).to_bytes(4, "little")
    return b"".join([bytes(head), *parts, rows.ids.tobytes(), rows.texts.tobytes()])


def _frame(values: I64) -> tuple[int, int, bytes]:
    base = int(values.min())
    spread = int(values.max()) - base
    if spread == 0:
        return base, 0, b""
    size = next(size for size in (1, 2, 4, 8) if spread < 1 << 8 * size)
    # Two's complement: differences beyond 2^63 wrap, and wrap back when the base is added.
    return base, size, (values - np.int64(base)).view(np.uint64).astype(f"<u{size}").tobytes()


def gather(blocks: I64, rows: I64, width: int) -> Rows:
    """Read documents from wherever they are.

    Args:
        blocks: address of each one's block, ``(n,)``.
        rows: its place in the block, ``(n,)``.
        width: bytes of a signature.
    """
    count = len(blocks)
    signatures = np.empty((count, width), dtype=np.uint8)
    fields = np.empty((count, FIELDS), dtype=np.int64)
    id_ends, text_ends = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    _gather(blocks, rows, signatures, fields, id_ends, text_ends)
    ids = np.empty(id_ends[-1] if count else 0, dtype=np.uint8)
    texts = np.empty(text_ends[-1] if count else 0, dtype=np.uint8)
    _gather_bytes(blocks, rows, _ID_ENDS, _IDS, id_ends, ids)
    if len(texts):
        _gather_bytes(blocks, rows, _TEXT_ENDS, _TEXTS, text_ends, texts)
    return Rows(signatures, fields, id_ends, ids, text_ends, texts)


def find_positions(blocks: I64, sources: I64, offsets: I64) -> Bools:
    """Tell which positions are those of documents in some blocks.

    Args:
        blocks: addresses of the blocks, ``(b,)``.
        sources: source of each position, ``(n,)``.
        offsets: its offset, ``(n,)``.

    Returns:
        ``(n,)`` bool.
    """
    order = np.argsort(offsets)
    found = np.zeros(len(offsets), dtype=np.bool_)
    sorted_found = np.zeros(len(offsets), dtype=np.bool_)
    _find_positions(blocks, sources[order], offsets[order], sorted_found)
    found[order] = sorted_found
    return found


@kernel
def _field(block: int, field: int, row: int) -> Any:
    at = block + 8 + 16 * field
    base = load64(at)
    size = load32(at + 8)
    place = block + np.int64(load32(at + 12))
    if size == np.uint32(0):
        return base
    if size == np.uint32(1):
        return base + np.int64(load8(place + row))
    if size == np.uint32(2):
        return base + np.int64(load16(place + 2 * row))
    if size == np.uint32(4):
        return base + np.int64(load32(place + 4 * row))
    return base + load64(place + 8 * row)


@kernel
def _gather(
    blocks: I64, rows: I64, signatures: U8, fields: I64, id_ends: I64, text_ends: I64
) -> None:
    id_end = text_end = 0
    width = signatures.shape[1]
    for i in range(len(blocks)):
        block, row = blocks[i], rows[i]
        at = block + _HEAD + width * row
        for k in range(width):
            signatures[i, k] = load8(at + k)
        for field in range(FIELDS):
            fields[i, field] = _field(block, field, row)
        id_end += _field(block, _ID_ENDS, row)
        text_end += _field(block, _TEXT_ENDS, row)
        if row > 0:
            id_end -= _field(block, _ID_ENDS, row - 1)
            text_end -= _field(block, _TEXT_ENDS, row - 1)
        id_ends[i], text_ends[i] = id_end, text_end


@kernel
def _gather_bytes(blocks: I64, rows: I64, field: int, place: int, ends: I64, out: U8) -> None:
    filled = 0
    for i in range(len(blocks)):
        block, row = blocks[i], rows[i]
        start = _field(block, field, row - 1) if row > 0 else 0
        at = block + np.int64(load32(block + place)) + start
        while filled < ends[i]:
            out[filled] = load8(at)
            at += 1
            filled += 1


@kernel
def _find_positions(blocks: I64, sources: I64, offsets: I64, found: Bools) -> None:
    count = len(offsets)
    for block in blocks:
        at = block + 8 + 16 * OFFSET
        base, size = load64(at), load32(at + 8)
        first = np.searchsorted(offsets, base)
        # Most blocks are far from the offsets asked for, and say so in their head.
        if first == count:
            continue
        if size < np.uint32(8) and offsets[first] - base >= np.int64(1) << np.int64(8 * size):
            continue
        for row in range(np.int64(load32(block))):
            offset = _field(block, OFFSET, row)
            i = np.searchsorted(offsets, offset)
            while i < count and offsets[i] == offset:
                if sources[i] == _field(block, SOURCE, row):
                    found[i] = True
                i += 1


def address_of(value: memoryview) -> int:
    """Return where a value of LMDB's map begins."""
    return address(np.frombuffer(value, dtype=np.uint8))
