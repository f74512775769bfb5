"""*Blocking.* The standard output of a command: an error of writing becomes one line."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

from streamdedup.errors import InputError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_OUTPUT = 1
"""The number of the file descriptor."""


def replace_output() -> None:
    """Let an error of standard output, such as a full disk, end the command as an InputError.

    Text that the encoding lacks, such as a path that is not UTF-8, is written with escapes.
    """
    encoding = "utf-8" if sys.stdout is None else sys.stdout.encoding
    raw = _Output(_OUTPUT, "wb", closefd=False)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, "backslashreplace", line_buffering=raw.isatty()
    )


class _Output(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            # Python writes what is left once more at its end, and must not fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), _OUTPUT)
            raise InputError(f"cannot write standard output: {error.strerror or error}") from error
