"""*Blocking.* ``streamdedup tune``: compares the choices of bands and rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamdedup.cli import options
from streamdedup.errors import SettingsError

if TYPE_CHECKING:
    from rich.text import Text

    from streamdedup.analysis.tune import Advice, Option
    from streamdedup.sketch.bands import Banding

_SHOWN_BELOW, _SHOWN_ABOVE = 6, 5
"""Options shown with fewer and with more rows than the pick."""
_SMALLEST = 0.00005
"""Smaller probabilities have no digit among four."""
_CURVE_DISTANCE = 2
"""Rows between the pick and the options whose curves are drawn beside it."""

Recall = Annotated[
    float | None,
    options.for_judgement(help="Share of the pairs at the threshold to be found (dedup.recall)."),
]
Background = Annotated[
    float | None,
    options.for_judgement(
        metavar="J0",
        help="Similarity of unrelated documents (dedup.background); `evaluate` measures it.",
    ),
]
Bands = Annotated[
    int | None,
    options.for_judgement(
        min=1,
        max=options.MOST_BANDS,
        help="Bands of a choice to compare with the options; needs --rows.",
    ),
]
Rows = Annotated[
    int | None, options.for_judgement(min=1, max=options.MOST_ROWS, help="Rows of that choice.")
]
Plot = Annotated[Path | None, options.to_file(help="Save the S-curves as a .png or .svg file.")]


def tune(
    threshold: options.Threshold = None,
    recall: Recall = None,
    num_perm: options.NumPerm = None,
    documents: options.CorpusDocuments = None,
    background: Background = None,
    bands: Bands = None,
    rows: Rows = None,
    plot: Plot = None,
    config: options.ConfigFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Choose bands and rows: recall comes first, then as few random candidates as possible.

    Each line of the table reaches the recall at the threshold. More rows make the curve steeper:
    fewer unrelated pairs are compared, but more bands and more bytes are needed. The settings
    provide the values that flags do not.

    Exit codes: 0 done, 3 invalid settings or flags, 4 the picture cannot be written.
    """
    from streamdedup.analysis import plots
    from streamdedup.analysis.tune import Plan, advise
    from streamdedup.files.paths import check_report
    from streamdedup.settings.load import load_settings

    if (bands is None) != (rows is None):
        raise SettingsError("--bands and --rows belong together; give both or none")
    if plot is not None:
        plots.check_target(plot)
        check_report(plot, [config])
    flags: dict[str, Any] = {
        "threshold": threshold,
        "recall": recall,
        "num_perm": num_perm,
        "corpus_documents": documents,
        "background": background,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    # Configured bands are one choice among the options; they do not limit the options.
    configured = load_settings(config).dedup
    free = load_settings(config, dedup={**given, "bands": None, "rows": None}).dedup
    dedup = free.model_copy(update={"bands": configured.bands, "rows": configured.rows})
    try:
        plan = Plan(
            threshold=dedup.threshold,
            recall=dedup.recall,
            num_perm=dedup.num_perm,
            corpus=dedup.corpus_documents,
            background=dedup.background,
            signature_bytes=dedup.sketch_parameters().signature_bytes,
        )
        advice = advise(plan, _banding(bands or dedup.bands, rows or dedup.rows))
    except ValueError as error:
        raise SettingsError(str(error)) from None
    if plot is not None:
        plots.save_curves(plot, _curves(advice), advice.plan.threshold)
    if as_json:
        typer.echo(json.dumps(advice.as_json()))
    else:
        _print(advice, stores_texts=dedup.verify == "exact")


def _banding(bands: int | None, rows: int | None) -> Banding | None:
    from streamdedup.sketch.bands import Banding

    if bands is None or rows is None:
        return None
    banding = Banding(bands, rows)
    if banding.values > options.MOST_VALUES:
        raise SettingsError(
            f"{banding} need {banding.values} MinHash values, dedup.num_perm is at most "
            f"{options.MOST_VALUES}; lower --bands or --rows"
        )
    return banding


def _print(advice: Advice, *, stores_texts: bool) -> None:
    from streamdedup.analysis import plots
    from streamdedup.analysis.tune import SIMILARITIES
    from streamdedup.cli import screen

    plan = advice.plan
    console = screen.standard_output()
    title = (
        f"threshold {plan.threshold:g}, recall {plan.recall:g}, {plan.num_perm} values, "
        f"{plan.corpus:,} documents, background {plan.background:.3g}"
    )
    columns = ["", "bands", "rows", f"recall\nat {plan.threshold:g}"]
    columns += [f"P\nat {similarity:g}" for similarity in SIMILARITIES]
    columns += ["random\nper lookup", "bytes per\ndocument"]
    console.print(screen.table(title, columns, _rows(advice)))
    console.print(f"[bold]Pick:[/] {advice.reason}", soft_wrap=not console.is_terminal)
    if stores_texts:
        console.print("The bytes do not include the texts that dedup.verify: exact stores.")
    for doubt in advice.doubts:
        console.print(f"[bold red]Warning:[/] {doubt}.", soft_wrap=not console.is_terminal)
    drawn = plots.draw_curves(_curves(advice), plan.threshold, colour=console.is_terminal)
    typer.echo(f"\n{drawn}")


def _rows(advice: Advice) -> Iterator[list[Text]]:
    pick = advice.pick.banding
    for option in advice.options:
        if -_SHOWN_BELOW <= option.banding.rows - pick.rows <= _SHOWN_ABOVE:
            is_pick = option.banding == pick
            yield _row(option, "pick" if is_pick else "", "bold green" if is_pick else "")
    if advice.given is not None:
        fits = advice.given.banding.values <= advice.plan.num_perm
        name = "given" if fits else "refused"
        yield _row(advice.given, name, "red" if advice.doubts else "")


def _row(option: Option, name: str, style: str) -> list[Text]:
    from rich.text import Text

    from streamdedup.analysis.tune import short_count

    shares = option.probabilities
    cells = [
        name,
        str(option.banding.bands),
        str(option.banding.rows),
        f"{option.recall:.4f}",
        *(f"{value:.4f}" if value >= _SMALLEST else f"{value:.0e}" for value in shares),
        short_count(option.random_candidates),
        str(option.bytes_per_document),
    ]
    return [Text(cell, style=style) for cell in cells]


def _curves(advice: Advice) -> list[Banding]:
    """Return the bandings whose curves are drawn: the pick, the given one, and neighbours."""
    pick = advice.pick.banding
    given = [advice.given.banding] if advice.given and advice.given.banding != pick else []
    others = (option.banding for option in advice.options)
    near = (each for each in others if abs(each.rows - pick.rows) == _CURVE_DISTANCE)
    return [pick, *given, *near]
