"""*Pure.* Duplicates as a table; docs/format.md describes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamdedup.batches import DUPLICATE, Verdicts
from streamdedup.columns import RecordColumns
from streamdedup.engine.arrow import load
from streamdedup.formats.outputs import SCHEMA_VERSION, OutputRule
from streamdedup.model import NO_TIMESTAMP, Match, Verdict

_SIMILARITY_DIGITS = 6


def duplicate_schema(rule: OutputRule) -> Any:
    """Return the schema of the table; its metadata has what all rows have in common."""
    arrow = load()
    text, number = arrow.string(), arrow.float64()
    position = [("topic", text), ("partition", arrow.int32()), ("offset", arrow.int64())]
    similarities = [("jaccard_estimate", number), ("jaccard", number), ("age_s", number)]
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
        rows = []
        for row in verdicts.rows_with(DUPLICATE):
            fields = _row(verdicts[row])
            if rule.include_value:
                fields["value"] = records.values[row]
            rows.append(fields)
        return load().Table.from_pylist(rows, schema)

    return content


def _row(verdict: Verdict) -> dict[str, Any]:
    matches = [_match(match) for match in verdict.matches]
    best = matches[0]
    time_ms = verdict.event_time_ms
    return {
        **best,
        "id": verdict.id,
        **verdict.position._asdict(),
        "event_time": None if time_ms == NO_TIMESTAMP else time_ms,
        "original": best["id"],
        "matches": matches,
    }


def _match(match: Match) -> dict[str, Any]:
    jaccard = match.jaccard
    return {
        "id": match.id,
        **match.position._asdict(),
        "jaccard_estimate": round(match.jaccard_estimate, _SIMILARITY_DIGITS),
        "jaccard": None if jaccard is None else round(jaccard, _SIMILARITY_DIGITS),
        "age_s": match.age_s,
    }
