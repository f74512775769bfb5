"""*Blocking.* The files that arguments name, their kinds, and which of them are a job's own.

Rule 1: a job truncates and removes only its outputs, and files whose names hold its own token.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Literal, TypeAlias

from streamdedup.errors import InputError
from streamdedup.files.compression import PACKED
from streamdedup.files.lines import STANDARD
from streamdedup.index.directory import FILES
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


InputFormat: TypeAlias = Literal["json", "csv", "tsv"]
"""What standard input consists of; ``json`` stands for all lines, also for those of texts."""
_FORMATS = {"json": Kind.LINES, "csv": Kind.CSV, "tsv": Kind.TSV}
_EXTENSIONS = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), Kind.LINES),
    **dict.fromkeys((".parquet", ".pq"), Kind.PARQUET),
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), Kind.ARROW),
    ".csv": Kind.CSV,
    ".tsv": Kind.TSV,
}
_STARTS = {
    b"PAR1": Kind.PARQUET,
    b"PARE": Kind.PARQUET,
    b"ARROW1": Kind.ARROW,
    b"\xff\xff\xff\xff": Kind.ARROW,  # a stream; no text in UTF-8 begins so
}
_FEATHER_1 = b"FEA1"
_HIDDEN = (".", "_")
"""Names that begin so are not data: Spark and Hive mark files and folders by an underscore."""
TEMPORARY = ".streamdedup-"
"""How the name of a temporary file begins. Directories and patterns leave such files out."""


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


def kind_of_input(path: str, standard: InputFormat = "json") -> Kind:
    """Return the kind of an input, by its first bytes, or else its extension.

    Standard input has the format that is given.
    If the content does not fit the extension, or is of an old format, raise an InputError.
    """
    if path == STANDARD:
        if standard not in _FORMATS:
            raise InputError(
                f"{standard!r} is not a format of standard input; give {', '.join(_FORMATS)}"
            )
        return _FORMATS[standard]
    start = b""
    # The first bytes of a pipe can be read only once. Whoever reads the file reports an error.
    with suppress(OSError):
        if stat.S_ISREG(os.stat(path).st_mode):
            with open(path, "rb") as file:
                start = file.read(8)
    if start.startswith(_FEATHER_1):
        raise InputError(f"{path} is of version 1 of Feather; write it again as version 2")
    for magic, kind in _STARTS.items():
        if start.startswith(magic):
            return kind
    named = kind_of_name(path)
    if named is not None and named.is_table:
        if PACKED.search(path):
            raise InputError(f"{path} is compressed as a whole; decompress it first")
        raise InputError(f"{path} does not begin like {named}: it is damaged, or has a wrong name")
    return named or Kind.LINES


def expanded(
    paths: Iterable[str], outputs: Collection[str] = (), index: Path | None = None
) -> tuple[str, ...]:
    """Return the files that arguments name: files, directories, and patterns with ``*?[``.

    A pattern and a directory stand for files in alphabetical order. Hidden files, and in a
    directory those of unknown kinds, are left out, as are the outputs, temporary files of jobs and
    the files of the index. If no file is left of a pattern or directory, raise an InputError.
    """
    hidden = {os.path.realpath(path) for path in outputs if path != STANDARD}
    found: list[str] = []
    for path in paths:
        is_directory = path != STANDARD and os.path.isdir(path)
        if is_directory:
            matches = _below(path)
        elif glob.has_magic(path) and not os.path.lexists(path):
            matches = filter(os.path.isfile, glob.glob(path, recursive=True))
        else:
            found.append(path)
            continue
        not_ours = (one for one in sorted(matches) if not _is_own(one, index))
        files = [one for one in not_ours if os.path.realpath(one) not in hidden]
        if not files:
            if not is_directory:
                raise InputError(f"no file matches {path}")
            raise InputError(
                f"{path} has no file of a known kind; known are {', '.join(_EXTENSIONS)}"
            )
        found += files
    return tuple(found)


def _below(directory: str) -> Iterator[str]:
    for folder, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if not name.startswith(_HIDDEN)]
        for name in names:
            if not name.startswith(_HIDDEN) and kind_of_name(name) is not None:
                yield os.path.join(folder, name)


def temporary(path: str, token: str, name: str) -> str:
    """Return the path of a job's temporary file with a name of its own, in the folder of a file."""
    return os.path.join(os.path.dirname(path), f"{TEMPORARY}{token}-{name}")


def identity(path: str) -> str:
    """Return the absolute path, with symbolic links resolved, in valid Unicode."""
    return os.fsencode(os.path.realpath(path)).decode("utf-8", "backslashreplace")


def _is_own(path: str, index: Path | None) -> bool:
    """Return whether a path is that of a temporary file of a job, or of a file of an index."""
    if os.path.basename(path).startswith(TEMPORARY):
        return True
    if index is None:
        return False
    found, directory = Path(os.path.realpath(path)), Path(os.path.realpath(index))
    return any(found.is_relative_to(directory / name) for name in FILES)


def check_paths(
    inputs: Iterable[str], outputs: Iterable[str], config: Path | None, index: Path | None
) -> None:
    """Raise an InputError if two paths are one file, or one is a file of an index or of a job."""
    seen: dict[str, str] = {}
    for path in inputs:
        if _file(path) in seen:
            raise InputError(f"the input {path} is given twice; give it once")
        seen[_file(path)] = "one of the inputs"
        _check_place(path, index)
    seen.pop(STANDARD, None)
    if config:
        seen[_file(str(config))] = "the file of --config"
    written: dict[str, str] = {}
    for path in outputs:
        if _file(path) in seen:
            raise InputError(f"the output {path} is {seen[_file(path)]}; give another file")
        # Without a file there is no inode yet, and a file system may ignore case.
        for one in {_file(path), identity(path).casefold()} if path != STANDARD else {STANDARD}:
            if one in written:
                raise InputError(
                    f"two outputs go to the same file, {written[one]} and {path}; give each its own"
                )
            written[one] = path
        _check_place(path, index)


def check_report(path: Path, reads: Iterable[str | Path | None]) -> None:
    """Raise an InputError if a report replaces a file that is read, or is named as compressed."""
    if _file(str(path)) in {_file(str(one)) for one in reads if one is not None}:
        raise InputError(f"the output {path} is one of the inputs; give another file")
    if PACKED.search(path.name):
        raise InputError(f"{path} would not be compressed; give a name without {path.suffix}")


def _check_place(path: str, index: Path | None) -> None:
    if path != STANDARD and _is_own(path, index):
        raise InputError(
            f"{path} is a file of the index, or a temporary file of a job; give another file"
        )


def _file(path: str) -> str:
    """Return a name that all paths of a file share, including hard links."""
    if path == STANDARD:
        return path
    try:
        status = os.stat(path)
    except OSError:
        return identity(path)
    return f"{status.st_dev}:{status.st_ino}"
