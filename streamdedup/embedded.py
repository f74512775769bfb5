"""*Blocking.* The embedded mode: files in, files out, with the worker's engine and index.

Rule 1: the index's transaction is the commit of a batch. It also holds how far each input was
judged and how long each output is; what a crash left beyond that is cut off and judged again.
Rule 2: a batch's lines are in the outputs, and on disk, before that transaction.

A job is a set of outputs. Runs with the same outputs and the same index go on with one job:
whatever it has judged of an input is passed over, and its outputs grow.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from streamdedup.deduplicator import Deduplicator
from streamdedup.errors import IndexDamaged, InputError
from streamdedup.files import STANDARD, Line, LineReader, Mark, OutputFile, input_size
from streamdedup.model import (
    DocumentColumns,
    IndexUpdate,
    Outcome,
    Position,
    Record,
    Rejection,
    SketchedBatch,
    Sketches,
    Verdict,
)
from streamdedup.outputs import OutputRule, duplicate_record, rejected_record
from streamdedup.pool import PendingBatch, SketchPool
from streamdedup.settings import Settings

T = TypeVar("T")

_BATCH_BYTES = 16 * 1024**2
"""A batch of long lines ends early, so that those on their way stay within memory."""
_JOB_SECTIONS = ("records", "dedup", "output", "limits")
"""The settings that one job's outputs must have been written with."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to read and what to write; ``-`` is standard input or output.

    Attributes:
        inputs: files of documents, one a line, judged in this order.
        kept: gets the kept lines, as they are.
        duplicates: gets a JSON line for each duplicate.
        rejected: gets a JSON line for each line that is no document.
        index: the index's directory; without one it is temporary, and so is the job.
    """

    inputs: tuple[str, ...]
    kept: str | None = None
    duplicates: str | None = None
    rejected: str | None = None
    index: Path | None = None

    def outputs(self) -> dict[Outcome, str]:
        """Return the outputs that are wanted."""
        paths = {
            Outcome.KEPT: self.kept,
            Outcome.DUPLICATE: self.duplicates,
            Outcome.REJECTED: self.rejected,
        }
        return {outcome: path for outcome, path in paths.items() if path is not None}


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
    _check_paths(job)
    total = sum(size for size in sizes if size is not None) if None not in sizes else None
    with ExitStack() as resources:
        deduplicator = resources.enter_context(Deduplicator(settings, job.index))
        ledger = _Ledger(deduplicator, job, settings)
        outputs = {
            outcome: resources.enter_context(
                closing(OutputFile(path, ledger.length(outcome), durable=job.index is not None))
            )
            for outcome, path in job.outputs().items()
        }
        pool = resources.enter_context(closing(SketchPool(settings)))
        reader = _BatchReader(job, settings, ledger)
        judging = _Run(settings, deduplicator, ledger, outputs, hooks or Hooks())
        return judging.run(reader, pool, Tally(bytes_total=total))


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


class _Run:
    """The loop: read ahead, judge in order, commit."""

    def __init__(
        self,
        settings: Settings,
        deduplicator: Deduplicator,
        ledger: _Ledger,
        outputs: Mapping[Outcome, OutputFile],
        hooks: Hooks,
    ) -> None:
        self._deduplicator = deduplicator
        self._ledger = ledger
        self._outputs = outputs
        self._hooks = hooks
        self._rule = OutputRule(
            settings.dedup.threshold,
            settings.dedup.sketch_parameters().fingerprint(),
            settings.output.include_value,
        )
        self._tally = Tally()
        self._began = time.monotonic()

    def run(self, reader: _BatchReader, pool: SketchPool, tally: Tally) -> Tally:
        self._tally = tally
        pending: deque[tuple[_Batch, PendingBatch]] = deque()
        failure: InputError | None = None
        try:
            for batch in reader.batches():
                pending.append((batch, pool.submit(batch.records, batch.refused)))
                if len(pending) > pool.size:
                    self._settle(pool, *pending.popleft())
        except InputError as error:
            failure = error
        while pending:
            self._settle(pool, *pending.popleft())
        if failure is not None:
            raise failure
        self._finish()
        return self._tally

    def _settle(self, pool: SketchPool, batch: _Batch, pending: PendingBatch) -> None:
        verdicts = self._judge(batch, pool.result(pending)) if batch.records else []
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

    def _finish(self) -> None:
        notes = self._ledger.last_entries()
        if notes:
            with self._hooks.shield():
                index = self._deduplicator.index
                index.apply(_nothing(index.next_number), index.applied + 1, notes)

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
    """The lines of all inputs, in batches of records."""

    def __init__(self, job: Job, settings: Settings, ledger: _Ledger) -> None:
        self._inputs = job.inputs
        self._most_documents = settings.batch.documents
        self._most_bytes = settings.limits.value_bytes
        self._ledger = ledger

    def batches(self) -> Iterator[_Batch]:
        """Yield the batches.

        Raises:
            InputError: an input cannot be read on; all lines before have been yielded.
        """
        batch, before = _Batch(), 0
        try:
            for path in self._inputs:
                with closing(LineReader(path, self._most_bytes)) as lines:
                    topic = self._ledger.topic(path)
                    batch.judged_before += self._pass_over(path, lines)
                    try:
                        for line in iter(lines.read, None):
                            self._add(batch, path, topic, line)
                            if self._is_full(batch):
                                batch.marks[topic] = lines.mark()
                                batch.bytes_read = before + lines.packed_bytes_read
                                yield batch
                                batch = _Batch()
                    finally:
                        batch.marks[topic] = lines.mark()
                        batch.bytes_read = before + lines.packed_bytes_read
                    before = batch.bytes_read
        except InputError:
            if not batch.is_empty():
                yield batch
            raise
        if not batch.is_empty():
            yield batch

    def _pass_over(self, path: str, lines: LineReader) -> int:
        known, judged = self._ledger.known(path), self._ledger.judged(path)
        if known.length > judged.length:
            # Another job has read on: its verdicts hold only if these are still the same lines.
            with closing(LineReader(path, self._most_bytes)) as same:
                same.skip(known)
        lines.skip(judged)
        return judged.lines

    def _is_full(self, batch: _Batch) -> bool:
        return len(batch.records) >= self._most_documents or batch.size_bytes >= _BATCH_BYTES

    def _add(self, batch: _Batch, path: str, topic: str, line: Line) -> None:
        if not line.content.strip():
            batch.blank_lines += 1
            return
        value: bytes | None = line.content
        if line.size > self._most_bytes:
            value = None
            batch.refused[len(batch.records)] = Rejection(
                "decode",
                "ValueTooLarge",
                f"the line has {line.size} bytes, limits.value_bytes is {self._most_bytes}; it is "
                "left out here",
            )
        key = f"{_label(path)}:{line.number + 1}".encode()
        batch.records.append(Record(Position(topic, 0, line.number), value, key))
        batch.size_bytes += len(value or b"")


class _JobNote(msgspec.Struct):
    """What the index remembers of a job."""

    lengths: dict[str, int]
    settings: dict[str, str]


class _StandardInputNote(msgspec.Struct):
    """How far a job has read standard input, and on which of its runs."""

    run: int
    mark: Mark
    finished: bool


class _Ledger:
    """What a job has done so far, as the index remembers it."""

    def __init__(self, deduplicator: Deduplicator, job: Job, settings: Settings) -> None:
        self._index = deduplicator.index
        self._outputs = {
            outcome: path if path == STANDARD else _identity(path)
            for outcome, path in job.outputs().items()
        }
        self._job = "\0".join(f"{outcome}={path}" for outcome, path in self._outputs.items())
        self._settings = _flat_settings(settings)
        self._check_owner()
        self._note = self._read(f"job {self._job}", _JobNote) or _JobNote({}, self._settings)
        self._check_settings()
        self._standard_input: _StandardInputNote | None = None
        if STANDARD in job.inputs:
            self._standard_input = self._standard_input_note()

    def topic(self, path: str) -> str:
        """Return the topic in the positions of an input's lines."""
        if path == STANDARD and self._standard_input is not None:
            return f"stdin#{self._standard_input.run}"
        return _identity(path)

    def length(self, outcome: Outcome) -> int:
        """Return how many bytes of an output count."""
        return self._note.lengths.get(outcome, 0)

    def judged(self, path: str) -> Mark:
        """Return how far this job has judged an input."""
        if path == STANDARD and self._standard_input is not None:
            return self._standard_input.mark
        return self._read(self._mark_key(_identity(path)), Mark) or Mark()

    def known(self, path: str) -> Mark:
        """Return how far any job has judged an input."""
        if path == STANDARD:
            return Mark()
        return self._read(f"input {_identity(path)}", Mark) or Mark()

    def entries(
        self, marks: Mapping[str, Mark], lengths: Mapping[Outcome, int]
    ) -> dict[str, bytes]:
        """Return what the index must remember together with a batch."""
        self._note.lengths = {str(outcome): length for outcome, length in lengths.items()}
        notes: dict[str, Any] = {f"job {self._job}": self._note}
        notes |= {f"output {path}": self._job for path in self._outputs.values()}
        for topic, mark in marks.items():
            if self._standard_input is not None and topic == self.topic(STANDARD):
                self._standard_input.mark = mark
                notes |= self._standard_input_entries(self._standard_input)
                continue
            notes[self._mark_key(topic)] = mark
            known = self._read(f"input {topic}", Mark)
            if known is None or mark.lines > known.lines:
                notes[f"input {topic}"] = mark
        return {key: msgspec.msgpack.encode(note) for key, note in notes.items()}

    def last_entries(self) -> dict[str, bytes]:
        """Return what the index must remember at the end of a run: that standard input ended."""
        if self._standard_input is None:
            return {}
        self._standard_input.finished = True
        notes = self._standard_input_entries(self._standard_input)
        return {key: msgspec.msgpack.encode(note) for key, note in notes.items()}

    def _mark_key(self, topic: str) -> str:
        return f"job {self._job} input {topic}"

    def _standard_input_note(self) -> _StandardInputNote:
        found = self._read(f"job {self._job} stdin", _StandardInputNote)
        if found is not None and not found.finished:
            return found
        runs = self._read("stdin runs", int) or 0
        return _StandardInputNote(runs + 1, Mark(), finished=False)

    def _standard_input_entries(self, note: _StandardInputNote) -> dict[str, Any]:
        runs = max(note.run, self._read("stdin runs", int) or 0)
        return {f"job {self._job} stdin": note, "stdin runs": runs}

    def _check_owner(self) -> None:
        for path in self._outputs.values():
            owner = self._read(f"output {path}", str)
            if path == STANDARD or owner in (None, self._job) or not _has_content(path):
                continue
            raise InputError(
                f"{path} was written by a job with other outputs, in this index; name the same "
                "outputs again, or other files"
            )

    def _check_settings(self) -> None:
        for name, value in self._settings.items():
            before = self._note.settings.get(name, value)
            if before != value:
                raise InputError(
                    f"earlier runs wrote these outputs with {name} {before}, now it is {value}; "
                    "restore it, or name other output files"
                )

    def _read(self, key: str, kind: type[T]) -> T | None:
        note = self._index.note(key)
        if note is None:
            return None
        try:
            return msgspec.msgpack.decode(note, type=kind)
        except msgspec.MsgspecError as error:
            raise IndexDamaged(
                f"{self._index.directory}: the note on {key!r} cannot be read: {error}"
            ) from error


def _check_paths(job: Job) -> None:
    """Refuse files that stand in each other's way."""
    inputs: dict[str, str] = {}
    for path in job.inputs:
        known = inputs.setdefault(_file(path), path)
        if known is not path:
            raise InputError(f"the input {path} is given twice")
    taken: dict[str, str] = {}
    for path in job.outputs().values():
        same = taken.setdefault(_file(path), path)
        if same is not path:
            raise InputError(f"two outputs go to the same file, {path}")
        if path != STANDARD and _file(path) in inputs:
            raise InputError(f"the output {path} is one of the inputs")


def _file(path: str) -> str:
    """Return a name that all paths of a file share, hard links too."""
    if path == STANDARD:
        return path
    try:
        found = os.stat(path)  # noqa: PTH116 - keeps names that are no UTF-8
    except OSError:
        return _identity(path)
    return f"{found.st_dev}:{found.st_ino}"


def _identity(path: str) -> str:
    """Return the absolute path, with links resolved, in valid Unicode."""
    return os.fsencode(os.path.realpath(path)).decode("utf-8", "backslashreplace")


def _label(path: str) -> str:
    """Return what an input is called in the ids of documents that have none."""
    if path == STANDARD:
        return "stdin"
    return os.fsencode(os.path.basename(path)).decode("utf-8", "backslashreplace")  # noqa: PTH119


def _has_content(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0  # noqa: PTH116 - keeps names that are no UTF-8
    except OSError:
        return False


def _flat_settings(settings: Settings) -> dict[str, str]:
    dumped = settings.model_dump(mode="json", include=set(_JOB_SECTIONS))
    return {
        f"{section}.{name}": str(value)
        for section in _JOB_SECTIONS
        for name, value in dumped[section].items()
    }


def _nothing(next_number: int) -> IndexUpdate:
    """Return an update by which the index gains nothing."""
    empty = DocumentColumns(
        ids=[],
        positions=[],
        event_times_ms=np.empty(0, dtype=np.int64),
        namespaces=np.empty(0, dtype=np.uint64),
        sketches=Sketches(np.empty((0, 0), dtype=np.uint8), np.empty((0, 0), dtype=np.uint64)),
    )
    return IndexUpdate(next_number, empty, ())
