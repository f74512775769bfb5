"""*Pure.* Changelog entries: index updates in MessagePack, described in docs/internals/format.md.

An entry is a map, and its first field is the version. Columns are the bytes of little-endian numpy
arrays, so that decoding needs no loop over the documents.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import msgspec
import numpy as np

from streamdedup.batches import IndexUpdate
from streamdedup.errors import IndexDamaged, IndexMismatch
from streamdedup.formats.arrays import (
    Codec,
    document_fields,
    encoded_parts,
    pack,
    position_fields,
    read_documents,
    read_positions,
    unpack,
)
from streamdedup.model import SourceRange

VERSION = 4


class ChangelogEntry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A changelog entry; docs/internals/format.md describes each field."""

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


_CODEC = Codec(
    ChangelogEntry,
    VERSION,
    (IndexDamaged, "a changelog entry cannot be read"),
    (
        IndexMismatch,
        (
            "the changelog holds entries of version {found}, this release reads {own}; "
            "use the release that wrote it, or choose a new changelog topic and index"
        ),
    ),
)


def encode(update: IndexUpdate, fingerprint: str, most_bytes: int) -> list[bytes]:
    """Encode an update as one entry, or as several if one would exceed ``most_bytes``.

    Only the last entry has the source ranges, the clock and the deletions, so that positions count
    as judged after all documents are in the index.

    Raises:
        ValueError: an entry with one document is too large.
    """

    def encode_one(part: IndexUpdate) -> bytes:
        return _CODEC.encode(
            fingerprint=fingerprint,
            first_number=part.first_number,
            ranges=list(part.ranges),
            **document_fields(part.documents),
            **position_fields(part.documents.positions),
            effective_times_ms=pack(part.effective_times_ms, "<i8"),
            clock=part.clock,
            deleted=pack(part.deleted, "<i8"),
            is_ahead=part.is_ahead,
        )

    def halves(part: IndexUpdate, size: int) -> Sequence[IndexUpdate]:
        if len(part.documents) <= 1:
            raise ValueError(
                f"a changelog entry of one document takes {size} bytes, "
                f"batch.changelog_entry_bytes is {most_bytes}; raise batch.changelog_entry_bytes"
            )
        middle, first = len(part.documents) // 2, part.first_number
        head = IndexUpdate(
            first,
            part.documents.take(slice(middle)),
            ranges=(),
            effective_times_ms=part.effective_times_ms[:middle],
        )
        tail = replace(
            part,
            first_number=first + middle,
            documents=part.documents.take(slice(middle, None)),
            effective_times_ms=part.effective_times_ms[middle:],
        )
        return head, tail

    return encoded_parts(update, encode_one, halves, most_bytes)


def decode(data: bytes, fingerprint: str) -> IndexUpdate:
    """Decode one entry.

    Raises:
        IndexMismatch: the entry has another version or other sketch parameters.
        IndexDamaged: the bytes are not an entry.
    """
    entry = _CODEC.decode(data)
    if entry.fingerprint != fingerprint:
        raise IndexMismatch(
            f"the changelog was written with parameters {entry.fingerprint}, the settings make "
            f"{fingerprint}; restore the settings, or choose a new changelog topic and index"
        )
    positions = functools.partial(
        read_positions, entry.topics, entry.topic_indices, entry.partitions
    )
    try:
        documents = read_documents(entry, positions)
        return IndexUpdate(
            entry.first_number,
            documents,
            tuple(entry.ranges),
            unpack(entry.effective_times_ms, "<i8", len(documents)),
            entry.clock,
            tuple(np.frombuffer(entry.deleted, dtype="<i8").tolist()),
            entry.is_ahead,
        )
    except (ValueError, IndexError) as error:
        raise IndexDamaged(f"a changelog entry is inconsistent: {error}") from error
