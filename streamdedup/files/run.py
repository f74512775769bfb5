"""*Blocking.* The embedded mode: files in, files out, with the worker's engine and index.

Rule 1: the index's transaction is the commit of a batch. It also holds how far each input was
judged and how long each output is; what a crash left beyond that is cut off and judged again.
Rule 2: a batch's lines are in the outputs, and on disk, before that transaction.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Protocol

from streamdedup.engine.deduplicator import Deduplicator
from streamdedup.engine.pool import PendingBatch, SketchPool
from streamdedup.engine.prepare import Preparer
from streamdedup.errors import InputError
from streamdedup.files.job import Job, Ledger, check_paths
from streamdedup.files.lines import STANDARD, Line, LineReader, Mark, OutputFile, input_size
from streamdedup.formats.outputs import OutputRule, duplicate_record, rejected_record
from streamdedup.model import (
    IndexUpdate,
    Outcome,
    Position,
    Record,
    Rejection,
    SketchedBatch,
    Verdict,
)
from streamdedup.settings.sections import Settings

_BATCH_BYTES = 16 * 1024**2
"""A batch of long lines ends early, so that those on their way stay within memory."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What a run has done so far.

    Attributes:
        kept: kept documents.
        duplicates: duplicates.
        rejected: lines that are no document.
        blank_lines: lines of white space; these are passed over.
        judged_before: lines, blank ones too, that earlier runs of the job had judged.
        bytes_read: of the inputs, packed as they are on disk.
        bytes_total: of all inputs, or None where one's size is not known.
        seconds: since the run began.
    """

    kept: int = 0
    duplicates: int = 0
    rejected: int = 0
    blank_lines: int = 0
    judged_before: int = 0
    bytes_read: int = 0
    bytes_total: int | None = None
    seconds: float = 0.0

    @property
    def documents(self) -> int:
        """Documents judged, rejected ones too."""
        return self.kept + self.duplicates + self.rejected

    @property
    def documents_per_second(self) -> float:
        """Documents judged per second."""
        return self.documents / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the caller wants to be told, and a shield.

    Attributes:
        on_batch: called after each commit.
        on_verdict: called after the commit for each record.
        shield: entered around each commit; keeps interruptions out.
    """

    on_batch: Callable[[Tally], None] = lambda _: None
    on_verdict: Callable[[Record, Verdict], None] = lambda _, __: None
    shield: Callable[[], AbstractContextManager[object]] = nullcontext


def run(job: Job, settings: Settings, hooks: Hooks | None = None) -> Tally:
    """Judge all documents of a job's inputs; resume where an earlier run of the job ended.

    Raises:
        InputError: an input or output cannot be used; what stood before it is judged.
        StreamdedupError: the index cannot be used.
    """
    sizes = [input_size(path) for path in job.inputs]
    check_paths(job)
    total = sum(size for size in sizes if size is not None) if None not in sizes else None
    with ExitStack() as resources:
        deduplicator = resources.enter_context(Deduplicator(settings, job.index))
        ledger = Ledger(deduplicator.index, job, settings)
        outputs = {
            outcome: resources.enter_context(
                closing(OutputFile(path, ledger.length(outcome), durable=job.index is not None))
            )
            for outcome, path in job.outputs().items()
        }
        reader = _BatchReader(job, settings, ledger)
        judging = _Run(settings, deduplicator, ledger, outputs, hooks or Hooks())
        judging.run(reader, Tally(bytes_total=total))
        if reader.failure is not None:
            raise reader.failure
        return judging.finish()


@dataclass(slots=True)
class _Batch:
    """Lines on their way to a verdict, and how far the inputs are judged when they have theirs."""

    records: list[Record] = field(default_factory=list)
    refused: dict[int, Rejection] = field(default_factory=dict)
    marks: dict[str, Mark] = field(default_factory=dict)
    size_bytes: int = 0
    blank_lines: int = 0
    judged_before: int = 0
    bytes_read: int = 0

    def is_empty(self) -> bool:
        return not (self.records or self.blank_lines or self.judged_before)


class _Sketching(Protocol):
    """Where batches are prepared."""

    size: int

    def submit(
        self, records: Sequence[Record], refused: Mapping[int, Rejection]
    ) -> PendingBatch: ...
    def result(self, pending: PendingBatch) -> SketchedBatch: ...
    def close(self) -> None: ...


class InProcess:
    """Prepares batches here and now: a single one does not repay the start of processes."""

    size = 0

    def __init__(self, settings: Settings) -> None:
        self._preparer = Preparer(settings)

    def submit(self, records: Sequence[Record], refused: Mapping[int, Rejection]) -> PendingBatch:
        """Prepare a batch."""
        future: Future[SketchedBatch] = Future()
        future.set_result(self._preparer.prepare_records(records, refused))
        return PendingBatch(records, dict(refused), future)

    def result(self, pending: PendingBatch) -> SketchedBatch:
        """Return a batch, which is ready."""
        return pending.future.result()

    def close(self) -> None:
        """Nothing is open."""


class _Run:
    """The loop: read ahead, judge in order, commit."""

    def __init__(
        self,
        settings: Settings,
        deduplicator: Deduplicator,
        ledger: Ledger,
        outputs: Mapping[Outcome, OutputFile],
        hooks: Hooks,
    ) -> None:
        self._deduplicator = deduplicator
        self._ledger = ledger
        self._outputs = outputs
        self._hooks = hooks
        self._settings = settings
        self._rule = OutputRule(
            settings.dedup.threshold,
            settings.dedup.sketch_parameters().fingerprint(),
            settings.output.include_value,
        )
        self._tally = Tally()
        self._began = time.monotonic()

    def run(self, reader: _BatchReader, tally: Tally) -> None:
        """Judge and commit all batches."""
        self._tally = tally
        batches = reader.batches()
        first = list(islice(batches, 2))
        sketching: _Sketching = (
            SketchPool(self._settings) if len(first) > 1 else InProcess(self._settings)
        )
        with closing(sketching):
            pending: deque[tuple[_Batch, PendingBatch]] = deque()
            for batch in chain(first, batches):
                pending.append((batch, sketching.submit(batch.records, batch.refused)))
                if len(pending) > sketching.size:
                    self._settle(sketching, *pending.popleft())
            while pending:
                self._settle(sketching, *pending.popleft())

    def finish(self) -> Tally:
        """Remember that all is done."""
        notes = self._ledger.last_entries()
        if notes:
            with self._hooks.shield():
                index = self._deduplicator.index
                index.apply(
                    IndexUpdate.without_documents(index.next_number), index.applied + 1, notes
                )
        return self._tally

    def _settle(self, sketching: _Sketching, batch: _Batch, pending: PendingBatch) -> None:
        verdicts = self._judge(batch, sketching.result(pending)) if batch.records else []
        self._count(batch, verdicts)
        for record, verdict in zip(batch.records, verdicts, strict=True):
            self._hooks.on_verdict(record, verdict)
        self._hooks.on_batch(self._tally)

    def _judge(self, batch: _Batch, sketched: SketchedBatch) -> list[Verdict]:
        judgement = self._deduplicator.judge(sketched)
        lines = {
            outcome: self._lines(outcome, batch.records, judgement.verdicts)
            for outcome in self._outputs
        }
        with self._hooks.shield():
            for outcome, output in self._outputs.items():
                output.append(lines[outcome])
                output.sync()
            lengths = {outcome: output.length for outcome, output in self._outputs.items()}
            self._deduplicator.apply(judgement, self._ledger.entries(batch.marks, lengths))
        return judgement.verdicts

    def _lines(self, outcome: Outcome, records: list[Record], verdicts: list[Verdict]) -> bytes:
        return b"".join(
            self._line(record, verdict) + b"\n"
            for record, verdict in zip(records, verdicts, strict=True)
            if verdict.outcome is outcome
        )

    def _line(self, record: Record, verdict: Verdict) -> bytes:
        if verdict.rejection is not None:
            return rejected_record(record, verdict.rejection)
        if verdict.kept:
            return record.value or b""
        return duplicate_record(record, verdict, self._rule)

    def _count(self, batch: _Batch, verdicts: list[Verdict]) -> None:
        tally, outcomes = self._tally, [verdict.outcome for verdict in verdicts]
        self._tally = replace(
            tally,
            kept=tally.kept + outcomes.count(Outcome.KEPT),
            duplicates=tally.duplicates + outcomes.count(Outcome.DUPLICATE),
            rejected=tally.rejected + outcomes.count(Outcome.REJECTED),
            blank_lines=tally.blank_lines + batch.blank_lines,
            judged_before=tally.judged_before + batch.judged_before,
            bytes_read=batch.bytes_read,
            seconds=time.monotonic() - self._began,
        )


class _BatchReader:
    """The lines of all inputs, in batches of records.

    Attributes:
        failure: why an input could not be read on; what stood before it is in the batches.
    """

    def __init__(self, job: Job, settings: Settings, ledger: Ledger) -> None:
        self.failure: InputError | None = None
        self._inputs = job.inputs
        self._most_documents = settings.batch.documents
        self._most_bytes = settings.limits.value_bytes
        self._ledger = ledger
        self._batch = _Batch()
        self._bytes_read = 0

    def batches(self) -> Iterator[_Batch]:
        """Yield the batches, up to the end of the inputs or a failure."""
        try:
            for path in self._inputs:
                with closing(LineReader(path, self._most_bytes)) as lines:
                    yield from self._of_input(path, lines)
        except InputError as error:
            self.failure = error
        if not self._batch.is_empty():
            yield self._batch

    def _of_input(self, path: str, lines: LineReader) -> Iterator[_Batch]:
        """Yield the batches that an input fills; its last lines stay for the next one."""
        self._batch.judged_before += self._pass_over(path, lines)
        topic, before = self._ledger.topic(path), self._bytes_read
        try:
            for line in iter(lines.read, None):
                self._add(path, Position(topic, 0, line.number), line)
                if self._is_full():
                    self._note_progress(topic, lines, before)
                    yield self._batch
                    self._batch = _Batch()
        finally:
            self._note_progress(topic, lines, before)

    def _pass_over(self, path: str, lines: LineReader) -> int:
        known, judged = self._ledger.known(path), self._ledger.judged(path)
        if known.length > judged.length:
            # Another job has read on: its verdicts hold only if these are still the same lines.
            with closing(LineReader(path, self._most_bytes)) as same:
                same.skip(known)
        lines.skip(judged)
        return judged.lines

    def _note_progress(self, topic: str, lines: LineReader, before: int) -> None:
        self._bytes_read = before + lines.packed_bytes_read
        self._batch.bytes_read = self._bytes_read
        self._batch.marks[topic] = lines.mark()

    def _is_full(self) -> bool:
        batch = self._batch
        return len(batch.records) >= self._most_documents or batch.size_bytes >= _BATCH_BYTES

    def _add(self, path: str, position: Position, line: Line) -> None:
        batch, value = self._batch, line.content
        key = f"{_label(path)}:{line.number + 1}".encode()
        if line.size > self._most_bytes:
            batch.refused[len(batch.records)] = self._too_large(line)
            batch.records.append(Record(position, None, key))
        elif value.strip():
            batch.records.append(Record(position, value, key))
            batch.size_bytes += len(value)
        else:
            batch.blank_lines += 1

    def _too_large(self, line: Line) -> Rejection:
        message = (
            f"the line has {line.size} bytes, limits.value_bytes is {self._most_bytes}; it is left "
            "out here"
        )
        return Rejection("decode", "ValueTooLarge", message)


def _label(path: str) -> str:
    """Return what an input is called in the ids of documents that have none."""
    if path == STANDARD:
        return "stdin"
    return os.fsencode(os.path.basename(path)).decode("utf-8", "backslashreplace")  # noqa: PTH119
