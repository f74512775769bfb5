"""*Pure.* Labels to a report: agreement and the proposed threshold, as numbers and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from streamdedup.analysis.threshold import Fit, fit
from streamdedup.analysis.words import Grid, span
from streamdedup.columns import F64

SAME, DIFFERENT, UNSURE = "same", "different", "unsure"
Answer = Literal["same", "different", "unsure"]
_LEVEL = 0.05  # width of a level of similarity in the table
_ROUNDING = 1e-9
_NAMED = 5  # pairs with different labels that are named


class Label(NamedTuple):
    """One answer to the question whether two documents are the same."""

    pair: tuple[str, ...]  # what identifies the pair
    similarity: float  # the Jaccard similarity, or the estimate if the texts were not compared
    answer: Answer
    source: str  # the file
    time: str  # when the label was given; empty if unknown
    threshold: float | None  # at that time; None if unknown
    fingerprint: str  # of the sketch parameters; empty if unknown


@dataclass(frozen=True, slots=True)
class LabelledPair:
    """A pair and how many of its labels say "same" or "different", at most one of each source."""

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
    """The pairs whose similarity lies in ``[low, high)``; 1 is included in the last level."""

    low: float
    high: float
    same: float  # pairs that most labels call the same; a pair with a tie counts half
    different: float
    fitted: float | None  # share of "same" by the fitted curve; None without a proposal


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposed threshold, with the ends of its 95% interval; None if labels do not bound it."""

    threshold: float  # similarity at which "same" and "different" are equally likely
    low: float | None
    high: float | None
    slope: float | None  # of the fitted curve; None if one similarity separates the labels
    wrong_now: float  # pairs on the wrong side of the current threshold; a tie counts half
    wrong: float  # pairs on the wrong side of the proposed threshold


@dataclass(frozen=True, slots=True)
class LabelReport:
    """The result of labels."""

    labels: int  # without repeated ones
    pairs: int  # with a label that is sure
    unsure: int  # pairs with unsure labels only
    repeated: int  # pairs that several sources label, all sure
    agreeing: int  # those of them whose labels are equal
    disagreements: list[str]  # names of those whose labels differ
    threshold: float  # the current one
    levels: list[LabelLevel]
    proposal: Proposal | None
    missing: str  # what labels are missing for a proposal; empty if there is one

    @property
    def agreement(self) -> float | None:
        """Share of the pairs with several labels whose labels are equal."""
        return self.agreeing / self.repeated if self.repeated else None


def report_on(labels: Sequence[Label], threshold: float) -> LabelReport:
    """Fit a threshold to labels, in the order in which they were given.

    A pair counts once, whatever the number of its labels, since the labels of one pair do not vary
    independently. Its labels count as a share.
    """
    counted = _latest(labels)
    pairs, unsure = _pairs(counted)
    repeated = [pair for pair in pairs if pair.same + pair.different > 1]
    disagreements = [pair.name for pair in repeated if pair.same and pair.different]
    similarities = np.array([pair.similarity for pair in pairs])
    same = np.array([pair.share for pair in pairs])
    missing, fitted = _fit(similarities, same)
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
    return " / ".join(part if len(part) <= 40 else part[:40] + " …" for part in pair)  # noqa: PLR2004


def _fit(similarities: F64, same: F64) -> tuple[str, Fit | None]:
    """Return what is missing, and the fit unless something is."""
    for one, other, word, shares in (
        (SAME, DIFFERENT, "lower", 1 - same),
        (DIFFERENT, SAME, "higher", same),
    ):
        if not shares.any():
            return (
                f'no pair is labelled "{other}", so nothing shows how far the threshold can move; '
                f'label pairs of {word} similarity than those that are "{one}"'
            ), None
    fitted = fit(similarities, same)
    if fitted.rising:
        return "", fitted
    return (
        f"{len(same)} labelled pairs do not show that more similar pairs are more often same "
        "(likelihood-ratio test, 5 %); label more pairs, further from the threshold"
    ), None


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


def overview(report: LabelReport) -> list[tuple[str, str]]:
    """Return the facts, as names and values."""
    pairs = f"{report.pairs:,} labelled same or different"
    if report.unsure:
        pairs += f"; {report.unsure:,} unsure only, which do not count"
    facts = [
        ("labels", f"{report.labels:,}"),
        ("pairs", pairs),
        ("threshold", f"{report.threshold:g} now"),
    ]
    if report.agreement is not None:
        agreeing = f"{report.agreeing:,} of {report.repeated:,} pairs with several labels"
        facts.append(("agreement", f"{report.agreement:.0%}: {agreeing} have equal ones"))
    return facts


def grid(report: LabelReport) -> Grid:
    """Return the labels at each level of similarity."""
    return Grid(
        "Labels by similarity",
        ["similarity", "same", "different", "share of same", "by the curve"],
        [
            [
                span(level.low, level.high),
                f"{level.same:g}",
                f"{level.different:g}",
                f"{level.same / (level.same + level.different):.0%}",
                "" if level.fitted is None else f"{level.fitted:.0%}",
            ]
            for level in report.levels
        ],
        "Numbers of pairs. A pair counts as half of each if its labels are tied. The last column "
        "is the share that the fitted curve gives these pairs.",
    )


def sentences(report: LabelReport) -> list[str]:
    """Describe the proposal or what is missing for it, and the disagreements."""
    if report.proposal is None:
        found = [f"No threshold is proposed: {report.missing}."]
    else:
        found = _proposed(report, report.proposal)
    if report.disagreements:
        named = "; ".join(report.disagreements[:_NAMED])
        more = len(report.disagreements) - _NAMED
        found.append(
            f"Labelled both same and different: {named}" + (f"; {more} more." if more > 0 else ".")
        )
    return found


def _proposed(report: LabelReport, proposal: Proposal) -> list[str]:
    low = "any lower one" if proposal.low is None else f"{proposal.low:g}"
    high = "any higher one" if proposal.high is None else f"{proposal.high:g}"
    equal = (
        f"At a similarity of {proposal.threshold:g}, same and different are equally likely (95 % "
        f"interval by profile likelihood: {low} to {high})."
    )
    found = [equal]
    if proposal.slope is None:
        found.append("One similarity separates the labels: every different pair is below it.")
    for bound, word in ((proposal.low, "lower"), (proposal.high, "higher")):
        if bound is None:
            found.append(f"The interval has no bound there: label pairs of {word} similarity.")
    found.append(
        f"{proposal.wrong_now:g} of {report.pairs:,} labelled pairs are on the wrong side of "
        f"{report.threshold:g}, {proposal.wrong:g} on that of {proposal.threshold:g}. These are "
        "not shares of the stream, because the labelled pairs are chosen near the threshold."
    )
    if (proposal.low or 0.0) <= report.threshold <= (proposal.high or 1.0):
        found.append(
            f"The current threshold, {report.threshold:g}, is in the interval: the labels do not "
            "contradict it."
        )
    else:
        found.append(f"The labels contradict the current threshold, {report.threshold:g}.")
    return found


def proposed_settings(proposal: Proposal) -> str:
    """Return the proposed settings as YAML."""
    return f"dedup:\n  threshold: {proposal.threshold:g}\n"
