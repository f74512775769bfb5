"""*Pure.* Folds case and collapses white space of ASCII texts, many texts in one kernel call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamdedup.columns import I64, U8
from streamdedup.kernels import kernel
from streamdedup.sketch.shingle import Codes, chunks, pack

_SPACE = np.uint8(0x20)
_CASE = np.uint8(5)
"""The bit in which capital and small letters differ."""


def collapse_ascii(texts: Sequence[str], *, fold: bool) -> list[str]:
    """Replace each run of white space by one space, and strip both ends.

    Args:
        texts: ASCII texts.
        fold: whether capital letters become small letters.
    """
    results: list[str] = []
    for chunk in chunks(texts):
        codes, offsets = pack(texts[chunk])
        starts, stops = offsets[:-1].copy(), offsets[1:].copy()
        # Slices of one long string are created faster than strings from separate bytes.
        collapsed = _collapse(codes, starts, stops, fold).tobytes().decode("ascii")
        bounds = zip(starts.tolist(), stops.tolist(), strict=True)
        results += [collapsed[start:stop] for start, stop in bounds]
    return results


@kernel
def _collapse(codes: Codes, starts: I64, stops: I64, fold: bool) -> U8:
    """Return the changed code points; update ``starts`` and ``stops`` to the texts within them."""
    changed = np.empty(len(codes), dtype=np.uint8)
    letters = np.uint8(26 if fold else 0)
    for i in range(len(codes)):
        code = codes[i]
        # Differences of bytes wrap around, so that one comparison tests a range.
        space = (np.uint8(code - np.uint8(0x09)) < np.uint8(5)) | (
            np.uint8(code - np.uint8(0x1C)) < np.uint8(4)
        )
        capital = np.uint8(np.uint8(code - np.uint8(0x41)) < letters)
        changed[i] = _SPACE if space else np.uint8(code | np.uint8(capital << _CASE))
    for text in range(len(starts)):
        start, stop = starts[text], stops[text]
        while start < stop and changed[start] == _SPACE:
            start += 1
        while start < stop and changed[stop - 1] == _SPACE:
            stop -= 1
        starts[text] = start
        stops[text] = start + _squeeze(changed[start:stop])
    return changed


@kernel
def _squeeze(text: U8) -> int:
    """Replace each run of spaces by one space, in place; return the new length."""
    if len(text) == 0 or not _has_runs(text):
        return len(text)
    length = 0
    behind_space = False
    for i in range(len(text)):
        text[length] = text[i]
        space = text[i] == _SPACE
        length += not (space and behind_space)
        behind_space = space
    return length


@kernel
def _has_runs(text: U8) -> bool:
    """Tell whether two spaces follow each other."""
    # Most texts have no such runs. A loop without an exit compares many bytes per instruction.
    found = False
    one, other = text[:-1], text[1:]
    for i in range(len(one)):
        found |= (one[i] == _SPACE) & (other[i] == _SPACE)
    return found
