"""*Blocking.* The files of a job: which paths are one file, and the names of temporary files.

Rule 1: a job truncates and removes only its outputs, and files whose names hold its own token.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from streamdedup.errors import InputError
from streamdedup.files.lines import STANDARD
from streamdedup.files.pack import PACKED
from streamdedup.index.directory import FILES

TEMPORARY = ".streamdedup-"
"""How the name of a temporary file begins. Directories and patterns leave such files out."""


def new_token() -> str:
    """Return what makes the names of temporary files unique."""
    return secrets.token_hex(8)


def temporary(path: str, token: str, name: str) -> str:
    """Return a temporary file's path, in the folder of a file.

    Args:
        path: the file.
        token: of the job.
        name: tells the temporary files of a job apart.
    """
    return os.path.join(os.path.dirname(path), f"{TEMPORARY}{token}-{name}")


def identity(path: str) -> str:
    """Return the absolute path, with symbolic links resolved, in valid Unicode."""
    return os.fsencode(os.path.realpath(path)).decode("utf-8", "backslashreplace")


def is_own(path: str, index: Path | None) -> bool:
    """Return whether a path is that of a temporary file of a job, or of a file of an index."""
    if os.path.basename(path).startswith(TEMPORARY):
        return True
    if index is None:
        return False
    found, directory = Path(os.path.realpath(path)), Path(os.path.realpath(index))
    return any(found.is_relative_to(directory / name) for name in FILES)


def check_paths(
    inputs: Iterable[str], outputs: Iterable[str], reads: Mapping[str, object], index: Path | None
) -> None:
    """Check that no two paths of a command are the same file, and that none is ours.

    Args:
        inputs: the files of documents, with ``-`` for standard input.
        outputs: the files to write, with ``-`` for standard output.
        reads: other files that the command reads, by their option; None if it is not given.
        index: directory of the index.

    Raises:
        InputError: an input is given twice, an output is also read or is another output, or a file
            belongs to the index, or is a temporary one.
    """
    seen: dict[str, str] = {}
    for path in inputs:
        if _file(path) in seen:
            raise InputError(f"the input {path} is given twice; give it once")
        seen[_file(path)] = "one of the inputs"
        _check_place(path, index)
    seen.pop(STANDARD, None)
    seen |= {_file(str(path)): f"the file of {name}" for name, path in reads.items() if path}
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
    """Check that a report replaces no file that the command reads.

    Args:
        path: the file of the report.
        reads: the files that the command reads; None if one is not given.

    Raises:
        InputError: it is one of them, or its name stands for a compressed file.
    """
    if _file(str(path)) in {_file(str(one)) for one in reads if one is not None}:
        raise InputError(f"the output {path} is one of the inputs; give another file")
    if PACKED.search(path.name):
        raise InputError(f"{path} would not be compressed; give a name without {path.suffix}")


def _check_place(path: str, index: Path | None) -> None:
    if path != STANDARD and is_own(path, index):
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
