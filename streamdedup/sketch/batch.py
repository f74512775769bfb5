"""*Pure.* Normalises batches of texts by kernels, with the same result as text by text.

The first steps of most profiles change each character independently of its neighbours. Kernels run
these steps and the collapsing of white space: :mod:`streamdedup.sketch.ascii` for ASCII texts,
:mod:`streamdedup.sketch.fold` for others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

from streamdedup.sketch.ascii import collapse_ascii
from streamdedup.sketch.fold import Table, rewrite
from streamdedup.sketch.fold_table import make_table
from streamdedup.sketch.normalize import STEPS, Profile, Step, apply_changes, changes_of

_CHARACTER_STEPS = ("drop_invisible", "nfkc", "casefold")
"""The steps that change each character on its own, except for the marks that follow it."""


class BatchNormaliser:
    """Applies a profile to batches of texts.

    Args:
        profile: the steps to apply.
    """

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
