"""*Pure.* Changelog entries: index updates in MessagePack, described in docs/format.md.

An entry is a map, and its first field is the version. Columns are the bytes of little-endian numpy
arrays, so that decoding needs no loop over the documents.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import msgspec
import numpy as np

from streamdedup.batches import DocumentColumns, IndexUpdate, Sketches
from streamdedup.columns import Blobs, Positions
from streamdedup.errors import IndexDamaged, IndexMismatch
from streamdedup.formats.arrays import (
    OtherVersion,
    Unreadable,
    has_version,
    pack,
    pack_strings,
    parse,
    unpack,
    unpack_strings,
)
from streamdedup.model import SourceRange

VERSION = 4


class Entry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A changelog entry; docs/format.md describes each field."""

    version: int
    fingerprint: Annotated[str, msgspec.Meta(pattern=r"\A\w{1,64}\Z")]
    first_number: Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
    ranges: list[SourceRange]
    ids: bytes
    id_ends: bytes
    topics: list[str]
    topic_indices: bytes
    partitions: bytes
    offsets: bytes
    event_times_ms: bytes
    effective_times_ms: bytes
    namespaces: bytes
    signatures: bytes
    band_keys: bytes
    texts: tuple[bytes, ...] = ()
    clock: bytes = b""
    deleted: bytes = b""
    is_ahead: bool = False


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Entry)


def encode(update: IndexUpdate, fingerprint: str, most_bytes: int) -> list[bytes]:
    """Encode an update as one entry, or as several if one would be too large.

    Only the last entry has the source ranges, the clock and the deletions, so that positions count
    as judged after all documents are in the index.

    Args:
        update: the update.
        fingerprint: fingerprint of the sketch parameters.
        most_bytes: largest entry.

    Raises:
        ValueError: an entry with one document is too large.
    """
    documents = update.documents
    entry = _encode_one(update, fingerprint)
    if len(entry) <= most_bytes:
        return [entry]
    if len(documents) <= 1:
        raise ValueError(
            f"a changelog entry of one document takes {len(entry)} bytes, "
            f"batch.changelog_entry_bytes is {most_bytes}; raise batch.changelog_entry_bytes"
        )
    middle = len(documents) // 2
    head = replace(
        update,
        documents=documents.take(np.arange(middle)),
        ranges=(),
        effective_times_ms=update.effective_times_ms[:middle],
        clock=b"",
        deleted=(),
    )
    tail = replace(
        update,
        first_number=update.first_number + middle,
        documents=documents.take(np.arange(middle, len(documents))),
        effective_times_ms=update.effective_times_ms[middle:],
    )
    return [*encode(head, fingerprint, most_bytes), *encode(tail, fingerprint, most_bytes)]


def _encode_one(update: IndexUpdate, fingerprint: str) -> bytes:
    documents = update.documents
    positions = documents.positions
    ids, id_ends = pack_strings(documents.ids)
    entry = Entry(
        version=VERSION,
        fingerprint=fingerprint,
        first_number=update.first_number,
        ranges=list(update.ranges),
        ids=ids,
        id_ends=id_ends,
        topics=list(positions.topics),
        topic_indices=pack(positions.topic_indices, "<u4"),
        partitions=pack(positions.partitions, "<i4"),
        offsets=pack(positions.offsets, "<i8"),
        event_times_ms=pack(documents.event_times_ms, "<i8"),
        effective_times_ms=pack(update.effective_times_ms, "<i8"),
        namespaces=pack(documents.namespaces, "<u8"),
        signatures=documents.sketches.signatures.tobytes(),
        band_keys=pack(documents.sketches.band_keys, "<u8"),
        texts=tuple(documents.texts),
        clock=update.clock,
        deleted=pack(update.deleted, "<i8"),
        is_ahead=update.is_ahead,
    )
    return _ENCODER.encode(entry)


def is_entry(data: bytes) -> bool:
    """Tell whether the value of a record is an entry, of any version.

    A record of another program can be left out: the numbers of the documents show if an entry is
    missing.
    """
    return has_version(data)


def decode(data: bytes, fingerprint: str) -> IndexUpdate:
    """Decode one entry.

    Raises:
        IndexMismatch: the entry has another version or other sketch parameters.
        IndexDamaged: the bytes are not an entry.
    """
    entry = _parse(data)
    if entry.fingerprint != fingerprint:
        raise IndexMismatch(
            f"the changelog was written with parameters {entry.fingerprint}, the settings make "
            f"{fingerprint}; restore the settings, or choose a new changelog topic and index"
        )
    try:
        return IndexUpdate(
            entry.first_number,
            _documents(entry),
            tuple(entry.ranges),
            unpack(entry.effective_times_ms, "<i8", len(entry.id_ends) // 4),
            entry.clock,
            tuple(np.frombuffer(entry.deleted, dtype="<i8").tolist()),
            entry.is_ahead,
        )
    except (ValueError, IndexError) as error:
        raise IndexDamaged(f"a changelog entry is inconsistent: {error}") from error


def _parse(data: bytes) -> Entry:
    """Parse an entry whose version is ``VERSION``."""
    try:
        return parse(data, _DECODER, VERSION)
    except Unreadable as error:
        raise IndexDamaged(f"a changelog entry cannot be read: {error}") from error
    except OtherVersion as error:
        raise IndexMismatch(
            f"the changelog holds entries of version {error}, this release reads {VERSION}; "
            "use the release that wrote it, or choose a new changelog topic and index"
        ) from error


def _documents(entry: Entry) -> DocumentColumns:
    ids = unpack_strings(entry.ids, entry.id_ends)
    count = len(ids)
    if len(entry.texts) not in (0, count):
        raise ValueError(f"{len(entry.texts)} texts for {count} documents")
    topics, partitions, offsets = (
        unpack(data, kind, count).astype(np.int64)
        for data, kind in (
            (entry.topic_indices, "<u4"),
            (entry.partitions, "<i4"),
            (entry.offsets, "<i8"),
        )
    )
    if count and topics.max() >= len(entry.topics):
        raise ValueError(f"topic {topics.max()} of {len(entry.topics)}")
    return DocumentColumns(
        ids=ids,
        positions=Positions(tuple(entry.topics), topics, partitions, offsets),
        event_times_ms=unpack(entry.event_times_ms, "<i8", count),
        namespaces=unpack(entry.namespaces, "<u8", count),
        sketches=Sketches(
            signatures=unpack(entry.signatures, "u1", count, columns=True),
            band_keys=unpack(entry.band_keys, "<u8", count, columns=True),
        ),
        texts=Blobs.of(entry.texts),
    )
