"""*Pure.* The names of a segment's files, and the keys of their values.

The file of the documents: ``d`` + u32 block -> a block (:mod:`streamdedup.index.blocks`).
The file of a shard: ``c`` + u16 column, u8 chunk -> postings (:mod:`streamdedup.index.postings`);
``f`` + u16 column -> filter bits, if they are stored. Integers are big-endian, so that LMDB's order
of keys is their order.
"""

from __future__ import annotations

DOCUMENTS_FILE = "documents.mdb"


def shard_file(shard: int) -> str:
    """Return the name of a shard's file."""
    return f"shard-{shard:03}.mdb"


def block_key(block: int) -> bytes:
    """Return the key of a block of documents."""
    return b"d" + block.to_bytes(4, "big")


def chunk_key(column: int, chunk: int) -> bytes:
    """Return the key of a chunk of a column's postings."""
    return b"c" + column.to_bytes(2, "big") + bytes([chunk])


def plane_key(column: int) -> bytes:
    """Return the key of a column's filter bits."""
    return b"f" + column.to_bytes(2, "big")
