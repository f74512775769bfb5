"""*Blocking.* The outputs of a job: how they are opened, and what each gets of a batch.

Rule 1: what a batch adds to an output is on disk before the batch is committed.
"""

from __future__ import annotations

from typing import TypeAlias

from streamdedup.batches import OUTCOMES, Verdicts
from streamdedup.columns import RecordColumns
from streamdedup.files.duplicates import duplicate_schema, duplicates_table
from streamdedup.files.job import Job, Ledger
from streamdedup.files.lines import OutputFile
from streamdedup.files.pack import Packer, packer
from streamdedup.files.sources import InputSources, table_kind
from streamdedup.files.table_sink import Content, Format, TableSink, kept_rows
from streamdedup.formats.outputs import OutputRule, duplicate_record, rejected_record
from streamdedup.model import Outcome
from streamdedup.settings.sections import Settings


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
    """Open the output of an outcome where the job's earlier runs stopped.

    Raises:
        InputError: it cannot be written, or is not what earlier runs wrote.
    """
    path, length = job.outputs()[outcome], ledger.length(outcome)
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
        schema = duplicate_schema(rule)
        content = duplicates_table(rule, schema)
    return TableSink(
        path,
        Format(kind, schema, sources.compression),
        content,
        token=ledger.token,
        name=str(outcome),
        spool_length=length if has_index else None,
        rows=ledger.rows(outcome),
    )
