"""*Pure.* A report on labels as text: the table and sentences of terminal and HTML page."""

from __future__ import annotations

from streamdedup.analysis.agreement import LabelReport, Proposal
from streamdedup.analysis.words import Grid, span

_NAMED = 5
"""Pairs with different labels that are named."""


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
    """Describe the disagreements, and the proposal or what is missing for it."""
    found = []
    if report.disagreements:
        named = "; ".join(report.disagreements[:_NAMED])
        more = len(report.disagreements) - _NAMED
        found.append(
            f"Labelled both same and different: {named}" + (f"; {more} more." if more > 0 else ".")
        )
    if report.proposal is None:
        found.append(f"No threshold is proposed: {report.missing}.")
    else:
        found += _proposed(report, report.proposal)
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
