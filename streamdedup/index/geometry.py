"""*Pure.* The sizes that an index is built with, and the bytes of a document that follow."""

from __future__ import annotations

import math
from dataclasses import dataclass

from streamdedup.settings.sections import IndexSettings
from streamdedup.sketch.parameters import SketchParameters

POSTING_BYTES = 7
"""Bytes of a posting on disk: 4 of the band key and 3 of the document's number."""
MOST_DOCUMENTS = 1 << 24
"""Most documents of a segment: a posting has 24 bits for the number."""
SLOTS = 8
"""Slots of a bank of filters: the bits of a byte."""
_FILTER_BYTES = 1.25
"""Bytes of a key in a stored filter."""
_OTHER_BYTES = 39
"""Bytes of an id of 20 characters, of times and position, and of the rounding to pages."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes that an index is built with.

    Attributes:
        columns: columns of the band keys: one for each band, and one for the whole text.
        width: bytes of a signature.
        bucket_size: postings of a key that are kept.
        shards: the range of columns of each file of postings.
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
        return cls(
            columns=columns,
            width=parameters.signature_bytes,
            bucket_size=settings.bucket_size,
            shards=[range(edges[shard], edges[shard + 1]) for shard in range(shards)],
        )

    @property
    def document_bytes(self) -> int:
        """Bytes that a kept document takes on disk, without its text.

        341 under the default settings, as measured with 10 million documents (docs/sizing.md).
        """
        return math.ceil(self.width + self.columns * (POSTING_BYTES + _FILTER_BYTES) + _OTHER_BYTES)
