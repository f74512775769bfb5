"""*Pure.* What an archive hands over to a stream: the columns of its kept sketches.

docs/internals/format.md describes them. Their types are those of Arrow.
"""

from __future__ import annotations

FORMAT = 1
"""Version of the columns."""
TOPIC = "archive"
"""The topic in the positions of documents from an archive; the offset is the place."""
TYPES = {
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
