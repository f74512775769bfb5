"""*Blocking.* Reads the kept sketches of an archive, and loads the newest ones into an index.

docs/internals/format.md specifies the columns of the Parquet files.

Only documents that can still match are loaded: of the newest ``index.window_documents``, those from
the first one on that is within reach of the clock. The footers of the files tell which row groups
come before it. Every document has the number that it would have if all were loaded, so that the
index ends at the same number whatever the window is. To read a file imports pyarrow, which is
optional.
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
from streamdedup.batches import DocumentColumns, IndexUpdate, Sketches
from streamdedup.columns import I64, NO_BLOBS, U8, Blobs, Positions, Strings
from streamdedup.dedup.clock import Clock
from streamdedup.dedup.rule import is_in_reach, limit_ms, oldest_in_window, which_in_reach
from streamdedup.engine.arrow import blobs, load
from streamdedup.errors import IndexDamaged, IndexMismatch, InputError
from streamdedup.files.tables import translated
from streamdedup.formats.sketches import ARCHIVE_TOPIC, KEPT_FORMAT, KEPT_TYPES
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
_CONSTANT = ("fingerprint", "clock")
"""Columns that are read as dictionaries, since all rows have the same value."""


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

    It is at ``index.directory``. The source is a Parquet file, or a folder of them. The settings
    are those of the archive's deduplication. The changelog is of the worker that continues it;
    None for an index of the embedded mode. The progress is in documents.

    Raises:
        InputError: the files cannot be read, or are not what docs/internals/format.md describes.
        IndexMismatch: the sketches were made with other parameters, or lack texts; or the changelog
            does not continue them.
        StreamdedupError: see :func:`streamdedup.index.archive.load_index`.
    """
    archive = _Archive(source, settings)
    if changelog is not None:
        check_continues(settings, changelog.first_number, archive.end)
        check_source(settings, [ARCHIVE_TOPIC])
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
        self._groups = _list_groups(source)
        if not self._groups:
            raise InputError(f"{source} holds no kept sketch")
        last = self._groups[-1]
        self.end = last.end
        _, batch = next(last.batches(["format", *_CONSTANT], most_rows=1))
        self._constants = _constants(batch, str(last.path))
        self._fingerprint, self._clock = self._constants
        expected = self._parameters.fingerprint()
        if self._fingerprint != expected:
            raise IndexMismatch(
                f"{last.path} was written with parameters {self._fingerprint}, the settings make "
                f"{expected}; pass the configuration of the archive's deduplication with --config"
            )
        try:
            self._now_ms = Clock.from_state(self._clock).now_ms
        except IndexDamaged as error:
            raise InputError(f"the column 'clock' of {last.path} is not a valid clock") from error
        # What the footers tell about rows that may not be read.
        last_place = -1
        for group in self._groups:
            places = group.range_of("place")
            if places is not None:
                _check_places(np.array(places[:1]), last_place, str(group.path))
                last_place = places[1]
            for fingerprint in group.range_of("fingerprint") or ():
                _check_same(fingerprint, self._fingerprint, str(group.path))

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
                    times = _numbers(batch, "effective_time_ms", str(group.path))
                    rows = np.flatnonzero(which_in_reach(times, self._now_ms, reach_ms))
                    if len(rows):
                        return max(by_number, first + int(rows[0]))
        return self.end

    def updates(self, first: int, progress: Progress) -> Iterator[IndexUpdate]:
        """Yield the updates that add the documents from a number on, and the clock."""
        last_place = -1
        columns = [name for name in KEPT_TYPES if name != "text" or self._texts]
        most_rows = min(_ROWS, self._settings.index.delta_documents)
        for group in self._groups:
            if group.end <= first:
                last_place = (group.range_of("place") or (-1, last_place))[1]
                continue
            for number, batch in group.batches(columns, most_rows):
                name = str(group.path)
                places = _numbers(batch, "place", name)
                _check_places(places, last_place, name)
                last_place = int(places[-1])
                if number + len(batch) > first:
                    yield self._update(batch, number, first, name)
                    progress(number + len(batch) - first, self.end - first)
        yield replace(
            IndexUpdate.empty(self.end),
            ranges=(SourceRange(ARCHIVE_TOPIC, 0, 0, last_place + 1),),
            clock=self._clock,
        )

    def _update(self, batch: Any, number: int, first: int, name: str) -> IndexUpdate:
        """Return the update of a record batch without the documents before ``first``."""
        _check_same(_constants(batch, name), self._constants, name)
        batch = batch.slice(max(0, first - number))
        places = _numbers(batch, "place", name)
        zeros = np.zeros(len(places), dtype=np.int64)
        keys = _fixed(batch, "band_keys", 8 * (self._parameters.bands + 1), name)
        ids = _bytes(batch, "id", name)
        try:
            ids_in_unicode = Strings(ids.data, ids.ends).check()
        except ValueError as error:
            raise InputError(f"the column 'id' of {name} is not valid UTF-8: {error}") from None
        documents = DocumentColumns(
            ids=ids_in_unicode,
            positions=Positions((ARCHIVE_TOPIC,), zeros, zeros, places),
            event_times_ms=_numbers(batch, "event_time_ms", name),
            namespaces=_numbers(batch, "namespace", name).view(np.uint64),
            sketches=Sketches(
                signatures=_fixed(batch, "signature", self._parameters.signature_bytes, name),
                band_keys=keys.view("<u8").astype(np.uint64, copy=False),
            ),
            texts=NO_BLOBS,
        )
        if self._texts:
            if batch.column("text").null_count:
                raise IndexMismatch(
                    f"{name} was written without the texts that dedup.verify exact compares; set "
                    "dedup.verify to estimate, or deduplicate the archive with dedup.verify exact"
                )
            documents = replace(documents, texts=_bytes(batch, "text", name))
        times_ms = _numbers(batch, "effective_time_ms", name)
        return IndexUpdate(max(first, number), documents, (), times_ms)


def _list_groups(source: Path) -> list[_Group]:
    """Read the footers of all files, and check their columns."""
    files = [source]
    if source.is_dir():
        files = [path for path in sorted(source.iterdir()) if not path.name.startswith(_IGNORED)]
        if not any(path.name.endswith(SUFFIX) for path in files):
            raise InputError(f"{source} holds neither an index nor Parquet files of kept sketches")
    groups, end = [], 0
    for path in files:
        with _opened(path) as file:
            metadata = file.metadata
            _check_schema(file.schema_arrow, str(path))
        for number in range(metadata.num_row_groups):
            if count := metadata.row_group(number).num_rows:
                groups.append(_Group(path, metadata, number, end, count))
                end += count
    return groups


@contextmanager
def _opened(path: Path, metadata: Any = None) -> Iterator[Any]:
    """Open a Parquet file, whose footer may be known, and its columns checked."""
    arrow, parquet = load(), load("pyarrow.parquet")
    with translated(f"cannot read {path}"), arrow.OSFile(os.fsencode(path), "rb") as source:
        yield parquet.ParquetFile(
            source,
            metadata=metadata,
            # pyarrow raises a KeyError if one of them is missing.
            read_dictionary=() if metadata is None else _CONSTANT,
            pre_buffer=False,
            buffer_size=_BUFFER_BYTES,
        )


def _check_schema(schema: Any, name: str) -> None:
    """Raise an InputError if a column is missing, or has another type; ignore further columns."""
    types = load("pyarrow").types
    for column, expected in KEPT_TYPES.items():
        if schema.get_field_index(column) < 0:
            raise InputError(
                f"{name} holds no kept sketches: it has no column {column!r}; "
                "docs/internals/format.md lists the columns"
            )
        found = schema.field(column).type
        if column in _CONSTANT and types.is_dictionary(found):
            found = found.value_type
        if str(found) != expected:
            raise InputError(
                f"the column {column!r} of {name} is of type {found}, expected {expected}"
            )


def _constants(batch: Any, name: str) -> tuple[str, bytes]:
    """Return the fingerprint and the clock, which all rows share."""
    formats = _numbers(batch, "format", name)
    others = formats[formats != KEPT_FORMAT]
    if len(others):
        raise InputError(
            f"{name} holds kept sketches of format {others[0]}, this release reads {KEPT_FORMAT}; "
            "use the release that wrote them"
        )
    return _constant(batch, "fingerprint", name), _constant(batch, "clock", name)


def _check_same(found: object, expected: object, name: str) -> None:
    """Raise an InputError if values of a file are not those of the archive's last file."""
    if found != expected:
        raise InputError(
            f"{name} has another fingerprint or clock than the last file; import the files of one "
            "archive"
        )


def _check_places(places: I64, last: int, name: str) -> None:
    """Raise an InputError if places do not ascend, from the one before them on."""
    wrong = np.flatnonzero(np.diff(places, prepend=last) <= 0)
    if len(wrong):
        row = wrong[0]
        before = places[row - 1] if row else last
        raise InputError(
            f"{name}: place {places[row]} comes after place {before}; the files in the order of "
            "their names must be those of one archive"
        )


def _column(batch: Any, column: str, name: str) -> Any:
    values = batch.column(column)
    if values.null_count:
        raise InputError(f"the column {column!r} of {name} has rows without a value")
    return values


def _numbers(batch: Any, column: str, name: str) -> I64:
    values: I64 = _column(batch, column, name).to_numpy(zero_copy_only=False)
    return values


def _constant(batch: Any, column: str, name: str) -> Any:
    found = _column(batch, column, name).unique()
    if len(found) != 1:
        raise InputError(
            f"the column {column!r} of {name} has {len(found)} values, expected one; import the "
            "files of one archive"
        )
    return found[0].as_py()


def _bytes(batch: Any, column: str, name: str) -> Blobs:
    return blobs(_column(batch, column, name).cast(load("pyarrow").large_binary()))


def _fixed(batch: Any, column: str, width: int, name: str) -> U8:
    """Return values that must have ``width`` bytes each, ``(n, width)``."""
    values = _bytes(batch, column, name)
    lengths = values.lengths()
    wrong = lengths[lengths != width]
    if len(wrong):
        raise InputError(
            f"the column {column!r} of {name} has a value of {wrong[0]} bytes, expected {width}"
        )
    rows: U8 = values.data[: values.size].reshape(len(values), width)
    return rows
