"""*Blocking.* ``streamdedup evaluate``: compares sketches, or labels, with exact similarities."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamdedup.cli import options
from streamdedup.cli.terminal import interruptible
from streamdedup.errors import InputError, SettingsError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from streamdedup.analysis.agreement import LabelReport
    from streamdedup.analysis.report import EvaluationReport
    from streamdedup.analysis.words import Excerpt, Grid
    from streamdedup.settings.sections import Settings
    from streamdedup.sketch.bands import Banding

_BANDING = re.compile(r"\s*(\d{1,5})\s*[xX\u00d7]\s*(\d{1,5})\s*")
_EXAMPLES = 3
"""Examples of each kind in the terminal; the page has more."""

Labels = Annotated[
    list[str] | None,
    options.for_input(
        metavar="FILE",
        help="Labelled pairs, instead of documents: downloads of the page, or a table with tabs. "
        "Repeat it for several people.",
    ),
]
Bandings = Annotated[
    list[str] | None,
    options.for_judgement(
        metavar="BxR",
        help="Bands and rows, for example 20x7; repeat it to compare. Default: the settings.",
    ),
]
Variant = Annotated[str | None, options.for_judgement(help="fast or classic (dedup.variant).")]
ShingleSize = Annotated[
    int | None, options.for_judgement(help="Length of a shingle (dedup.shingle_size).")
]
ShingleUnit = Annotated[
    str | None, options.for_judgement(help="character or word (dedup.shingle_unit).")
]
Floor = Annotated[
    float,
    options.for_judgement(
        min=0.05, max=1.0, help="Smallest similarity of the pairs that are counted."
    ),
]
LabelField = Annotated[
    str | None,
    options.for_input(
        metavar="PATH",
        help="Column or dotted path of a label; clusters of duplicates are compared with it.",
    ),
]
Limit = Annotated[
    int | None, options.for_input(metavar="N", min=1, help="Read at most N documents.")
]
Html = Annotated[
    Path | None, options.to_file(help="Save the report as an HTML page with pictures.")
]


def evaluate(
    corpus: options.OptionalFiles = None,
    labels: Labels = None,
    threshold: options.Threshold = None,
    banding: Bandings = None,
    num_perm: options.NumPerm = None,
    variant: Variant = None,
    profile: options.Profile = None,
    shingle_size: ShingleSize = None,
    shingle_unit: ShingleUnit = None,
    documents: options.CorpusDocuments = None,
    floor: Floor = 0.5,
    text_field: options.TextField = None,
    id_field: options.IdField = None,
    label_field: LabelField = None,
    limit: Limit = None,
    config: options.ConfigFile = None,
    as_json: options.AsJson = False,
    html: Html = None,
) -> None:
    """Compare the sketches of a corpus with the exact similarity of every pair.

    For each choice of bands the report shows the pairs found and missed at each level of
    similarity, the candidates, the documents that a stream drops rightly and wrongly, and the worst
    mistakes side by side. It measures the similarity of unrelated documents and proposes settings.
    The corpus is held in memory; 100,000 short documents take a few minutes at most.

    With --labels, it proposes the threshold at which labelled pairs are equally often the same and
    different, with its uncertainty.

    Exit codes: 0 done, 3 invalid settings or flags, 4 an input or output file, 130 and 143
    interrupted.
    """
    from streamdedup.analysis import evaluate as evaluation
    from streamdedup.analysis.agreement import LabelReport
    from streamdedup.analysis.corpus import read_corpus
    from streamdedup.analysis.html import label_page, page
    from streamdedup.analysis.report import as_json as json_values
    from streamdedup.cli import screen
    from streamdedup.files.paths import check_report, expanded
    from streamdedup.sketch.bands import doubts

    settings = options.load(
        config,
        dedup={
            "threshold": threshold,
            "num_perm": num_perm,
            "variant": variant,
            "profile": profile,
            "shingle_size": shingle_size,
            "shingle_unit": shingle_unit,
            "corpus_documents": documents,
        },
        records={"text_fields": text_field, "id_field": id_field},
    )
    corpus = list(expanded(corpus or [], [str(html)] if html else []))
    if html is not None:
        check_report(html, [*corpus, *(labels or []), config])
    if bool(labels) == bool(corpus):
        raise typer.BadParameter("give either files of documents, or --labels")
    report: EvaluationReport | LabelReport
    if labels:
        report = _propose(labels, settings, threshold)
    else:
        dedup = settings.dedup
        bandings = [_parse_banding(text) for text in banding or ()] or [dedup.banding()]
        sys.stderr.writelines(
            f"streamdedup: {doubt}\n"
            for choice in bandings
            for doubt in doubts(choice, dedup.threshold, dedup.recall, options.MOST_VALUES)
        )
        with interruptible("interrupted"), screen.progress("reading") as show:
            documents_read = read_corpus(corpus, settings, limit, label_field)
            report = evaluation.evaluate(documents_read, settings, bandings, floor, show)
    if html is not None:
        text = label_page(report) if isinstance(report, LabelReport) else page(report)
        _write_page(html, text)
    if as_json:
        typer.echo(json.dumps(json_values(report), ensure_ascii=False))
    elif isinstance(report, LabelReport):
        _print_proposal(report)
    else:
        _print(report)


def _parse_banding(text: str) -> Banding:
    from streamdedup.sketch.bands import Banding

    match = _BANDING.fullmatch(text)
    banding = Banding(int(match[1]), int(match[2])) if match else Banding(0, 0)
    fits = banding.bands <= options.MOST_BANDS and banding.rows <= options.MOST_ROWS
    if not (fits and 1 <= banding.values <= options.MOST_VALUES):
        raise SettingsError(
            f"--banding {text}: expected bands x rows, such as 20x7, of at most "
            f"{options.MOST_BANDS} bands, {options.MOST_ROWS} rows and {options.MOST_VALUES} values"
        )
    return banding


def _propose(files: list[str], settings: Settings, threshold: float | None) -> LabelReport:
    """Read labels, and propose a threshold.

    The current threshold is the flag's, else that of the last label, else that of the settings.
    """
    from streamdedup.analysis.agreement import report_on
    from streamdedup.analysis.labels import read_labels

    labels = read_labels(files, settings)
    known = [label.threshold for label in labels if label.threshold is not None]
    current = settings.dedup.threshold
    if threshold is None and known:
        current = known[-1]
    return report_on(labels, current)


def _print(report: EvaluationReport) -> None:
    from streamdedup.analysis import words
    from streamdedup.cli import screen

    console = screen.standard_output()
    for sentence in words.answer(report):
        console.print(sentence, markup=False)
    console.print()
    _print_examples(console, words.nearest(report))
    _print_head(console, words.overview(report), words.truth_grid(report))
    for banding in report.bandings:
        console.print(_table(words.banding_grid(banding, report)))
        for sentence in words.banding_sentences(banding, report):
            console.print(sentence, markup=False)
        console.print()
        _print_examples(console, words.mistakes(banding))
    if len(report.bandings) > 1:
        console.print(_table(words.comparison_grid(report)))
    for sentence in words.background_sentences(report):
        console.print(sentence, markup=False)
    console.print("Proposed settings:\n")
    console.print(words.proposal(report), markup=False)


def _print_examples(console: Console, lists: list[tuple[str, list[Excerpt]]]) -> None:
    """Print the first examples of each list below its title."""
    for title, excerpts in lists:
        if excerpts:
            brackets = not console.is_terminal
            console.print(_side_by_side(title, excerpts[:_EXAMPLES], brackets=brackets))


def _print_proposal(report: LabelReport) -> None:
    from streamdedup.analysis import agreement
    from streamdedup.cli import screen

    console = screen.standard_output()
    for sentence in agreement.sentences(report):
        console.print(sentence, markup=False)
    if report.proposal is not None:
        console.print("\nProposed settings:\n")
        console.print(agreement.proposed_settings(report.proposal), markup=False)
    console.print()
    _print_head(console, agreement.overview(report), agreement.grid(report))


def _print_head(console: Console, facts: Iterable[tuple[str, str]], grid: Grid) -> None:
    """Print the facts of a report, and its first table."""
    for name, value in facts:
        console.print(f"{name:<10} {value}", markup=False)
    console.print()
    console.print(_table(grid))


def _table(grid: Grid) -> Table:
    from streamdedup.cli import screen

    return screen.table(grid.title, grid.columns, grid.rows)


def _write_page(path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


def _side_by_side(title: str, excerpts: list[Excerpt], *, brackets: bool) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from streamdedup.cli import screen

    table = Table(title=title, title_justify="left", box=box.SIMPLE, show_header=False, expand=True)
    table.add_column(ratio=1, overflow="fold")
    table.add_column(ratio=1, overflow="fold")
    for excerpt in excerpts:
        table.add_row(*(Text(id_, style="bold") for id_ in excerpt.ids))
        table.add_row(*(screen.marked(side, brackets=brackets) for side in excerpt.texts))
        table.add_row(Text(excerpt.facts, style="dim"), "", end_section=True)
    return table
