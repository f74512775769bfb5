"""*Pure.* The records of the manifest, in MessagePack; docs/format.md specifies them."""

from __future__ import annotations

import msgspec


class Checkpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state that all segments together represent.

    Attributes:
        applied: changelog offset up to which entries are applied, exclusive.
        next_number: number of the next kept document.
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
    """A file, and the values in it, in ascending order of their keys.

    Attributes:
        name: its name.
        size: its bytes.
        sum: its XXH3-64.
        places: int64: where each value begins in the file.
        sizes: uint32: bytes of each value.
        sums: uint64: XXH3-64 of each value.
    """

    name: str
    size: int
    sum: int
    places: bytes = b""
    sizes: bytes = b""
    sums: bytes = b""


class ShardEntry(msgspec.Struct, frozen=True):
    """The postings of a range of columns.

    Attributes:
        file: the file that holds them: the chunks of each column, then the filter bits of each.
        first_column: the first column of the range.
        starts: ``(columns, 257)`` uint32: where each sub begins in its column, and the end.
        chunk_bits: a column is split into ``2 ** chunk_bits`` values.
        plane_bytes: bytes of a column's filter bits; 0 if they are not stored.
    """

    file: FileEntry
    first_column: int
    starts: bytes
    chunk_bits: int
    plane_bytes: int = 0


class SegmentEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """An immutable segment.

    Attributes:
        name: name of its directory.
        first: number of its first document; the other numbers follow without gaps.
        count: number of documents.
        oldest_ms: earliest effective time.
        newest_ms: latest effective time.
        documents: the file of the documents; its values are the blocks.
        shards: the postings.
        parts: bytes of each kind of value: ``documents``, ``postings``, ``filter``.
        filter_first: number of the first document whose keys the stored filter bits hold as well;
            -1 if they hold only those of the segment.
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

    Attributes:
        update: the changelog entry.
        notes: what the transport asked to remember; an empty note removes the one before it.
        forgotten: topic and partition of the sources to forget after the update.
    """

    update: bytes
    notes: dict[str, bytes]
    forgotten: list[tuple[str, int]] = []
