"""*Pure.* What edges send to the judge: sketched source ranges, described in docs/format.md.

A value holds one range of one partition, in MessagePack. Its first field is the version.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np

from streamdedup.batches import DocumentColumns, SketchedRange, Sketches
from streamdedup.columns import Blobs, Positions
from streamdedup.errors import IndexMismatch, TopicError
from streamdedup.formats.arrays import (
    OtherVersion,
    Unreadable,
    check_range,
    pack,
    pack_strings,
    parse,
    unpack,
    unpack_strings,
)
from streamdedup.model import Rejection, SourceRange

VERSION = 1


class SketchRow(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A sketched range; docs/format.md describes each field."""

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


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(SketchRow)


def encode(sketched: SketchedRange, fingerprint: str, most_bytes: int) -> list[bytes]:
    """Encode a range as one value, or as several parts of it if one would be too large.

    Args:
        sketched: the range.
        fingerprint: fingerprint of the sketch parameters.
        most_bytes: largest value; a single record may take more.
    """
    row = _encode_one(sketched, fingerprint)
    offsets = sorted([*sketched.documents.positions.offsets.tolist(), *sketched.rejections])
    if len(row) <= most_bytes or len(offsets) <= 1:
        return [row]
    _, _, start, stop = sketched.source
    middle = offsets[len(offsets) // 2]
    return [
        value
        for part in (sketched.part(start, middle), sketched.part(middle, stop))
        for value in encode(part, fingerprint, most_bytes)
    ]


def _encode_one(sketched: SketchedRange, fingerprint: str) -> bytes:
    documents = sketched.documents
    ids, id_ends = pack_strings(documents.ids)
    row = SketchRow(
        version=VERSION,
        fingerprint=fingerprint,
        source=sketched.source,
        ids=ids,
        id_ends=id_ends,
        offsets=pack(documents.positions.offsets, "<i8"),
        event_times_ms=pack(documents.event_times_ms, "<i8"),
        namespaces=pack(documents.namespaces, "<u8"),
        signatures=documents.sketches.signatures.tobytes(),
        band_keys=pack(documents.sketches.band_keys, "<u8"),
        texts=tuple(documents.texts),
        blank=pack(sorted(sketched.blank), "<u4"),
        rejections={
            offset: (rejection.stage, rejection.reason, rejection.message)
            for offset, rejection in sketched.rejections.items()
        },
    )
    return _ENCODER.encode(row)


def decode(data: bytes, fingerprint: str) -> SketchedRange:
    """Decode one value.

    Raises:
        IndexMismatch: it has another version or other sketch parameters.
        TopicError: the bytes are not a sketched range.
    """
    row = _parse(data)
    if row.fingerprint != fingerprint:
        raise IndexMismatch(
            f"an edge sketches with parameters {row.fingerprint}, the settings of the judge make "
            f"{fingerprint}; give both the same settings"
        )
    try:
        return SketchedRange(
            row.source,
            _documents(row),
            frozenset(np.frombuffer(row.blank, dtype="<u4").tolist()),
            {offset: Rejection(*why) for offset, why in row.rejections.items()},
        )
    except ValueError as error:
        raise TopicError(f"a sketched range is inconsistent: {error}") from error


def _parse(data: bytes) -> SketchRow:
    try:
        return parse(data, _DECODER, VERSION)
    except Unreadable as error:
        raise TopicError(f"a sketched range cannot be read: {error}") from error
    except OtherVersion as error:
        raise IndexMismatch(
            f"an edge sends sketched ranges of version {error}, this release reads {VERSION}; run "
            "the same release of both"
        ) from error


def _documents(row: SketchRow) -> DocumentColumns:
    """Return the documents, in arrays of their own: kernels have another variant for constants."""
    ids = unpack_strings(row.ids, row.id_ends)
    count = len(ids)
    if len(row.texts) not in (0, count):
        raise ValueError(f"{len(row.texts)} texts for {count} documents")
    topic, partition, _, _ = row.source
    offsets = unpack(row.offsets, "<i8", count).copy()
    check_range(row.source, offsets, row.rejections)
    if row.blank and max(np.frombuffer(row.blank, dtype="<u4")) >= count:
        raise ValueError("a row without text does not exist")
    return DocumentColumns(
        ids=ids,
        positions=Positions(
            (topic,),
            np.zeros(count, dtype=np.int64),
            np.full(count, partition, dtype=np.int64),
            offsets,
        ),
        event_times_ms=unpack(row.event_times_ms, "<i8", count).copy(),
        namespaces=unpack(row.namespaces, "<u8", count).copy(),
        sketches=Sketches(
            signatures=unpack(row.signatures, "u1", count, columns=True).copy(),
            band_keys=unpack(row.band_keys, "<u8", count, columns=True).copy(),
        ),
        texts=Blobs.of(row.texts),
    )
