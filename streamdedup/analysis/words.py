"""*Pure.* An evaluation in words: tables and excerpts that a terminal and a page show alike."""

from __future__ import annotations

from typing import NamedTuple

from streamdedup.analysis.report import BandingReport, Example, Level, Report
from streamdedup.dedup.differences import Part, differences

_VERIFIED = {"estimate": "the estimate", "exact": "the texts where the estimate is near"}


class Grid(NamedTuple):
    """A table; the first column is text, the others are numbers. The note says what they are."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str


class Excerpt(NamedTuple):
    """Two texts cut to where they differ: id and parts of each, and the facts."""

    ids: tuple[str, str]
    texts: tuple[list[Part], list[Part]]
    facts: str


def overview(report: Report) -> list[tuple[str, str]]:
    """Return what was evaluated, as names and values."""
    documents = f"{report.documents:,}, {report.distinct:,} distinct"
    if report.rejected:
        documents += f"; {report.rejected:,} rejected (no documents)"
    if report.without_shingles:
        documents += f"; {report.without_shingles:,} without text"
    return [
        ("documents", documents),
        ("pairs", f"{report.pairs:,}"),
        ("compared", f"shingles of {report.shingles}, profile {report.profile}"),
        ("signatures", f"of the {report.variant} variant"),
        ("threshold", f"{report.threshold:g}, as a stream verified by {_VERIFIED[report.verify]}"),
    ]


def truth_grid(report: Report) -> Grid:
    """Return the true pairs of each level, and the error of the estimate on them."""
    errors = {error.low: error for error in report.errors}
    rows = []
    for level in report.truth:
        error = errors.get(level.low)
        found = ["", "", ""]
        if error is not None:
            found = [f"{error.bias:+.4f}", f"{error.deviation:.4f}", f"{error.theory:.4f}"]
        rows.append([span(level.low, level.high), f"{level.pairs:,}", *found])
    return Grid(
        "True similarity of the pairs, and the error of the estimate",
        ["true Jaccard", "pairs", "bias", "deviation", "in theory"],
        rows,
        f"Pairs of documents from a Jaccard similarity of {report.floor:g} on, each line without "
        "its upper bound; 1 is that of copies. Bias is the mean of estimate less truth, deviation "
        "the root of its mean square; the last column is that of independent values.",
    )


def comparison_grid(report: Report) -> Grid:
    """Return all bandings, one per line."""
    return Grid(
        "Bands and rows",
        [
            "bands x rows",
            "candidates",
            "never compared",
            "refuted",
            f"missed from {report.threshold:g}",
            "false alarms",
            "recall of documents",
            "precision of documents",
        ],
        [_comparison_row(banding, report.threshold) for banding in report.bandings],
        "Candidates are pairs that share a band; never compared is the share of all pairs that do "
        "not, refuted the share of the candidates that the estimate puts below the threshold. "
        "Missed are pairs from the threshold on that share no band, false alarms candidates below "
        "it whose estimate reaches it. Recall and precision are those of the stream.",
    )


def _comparison_row(banding: BandingReport, threshold: float) -> list[str]:
    missed = sum(level.missed or 0 for level in banding.levels if level.low >= threshold)
    documents = banding.documents
    return [
        f"{banding.banding.bands} x {banding.banding.rows}",
        f"{banding.candidates:,}",
        _share(banding.never_compared),
        _share(banding.refuted_share),
        f"{missed:,}",
        f"{banding.false_alarms:,}",
        _share(documents.recall) if documents else "",
        _share(documents.precision) if documents else "",
    ]


def banding_grid(banding: BandingReport, report: Report) -> Grid:
    """Return what became of the pairs of each level."""
    return Grid(
        f"{banding.banding}, of {banding.num_perm} values",
        ["true Jaccard", "pairs", "found", "missed", "by the curve", "refuted", "false alarms"],
        [
            _level_row(level, report.threshold)
            for level in banding.levels
            if level.pairs or level.found
        ],
        "Numbers of pairs. Found ones share a band; as many as by the curve were to be expected. "
        "Refuted are those found whose estimate is below the threshold; false alarms reach it and "
        f"are below. Pairs below {report.floor:g} are counted only where found.",
    )


def _level_row(level: Level, threshold: float) -> list[str]:
    return [
        span(level.low, level.high),
        "" if level.pairs is None else f"{level.pairs:,}",
        f"{level.found:,}",
        "" if level.missed is None else f"{level.missed:,}",
        "" if level.expected is None else f"{level.expected:,.0f}",
        f"{level.found - level.accepted:,}",
        f"{level.accepted:,}" if level.high <= threshold and level.low < 1 else "",
    ]


def banding_sentences(banding: BandingReport, report: Report) -> list[str]:
    """Say what the candidates and the stream came to."""
    per_document = banding.candidates / report.documents
    compared = (
        f"{banding.candidates:,} candidate pairs ({per_document:,.2f} per document); "
        f"{_share(banding.never_compared)} of all pairs were never compared."
    )
    verified = (
        f"The estimate refuted {banding.refuted:,} candidates ({_share(banding.refuted_share)}), "
        f"{banding.lost:,} of them wrongly, and let {banding.false_alarms:,} pass that are below "
        "the threshold."
    )
    sentences = [compared, verified]
    score = banding.documents
    if score is not None:
        sentences.append(
            f"As a stream, verified by {_VERIFIED[report.verify]}: {score.dropped:,} documents "
            f"dropped, {score.right:,} of them rightly "
            f"(precision {_share(score.precision)}), of {score.repeats:,} that repeat a kept one "
            f"(recall {_share(score.recall)}); {score.named_right:,} name an original that "
            "really is that similar."
        )
    clusters = banding.clusters
    if clusters is not None:
        sentences.append(
            f"Against the labels: adjusted Rand index {clusters.adjusted_rand_index:.4f}; of the "
            f"pairs of documents precision {_share(clusters.precision)}, recall "
            f"{_share(clusters.recall)}, F1 {clusters.f1:.4f}."
        )
    return sentences


def background_sentences(report: Report) -> list[str]:
    """Say how similar unrelated documents are, and what follows."""
    found = report.background
    quantiles = ", ".join(
        f"{float(share):.4g} below {value:.3f}" for share, value in found.quantiles.items()
    )
    measured = (
        f"{found.pairs:,} random pairs below {report.floor:g} have a mean similarity of "
        f"{found.mean:.4f} ({quantiles})."
    )
    follows = (
        f"They make as many random candidates as if all had {found.effective:.4f}. For "
        f"{report.corpus_documents:,} documents in the index that asks for {found.proposal}, "
        f"{found.random_candidates:.2g} random candidates per lookup."
    )
    return [measured, follows]


def proposal(report: Report) -> str:
    """Return the proposed settings as YAML."""
    found = report.background
    return (
        "dedup:\n"
        f"  threshold: {report.threshold:g}\n"
        f"  corpus_documents: {report.corpus_documents}\n"
        f"  background: {found.effective:.4f}  # gives {found.proposal}\n"
    )


def excerpt(example: Example) -> Excerpt:
    """Show a pair by where its texts differ."""
    return Excerpt(
        example.ids,
        differences(*example.texts),
        f"true {example.jaccard:.4f}, estimate {example.estimate:.4f}; "
        f"{len(example.texts[0]):,} and {len(example.texts[1]):,} characters",
    )


def span(low: float, high: float) -> str:
    """Name a level."""
    return "1" if low >= 1 else f"{low:g} to {high:g}"


def _share(value: float) -> str:
    """Write a share so that what is nearly all does not read as all."""
    digits = 1
    while digits < 6 and 0 < 1 - value < 0.5 * 10 ** -(digits + 2):  # noqa: PLR2004 - enough
        digits += 1
    return f"{value:.{digits}%}"
