"""*Blocking.* Reads the kept sketches of an archive, and loads the newest ones into an index.

Only documents that can still match are loaded: of the newest ``index.window_documents``, those from
the first one on that is within reach of the clock. The footers of the files tell which row groups
come before it. Every document has the number that it would have if all were loaded, so that the
index ends at the same number whatever the window is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from streamdedup.admin.maintenance import Changelog, check_continues, check_source
from streamdedup.batches import IndexUpdate
from streamdedup.dedup.clock import Clock
from streamdedup.dedup.rule import is_in_reach, limit_ms, oldest_in_window, which_in_reach
from streamdedup.engine.arrow import load
from streamdedup.errors import IndexDamaged, InputError
from streamdedup.files import kept_rows
from streamdedup.files.tables import translated
from streamdedup.formats.kept_sketches import TOPIC, TYPES
from streamdedup.index.archive import load_index, readable
from streamdedup.index.directory import holds_index
from streamdedup.index.store import LOCAL_LOG
from streamdedup.model import Progress, SourceRange, no_progress
from streamdedup.settings.sections import Settings

SUFFIX = ".parquet"
_ROWS = 8192
"""Most documents of an update."""
_BYTES = 16 * 1024**2
"""About how many bytes an update has at most."""
_BUFFER_BYTES = 1024**2
_IGNORED = ("_", ".")
"""The names of Spark's other files in a folder begin so."""


class Loaded(NamedTuple):
    """The result of an import: the documents in the index, and those that were left out."""

    documents: int
    skipped: int


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group with rows; ``first`` is the number of its first document in the archive."""

    path: Path
    metadata: Any
    number: int
    first: int
    count: int

    @property
    def end(self) -> int:
        """The number after the last document's."""
        return self.first + self.count

    def range_of(self, column: str) -> tuple[Any, Any] | None:
        """Return the least and the greatest value of a column; None if the footer lacks them."""
        index = self.metadata.schema.names.index(column)
        statistics = self.metadata.row_group(self.number).column(index).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        return statistics.min, statistics.max

    def batches(self, columns: Sequence[str], most_rows: int = _ROWS) -> Iterator[tuple[int, Any]]:
        """Yield the rows as record batches, each with the number of its first document."""
        size = self.metadata.row_group(self.number).total_byte_size
        rows = max(1, min(most_rows, _BYTES * self.count // max(1, size)))
        number = self.first
        with _opened(self.path, self.metadata) as file:
            for batch in file.iter_batches(rows, [self.number], columns):
                yield number, batch
                number += len(batch)


def is_kept_sketches(source: Path) -> bool:
    """Return whether a source is a Parquet file, or a directory other than that of an index."""
    with readable(source):
        is_directory = source.is_dir()
    if is_directory:
        return not holds_index(source)
    return source.name.endswith(SUFFIX)


def import_sketches(
    source: Path,
    settings: Settings,
    changelog: Changelog | None = None,
    progress: Progress = no_progress,
) -> Loaded:
    """Create an index from the kept sketches of an archive, with the clock of the archive.

    Args:
        source: a Parquet file, or a folder of them.
        settings: those of the archive's deduplication; the index goes to their ``index.directory``.
        changelog: of the worker that continues the archive; None for an index of the embedded mode.
        progress: receives the number of documents loaded so far, and of all to be loaded.

    Raises:
        InputError: the files cannot be read, or are not what docs/internals/format.md describes.
        IndexMismatch: the sketches were made with other parameters, or lack texts; or the changelog
            does not continue them.
        StreamdedupError: see :func:`streamdedup.index.archive.load_index`.
    """
    archive = _Archive(source, settings)
    if changelog is not None:
        check_continues(settings, changelog.first_number, archive.end)
        check_source(settings, [TOPIC])
    first = archive.first_in_window()
    load_index(
        archive.updates(first, progress),
        settings.index,
        settings.dedup.sketch_parameters(),
        LOCAL_LOG if changelog is None else changelog.log,
        texts=settings.dedup.keeps_texts,
    )
    return Loaded(archive.end - first, first)


class _Archive:
    """The row groups of all files, in order; ``end`` is the number after the last document's."""

    def __init__(self, source: Path, settings: Settings) -> None:
        self._settings = settings
        self._parameters = settings.dedup.sketch_parameters()
        self._texts = settings.dedup.keeps_texts
        self._groups = _list_groups(_list_files(source))
        if not self._groups:
            raise InputError(f"{source} holds no kept sketch")
        last = self._groups[-1]
        self.end = last.end
        _, batch = next(last.batches(["format", *kept_rows.CONSTANT], most_rows=1))
        self._constants = kept_rows.constants(batch, str(last.path))
        self._fingerprint, self._clock = self._constants
        kept_rows.check_fingerprint(self._fingerprint, self._parameters, str(last.path))
        try:
            self._now_ms = Clock.from_state(self._clock).now_ms
        except IndexDamaged as error:
            raise InputError(f"the column 'clock' of {last.path} is not a valid clock") from error
        self._check_footers()

    def _check_footers(self) -> None:
        """Check what the footers tell about rows that may not be read."""
        last_place = -1
        for group in self._groups:
            places = group.range_of("place")
            if places is not None:
                kept_rows.check_places(np.array(places[:1]), last_place, str(group.path))
                last_place = places[1]
            for fingerprint in group.range_of("fingerprint") or ():
                kept_rows.check_same(fingerprint, self._fingerprint, str(group.path))

    def first_in_window(self) -> int:
        """Return the number of the oldest document that may still match, or of the next one."""
        index = self._settings.index
        by_number = oldest_in_window(self.end, index.window_documents)
        reach_ms = limit_ms(index.reach())
        for group in self._groups:
            times_ms = group.range_of("effective_time_ms")
            is_known_out = times_ms is not None and not is_in_reach(
                times_ms[1], self._now_ms, reach_ms
            )
            if group.end > by_number and not is_known_out:
                for first, batch in group.batches(["effective_time_ms"]):
                    times = kept_rows.numbers(batch, "effective_time_ms", str(group.path))
                    rows = np.flatnonzero(which_in_reach(times, self._now_ms, reach_ms))
                    if len(rows):
                        return max(by_number, first + int(rows[0]))
        return self.end

    def updates(self, first: int, progress: Progress) -> Iterator[IndexUpdate]:
        """Yield the updates that add the documents from a number on, and the clock."""
        last_place = -1
        columns = [name for name in TYPES if name != "text" or self._texts]
        most_rows = min(_ROWS, self._settings.index.delta_documents)
        for group in self._groups:
            if group.end <= first:
                last_place = (group.range_of("place") or (-1, last_place))[1]
                continue
            for number, batch in group.batches(columns, most_rows):
                name = str(group.path)
                places = kept_rows.numbers(batch, "place", name)
                kept_rows.check_places(places, last_place, name)
                last_place = int(places[-1])
                if number + len(batch) > first:
                    yield self._update(batch, number, first, name)
                    progress(number + len(batch) - first, self.end - first)
        yield replace(
            IndexUpdate.empty(self.end),
            ranges=(SourceRange(TOPIC, 0, 0, last_place + 1),),
            clock=self._clock,
        )

    def _update(self, batch: Any, number: int, first: int, name: str) -> IndexUpdate:
        kept_rows.check_same(kept_rows.constants(batch, name), self._constants, name)
        batch = batch.slice(max(0, first - number))
        documents, times_ms = kept_rows.documents(batch, self._parameters, name, texts=self._texts)
        return IndexUpdate(max(first, number), documents, (), times_ms)


def _list_files(source: Path) -> list[Path]:
    if not source.is_dir():
        return [source]
    files = [path for path in sorted(source.iterdir()) if not path.name.startswith(_IGNORED)]
    if not any(path.name.endswith(SUFFIX) for path in files):
        raise InputError(f"{source} holds neither an index nor Parquet files of kept sketches")
    return files


def _list_groups(files: list[Path]) -> list[_Group]:
    """Read the footers of all files, and check their columns."""
    groups, end = [], 0
    for path in files:
        with _opened(path) as file:
            metadata = file.metadata
            kept_rows.check_schema(file.schema_arrow, str(path))
        for number in range(metadata.num_row_groups):
            if count := metadata.row_group(number).num_rows:
                groups.append(_Group(path, metadata, number, end, count))
                end += count
    return groups


@contextmanager
def _opened(path: Path, metadata: Any = None) -> Iterator[Any]:
    """Open a Parquet file, whose footer may be known."""
    arrow, parquet = load(), load("pyarrow.parquet")
    with translated(f"cannot read {path}"), arrow.OSFile(os.fsencode(path), "rb") as source:
        yield parquet.ParquetFile(
            source,
            metadata=metadata,
            read_dictionary=kept_rows.CONSTANT,
            pre_buffer=False,
            buffer_size=_BUFFER_BYTES,
        )
