"""*Pure.* An evaluation as text: the tables and sentences of the terminal and the HTML page."""

from __future__ import annotations

from typing import NamedTuple

from streamdedup.analysis.report import BandingReport, EvaluationReport, Example, SimilarityLevel
from streamdedup.dedup.differences import TextPart, differences

_VERIFIED = {"estimate": "the estimate", "exact": "the texts if the estimate is near the threshold"}


class Grid(NamedTuple):
    """A table of numbers; the first column is text, and the note explains the others."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str


class Excerpt(NamedTuple):
    """Two texts, cut to their differences: id and parts of each, and the facts."""

    ids: tuple[str, str]
    texts: tuple[list[TextPart], list[TextPart]]
    facts: str

    def sides(self) -> list[tuple[str, list[TextPart]]]:
        """Return the id and the parts of each text."""
        return list(zip(self.ids, self.texts, strict=True))


def answer(report: EvaluationReport) -> list[str]:
    """Return what a reader wants to know first: the share of repeats, how many are found, a valley.

    The first banding counts.
    """
    sentences = []
    score = report.bandings[0].documents if report.bandings else None
    if score is not None:
        sentences.append(
            f"At {report.threshold:g}, {score.repeats:,} of {score.documents:,} documents repeat "
            f"an earlier one ({_share(score.repeats / max(1, score.documents))})."
        )
        wrong = score.dropped - score.right
        sentences.append(
            f"streamdedup drops {score.right:,} of them, and {wrong:,} other "
            f"{'document' if wrong == 1 else 'documents'}."
        )
    if report.valley is None:
        sentences.append(
            f"No valley found from {report.floor:g} on: look at the pairs on both sides of the "
            "threshold, or label some."
        )
    else:
        low, high = report.valley
        sentences.append(
            f"The similarities have a valley from {low:g} to {high:g}: try a threshold there."
        )
    return sentences


def nearest(report: EvaluationReport) -> list[tuple[str, list[Excerpt]]]:
    """Return the pairs nearest to the threshold, those of each side below its title."""
    return [
        ("The least similar pairs that are duplicates", [excerpt(one) for one in report.above]),
        ("The most similar pairs that are not", [excerpt(one) for one in report.below]),
    ]


def overview(report: EvaluationReport) -> list[tuple[str, str]]:
    """Return the facts of the evaluation, as names and values."""
    documents = f"{report.documents:,}, {report.distinct:,} distinct"
    if report.rejected:
        documents += f"; {report.rejected:,} rejected (not documents)"
    if report.without_shingles:
        documents += f"; {report.without_shingles:,} without text"
    return [
        ("documents", documents),
        ("pairs", f"{report.pairs:,}"),
        ("compared", f"shingles of {report.shingles}, profile {report.profile}"),
        ("signatures", f"variant {report.variant}"),
        ("threshold", f"{report.threshold:g}, verified by {_VERIFIED[report.verify]}"),
    ]


def truth_grid(report: EvaluationReport) -> Grid:
    """Return the pairs of each level of true similarity, and the error of their estimates."""
    errors = {error.low: error for error in report.errors}
    rows = []
    for level in report.truth:
        error = errors.get(level.low)
        measured = ["", "", ""]
        if error is not None:
            measured = [f"{error.bias:+.4f}", f"{error.deviation:.4f}", f"{error.theory:.4f}"]
        rows.append([span(level.low, level.high), f"{level.pairs:,}", *measured])
    return Grid(
        "True similarity of the pairs, and the error of the estimate",
        ["true Jaccard", "pairs", "bias", "deviation", "in theory"],
        rows,
        f"Pairs of documents with a Jaccard similarity of {report.floor:g} or more. A level "
        "excludes its upper bound; level 1 is that of copies. Bias is the mean error of the "
        "estimate, deviation its root mean square error. The last column is the standard error of "
        "independent values.",
    )


def comparison_grid(report: EvaluationReport) -> Grid:
    """Return a row for each banding."""
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
        "Candidates are pairs that share a band. Never compared is the share of all pairs that "
        "share no band. Refuted is the share of the candidates with an estimate below the "
        "threshold. Missed pairs reach the threshold and share no band. False alarms are below the "
        "threshold, but their estimate reaches it. Recall and precision are those of the stream.",
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


def banding_grid(banding: BandingReport, report: EvaluationReport) -> Grid:
    """Return the candidates, misses and false alarms of each level."""
    return Grid(
        f"{banding.banding}, of {banding.num_perm} values",
        ["true Jaccard", "pairs", "found", "missed", "by the curve", "refuted", "false alarms"],
        [
            _level_row(level, report.threshold)
            for level in banding.levels
            if level.pairs or level.found
        ],
        'Numbers of pairs. Found pairs share a band; the S-curve predicts the number "by the '
        'curve". Refuted pairs are found, but their estimate is below the threshold. False alarms '
        "are below the threshold, but their estimate reaches it. Pairs below "
        f"{report.floor:g} are counted only if found.",
    )


def _level_row(level: SimilarityLevel, threshold: float) -> list[str]:
    return [
        span(level.low, level.high),
        "" if level.pairs is None else f"{level.pairs:,}",
        f"{level.found:,}",
        "" if level.missed is None else f"{level.missed:,}",
        "" if level.expected is None else f"{level.expected:,.0f}",
        f"{level.found - level.accepted:,}",
        f"{level.accepted:,}" if level.high <= threshold and level.low < 1 else "",
    ]


def banding_sentences(banding: BandingReport, report: EvaluationReport) -> list[str]:
    """Describe the candidates, the verdicts of the stream and the clusters."""
    per_document = banding.candidates / report.documents
    compared = (
        f"{banding.candidates:,} candidate pairs ({per_document:,.2f} per document); "
        f"{_share(banding.never_compared)} of all pairs were never compared."
    )
    verified = (
        f"The estimate refuted {banding.refuted:,} candidates ({_share(banding.refuted_share)}), "
        f"{banding.lost:,} of them wrongly. It accepted {banding.false_alarms:,} candidates that "
        "are below the threshold."
    )
    sentences = [compared, verified]
    score = banding.documents
    if score is not None:
        sentences.append(
            f"As a stream, verified by {_VERIFIED[report.verify]}: {score.dropped:,} documents are "
            f"dropped, {score.right:,} of them rightly (precision {_share(score.precision)}). "
            f"{score.repeats:,} documents repeat a kept one (recall {_share(score.recall)}). "
            f"{score.named_right:,} dropped documents name an original that is truly that similar."
        )
    clusters = banding.clusters
    if clusters is not None:
        sentences.append(
            f"Compared with the labels: adjusted Rand index {clusters.adjusted_rand_index:.4f}; "
            f"pairs of documents: precision {_share(clusters.precision)}, recall "
            f"{_share(clusters.recall)}, F1 {clusters.f1:.4f}."
        )
    return sentences


def background_sentences(report: EvaluationReport) -> list[str]:
    """Describe the similarity of unrelated documents, and the bands that follow from it."""
    background = report.background
    quantiles = ", ".join(
        f"{float(share):.4g} below {value:.3f}" for share, value in background.quantiles.items()
    )
    measured = (
        f"{background.pairs:,} random pairs below {report.floor:g} have a mean similarity of "
        f"{background.mean:.4f} ({quantiles})."
    )
    effective = (
        "They make as many random candidates as if every pair had a similarity of "
        f"{background.effective:.4f}."
    )
    proposed = (
        f"For {report.corpus_documents:,} documents in the index this asks for "
        f"{background.proposal}: {background.random_candidates:.2g} random candidates per lookup."
    )
    return [measured, f"{effective} {proposed}"]


def proposal(report: EvaluationReport) -> str:
    """Return the proposed settings as YAML."""
    background = report.background
    return (
        "dedup:\n"
        f"  threshold: {report.threshold:g}\n"
        f"  corpus_documents: {report.corpus_documents}\n"
        f"  background: {background.effective:.4f}  # gives {background.proposal}\n"
    )


def mistakes(banding: BandingReport) -> list[tuple[str, list[Excerpt]]]:
    """Return the worst misses and false alarms, each list below its title."""
    return [
        ("The most similar pairs that were missed", [excerpt(one) for one in banding.misses]),
        (
            "The least similar pairs that were accepted as duplicates",
            [excerpt(one) for one in banding.alarms],
        ),
    ]


def excerpt(example: Example) -> Excerpt:
    """Cut the texts of a pair to their differences."""
    return Excerpt(
        example.ids,
        differences(*example.texts),
        f"true {example.jaccard:.4f}, estimate {example.estimate:.4f}; "
        f"{len(example.texts[0]):,} and {len(example.texts[1]):,} characters",
    )


def span(low: float, high: float) -> str:
    """Return the name of a level."""
    return "1" if low >= 1 else f"{low:g} to {high:g}"


def _share(value: float) -> str:
    """Write a share with enough digits that it does not round to 100 %."""
    digits = 1
    while digits < 6 and 0 < 1 - value < 0.5 * 10 ** -(digits + 2):  # noqa: PLR2004 - enough
        digits += 1
    return f"{value:.{digits}%}"
