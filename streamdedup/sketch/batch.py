"""*Pure.* Normalises batches of texts by kernels, with the same result as text by text.

The first steps of most profiles change each character independently of its neighbours. Kernels run
these steps and the collapsing of white space: :func:`collapse_ascii` for ASCII texts,
:mod:`streamdedup.sketch.fold` for others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np

from streamdedup.columns import I64, U8
from streamdedup.kernels import kernel
from streamdedup.sketch.fold import Table, make_table, rewrite
from streamdedup.sketch.normalize import STEPS, Profile, Step, apply_changes, changes_of
from streamdedup.sketch.shingle import Codes, chunks, pack

_CHARACTER_STEPS = ("drop_invisible", "nfkc", "casefold")
"""The steps that change each character on its own, except for the marks that follow it."""
_SPACE = np.uint8(0x20)
_CASE = np.uint8(5)  # the bit in which capital and small letters differ


class BatchNormaliser:
    """Applies a profile to batches of texts."""

    def __init__(self, profile: Profile) -> None:
        steps = profile.steps
        self._profile = profile
        self._steps = steps
        self._changes = profile.changes
        self._ascii_changes = tuple(step.ascii for step in steps if step.ascii is not None)
        self._folds = STEPS["casefold"] in steps
        self._character_steps = sum(step.name in _CHARACTER_STEPS for step in steps)
        self._collapses = steps[-1:] == (STEPS["collapse_space"],)

    def __call__(self, texts: Sequence[str]) -> list[str]:
        """Return the normalised texts, in order."""
        changed = _each(texts, self._normalise_ascii, self._normalise_others)
        if not self._profile.has_masks:
            return changed
        return list(map(self._profile.unless_hollow, texts, changed))

    def _normalise_ascii(self, texts: Sequence[str]) -> list[str]:
        if not self._collapses:
            return [apply_changes(self._ascii_changes, text) for text in texts]
        changes = self._ascii_changes[:-1]
        if changes != (str.lower,):  # collapse_ascii can also fold case
            texts = [apply_changes(changes, text) for text in texts]
        return _collapse_each(texts, fold=self._folds)

    def _normalise_others(self, texts: Sequence[str]) -> list[str]:
        between = self._changes[self._character_steps : len(self._changes) - self._collapses]
        if not between:
            return _rewrite(texts, self._steps)
        changed = _rewrite(texts, self._steps[: self._character_steps])
        changed = [apply_changes(between, text) for text in changed]
        return _collapse_each(changed, fold=False) if self._collapses else changed


def _each(
    texts: Sequence[str],
    ascii_change: Callable[[Sequence[str]], list[str]],
    change: Callable[[Sequence[str]], list[str]],
) -> list[str]:
    """Apply one change to the ASCII texts of a batch, and another to the others."""
    simple = [text for text in texts if text.isascii()]
    if len(simple) == len(texts):
        return ascii_change(texts)
    changed = iter(ascii_change(simple))
    others = iter(change([text for text in texts if not text.isascii()]))
    return [next(changed) if text.isascii() else next(others) for text in texts]


def _collapse_each(texts: Sequence[str], *, fold: bool) -> list[str]:
    """Collapse the white space of a batch; with ``fold``, fold the case of its ASCII texts."""
    last = (STEPS["collapse_space"],)
    return _each(texts, partial(collapse_ascii, fold=fold), partial(_rewrite, steps=last))


def _rewrite(texts: Sequence[str], steps: tuple[Step, ...]) -> list[str]:
    """Apply steps of ``_CHARACTER_STEPS``, with ``collapse_space`` as an optional last step."""
    if not steps:
        return [*texts]
    return rewrite(texts, _table(steps), partial(apply_changes, changes_of(steps)))


@cache
def _table(steps: tuple[Step, ...]) -> Table:
    collapses = steps[-1] == STEPS["collapse_space"]
    return make_table(
        partial(apply_changes, changes_of(steps[: len(steps) - collapses])),
        composes=STEPS["nfkc"] in steps,
        collapses=collapses,
    )


def collapse_ascii(texts: Sequence[str], *, fold: bool) -> list[str]:
    """Collapse the white space of ASCII texts; with ``fold``, fold their case."""
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
    """Return whether two spaces follow each other."""
    # Most texts have no such runs. A loop without an exit compares many bytes per instruction.
    found = False
    one, other = text[:-1], text[1:]
    for i in range(len(one)):
        found |= (one[i] == _SPACE) & (other[i] == _SPACE)
    return found
