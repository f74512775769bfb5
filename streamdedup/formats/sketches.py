"""*Pure.* Sketched source ranges, from edges to the judge, and the kept sketches of an archive.

A value holds one range of one partition, in MessagePack. Its first field is the version. Kept
sketches are columns of Arrow. docs/internals/format.md describes both.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np

from streamdedup.batches import SketchedRange
from streamdedup.columns import I64, Positions
from streamdedup.errors import IndexMismatch, TopicError
from streamdedup.formats.arrays import (
    Codec,
    check_range,
    document_fields,
    encoded_parts,
    pack,
    read_documents,
    read_rejections,
    rejection_field,
)
from streamdedup.model import SourceRange

VERSION = 1
KEPT_FORMAT = 1
"""Version of the columns of kept sketches."""
KEPT_TYPES = {
    "format": "int32",
    "fingerprint": "string",
    "clock": "binary",
    "place": "int64",
    "id": "string",
    "event_time_ms": "int64",
    "effective_time_ms": "int64",
    "namespace": "int64",
    "signature": "binary",
    "band_keys": "binary",
    "text": "binary",
}
"""The columns of kept sketches, and their types in Arrow."""
ARCHIVE_TOPIC = "archive"
"""The topic in the positions of documents from an archive; the offset is the place."""


class SketchRow(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A sketched range; docs/internals/format.md describes each field."""

    version: int
    fingerprint: Annotated[str, msgspec.Meta(pattern=r"\A\w{1,64}\Z")]
    source: SourceRange
    ids: bytes
    id_ends: bytes
    offsets: bytes
    event_times_ms: bytes
    namespaces: bytes
    signatures: bytes
    band_keys: bytes
    texts: tuple[bytes, ...] = ()
    blank: bytes = b""
    rejections: dict[int, tuple[str, str, str]] = {}


_CODEC = Codec(
    SketchRow,
    VERSION,
    (TopicError, "a sketched range cannot be read"),
    (
        IndexMismatch,
        (
            "an edge sends sketched ranges of version {found}, this release reads {own}; run the "
            "same release of both"
        ),
    ),
)


def encode(sketched: SketchedRange, fingerprint: str, most_bytes: int) -> list[bytes]:
    """Encode a range as one value, or as several parts of it if one would exceed ``most_bytes``.

    A single record may take more.
    """

    def encode_one(part: SketchedRange) -> bytes:
        return _CODEC.encode(
            fingerprint=fingerprint,
            source=part.source,
            **document_fields(part.documents),
            blank=pack(sorted(part.blank), "<u4"),
            rejections=rejection_field(part.rejections),
        )

    return encoded_parts(sketched, encode_one, lambda part, _: part.halves(), most_bytes)


def decode(data: bytes, fingerprint: str) -> SketchedRange:
    """Decode one value.

    Raises:
        IndexMismatch: it has another version or other sketch parameters.
        TopicError: the bytes are not a sketched range.
    """
    row = _CODEC.decode(data)
    if row.fingerprint != fingerprint:
        raise IndexMismatch(
            f"an edge sketches with parameters {row.fingerprint}, the settings of the judge make "
            f"{fingerprint}; give both the same settings"
        )
    topic, partition, _, _ = row.source

    def positions(offsets: I64) -> Positions:
        check_range(row.source, offsets, row.rejections)
        count = len(offsets)
        none = np.zeros(count, dtype=np.int64)
        return Positions((topic,), none, np.full(count, partition, dtype=np.int64), offsets)

    try:
        documents = read_documents(row, positions)
        blank = frozenset(np.frombuffer(row.blank, dtype="<u4").tolist())
    except ValueError as error:
        raise TopicError(f"a sketched range is inconsistent: {error}") from error
    if max(blank, default=-1) >= len(documents):
        raise TopicError("a sketched range is inconsistent: a row without text does not exist")
    return SketchedRange(row.source, documents, blank, read_rejections(row.rejections))
