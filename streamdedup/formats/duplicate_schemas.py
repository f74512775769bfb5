"""*Blocking* (reads a file of the package). The schemas of duplicate records, for a registry."""

from __future__ import annotations

from importlib import resources
from typing import Literal

from streamdedup.formats.schemas import Schema


def duplicates_schema(form: Literal["json", "avro"]) -> Schema:
    """Return the schema of duplicate records, for a registry."""
    name = "duplicate-record.avsc" if form == "avro" else "duplicate-record.schema.json"
    path = resources.files("streamdedup.formats") / "published" / name
    return Schema("AVRO" if form == "avro" else "JSON", path.read_text(encoding="utf-8"))
