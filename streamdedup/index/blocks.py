"""*Pure.* Blocks of documents: columns of up to 1,024 documents as one value, read by address.

Layout, little-endian: ``u32 documents, u32 bytes of a signature``; seven times ``i64 base, u32
width, u32 offset`` for the event time, the effective time, the source, the source's offset, the
namespace, and the ends of ids and of texts; ``u32 offset of the ids, u32 offset of the texts``; the
signatures as they are; the seven arrays, each as its difference to the base in 0, 1, 2, 4 or 8
bytes (frame of reference); the ids, concatenated; the texts, concatenated.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from streamdedup.columns import I64, U8, Blobs, Strings
from streamdedup.errors import REMEDY, IndexDamaged
from streamdedup.index.memory import load8, load16, load32, load64
from streamdedup.index.rows import FIELDS, OFFSET, SOURCE, Bools, StoredRows
from streamdedup.kernels import kernel

BLOCK_DOCUMENTS = 1024
_ID_ENDS, _TEXT_ENDS = FIELDS, FIELDS + 1
COLUMNS = FIELDS + 2
"""Arrays of a block: the fields, the ends of ids and the ends of texts."""
_WIDTHS = (0, 1, 2, 4, 8)
"""Bytes that a value of a column may take."""
_IDS = 8 + 16 * COLUMNS
_TEXTS = _IDS + 4
HEAD_BYTES = _TEXTS + 4


def encode(rows: StoredRows) -> bytes:
    """Return the block of up to ``BLOCK_DOCUMENTS`` rows."""
    count, width = rows.signatures.shape
    head = bytearray(HEAD_BYTES)
    struct.pack_into("<II", head, 0, count, width)
    parts = [rows.signatures.tobytes()]
    offset = HEAD_BYTES + count * width
    for column, values in enumerate((*rows.fields.T, rows.ids.ends, rows.texts.ends)):
        base, size, raw = _frame(values)
        struct.pack_into("<qII", head, 8 + 16 * column, base, size, offset)
        parts.append(raw)
        offset += len(raw)
    struct.pack_into("<II", head, _IDS, offset, offset + len(rows.ids.data))
    return b"".join([bytes(head), *parts, rows.ids.data.tobytes(), rows.texts.data.tobytes()])


def _frame(values: I64) -> tuple[int, int, bytes]:
    """Return the base of values, the bytes of a difference to it, and the differences."""
    base = int(values.min())
    spread = int(values.max()) - base
    if spread == 0:
        return base, 0, b""
    size = next(size for size in _WIDTHS[1:] if spread < 1 << 8 * size)
    # Two's complement: differences beyond 2^63 wrap, and wrap back when the base is added.
    return base, size, (values - np.int64(base)).view(np.uint64).astype(f"<u{size}").tobytes()


def gather(blocks: I64, sizes: I64, rows: I64, width: int) -> StoredRows:
    """Read documents from any blocks, and nothing outside of them.

    For each document, ``(n,)``, the arrays have the address and the bytes of its block, and its row
    in the block. A signature has ``width`` bytes.

    Raises:
        IndexDamaged: a block contradicts itself.
    """
    count = len(blocks)
    if not _hold(blocks, sizes, rows, width):
        raise IndexDamaged(f"the index is damaged: a block of documents is invalid; {REMEDY}")
    signatures = np.empty((count, width), dtype=np.uint8)
    fields = np.empty((count, FIELDS), dtype=np.int64)
    id_ends, text_ends = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    _gather(blocks, rows, signatures, fields, id_ends, text_ends)
    ids = np.empty(id_ends[-1] if count else 0, dtype=np.uint8)
    texts = np.empty(text_ends[-1] if count else 0, dtype=np.uint8)
    _gather_bytes(blocks, rows, _ID_ENDS, _IDS, id_ends, ids)
    if len(texts):
        _gather_bytes(blocks, rows, _TEXT_ENDS, _TEXTS, text_ends, texts)
    return StoredRows(signatures, fields, Strings(ids, id_ends), Blobs(texts, text_ends))


def find_positions(blocks: I64, sizes: I64, sources: I64, offsets: I64) -> Bools:
    """Return which positions, ``(n,)``, belong to documents of some blocks.

    The addresses and the bytes of the blocks are ``(b,)``, the source number and the offset of each
    position ``(n,)``.

    Raises:
        IndexDamaged: a block contradicts itself.
    """
    order = np.argsort(offsets)
    present, sorted_present = np.zeros((2, len(offsets)), dtype=np.bool_)
    if not _find_positions(blocks, sizes, sources[order], offsets[order], sorted_present):
        raise IndexDamaged(f"the index is damaged: a block of documents is invalid; {REMEDY}")
    present[order] = sorted_present
    return present


@kernel
def _field(block: int, column: int, row: int) -> Any:
    head = block + 8 + 16 * column
    base = load64(head)
    size = load32(head + 8)
    start = block + np.int64(load32(head + 12))
    if size == np.uint32(0):
        return base
    if size == np.uint32(1):
        return base + np.int64(load8(start + row))
    if size == np.uint32(2):
        return base + np.int64(load16(start + 2 * row))
    if size == np.uint32(4):
        return base + np.int64(load32(start + 4 * row))
    return base + load64(start + 8 * row)


@kernel
def _fits(block: int, size: int) -> Any:
    """Return whether all columns of a block lie within its bytes."""
    if size < HEAD_BYTES:
        return False
    count = np.int64(load32(block))
    if HEAD_BYTES + count * np.int64(load32(block + 4)) > size:
        return False
    for column in range(COLUMNS):
        head = block + 8 + 16 * column
        width, offset = np.int64(load32(head + 8)), np.int64(load32(head + 12))
        if width not in _WIDTHS or offset + count * width > size:
            return False
    return np.int64(load32(block + _IDS)) <= np.int64(load32(block + _TEXTS)) <= size


@kernel
def _string_fits(block: int, row: int, column: int, size: Any) -> Any:
    """Return whether a string lies within the bytes of all strings."""
    start = _field(block, column, row - 1) if row > 0 else np.int64(0)
    return np.int64(0) <= start <= _field(block, column, row) <= size


@kernel
def _hold(blocks: I64, sizes: I64, rows: I64, width: int) -> bool:
    """Return whether all documents lie within their blocks."""
    for i in range(len(blocks)):
        block, row = blocks[i], rows[i]
        if not _fits(block, sizes[i]):
            return False
        if row >= np.int64(load32(block)) or np.int64(load32(block + 4)) != width:
            return False
        ids, texts = np.int64(load32(block + _IDS)), np.int64(load32(block + _TEXTS))
        if not _string_fits(block, row, _ID_ENDS, texts - ids):
            return False
        if not _string_fits(block, row, _TEXT_ENDS, sizes[i] - texts):
            return False
    return True


@kernel
def _gather(
    blocks: I64, rows: I64, signatures: U8, fields: I64, id_ends: I64, text_ends: I64
) -> None:
    id_end = text_end = 0
    width = signatures.shape[1]
    for i in range(len(blocks)):
        block, row = blocks[i], rows[i]
        start = block + HEAD_BYTES + width * row
        for k in range(width):
            signatures[i, k] = load8(start + k)
        for column in range(FIELDS):
            fields[i, column] = _field(block, column, row)
        id_end += _field(block, _ID_ENDS, row)
        text_end += _field(block, _TEXT_ENDS, row)
        if row > 0:
            id_end -= _field(block, _ID_ENDS, row - 1)
            text_end -= _field(block, _TEXT_ENDS, row - 1)
        id_ends[i], text_ends[i] = id_end, text_end


@kernel
def _gather_bytes(blocks: I64, rows: I64, column: int, head: int, ends: I64, out: U8) -> None:
    """Copy ids or texts, whose offset stands at ``head`` of a block."""
    filled = 0
    for i in range(len(blocks)):
        block, row = blocks[i], rows[i]
        start = _field(block, column, row - 1) if row > 0 else 0
        source = block + np.int64(load32(block + head)) + start
        while filled < ends[i]:
            out[filled] = load8(source)
            source += 1
            filled += 1


@kernel
def _find_positions(blocks: I64, sizes: I64, sources: I64, offsets: I64, present: Bools) -> bool:
    """Find positions until a block contradicts itself, and return whether none has."""
    count = len(offsets)
    for number in range(len(blocks)):
        block = blocks[number]
        if not _fits(block, sizes[number]):
            return False
        head = block + 8 + 16 * OFFSET
        base, size = load64(head), load32(head + 8)
        first = np.searchsorted(offsets, base)
        # The head of most blocks shows that they hold none of the offsets.
        if first == count:
            continue
        if size < np.uint32(8) and offsets[first] - base >= np.int64(1) << np.int64(8 * size):
            continue
        for row in range(np.int64(load32(block))):
            offset = _field(block, OFFSET, row)
            i = np.searchsorted(offsets, offset)
            while i < count and offsets[i] == offset:
                if sources[i] == _field(block, SOURCE, row):
                    present[i] = True
                i += 1
    return True
