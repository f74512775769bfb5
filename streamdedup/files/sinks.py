"""*Blocking.* The outputs of a job: what each gets of a batch.

Rule 1: what a batch adds to an output is on disk before the batch is committed.
"""

from __future__ import annotations

from typing import Any, Protocol

from streamdedup.batches import OUTCOMES, Verdicts
from streamdedup.columns import RecordColumns
from streamdedup.files.lines import OutputFile
from streamdedup.files.pack import Packer
from streamdedup.formats.outputs import OutputRule, duplicate_record, rejected_record
from streamdedup.model import Outcome


class Sink(Protocol):
    """An output of a job."""

    @property
    def length(self) -> int:
        """Bytes that a commit notes; after a crash, the output is cut to them."""

    @property
    def rows(self) -> int:
        """Rows of a table when it was completed last; 0 for an output of lines."""

    def content(self, records: RecordColumns, verdicts: Verdicts) -> Any:
        """Return what a batch adds to the output."""

    def append(self, content: Any) -> None:
        """Write what a batch adds, and force it to disk."""

    def finish(self) -> None:
        """Complete the output at the end of the run."""

    def clean(self) -> None:
        """Remove what a completed output does not need, after the commit."""

    def close(self) -> None:
        """Close the output."""


class LineSink:
    """An output of lines.

    Args:
        file: the output.
        outcome: the outcome whose records it gets.
        rule: what duplicate records contain.
        header: the first line of CSV, with its line feed.
        pack: compresses what a batch adds; None for a plain output.
    """

    def __init__(
        self,
        file: OutputFile,
        outcome: Outcome,
        rule: OutputRule,
        header: bytes = b"",
        pack: Packer | None = None,
    ) -> None:
        self._file = file
        self._pack = pack
        self._outcome = outcome
        self._rule = rule
        if header and not file.length:
            file.append(pack(header) if pack else header)

    @property
    def length(self) -> int:
        """Bytes of the output."""
        return self._file.length

    def content(self, records: RecordColumns, verdicts: Verdicts) -> bytes:
        """Return the lines of a batch. Only duplicates need their verdicts as objects."""
        rows = verdicts.rows_with(OUTCOMES.index(self._outcome))
        values = records.values
        if self._outcome is Outcome.KEPT:
            lines = [values[row] or b"" for row in rows]
        elif self._outcome is Outcome.REJECTED:
            lines = [rejected_record(records[row], verdicts.rejections[row]) for row in rows]
        else:
            value_of = values.__getitem__ if self._rule.include_value else _nothing
            lines = [duplicate_record(value_of(row), verdicts[row], self._rule) for row in rows]
        content = b"\n".join([*lines, b""])
        return self._pack(content) if self._pack and content else content

    @property
    def rows(self) -> int:
        """0, because lines are counted in bytes."""
        return 0

    def append(self, content: bytes) -> None:
        """Append lines, and force them to disk."""
        self._file.append(content)
        self._file.sync()

    def finish(self) -> None:
        """Make an output without content a valid compressed file; others are complete."""
        if self._pack and not self.length:
            self.append(self._pack(b""))

    def clean(self) -> None:
        """Do nothing: there is no spool."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _nothing(_: int) -> None:
    return None
