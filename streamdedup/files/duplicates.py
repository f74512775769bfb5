"""*Pure.* Duplicates as a table; docs/format.md describes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streamdedup.batches import DUPLICATE, JudgedVerdicts, MatchColumns, Verdicts
from streamdedup.columns import Positions, RecordColumns, Strings
from streamdedup.engine.arrow import load
from streamdedup.formats.outputs import SCHEMA_VERSION, OutputRule
from streamdedup.model import NO_TIMESTAMP

_SIMILARITY_DIGITS = 6
_SIMILARITIES = ("jaccard_estimate", "jaccard", "age_s")


def duplicate_schema(rule: OutputRule) -> Any:
    """Return the schema of the table; its metadata has what all rows have in common."""
    arrow = load()
    text, number = arrow.string(), arrow.float64()
    position = [("topic", text), ("partition", arrow.int32()), ("offset", arrow.int64())]
    similarities = [(name, number) for name in _SIMILARITIES]
    columns = [
        ("id", text),
        *position,
        ("event_time", arrow.timestamp("ms", "UTC")),
        ("original", text),
        *similarities,
        ("matches", arrow.list_(arrow.struct([("id", text), *position, *similarities]))),
    ]
    if rule.include_value:
        columns.append(("value", arrow.binary()))
    metadata = {
        "streamdedup.schema_version": str(SCHEMA_VERSION),
        "streamdedup.threshold": str(rule.threshold),
        "streamdedup.fingerprint": rule.fingerprint,
    }
    return arrow.schema(columns, metadata)


def duplicates_table(rule: OutputRule, schema: Any) -> Callable[[RecordColumns, Verdicts], Any]:
    """Return a function that returns the duplicates of a batch as a table of the schema."""

    def content(records: RecordColumns, verdicts: Verdicts) -> Any:
        if not isinstance(verdicts, JudgedVerdicts):
            raise TypeError("verdicts without the documents of the batch")
        columns = _columns(verdicts)
        if rule.include_value:
            rows = verdicts.rows_with(DUPLICATE)
            columns["value"] = load().array([records.values[row] for row in rows], "binary")
        return load().Table.from_pydict(columns, schema)

    return content


def _columns(verdicts: JudgedVerdicts) -> dict[str, Any]:
    arrow = load()
    rows = np.flatnonzero(verdicts.outcomes == DUPLICATE)
    document_rows = verdicts.document_rows[rows]
    matches = verdicts.matches.take(document_rows)
    of_matches = _match_columns(matches)
    bests = arrow.array(np.concatenate([[0], matches.ends])[:-1])  # the first match of each
    times_ms = verdicts.documents.event_times_ms[document_rows]
    offsets = arrow.array(np.concatenate([[0], matches.ends]), "int32")
    structs = arrow.StructArray.from_arrays([*of_matches.values()], [*of_matches])
    return {
        "id": _strings(verdicts.documents.ids.take(document_rows)),
        **_position_columns(verdicts.positions.take(rows)),
        "event_time": arrow.array(times_ms, mask=times_ms == NO_TIMESTAMP).cast(
            arrow.timestamp("ms", "UTC")
        ),
        "original": of_matches["id"].take(bests),
        **{name: of_matches[name].take(bests) for name in _SIMILARITIES},
        "matches": arrow.ListArray.from_arrays(offsets, structs),
    }


def _match_columns(matches: MatchColumns) -> dict[str, Any]:
    similarities = (matches.estimates, matches.jaccards)
    numbers = (*(values.round(_SIMILARITY_DIGITS) for values in similarities), matches.ages_s)
    arrays = [load().array(values, mask=np.isnan(values)) for values in numbers]
    return {
        "id": _strings(matches.ids),
        **_position_columns(matches.positions),
        **dict(zip(_SIMILARITIES, arrays, strict=True)),
    }


def _position_columns(positions: Positions) -> dict[str, Any]:
    arrow = load()
    topics = arrow.array(positions.topics, "string")
    return {
        "topic": topics.take(arrow.array(positions.topic_indices)),
        "partition": arrow.array(positions.partitions, "int32"),
        "offset": arrow.array(positions.offsets),
    }


def _strings(column: Strings) -> Any:
    """Return a column of strings as an array of Arrow, without a copy of the text."""
    arrow = load()
    offsets = np.concatenate([[0], column.ends]).astype(np.int32)
    data = arrow.py_buffer(np.ascontiguousarray(column.data))
    return arrow.StringArray.from_buffers(len(column), arrow.py_buffer(offsets), data)
