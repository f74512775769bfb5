"""*Blocking.* ``streamdedup evaluate``: how good the sketches are on a corpus of one's own."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from streamdedup.cli.interrupts import Interrupted, Interrupts
from streamdedup.cli.marked import marked
from streamdedup.errors import InputError, SettingsError

# Modules that pull in numba are imported in the command, so that --help need not wait for it.
if TYPE_CHECKING:
    from streamdedup.analysis.report import BandingReport, Example, Report
    from streamdedup.analysis.words import Grid
    from streamdedup.settings.sections import Settings
    from streamdedup.sketch.bands import Banding

_IN, _JUDGED, _OUT = "Input", "Judgement", "Output"
_BANDING = re.compile(r"\s*(\d{1,5})\s*[xX\u00d7]\s*(\d{1,5})\s*")
_MOST_VALUES = 9000
_SHOWN = 3
"""Examples of each kind in the terminal; the page has more."""
_WIDTH = 110
"""Columns where the output is no terminal."""


def evaluate(  # noqa: PLR0913, PLR0917 - one parameter per flag
    corpus: Annotated[
        list[str],
        typer.Argument(
            metavar="CORPUS...", help="JSON Lines files, plain, gzip or zstd; - is stdin."
        ),
    ],
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Similarity that makes a duplicate (dedup.threshold).", rich_help_panel=_JUDGED
        ),
    ] = None,
    banding: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BxR",
            help="Bands and rows, such as 20x7; again for more. Default: those of the settings.",
            rich_help_panel=_JUDGED,
        ),
    ] = None,
    num_perm: Annotated[
        int | None,
        typer.Option(
            help="MinHash values (dedup.num_perm); as many as a banding takes at least.",
            rich_help_panel=_JUDGED,
        ),
    ] = None,
    variant: Annotated[
        str | None,
        typer.Option(help="fast or classic (dedup.variant).", rich_help_panel=_JUDGED),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Normalisation (dedup.profile).", rich_help_panel=_JUDGED
        ),
    ] = None,
    shingle_size: Annotated[
        int | None,
        typer.Option(help="Length of a shingle (dedup.shingle_size).", rich_help_panel=_JUDGED),
    ] = None,
    shingle_unit: Annotated[
        str | None,
        typer.Option(help="character or word (dedup.shingle_unit).", rich_help_panel=_JUDGED),
    ] = None,
    documents: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Documents in the index that settings are proposed for (dedup.corpus_documents).",
            rich_help_panel=_JUDGED,
        ),
    ] = None,
    floor: Annotated[
        float,
        typer.Option(
            min=0.05, max=1.0, help="Pairs below are not counted.", rich_help_panel=_JUDGED
        ),
    ] = 0.5,
    text_field: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Dotted path of the text (records.text_fields); again for more.",
            rich_help_panel=_IN,
        ),
    ] = None,
    id_field: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Dotted path of the id (records.id_field).", rich_help_panel=_IN
        ),
    ] = None,
    label_field: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Dotted path of the group that people put a document into, to score against.",
            rich_help_panel=_IN,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Read no more documents than these.", rich_help_panel=_IN
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="YAML file with the settings.", rich_help_panel=_IN),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON.", rich_help_panel=_OUT)
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Save the report as a page of its own.", rich_help_panel=_OUT
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Save the histogram of candidates, with the S-curve over it, as .png or .svg.",
            rich_help_panel=_OUT,
        ),
    ] = None,
) -> None:
    """Hold the sketches against the exact similarity of every pair of a corpus.

    For each choice of bands: what is found and missed at each level of true similarity, what is
    compared in vain, what the stream drops rightly and wrongly, and the worst mistakes side by
    side. Measures how similar unrelated documents are, and proposes settings. The corpus is held in
    memory; 100,000 short documents take minutes at most.

    Exit codes: 0 done, 3 wrong settings or flags, 4 an input or output file, 130 and 143
    interrupted.
    """
    from streamdedup.analysis import html as report_html  # noqa: PLC0415
    from streamdedup.analysis import plots  # noqa: PLC0415

    if plot is not None:
        plots.check_target(plot)
    settings = _load(
        config,
        _given(
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
        ),
    )
    bandings = [_read_banding(one) for one in banding or ()] or [settings.dedup.banding()]
    _warn(bandings, settings)
    try:
        with Interrupts():
            reading = _Reading(corpus, limit, label_field)
            report = _evaluate(reading, settings, bandings, floor)
    except Interrupted as interrupted:
        sys.stderr.write("streamdedup: interrupted\n")
        raise typer.Exit(interrupted.exit_code) from None
    if plot is not None:
        plots.save_histograms(plot, report)
    if html is not None:
        _write(html, report_html.page(report))
    if as_json:
        from streamdedup.analysis.report import as_json as plain  # noqa: PLC0415

        typer.echo(json.dumps(plain(report), ensure_ascii=False))
    else:
        _print(report)


def _given(**sections: dict[str, object]) -> dict[str, dict[str, object]]:
    """Return the settings that flags were given for; the others stay as they are configured."""
    chosen = {
        section: {name: value for name, value in values.items() if value is not None}
        for section, values in sections.items()
    }
    return {section: values for section, values in chosen.items() if values}


def _load(config: Path | None, overrides: dict[str, dict[str, object]]) -> Settings:
    from streamdedup.settings.load import load_settings  # noqa: PLC0415

    return load_settings(config, **overrides)


def _read_banding(text: str) -> Banding:
    from streamdedup.sketch.bands import Banding  # noqa: PLC0415

    found = _BANDING.fullmatch(text)
    banding = Banding(int(found[1]), int(found[2])) if found else Banding(0, 0)
    if not 1 <= banding.values <= _MOST_VALUES:
        raise SettingsError(
            f"--banding {text}: write bands x rows, such as 20x7, of {_MOST_VALUES} values at most"
        )
    return banding


def _warn(bandings: list[Banding], settings: Settings) -> None:
    from streamdedup.sketch.bands import doubts  # noqa: PLC0415

    dedup = settings.dedup
    for banding in bandings:
        for doubt in doubts(banding, dedup.threshold, dedup.recall, _MOST_VALUES):
            sys.stderr.write(f"streamdedup: {doubt}\n")


class _Reading(NamedTuple):
    """What is read: files, how many documents at most, and the field of their labels."""

    paths: list[str]
    limit: int | None
    label_field: str | None


def _evaluate(
    reading: _Reading, settings: Settings, bandings: list[Banding], floor: float
) -> Report:
    from streamdedup.analysis import evaluate as evaluation  # noqa: PLC0415
    from streamdedup.analysis.corpus import read_corpus  # noqa: PLC0415

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as progress:
        task = progress.add_task("reading", total=None)

        def tell(what: str, done: int, of: int) -> None:
            progress.update(task, description=what, completed=done, total=of)

        read = read_corpus(reading.paths, settings, reading.limit, reading.label_field)
        return evaluation.evaluate(read, settings, bandings, floor, tell)


def _write(path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


def _print(report: Report) -> None:
    from streamdedup.analysis import words  # noqa: PLC0415

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH)
    for name, value in words.overview(report):
        console.print(f"{name:<10} {value}", markup=False)
    console.print()
    console.print(_table(words.truth_grid(report)))
    for banding in report.bandings:
        _print_banding(console, banding, report)
    if len(report.bandings) > 1:
        console.print(_table(words.comparison_grid(report)))
    for sentence in words.background_sentences(report):
        console.print(sentence, markup=False)
    console.print("Proposed settings:\n")
    console.print(words.proposal(report), markup=False)


def _print_banding(console: Console, banding: BandingReport, report: Report) -> None:
    from streamdedup.analysis import words  # noqa: PLC0415

    console.print(_table(words.banding_grid(banding, report)))
    for sentence in words.banding_sentences(banding, report):
        console.print(sentence, markup=False)
    console.print()
    for title, examples in (
        ("The most similar pairs that were missed", banding.misses),
        ("The least similar pairs that passed for duplicates", banding.alarms),
    ):
        if examples:
            console.print(_side_by_side(title, examples[:_SHOWN], marks=not console.is_terminal))


def _side_by_side(title: str, examples: list[Example], *, marks: bool) -> Table:
    from streamdedup.analysis.words import excerpt  # noqa: PLC0415

    table = Table(title=title, title_justify="left", box=box.SIMPLE, show_header=False, expand=True)
    table.add_column(ratio=1, overflow="fold")
    table.add_column(ratio=1, overflow="fold")
    for example in examples:
        shown = excerpt(example)
        table.add_row(*(Text(each, style="bold") for each in shown.ids))
        table.add_row(*(marked(side, marks=marks) for side in shown.texts))
        table.add_row(Text(shown.facts, style="dim"), "", end_section=True)
    return table


def _table(grid: Grid) -> Table:
    table = Table(title=grid.title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, column in enumerate(grid.columns):
        table.add_column(column, justify="right" if place else "left")
    for row in grid.rows:
        table.add_row(*row)
    return table
