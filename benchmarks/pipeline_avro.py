"""*Blocking.* The documents of the benchmark in Avro, with a schema in a registry."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import fastavro

from benchmarks.pipeline_parties import Party
from deploy.registry import SchemaRegistry

_SCHEMA = {
    "type": "record",
    "name": "Document",
    "fields": [{"name": name, "type": "string"} for name in ("id", "text")],
}
JSON, AVRO = Party("json"), Party("avro")


class AvroEncoder:
    """Encodes documents in the wire format.

    Args:
        registry: gets the schema.

    Attributes:
        settings: the worker's settings for these documents.
    """

    def __init__(self, registry: SchemaRegistry) -> None:
        self._prefix = struct.pack(">bI", 0, registry.register("documents-value", _SCHEMA))
        self._schema = fastavro.parse_schema(_SCHEMA)
        self.settings: dict[str, Any] = {
            "records": {"format": "registry"},
            "registry": registry.settings(),
        }

    def encode(self, document: bytes) -> bytes:
        """Return a JSON document in Avro."""
        buffer = io.BytesIO(self._prefix)
        buffer.seek(0, io.SEEK_END)
        fastavro.schemaless_writer(buffer, self._schema, json.loads(document))
        return buffer.getvalue()
