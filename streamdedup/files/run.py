"""*Blocking.* The embedded mode: files in, files out, with the worker's engine and index.

Rule 1: the transaction of the index commits a batch. It also records how far each input is judged
and how long each output is. After a crash, longer outputs are cut, and their lines judged again.
Rule 2: the lines of a batch are in the outputs, and on disk, before that transaction.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from streamdedup.batches import OUTCOMES, IndexUpdate, SketchedBatch, Verdicts
from streamdedup.columns import RecordColumns
from streamdedup.engine.deduplicator import Deduplicator
from streamdedup.engine.pool import PendingBatch, SketchPool
from streamdedup.engine.prepare import Preparer
from streamdedup.errors import InputError, SettingsError
from streamdedup.files.batches import BatchReader, InputBatch
from streamdedup.files.job import Job, Ledger
from streamdedup.files.lines import input_size
from streamdedup.files.paths import check_paths, expanded, for_files
from streamdedup.files.sinks import Sink, open_sink
from streamdedup.files.sources import check_outputs, examine
from streamdedup.index.rows import Source
from streamdedup.kernels import compile_seconds
from streamdedup.model import Outcome, Record, Rejection, Verdict
from streamdedup.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class RunTally:
    """The progress of a run.

    Attributes:
        kept, duplicates: documents with these verdicts.
        rejected, first_rejection: lines that could not be decoded, and the reason for the first.
        default_id: an id made of FILE:LINE, if the first document of a file in a batch has none.
        blank_lines: lines of white space, which are skipped.
        unfinished_lines: last lines without a line feed that are left for the next run.
        judged_before: lines that earlier runs of the job had judged, blank lines included.
        bytes_read: bytes read from the inputs, compressed as they are on disk.
        bytes_total: bytes of all inputs; None if the size of one is unknown.
        seconds: spent on the documents.
        start_seconds: for opening the index, starting processes, and compiling.
        compile_seconds: for compiling kernels, a part of ``start_seconds``; 0 if they are cached.
    """

    kept: int = 0
    duplicates: int = 0
    rejected: int = 0
    first_rejection: Rejection | None = None
    default_id: str | None = None
    blank_lines: int = 0
    unfinished_lines: int = 0
    judged_before: int = 0
    bytes_read: int = 0
    bytes_total: int | None = None
    seconds: float = 0.0
    start_seconds: float = 0.0
    compile_seconds: float = 0.0

    @property
    def documents(self) -> int:
        """Documents judged, rejected lines included."""
        return self.kept + self.duplicates + self.rejected

    @property
    def documents_per_second(self) -> float:
        """Documents judged per second."""
        return self.documents / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Hooks:
    """Callbacks after each commit, and for each record after its commit.

    The shield is a context manager around each commit; it holds back interrupts.
    """

    on_batch: Callable[[RunTally], object] = lambda _: None
    on_verdict: Callable[[Record, Verdict], None] | None = None
    shield: Callable[[], AbstractContextManager[object]] = nullcontext


def run(job: Job, settings: Settings, hooks: Hooks | None = None) -> RunTally:
    """Judge all documents of a job's inputs; continue where an earlier run of the job ended.

    Raises:
        SettingsError: the window is by time, and lines have no time.
        InputError: an input or output cannot be used; the lines before the failure are judged.
        StreamdedupError: the index cannot be used.
    """
    settings, hooks = for_files(settings), hooks or Hooks()
    records = settings.records
    has_times = records.format == "json" and records.event_time_field
    if settings.index.window is not None and not has_times:
        # A window by time could not exclude any document.
        raise SettingsError(
            "index.window is set, but lines of files have no event time: set "
            "records.event_time_field (with records.format json), or remove index.window"
        )
    clock = _Clock()
    outputs = job.outputs().values()
    job = replace(job, inputs=expanded(job.inputs, outputs, job.index))
    sizes = [input_size(path) for path in job.inputs]
    check_paths(job.inputs, outputs, job.config, job.index)
    sources = examine(job.inputs, settings, job.input_format)
    check_outputs(sources, job)
    total = sum(size for size in sizes if size is not None) if None not in sizes else None
    with ExitStack() as resources:
        deduplicator = resources.enter_context(Deduplicator(settings, job.index))
        ledger = Ledger(deduplicator.index, job, settings)
        sinks = {
            outcome: resources.enter_context(
                closing(open_sink(outcome, job, sources, settings, ledger))
            )
            for outcome in job.outputs()
        }
        whole_rows = job.kept is not None or job.rejected is not None
        whole_rows |= settings.output.include_value or hooks.on_verdict is not None
        reader = BatchReader(job, sources, settings, ledger, whole_rows=whole_rows)
        tally = RunTally(bytes_total=total)
        judging = _Run(settings, deduplicator, ledger, sinks, hooks, clock, tally)
        judging.note(ledger.first_entries())
        judging.note(*ledger.forgotten())
        judging.complete()
        judging.run(reader)
        if reader.failure is not None:
            raise reader.failure
        judging.finish()
        judging.note(ledger.last_entries())
        return judging.tally


def check_tally(tally: RunTally) -> None:
    """Raise an InputError if every line was rejected; it has the first reason."""
    first = tally.first_rejection
    if first is not None and tally.rejected == tally.documents:
        raise InputError(
            f"every line was rejected, the first with {first.reason}: {first.message}; check the "
            "input, --text-field and records.format"
        )


class _Clock:
    """Times the documents of a run apart from its start-up, which includes all compiling."""

    def __init__(self) -> None:
        self._began = self._started = time.monotonic()
        self._compiled = self._compiled_at_start = compile_seconds()
        self._elsewhere = 0.0

    def start(self, compiled_elsewhere: float) -> None:
        """Begin with the documents; another process compiled kernels for these seconds so far."""
        self._started, self._compiled_at_start = time.monotonic(), compile_seconds()
        self._elsewhere = compiled_elsewhere

    def times(self) -> dict[str, Any]:
        compiled = compile_seconds()
        late = compiled - self._compiled_at_start
        return {
            "seconds": max(0.0, time.monotonic() - self._started - late),
            "start_seconds": self._started - self._began + late,
            "compile_seconds": compiled - self._compiled + self._elsewhere,
        }


class InProcess:
    """Prepares batches as a pool does, in this process: one batch is done before a pool starts."""

    size = 0

    def __init__(self, settings: Settings) -> None:
        self._preparer = Preparer(settings)

    def warm(self) -> float:
        """Compile or load the kernels; the clock of this process times it."""
        self._preparer.warm()
        return 0.0

    def submit(self, records: Sequence[Record], refused: Mapping[int, Rejection]) -> PendingBatch:
        """Prepare a batch."""
        future: Future[SketchedBatch] = Future()
        columns = RecordColumns.of(records)
        future.set_result(self._preparer.prepare_records(columns, refused))
        return PendingBatch(columns, dict(refused), future)

    def result(self, pending: PendingBatch) -> SketchedBatch:
        """Return a prepared batch."""
        return pending.future.result()

    def close(self) -> None:
        """Do nothing: there is no process to stop."""


_BatchPreparation: TypeAlias = SketchPool | InProcess


@dataclass
class _Run:
    """The loop: read ahead, judge in order, commit."""

    settings: Settings
    deduplicator: Deduplicator
    ledger: Ledger
    sinks: Mapping[Outcome, Sink]
    hooks: Hooks
    clock: _Clock
    tally: RunTally
    sketching: _BatchPreparation | None = None
    first: InputBatch | None = None
    pending: deque[tuple[InputBatch, _BatchPreparation, PendingBatch]] = field(
        default_factory=deque
    )
    resources: ExitStack = field(default_factory=ExitStack)

    def run(self, reader: BatchReader) -> None:
        with self.resources:
            for full, batch in enumerate(reader.batches(self._catch_up)):
                if full == 0:
                    self.first = batch
                    continue
                if full == 1:
                    self._start(SketchPool)
                self._submit_first()
                self._submit(batch)
            self._catch_up(InputBatch())

    def _catch_up(self, batch: InputBatch) -> None:
        """Judge and commit everything that was read so far, up to a batch that may be empty."""
        self._submit_first()
        if not batch.is_empty():
            self._submit(batch)
        while self.pending:
            self._settle(*self.pending.popleft())

    def _start(self, make: Callable[[Settings], _BatchPreparation]) -> _BatchPreparation:
        """Start to prepare batches in this process or a pool; a pool replaces this process."""
        is_first = self.sketching is None
        self.sketching = self.resources.enter_context(closing(make(self.settings)))
        compiled = self.sketching.warm()
        if is_first:
            self.clock.start(compiled)
        return self.sketching

    def _submit_first(self) -> None:
        """Submit the first full batch, once it is known whether another one follows at once."""
        first, self.first = self.first, None
        if first is not None:
            self._submit(first)

    def _submit(self, batch: InputBatch) -> None:
        """Let a batch be prepared; judge the oldest one if there are enough ahead of it."""
        sketching = self.sketching or self._start(InProcess)
        self.pending.append((batch, sketching, sketching.submit(batch.records(), batch.refused)))
        if len(self.pending) > sketching.size:
            self._settle(*self.pending.popleft())

    def note(self, notes: Mapping[str, bytes], forgotten: Sequence[Source] = ()) -> None:
        """Store notes in the index that come without documents, and forget sources."""
        if notes:
            with self.hooks.shield():
                index = self.deduplicator.index
                update = IndexUpdate.empty(index.next_number)
                index.apply(update, index.applied + 1, notes, forgotten)

    def _settle(
        self, batch: InputBatch, sketching: _BatchPreparation, pending: PendingBatch
    ) -> None:
        """Judge a batch, write its lines to the outputs, and commit it."""
        records = pending.records
        verdicts: Verdicts | None = None
        if len(records):
            judgement = self.deduplicator.judge(sketching.result(pending))
            verdicts = judgement.verdicts
            contents = [(sink, sink.content(records, verdicts)) for sink in self.sinks.values()]
            with self.hooks.shield():
                for sink, content in contents:
                    sink.append(content)
                end = judgement.update.first_number + len(judgement.update.documents)
                entries = self.ledger.entries(batch.marks, self._written(), end)
                self.deduplicator.apply(judgement, entries)
        self._count(batch, verdicts)
        if verdicts is not None and self.hooks.on_verdict is not None:
            for record, verdict in zip(records, verdicts, strict=True):
                self.hooks.on_verdict(record, verdict)
        self.hooks.on_batch(self.tally)

    def _written(self) -> dict[Outcome, tuple[int, int]]:
        return {outcome: (sink.length, sink.rows) for outcome, sink in self.sinks.items()}

    def finish(self) -> None:
        for sink in self.sinks.values():
            sink.finish()
        self.complete()
        if self.tally.documents:
            self.tally = replace(self.tally, **self.clock.times())

    def complete(self) -> None:
        """Note tables that are complete, and then remove what they no longer need."""
        if self._written() != {outcome: self.ledger.written(outcome) for outcome in self.sinks}:
            self.note(self.ledger.entries({}, self._written()))
        for sink in self.sinks.values():
            sink.clean()

    def _count(self, batch: InputBatch, verdicts: Verdicts | None) -> None:
        tally = self.tally
        outcomes = dict.fromkeys(OUTCOMES, 0) if verdicts is None else verdicts.tally()
        rejections = {} if verdicts is None else verdicts.rejections
        first = rejections[min(rejections)] if rejections else None
        ids = () if verdicts is None else batch.default_ids.items()
        defaults = (id_ for row, id_ in ids if verdicts and verdicts[row].id == id_)
        self.tally = replace(
            tally,
            kept=tally.kept + outcomes[Outcome.KEPT],
            duplicates=tally.duplicates + outcomes[Outcome.DUPLICATE],
            rejected=tally.rejected + outcomes[Outcome.REJECTED],
            first_rejection=tally.first_rejection or first,
            default_id=tally.default_id or next(defaults, None),
            blank_lines=tally.blank_lines + batch.blank_lines,
            unfinished_lines=tally.unfinished_lines + batch.unfinished_lines,
            judged_before=tally.judged_before + batch.judged_before,
            bytes_read=batch.bytes_read,
            **self.clock.times(),
        )
