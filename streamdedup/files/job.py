"""*Blocking.* A job of the embedded mode, and the progress that the index records for it.

A job is a set of outputs. Runs with the same outputs and the same index continue one job: they skip
the lines that the job has judged, and append to its outputs.

The index stores these notes, encoded as MessagePack, by key; JOB is a hash of the outputs' paths:

- ``job JOB``: the lengths of the outputs, and the settings they were written with;
- ``job JOB input TOPIC``: the mark up to which the job has judged an input;
- ``job JOB stdin``: the same for standard input, with the number of its run;
- ``input TOPIC``: the mark up to which any job has judged an input, and the end of its documents;
- ``output PATH``: the job that owns an output;
- ``stdin runs``: how many runs over standard input were started.

Each run forgets what no longer matters, so that the notes stop growing:

- jobs other than the ``KNOWN_JOBS`` that wrote last;
- inputs of its own job that the run does not name, other than the last ``KNOWN_INPUTS``, if the
  index holds none of their documents;
- inputs that no job remembers, if the index holds none of their documents.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import xxhash

from streamdedup.batches import OUTCOMES
from streamdedup.errors import REMEDY, IndexDamaged, InputError
from streamdedup.files.lines import STANDARD, InputMark
from streamdedup.files.paths import InputFormat, identity
from streamdedup.index.rows import Source
from streamdedup.index.store import Index
from streamdedup.model import Outcome
from streamdedup.settings.sections import Settings

T = TypeVar("T")

KNOWN_JOBS = 1_000
"""Jobs that an index remembers; a new run of an older job refuses to overwrite its outputs."""
KNOWN_INPUTS = 10_000
"""Inputs that a job remembers, besides those of the run and those that the window reaches."""
_FORGET = b""
"""The index removes a note if an empty one follows."""
_JOB_SECTIONS = ("records", "dedup", "output", "limits")
"""Sections of the settings that may not change between the runs of a job."""


@dataclass(frozen=True, slots=True)
class Job:
    """The files of a job; ``-`` is standard input or output.

    Attributes:
        inputs: files, directories and patterns of file names, judged in this order.
        kept: file for the kept lines or rows, unchanged.
        duplicates: file for one JSON line, or row of a table, per duplicate.
        rejected: file for one JSON line per line or row that could not be decoded as a document.
        index: directory of the index; without one the index and the job are temporary.
        config: file of the settings, which cannot be an output.
        input_format: what standard input consists of.
    """

    inputs: tuple[str, ...]
    kept: str | None = None
    duplicates: str | None = None
    rejected: str | None = None
    index: Path | None = None
    config: Path | None = None
    input_format: InputFormat = "json"

    def outputs(self) -> dict[Outcome, str]:
        """Return the paths of the outputs that were asked for."""
        paths = zip(OUTCOMES, (self.kept, self.duplicates, self.rejected), strict=True)
        return {outcome: path for outcome, path in paths if path is not None}


class _JobNote(msgspec.Struct):
    """What a job has written: by outcome, bytes of outputs and spools, and rows of complete tables.

    The token makes the names of its temporary files unique.
    """

    lengths: dict[str, int]
    settings: dict[str, str]
    rows: dict[str, int] = {}
    token: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))


class _InputNote(msgspec.Struct):
    """How far any job has judged an input, and a number above those of all its documents."""

    mark: InputMark
    end: int


class _StandardInputNote(msgspec.Struct):
    """How far a job has judged standard input, and in which run over it."""

    run: int
    mark: InputMark
    finished: bool


class Ledger:
    """The progress of a job, as the open index records it.

    Raises:
        InputError: an output belongs to another job or is not empty before the first run of this
            job, or the settings have changed.
        IndexDamaged: a note of the index cannot be read.
    """

    def __init__(self, index: Index, job: Job, settings: Settings) -> None:
        self._index = index
        self._outputs = {
            outcome: path if path == STANDARD else identity(path)
            for outcome, path in job.outputs().items()
        }
        outputs = "\0".join(f"{outcome}={path}" for outcome, path in self._outputs.items())
        self._job = xxhash.xxh3_64_hexdigest(outputs.encode())
        dumped = settings.model_dump(mode="json", include=set(_JOB_SECTIONS))
        self._settings = {
            f"{section}.{name}": str(value)
            for section in _JOB_SECTIONS
            for name, value in dumped[section].items()
        }
        if job.index is not None:
            self._check_owner()
        self._note = self._read(f"job {self._job}", _JobNote) or _JobNote({}, self._settings)
        for name, value in self._settings.items():
            if (before := self._note.settings.get(name, value)) != value:
                raise InputError(
                    f"earlier runs wrote these outputs with {name} {before}, now it is {value}; "
                    "restore this setting, or pass other output files"
                )
        self._standard_input: _StandardInputNote | None = None
        if STANDARD in job.inputs:
            self._standard_input = self._read(f"job {self._job} stdin", _StandardInputNote)
            if self._standard_input is None or self._standard_input.finished:
                self.restart_standard_input()
        self._inputs = job.inputs

    def topic(self, path: str) -> str:
        """Return the topic in the positions of an input's lines."""
        if path == STANDARD and self._standard_input is not None:
            return f"stdin#{self._standard_input.run}"
        return identity(path)

    def restart_standard_input(self) -> None:
        """Begin a run over standard input; an interrupted one had another content."""
        runs = self._read("stdin runs", int) or 0
        self._standard_input = _StandardInputNote(runs + 1, InputMark(), finished=False)

    @property
    def token(self) -> str:
        """What the names of the job's temporary files contain, in all of its runs."""
        return self._note.token

    def written(self, outcome: Outcome) -> tuple[int, int]:
        """Return the committed bytes of an output, or of a table's spool, and a table's rows."""
        return self._note.lengths.get(outcome, 0), self._note.rows.get(outcome, 0)

    def judged(self, path: str) -> InputMark:
        """Return how far this job has judged an input."""
        if path == STANDARD and self._standard_input is not None:
            return self._standard_input.mark
        return self._read(self._mark_key(identity(path)), InputMark) or InputMark()

    def known(self, path: str) -> InputMark:
        """Return how far any job has judged an input."""
        if path == STANDARD:
            return InputMark()
        note = self._read(f"input {identity(path)}", _InputNote)
        return InputMark() if note is None else note.mark

    def entries(
        self,
        marks: Mapping[str, InputMark],
        outputs: Mapping[Outcome, tuple[int, int]],
        end: int = 0,
    ) -> dict[str, bytes]:
        """Return the notes that the index must store together with a batch.

        After it, the inputs are judged up to these marks, by topic, the outputs have these bytes
        and rows (see :meth:`written`), and ``end`` is the number of the next document.
        """
        self._note.lengths = {str(outcome): length for outcome, (length, _) in outputs.items()}
        self._note.rows = {str(outcome): rows for outcome, (_, rows) in outputs.items() if rows}
        notes: dict[str, Any] = {f"job {self._job}": self._note}
        notes |= {f"output {path}": self._job for path in self._outputs.values()}
        for topic, mark in marks.items():
            if self._standard_input is not None and topic == self.topic(STANDARD):
                self._standard_input.mark = mark
                notes |= self._standard_input_entries(self._standard_input)
            else:
                notes[self._mark_key(topic)] = mark
            known = self._read(f"input {topic}", _InputNote)
            if known is None or mark.lines > known.mark.lines:
                notes[f"input {topic}"] = _InputNote(mark, end)
        return {key: msgspec.msgpack.encode(note) for key, note in notes.items()}

    def first_entries(self) -> dict[str, bytes]:
        """Return the notes that claim the outputs, before the first line is written to them."""
        if self._read(f"job {self._job}", _JobNote) is not None:
            return {}
        return self.entries({}, {})

    def last_entries(self) -> dict[str, bytes]:
        """Return the notes of a completed run: the end of standard input."""
        if self._standard_input is None:
            return {}
        self._standard_input.finished = True
        notes = self._standard_input_entries(self._standard_input)
        return {key: msgspec.msgpack.encode(note) for key, note in notes.items()}

    def forgotten(self) -> tuple[dict[str, bytes], list[Source]]:
        """Return the notes that remove what no longer matters, and the sources to forget."""
        keys = self._index.note_keys()
        named = {self.topic(path) for path in self._inputs}
        jobs = [job for key in keys if (job := _job_of(key)) and key == f"job {job}"]
        old_jobs = {job for job in jobs[:-KNOWN_JOBS] if job != self._job}
        outputs = [key for key in keys if key.startswith("output ")]
        gone = {key for key in outputs if self._read(key, str) in old_jobs}
        gone |= {key for key in keys if _job_of(key) in old_jobs}
        mark_key = self._mark_key("")
        own = [key.removeprefix(mark_key) for key in keys if key.startswith(mark_key)]
        old = [topic for topic in own[:-KNOWN_INPUTS] if self._is_over(topic, named)]
        gone |= {mark_key + topic for topic in old}
        named |= {key.partition(" input ")[2] for key in keys if _job_of(key) and key not in gone}
        inputs = [key.removeprefix("input ") for key in keys if key.startswith("input ")]
        unknown = [topic for topic in inputs if self._is_over(topic, named)]
        gone |= {f"input {topic}" for topic in unknown}
        return dict.fromkeys(gone, _FORGET), [(topic, 0) for topic in unknown]

    def _is_over(self, topic: str, named: set[str]) -> bool:
        """Return whether an input is not named, and the index holds none of its documents."""
        note = None if topic in named else self._read(f"input {topic}", _InputNote)
        return note is not None and note.end <= self._index.oldest_number

    def _mark_key(self, topic: str) -> str:
        return f"job {self._job} input {topic}"

    def _standard_input_entries(self, note: _StandardInputNote) -> dict[str, Any]:
        runs = max(note.run, self._read("stdin runs", int) or 0)
        return {f"job {self._job} stdin": note, "stdin runs": runs}

    def _check_owner(self) -> None:
        for path in self._outputs.values():
            owner = self._read(f"output {path}", str)
            has_content = os.path.exists(path) and os.path.getsize(path)
            if path == STANDARD or owner == self._job or not has_content:
                continue
            if owner is None:
                raise InputError(
                    f"{path} is not empty, and a new job would overwrite it: the index "
                    f"{self._index.directory} has no record of it; move or remove the file, or "
                    "pass another output file"
                )
            raise InputError(
                f"{path} was written by a job with other outputs, in this index; pass the same "
                "output files again, or new ones"
            )

    def _read(self, key: str, kind: type[T]) -> T | None:
        note = self._index.note(key)
        if note is None:
            return None
        try:
            return msgspec.msgpack.decode(note, type=kind)
        except msgspec.MsgspecError as error:
            raise IndexDamaged(
                f"{self._index.directory}: the note {key!r} cannot be read ({error}); {REMEDY}"
            ) from error


def _job_of(key: str) -> str:
    """Return the job that a note belongs to; empty for a note that several jobs share."""
    return key.split(" ")[1] if key.startswith("job ") else ""
