"""*Blocking.* ``streamdedup evaluate --labels``: proposes a threshold from labelled pairs."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from streamdedup.analysis import agreement
from streamdedup.analysis.agreement import LabelReport, report_on
from streamdedup.analysis.html import label_page
from streamdedup.analysis.labels import read_labels
from streamdedup.analysis.report import as_json as json_values
from streamdedup.cli import screen
from streamdedup.settings.sections import Settings


def propose(
    files: list[str],
    settings: Settings,
    threshold: float | None,
    html: Path | None,
    *,
    as_json: bool,
) -> None:
    """Read labels, and print the report.

    Args:
        files: files with labels.
        settings: how texts are compared.
        threshold: the current threshold; None for that of the last label, or of the settings.
        html: where the HTML page is saved.
        as_json: whether JSON is printed instead of tables.

    Raises:
        InputError: a file cannot be read or written, or is invalid.
    """
    labels = read_labels(files, settings)
    known = [label.threshold for label in labels if label.threshold is not None]
    current = settings.dedup.threshold
    if threshold is None and known:
        current = known[-1]
    report = report_on(labels, current)
    if html is not None:
        screen.write_page(html, label_page(report))
    if as_json:
        typer.echo(json.dumps(json_values(report), ensure_ascii=False))
    else:
        _print(report)


def _print(report: LabelReport) -> None:
    console = screen.standard_output()
    for name, value in agreement.overview(report):
        console.print(f"{name:<10} {value}", markup=False)
    console.print()
    console.print(screen.grid_table(agreement.grid(report)))
    for sentence in agreement.sentences(report):
        console.print(sentence, markup=False)
    if report.proposal is not None:
        console.print("\nProposed settings:\n")
        console.print(agreement.proposed_settings(report.proposal), markup=False)
