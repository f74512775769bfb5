"""*Blocking.* The outputs of a job: how they are opened, and what each gets of a batch.

docs/format.md describes the table of duplicates.

Rule 1: what a batch adds to an output is on disk before the batch is committed.
"""

from __future__ import annotations

from functools import partial
from typing import Any, TypeAlias

import numpy as np

from streamdedup.batches import DUPLICATE, OUTCOMES, JudgedVerdicts, Verdicts
from streamdedup.columns import Positions, RecordColumns, Strings
from streamdedup.engine.arrow import load
from streamdedup.files.compression import Packer, packer
from streamdedup.files.job import Job, Ledger
from streamdedup.files.lines import OutputFile
from streamdedup.files.sources import InputSources, table_kind
from streamdedup.files.table_sink import Content, Format, TableSink, kept_rows
from streamdedup.formats.outputs import (
    SCHEMA_VERSION,
    OutputRule,
    duplicate_record,
    rejected_record,
)
from streamdedup.model import NO_TIMESTAMP, Outcome
from streamdedup.settings.sections import Settings

_SIMILARITY_DIGITS = 6
_SIMILARITIES = ("jaccard_estimate", "jaccard", "age_s")


class _LineSink:
    """An output of lines, after a header of CSV; its methods are those of a :class:`TableSink`.

    It gets the records of the outcome. ``pack`` compresses what a batch adds, unless it is None.
    """

    rows = 0
    """Lines are counted in bytes."""

    def __init__(
        self,
        file: OutputFile,
        outcome: Outcome,
        rule: OutputRule,
        header: bytes,
        pack: Packer | None,
    ) -> None:
        self._file, self._outcome, self._rule, self._pack = file, outcome, rule, pack
        if header and not file.length:
            file.append(pack(header) if pack else header)

    @property
    def length(self) -> int:
        return self._file.length

    def content(self, records: RecordColumns, verdicts: Verdicts) -> bytes:
        """Return the lines of a batch. Only duplicates need their verdicts as objects."""
        rows = verdicts.rows_with(OUTCOMES.index(self._outcome))
        values, rule = records.values, self._rule
        if self._outcome is Outcome.KEPT:
            lines = [values[row] or b"" for row in rows]
        elif self._outcome is Outcome.REJECTED:
            lines = [rejected_record(records[row], verdicts.rejections[row]) for row in rows]
        else:
            lines = [
                duplicate_record(values[row] if rule.include_value else None, verdicts[row], rule)
                for row in rows
            ]
        content = b"\n".join([*lines, b""])
        return self._pack(content) if self._pack and content else content

    def append(self, content: bytes) -> None:
        self._file.append(content)
        self._file.sync()

    def finish(self) -> None:
        """Make an output without content a valid compressed file; others are complete."""
        if self._pack and not self.length:
            self.append(self._pack(b""))

    def clean(self) -> None:
        """Do nothing: there is no spool."""

    def close(self) -> None:
        self._file.close()


Sink: TypeAlias = _LineSink | TableSink
"""An output of a job."""


def open_sink(
    outcome: Outcome, job: Job, sources: InputSources, settings: Settings, ledger: Ledger
) -> Sink:
    """Open an output where earlier runs of the job stopped.

    An InputError says that it cannot be written, or is not what they wrote.
    """
    path, (length, rows) = job.outputs()[outcome], ledger.written(outcome)
    rule, has_index = OutputRule.from_settings(settings), job.index is not None
    kind = table_kind(path)
    if kind is None:
        pack = packer(path)
        file = OutputFile(path, length, durable=has_index)
        header = b""
        if sources.header is not None and outcome is Outcome.KEPT:
            header = sources.header.content + b"\n"
        return _LineSink(file, outcome, rule, header, pack)
    schema = sources.schema
    content: Content = kept_rows
    if outcome is not Outcome.KEPT:
        schema = _duplicate_schema(rule)
        content = partial(_duplicates_table, rule, schema)
    return TableSink(
        path,
        Format(kind, schema, sources.compression),
        content,
        token=ledger.token,
        name=str(outcome),
        spool_length=length if has_index else None,
        rows=rows,
    )


def _duplicate_schema(rule: OutputRule) -> Any:
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


def _duplicates_table(
    rule: OutputRule, schema: Any, records: RecordColumns, verdicts: Verdicts
) -> Any:
    """Return the duplicates of a batch as a table of the schema."""
    if not isinstance(verdicts, JudgedVerdicts):
        raise TypeError("verdicts without the documents of the batch")
    arrow = load()
    rows = np.flatnonzero(verdicts.outcomes == DUPLICATE)
    document_rows = verdicts.document_rows[rows]
    matches = verdicts.matches.take(document_rows)
    similarities = (matches.estimates, matches.jaccards)
    numbers = (*(values.round(_SIMILARITY_DIGITS) for values in similarities), matches.ages_s)
    arrays = [arrow.array(values, mask=np.isnan(values)) for values in numbers]
    of_matches = {
        "id": _strings(matches.ids),
        **_position_columns(matches.positions),
        **dict(zip(_SIMILARITIES, arrays, strict=True)),
    }
    bests = arrow.array(np.concatenate([[0], matches.ends])[:-1])  # the first match of each
    times_ms = verdicts.documents.event_times_ms[document_rows]
    offsets = arrow.array(np.concatenate([[0], matches.ends]), "int32")
    structs = arrow.StructArray.from_arrays([*of_matches.values()], [*of_matches])
    columns = {
        "id": _strings(verdicts.documents.ids.take(document_rows)),
        **_position_columns(verdicts.positions.take(rows)),
        "event_time": arrow.array(times_ms, mask=times_ms == NO_TIMESTAMP).cast(
            arrow.timestamp("ms", "UTC")
        ),
        "original": of_matches["id"].take(bests),
        **{name: of_matches[name].take(bests) for name in _SIMILARITIES},
        "matches": arrow.ListArray.from_arrays(offsets, structs),
    }
    if rule.include_value:
        values = [records.values[row] for row in verdicts.rows_with(DUPLICATE)]
        columns["value"] = arrow.array(values, "binary")
    return arrow.Table.from_pydict(columns, schema)


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
