"""*Pure.* Labels to a report: pairs, agreement, and the proposed threshold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from streamdedup.analysis.threshold import Fit, fit
from streamdedup.columns import F64

SAME, DIFFERENT, UNSURE = "same", "different", "unsure"
Answer = Literal["same", "different", "unsure"]
_LEVEL = 0.05
"""Width of a level of similarity in the table."""
_ROUNDING = 1e-9


class Label(NamedTuple):
    """One answer to the question whether two documents are the same.

    Attributes:
        pair: what identifies the pair.
        similarity: the Jaccard similarity, or the estimate if the texts were not compared.
        answer: ``same``, ``different`` or ``unsure``.
        source: the file.
        time: when the label was given; empty if unknown.
        threshold: the threshold at that time; None if unknown.
        fingerprint: fingerprint of the sketch parameters; empty if unknown.
    """

    pair: tuple[str, ...]
    similarity: float
    answer: Answer
    source: str
    time: str
    threshold: float | None
    fingerprint: str


@dataclass(frozen=True, slots=True)
class LabelledPair:
    """A pair with its labels, at most one of each source.

    Attributes:
        same: labels that call the documents the same.
        different: labels that call them different.
    """

    name: str
    similarity: float
    same: int
    different: int

    @property
    def share(self) -> float:
        """Share of "same" among the labels that are sure."""
        return self.same / (self.same + self.different)


@dataclass(frozen=True, slots=True)
class LabelLevel:
    """The pairs whose similarity lies in ``[low, high)``; 1 is included in the last level.

    Attributes:
        same: pairs that most labels call the same; a pair with a tie counts half.
        different: the others.
        fitted: share of "same" by the fitted curve, over these pairs; None without a proposal.
    """

    low: float
    high: float
    same: float
    different: float
    fitted: float | None


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposed threshold.

    Attributes:
        threshold: similarity at which "same" and "different" are equally likely.
        low: lower end of the 95 % interval; None if the labels do not bound it.
        high: upper end of the 95 % interval; None if the labels do not bound it.
        slope: steepness of the fitted curve; None if one similarity separates the labels.
        wrong_now: pairs on the wrong side of the current threshold; a tie counts half.
        wrong: pairs on the wrong side of the proposed threshold.
    """

    threshold: float
    low: float | None
    high: float | None
    slope: float | None
    wrong_now: float
    wrong: float


@dataclass(frozen=True, slots=True)
class LabelReport:
    """The result of labels.

    Attributes:
        labels: labels that were read, without repeated ones.
        pairs: pairs with a label that is sure.
        unsure: pairs with unsure labels only.
        repeated: pairs that several sources label, all sure.
        agreeing: those of them whose labels are equal.
        disagreements: names of those whose labels differ.
        threshold: the current threshold.
        missing: what labels are missing for a proposal; empty if there is one.
    """

    labels: int
    pairs: int
    unsure: int
    repeated: int
    agreeing: int
    disagreements: list[str]
    threshold: float
    levels: list[LabelLevel]
    proposal: Proposal | None
    missing: str

    @property
    def agreement(self) -> float | None:
        """Share of the pairs with several labels whose labels are equal."""
        return self.agreeing / self.repeated if self.repeated else None


def report_on(labels: Sequence[Label], threshold: float) -> LabelReport:
    """Fit a threshold to labels.

    A pair counts once, whatever the number of its labels, since the labels of one pair do not vary
    independently. Its labels count as a share.

    Args:
        labels: the labels, in the order in which they were given.
        threshold: the current threshold.
    """
    counted = _latest(labels)
    pairs, unsure = _pairs(counted)
    repeated = [pair for pair in pairs if pair.same + pair.different > 1]
    disagreements = [pair.name for pair in repeated if pair.same and pair.different]
    similarities = np.array([pair.similarity for pair in pairs])
    same = np.array([pair.share for pair in pairs])
    missing, fitted = _fit(pairs)
    return LabelReport(
        labels=len(counted),
        pairs=len(pairs),
        unsure=unsure,
        repeated=len(repeated),
        agreeing=len(repeated) - len(disagreements),
        disagreements=disagreements,
        threshold=threshold,
        levels=_levels(pairs, fitted),
        proposal=None
        if fitted is None
        else Proposal(
            threshold=round(fitted.threshold, 3),
            low=round(fitted.low, 3) if fitted.low > 0 else None,
            high=round(fitted.high, 3) if fitted.high < 1 else None,
            slope=None if fitted.separated else fitted.slope,
            wrong_now=_wrong(similarities, same, threshold),
            wrong=_wrong(similarities, same, fitted.threshold),
        ),
        missing=missing,
    )


def _latest(labels: Sequence[Label]) -> list[Label]:
    """Return the last label of each pair in each source, without copies from an earlier source."""
    latest = {(label.source, label.pair): label for label in labels}
    known: set[tuple[tuple[str, ...], str, str]] = set()
    counted = []
    for label in latest.values():
        judgement = (label.pair, label.time, label.answer)
        if label.time and judgement in known:
            continue
        known.add(judgement)
        counted.append(label)
    return counted


def _pairs(labels: Sequence[Label]) -> tuple[list[LabelledPair], int]:
    """Return the pairs with a sure label, by similarity, and the number of the others."""
    answers: dict[tuple[str, ...], Counter[str]] = {}
    similarities: dict[tuple[str, ...], float] = {}
    for label in labels:
        answers.setdefault(label.pair, Counter())[label.answer] += 1
        similarities[label.pair] = label.similarity
    pairs = [
        LabelledPair(_name(pair), similarities[pair], counts[SAME], counts[DIFFERENT])
        for pair, counts in answers.items()
        if counts[SAME] or counts[DIFFERENT]
    ]
    return sorted(pairs, key=lambda pair: pair.similarity), len(answers) - len(pairs)


def _name(pair: tuple[str, ...]) -> str:
    words = [part if len(part) <= 40 else part[:40] + " …" for part in pair]  # noqa: PLR2004
    return " / ".join(words)


def _fit(pairs: Sequence[LabelledPair]) -> tuple[str, Fit | None]:
    """Return what is missing, and the fit unless something is."""
    for one, other, word in ((SAME, DIFFERENT, "lower"), (DIFFERENT, SAME, "higher")):
        if not any(getattr(pair, other) for pair in pairs):
            missing = (
                f'no pair is labelled "{other}", so nothing shows how far the threshold can move; '
                f'label pairs of {word} similarity than those that are "{one}"'
            )
            return missing, None
    fitted = fit(
        np.array([pair.similarity for pair in pairs]), np.array([pair.share for pair in pairs])
    )
    if not fitted.rising:
        missing = (
            f"{len(pairs)} labelled pairs do not show that more similar pairs are more often same "
            "(likelihood-ratio test, 5 %); label more pairs, further from the threshold"
        )
        return missing, None
    return "", fitted


def _wrong(similarities: F64, same: F64, threshold: float) -> float:
    dropped = similarities >= threshold - _ROUNDING
    return float(np.where(dropped, 1 - same, same).sum())


def _levels(pairs: Sequence[LabelledPair], fitted: Fit | None) -> list[LabelLevel]:
    last = round(1 / _LEVEL) - 1
    by_level: dict[int, list[LabelledPair]] = {}
    for pair in pairs:
        level = min(last, int(pair.similarity / _LEVEL + _ROUNDING))
        by_level.setdefault(level, []).append(pair)
    levels = []
    for level, members in sorted(by_level.items()):
        same = sum(pair.share for pair in members)
        similarities = np.array([pair.similarity for pair in members])
        levels.append(
            LabelLevel(
                low=round(level * _LEVEL, 2),
                high=round((level + 1) * _LEVEL, 2),
                same=same,
                different=len(members) - same,
                fitted=None if fitted is None else float(fitted.probability(similarities).mean()),
            )
        )
    return levels
