"""*Blocking.* Which kind a file is, and the files that an argument names."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum
from pathlib import Path

from streamdedup.errors import InputError
from streamdedup.files.lines import STANDARD
from streamdedup.files.pack import PACKED
from streamdedup.files.paths import is_own
from streamdedup.settings.sections import Settings


class Kind(StrEnum):
    """What a file consists of."""

    LINES = "JSON Lines"
    CSV = "CSV"
    TSV = "TSV"
    PARQUET = "Parquet"
    ARROW = "Arrow"

    @property
    def is_table(self) -> bool:
        """Whether pyarrow reads and writes it."""
        return self in {Kind.PARQUET, Kind.ARROW}

    @property
    def delimiter(self) -> str:
        """What separates two fields; empty if it is not CSV."""
        return {Kind.CSV: ",", Kind.TSV: "\t"}.get(self, "")


_EXTENSIONS = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), Kind.LINES),
    **dict.fromkeys((".parquet", ".pq"), Kind.PARQUET),
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), Kind.ARROW),
    ".csv": Kind.CSV,
    ".tsv": Kind.TSV,
}
_STARTS = {b"PAR1": Kind.PARQUET, b"PARE": Kind.PARQUET, b"ARROW1": Kind.ARROW}
_STREAM_START = b"\xff\xff\xff\xff"
"""The first bytes of a stream of Arrow, which no text in UTF-8 has."""
_FEATHER_1 = b"FEA1"
_HIDDEN = (".", "_")
"""Names that begin so are not data: Spark and Hive mark files and folders by an underscore."""


def for_files(settings: Settings) -> Settings:
    """Return the settings for files, whose lines are JSON unless ``records.format`` is ``text``.

    The other formats are those of the records of topics.
    """
    if settings.records.format in {"json", "text"}:
        return settings
    records = settings.records.model_copy(update={"format": "json", "schema_files": ()})
    return settings.model_copy(update={"records": records})


def kind_of_name(path: str) -> Kind | None:
    """Return the kind that a file's extension stands for; None if it is not a known one."""
    return _EXTENSIONS.get(os.path.splitext(PACKED.sub("", path))[1].lower())


def kind_of_input(path: str) -> Kind:
    """Return the kind of an input, by its first bytes, or else its extension.

    Raises:
        InputError: the content does not fit the extension, or is of an old format.
    """
    start = _start(path)
    found = next((kind for magic, kind in _STARTS.items() if start.startswith(magic)), None)
    if start.startswith(_STREAM_START):
        found = Kind.ARROW
    if start.startswith(_FEATHER_1):
        raise InputError(f"{path} is of version 1 of Feather; write it again as version 2")
    if found is not None:
        return found
    named = kind_of_name(path)
    if named is not None and named.is_table and PACKED.search(path):
        raise InputError(f"{path} is compressed as a whole; decompress it first")
    if named is not None and named.is_table:
        raise InputError(f"{path} does not begin like {named}: it is damaged, or has a wrong name")
    return named or Kind.LINES


def _start(path: str) -> bytes:
    """Return the first bytes of a regular file; those of others can be read only once."""
    try:
        if path == STANDARD or not stat.S_ISREG(os.stat(path).st_mode):
            return b""
        with open(path, "rb") as file:
            return file.read(8)
    except OSError:
        return b""  # whoever reads the file reports it


def expanded(
    paths: Iterable[str], outputs: Collection[str] = (), index: Path | None = None
) -> tuple[str, ...]:
    """Return the files that arguments name: files, directories, and patterns with ``*?[``.

    A pattern and a directory stand for files in alphabetical order. Hidden files, and in a
    directory those of unknown kinds, are left out, as are the outputs, temporary files of jobs and
    the files of the index.

    Raises:
        InputError: nothing matches a pattern, or a directory has no such file.
    """
    hidden = {os.path.realpath(path) for path in outputs if path != STANDARD}
    found: list[str] = []
    for path in paths:
        if path == STANDARD or not (os.path.isdir(path) or _is_pattern(path)):
            found.append(path)
            continue
        found_here = (one for one in _files(path) if not is_own(one, index))
        files = [one for one in found_here if os.path.realpath(one) not in hidden]
        if not files:
            if not os.path.isdir(path):
                raise InputError(f"no file matches {path}")
            raise InputError(
                f"{path} has no file of a known kind; known are {', '.join(_EXTENSIONS)}"
            )
        found += files
    return tuple(found)


def _is_pattern(path: str) -> bool:
    return glob.has_magic(path) and not os.path.lexists(path)


def _files(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [one for one in sorted(glob.glob(path, recursive=True)) if os.path.isfile(one)]
    return sorted(_below(path))


def _below(directory: str) -> Iterator[str]:
    for folder, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if not name.startswith(_HIDDEN)]
        for name in names:
            if not name.startswith(_HIDDEN) and kind_of_name(name) is not None:
                yield os.path.join(folder, name)
