"""*Pure.* The quick way of ASCII: the white space of many texts collapsed at once, and their case.

Both are simple in ASCII, and a kernel over a whole chunk of texts takes a tenth of the time of
Python's own methods, text by text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np

from streamdedup.sketch.shingle import chunks, pack

_SPACE = np.uint8(0x20)
_CASE = np.uint8(5)
"""Capital and small letters differ in this bit."""


def collapse_ascii(texts: Sequence[str], *, fold: bool) -> list[str]:
    """Make each run of white space one space, and strip the ends.

    Args:
        texts: of ASCII only.
        fold: whether capital letters become small.
    """
    made: list[str] = []
    for chunk in chunks(texts):
        codes, offsets = pack(texts[chunk])
        starts, stops = offsets[:-1].copy(), offsets[1:].copy()
        # Strings cut from one long one are made quicker than each from its own bytes.
        collapsed = str(_collapse(codes, starts, stops, fold), "ascii")
        bounds = zip(starts.tolist(), stops.tolist(), strict=True)
        made += [collapsed[start:stop] for start, stop in bounds]
    return made


@numba.njit(cache=True, nogil=True)
def _collapse(codes, starts, stops, fold):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Return the changed code points, and write to ``starts`` and ``stops`` where texts now lie."""
    changed = np.empty(len(codes), dtype=np.uint8)
    letters = np.uint8(26 if fold else 0)
    for i in range(len(codes)):
        code = codes[i]
        # Differences of bytes wrap around, so that one comparison is a range.
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


@numba.njit(cache=True, nogil=True)
def _squeeze(text):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    """Make each run of spaces one, in place; return how long the text is then."""
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


@numba.njit(cache=True, nogil=True)
def _has_runs(text):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
    # Most texts have none; this loop knows no exit, so that many bytes are compared at once.
    found = False
    one, other = text[:-1], text[1:]
    for i in range(len(one)):
        found |= (one[i] == _SPACE) & (other[i] == _SPACE)
    return found
