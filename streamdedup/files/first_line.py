"""*Pure.* What the first line of an input shows: another encoding, or JSON that is not lines."""

from __future__ import annotations

import codecs
import re
import shlex

from streamdedup.errors import InputError
from streamdedup.files.compression import PACKED

BYTE_ORDER_MARK = codecs.BOM_UTF8
_WIDE_STARTS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
    b"{\0": "UTF-16LE",
    b"\0{": "UTF-16BE",
}
"""The first bytes of inputs in other encodings, longer ones first."""
_ARRAY = re.compile(rb"\s*\[\s*(?:\{|$)")
_OBJECT = re.compile(rb"\s*\{\s*\n")
"""First lines of an array of objects, and of an object over several lines."""
_UNPACK = {"gz": "gzip", "gzip": "gzip", "bz2": "bzip2", "xz": "xz", "zst": "zstd", "zstd": "zstd"}


def check_encoding(line: bytes, name: str) -> None:
    """Raise an InputError if the input with this first line is not UTF-8."""
    for wide, encoding in _WIDE_STARTS.items():
        if line.startswith(wide):
            raise InputError(
                f"{name} is in {encoding}; convert it to UTF-8, for example with iconv -f "
                f"{encoding} -t UTF-8"
            )


def check_json(line: bytes, path: str | None) -> None:
    """Raise an InputError if the input with this first line is JSON, and not JSON Lines.

    The line has its line feed; the path is None for standard input.
    """
    line = line.removeprefix(BYTE_ORDER_MARK)
    if _ARRAY.match(line):
        found, command = "one JSON array", "jq -c '.[]'"
    elif _OBJECT.match(line):
        found, command = "JSON with objects over several lines", "jq -c ."
    else:
        return
    if path is None:
        how = f"put {command} before it in the pipe"
    else:
        how = f"convert it with {_conversion(command, path)}"
    raise InputError(f"{path or 'standard input'} is {found}, and not one object per line; {how}")


def _conversion(command: str, path: str) -> str:
    """Return the line for the shell that converts a file, which may be compressed."""
    packed = PACKED.search(path)
    source = shlex.quote(path)
    target = shlex.quote(f"{PACKED.sub('', path)}.jsonl")
    if packed is None:
        return f"{command} {source} > {target}"
    unpack = _UNPACK[packed[0][1:].lower()]
    return f"{unpack} -dc {source} | {command} > {target}"
