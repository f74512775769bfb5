"""*Blocking.* Opens the outputs of a job."""

from __future__ import annotations

from streamdedup.files.duplicates import duplicate_schema, duplicates_table
from streamdedup.files.job import Job, Ledger
from streamdedup.files.lines import OutputFile
from streamdedup.files.pack import packer
from streamdedup.files.sinks import LineSink, Sink
from streamdedup.files.sources import InputSources, table_kind
from streamdedup.files.table_sink import Content, Format, TableSink, kept_rows
from streamdedup.formats.outputs import OutputRule
from streamdedup.model import Outcome
from streamdedup.settings.sections import Settings


class Sinks:
    """Opens the outputs of a job where its earlier runs stopped."""

    def __init__(self, job: Job, sources: InputSources, settings: Settings, ledger: Ledger) -> None:
        self._paths = job.outputs()
        self._has_index = job.index is not None
        self._sources = sources
        self._ledger = ledger
        self._rule = OutputRule.from_settings(settings)

    def open(self, outcome: Outcome) -> Sink:
        """Open an output.

        Raises:
            InputError: it cannot be written, or is not what earlier runs wrote.
        """
        path, length = self._paths[outcome], self._ledger.length(outcome)
        kind = table_kind(path)
        if kind is None:
            pack = packer(path)
            file = OutputFile(path, length, durable=self._has_index)
            return LineSink(file, outcome, self._rule, self._header(outcome), pack)
        schema = self._sources.schema
        content: Content = kept_rows
        if outcome is not Outcome.KEPT:
            schema = duplicate_schema(self._rule)
            content = duplicates_table(self._rule, schema)
        return TableSink(
            path,
            Format(kind, schema, self._sources.compression),
            content,
            token=self._ledger.token,
            name=str(outcome),
            spool_length=length if self._has_index else None,
            rows=self._ledger.rows(outcome),
        )

    def _header(self, outcome: Outcome) -> bytes:
        header = self._sources.header
        return b"" if header is None or outcome is not Outcome.KEPT else header.content + b"\n"
