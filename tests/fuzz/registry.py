"""*Pure.* The targets: how much of the time each gets, and which modules it covers."""

from __future__ import annotations

from typing import NamedTuple


class Target(NamedTuple):
    """A target.

    Attributes:
        name: its name on the command line.
        place: its module in this folder, and its context manager there, which yields a block.
        share: its part of the time, in relation to the others.
        covers: the modules of streamdedup whose lines it should reach.
    """

    name: str
    place: str
    share: int
    covers: tuple[str, ...]


TARGETS = (
    Target("records", "fuzz_records.records", 12, ("formats.records",)),
    Target("schemas", "fuzz_schemas.values", 8, ("formats.written", "formats.avro",
           "formats.protobuf", "formats.objects")),
    Target("batches", "fuzz_records.batches", 5, ("engine.prepare", "sketch.sketcher",
           "sketch.shingle", "sketch.minhash", "sketch.words")),
    Target("normalise", "fuzz_sketch.normalise", 16, ("sketch.normalize", "sketch.batch",
           "sketch.fold")),
    Target("signatures", "fuzz_sketch.signatures", 2, ("sketch.codec",)),
    Target("texts", "fuzz_formats.texts", 4, ("sketch.texts",)),
    Target("positions", "fuzz_formats.positions", 4, ("model",)),
    Target("columns", "fuzz_formats.strings", 6, ("columns",)),
    Target("changelog", "fuzz_formats.changelog_bytes", 10, ("formats.changelog",)),
    Target("entries", "fuzz_formats.changelog_fields", 6, ("formats.changelog",)),
    Target("sketches", "fuzz_split.sketched_ranges", 5, ("formats.sketches", "formats.arrays")),
    Target("verdicts", "fuzz_split.judged_ranges", 5, ("formats.verdicts",)),
    Target("clock", "fuzz_formats.clocks", 4, ("dedup.clock",)),
    Target("corrections", "fuzz_formats.corrections", 5, ("formats.corrections",)),
    Target("headers", "fuzz_formats.headers", 4, ("index.layout",)),
    Target("index", "fuzz_index.damaged", 10, ("index.manifest", "index.directory",
           "index.segment", "index.blocks", "index.postings")),
    Target("exports", "fuzz_index.exports", 4, ("index.archive",)),
    Target("units", "fuzz_settings.units", 5, ("settings.units",)),
    Target("settings", "fuzz_settings.settings", 10, ("settings.load", "settings.units",
           "settings.sections", "settings.dedup", "settings.kafka")),
    Target("http", "fuzz_http.requests", 8, ("observe.status", "observe.page")),
)  # fmt: skip
"""Every target, in the order in which they run."""
