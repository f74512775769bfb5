"""*Pure.* What an index writes to disk: header, records, files; see docs/internals/stored-index.md.

The file of the documents: ``d`` + u32 block -> a block (:mod:`streamdedup.index.blocks`).
The file of a shard: ``c`` + u16 column, u8 chunk -> postings (:mod:`streamdedup.index.postings`);
``f`` + u16 column -> filter bits, if they are stored. Integers are big-endian, so that LMDB's order
of keys is their order.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from streamdedup.errors import REMEDY, IndexDamaged, IndexMismatch
from streamdedup.settings.sections import IndexSettings
from streamdedup.sketch.normalize import resolve
from streamdedup.sketch.parameters import UNKNOWN_SEED, SketchParameters

FORMAT = 4
"""Version of the layout on disk; docs/internals/stored-index.md specifies it."""
DOCUMENTS_FILE = "documents.mdb"
POSTING_BYTES = 7
"""Bytes of a posting on disk: 4 of the band key and 3 of the document's number."""
MOST_CHUNK_BITS = 8
"""A column has at most as many chunks as subs."""
MOST_DOCUMENTS = 1 << 24
"""Most documents of a segment: a posting has 24 bits for the number."""
_FILTER_BYTES = 1.25
"""Bytes of a key in a stored filter."""
_OTHER_BYTES = 39
"""Bytes of an id of 20 characters, of times and position, and of the rounding to pages."""


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The identity of an index: its format, its sketch parameters, and its changelog."""

    format: int
    parameters: dict[str, int | str | bool]
    log: str


def decode_header(raw: bytes, directory: Path) -> Header:
    """Decode a header.

    Raises:
        IndexMismatch: the index has another format.
        IndexDamaged: the bytes are not a header.
    """
    try:
        layout = msgspec.json.decode(raw).get("format")
        if layout != FORMAT:
            raise IndexMismatch(
                f"{directory} has index format {layout}, this release reads {FORMAT}; use the "
                f"release that wrote it, or {REMEDY}"
            )
        return msgspec.json.decode(raw, type=Header)
    except (msgspec.MsgspecError, UnicodeDecodeError, AttributeError, RecursionError) as error:
        raise IndexDamaged(f"{directory}: the header cannot be read: {error}") from error


def difference(stored: Header, expected: Header) -> str:
    """Say in which way a stored header differs from the expected one, and what to do."""
    old, new = stored.parameters, expected.parameters
    names = [name for name in new if name not in ("seed", "seed_hash")]
    secrets = []
    if old.get("seed_hash") == new.get("seed_hash"):
        names.append("seed")
    elif "seed_hash" not in old:
        secrets.append(f"seed {old.get('seed')} (the settings have a dedup.seed_file)")
    elif "seed_hash" not in new:
        secrets.append("a secret seed (the settings have no dedup.seed_file)")
    else:
        secrets.append("another secret seed than that in dedup.seed_file")
    differences = [
        f"{name} {old.get(name)} (the settings say {new.get(name)})"
        for name in names
        if old.get(name) != new.get(name)
    ] + secrets
    if differences:
        return (
            f"the index was built with {', '.join(differences)}; restore the settings, or use "
            "another index directory and changelog; if the other worker of a pair has these "
            "settings, remove this index directory: a worker rebuilds it from their changelog"
        )
    return f"the index belongs to {stored.log}, not to {expected.log}; use another directory"


def parameters_of(header: Header) -> SketchParameters:
    """Return the sketch parameters that an index was built with.

    Raises:
        IndexMismatch: this release does not support such sketches.
    """
    names = {field.name for field in fields(SketchParameters)}
    values = {name: value for name, value in header.parameters.items() if name in names}
    if values.get("seed_hash"):
        values["seed"] = UNKNOWN_SEED
    try:
        parameters = SketchParameters(**values)  # type: ignore[arg-type] # compared below
        version = resolve(parameters.profile).version
        described = {**parameters.described(), "profile_version": version}
    except (TypeError, ValueError) as error:
        message = f"the index's parameters are not valid in this release: {error}"
        raise IndexMismatch(message) from None
    if described != header.parameters:
        raise IndexMismatch(
            "the index was built by a release that sketches texts differently; use that release"
        )
    return parameters


class Checkpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state that all segments together represent.

    Attributes:
        applied: changelog offset up to which entries are applied, exclusive.
        clock: state of the clock of the stream; empty for a new clock.
        sources: topic, partition and next offset of each source; a source's number is its index.
            A free number has the topic "" and the partition -1.
        written: of each source the offset behind the outputs that a worker wrote last; empty if
            these are the next offsets.
        notes: what the transport asked to remember.
        has_all_texts: whether every document came with its text.
    """

    applied: int = 0
    next_number: int = 0
    clock: bytes = b""
    sources: list[tuple[str, int, int]] = []
    written: list[int] = []
    notes: dict[str, bytes] = {}
    has_all_texts: bool = True


class FileEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file, its XXH3-64, and the values in it, in ascending order of their keys.

    Of each value, there is the offset in the file (int64; ``places`` on disk), the number of bytes
    (uint32), and the XXH3-64 (uint64).
    """

    name: str
    size: int
    sum: int
    offsets: bytes = msgspec.field(name="places", default=b"")
    sizes: bytes = b""
    sums: bytes = b""


class ShardEntry(msgspec.Struct, frozen=True):
    """The postings of a range of columns: a file of their chunks, then of their filter bits.

    A column is split into ``2 ** chunk_bits`` chunks. ``starts`` is ``(columns, 257)`` uint32: the
    start of each sub in its column, and the end. A column has ``plane_bytes`` of filter bits; 0 if
    they are not stored.
    """

    file: FileEntry
    first_column: int
    starts: bytes
    chunk_bits: int
    plane_bytes: int = 0


class SegmentEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """An immutable segment of ``count`` documents, named like its directory.

    Their numbers follow on ``first`` without gaps; the blocks are the values of ``documents``. The
    times are the earliest and the latest effective time. ``parts`` are the bytes of each kind of
    value: ``documents``, ``postings``, ``filter``. The stored filter bits also hold the keys of the
    documents from ``filter_first`` on, if it is not -1.
    """

    name: str
    first: int
    count: int
    oldest_ms: int
    newest_ms: int
    documents: FileEntry
    shards: list[ShardEntry]
    parts: dict[str, int]
    filter_first: int = -1

    @property
    def filter_documents(self) -> range:
        """The numbers of the documents that the stored filter bits let through; maybe none."""
        if not self.stores_filter:
            return range(self.end, self.end)
        return range(self.first if self.filter_first < 0 else self.filter_first, self.end)

    @property
    def end(self) -> int:
        """The number after the last document's."""
        return self.first + self.count

    @property
    def files(self) -> list[FileEntry]:
        """All files."""
        return [self.documents, *(shard.file for shard in self.shards)]

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.size for file in self.files)

    @property
    def stores_filter(self) -> bool:
        """Whether every shard stores its filter bits."""
        return all(shard.plane_bytes > 0 for shard in self.shards)


class Tail(msgspec.Struct, frozen=True, array_like=True):
    """An update that no segment holds yet, if there is no changelog to read it from.

    It is the changelog entry, with notes (an empty note deletes its key), and with the sources to
    forget after it.
    """

    update: bytes
    notes: dict[str, bytes]
    forgotten: list[tuple[str, int]] = []


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


def sum_of(value: Any, seed: int = 0) -> int:
    """Return the checksum of bytes, or of an array's bytes."""
    return xxhash.xxh3_64_intdigest(value, seed)


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes that an index is built with.

    There is a column of band keys for each band, and one for the whole text. ``width`` is the bytes
    of a signature, ``bucket_size`` the postings of a key that are kept. Each file of postings has
    a range of the columns.
    """

    columns: int
    width: int
    bucket_size: int
    shards: list[range]

    @classmethod
    def of(cls, settings: IndexSettings, parameters: SketchParameters) -> Geometry:
        """Return the sizes that follow from the settings."""
        columns = parameters.bands + 1
        shards = min(settings.shards, columns)
        edges = [columns * shard // shards for shard in range(shards + 1)]
        ranges = list(itertools.starmap(range, itertools.pairwise(edges)))
        return cls(columns, parameters.signature_bytes, settings.bucket_size, ranges)

    @property
    def document_bytes(self) -> int:
        """Bytes that a kept document takes on disk, without its text.

        341 under the default settings, as measured with 10 million documents (docs/sizing.md).
        """
        return math.ceil(self.width + self.columns * (POSTING_BYTES + _FILTER_BYTES) + _OTHER_BYTES)
