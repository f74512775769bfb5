"""*Blocking.* ``streamdedup tune``: what each choice of bands and rows would do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from streamdedup.errors import SettingsError

# Modules that pull in numba are imported in the command, so that --help need not wait for it.
if TYPE_CHECKING:
    from streamdedup.analysis.tune import Advice, Option, Plan
    from streamdedup.settings.dedup import DedupSettings

_SHOWN_BELOW, _SHOWN_ABOVE = 6, 5
"""Options shown with fewer and with more rows than the pick."""
_WIDTH = 100
"""Columns of the table where the output is no terminal."""


def tune(  # noqa: PLR0913, PLR0917 - one parameter per flag
    threshold: Annotated[
        float | None, typer.Option(help="Similarity that makes a duplicate (dedup.threshold).")
    ] = None,
    recall: Annotated[
        float | None,
        typer.Option(help="Share of the pairs at the threshold to be found (dedup.recall)."),
    ] = None,
    num_perm: Annotated[
        int | None, typer.Option(help="MinHash values per signature (dedup.num_perm).")
    ] = None,
    documents: Annotated[
        int | None,
        typer.Option(metavar="N", help="Documents in the index (dedup.corpus_documents)."),
    ] = None,
    background: Annotated[
        float | None,
        typer.Option(
            metavar="J0",
            help="Similarity of unrelated documents (dedup.background); `evaluate` measures it.",
        ),
    ] = None,
    bands: Annotated[
        int | None, typer.Option(min=1, help="Judge this choice too; goes with --rows.")
    ] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Goes with --bands.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save the S-curves as .png or .svg.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="YAML file with the settings.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Choose bands and rows: recall first, then as few random candidates as can be.

    Each line of the table finds the asked share of the pairs at the threshold. More rows make the
    curve steeper: fewer pairs are compared in vain, for more bands and so more bytes. What flags do
    not say comes from the settings.

    Exit codes: 0 done, 3 wrong settings or flags, 4 the picture cannot be written.
    """
    from streamdedup.analysis import plots  # noqa: PLC0415
    from streamdedup.analysis.tune import advise  # noqa: PLC0415

    if (bands is None) != (rows is None):
        raise SettingsError("--bands and --rows belong together")
    if plot is not None:
        plots.check_target(plot)
    chosen = {
        "threshold": threshold,
        "recall": recall,
        "num_perm": num_perm,
        "corpus_documents": documents,
        "background": background,
    }
    dedup = _settings(config, {name: value for name, value in chosen.items() if value is not None})
    given = (bands or dedup.bands, rows or dedup.rows)
    try:
        advice = advise(_plan(dedup), _banding(*given))
    except ValueError as error:
        raise SettingsError(str(error)) from None
    curves = [option.banding for option in _drawn(advice)]
    if plot is not None:
        plots.save_curves(plot, curves, advice.plan.threshold)
    if as_json:
        typer.echo(json.dumps(advice.as_json()))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH)
    console.print(_table(advice))
    console.print(f"[bold]Pick:[/] {advice.reason}", soft_wrap=not console.is_terminal)
    if dedup.verify == "exact":
        console.print("The texts that dedup.verify: exact stores are not among the bytes.")
    for doubt in advice.doubts:
        console.print(f"[bold red]Warning:[/] {doubt}.", soft_wrap=not console.is_terminal)
    typer.echo("\n" + plots.draw_curves(curves, advice.plan.threshold, colour=console.is_terminal))


def _settings(config: Path | None, chosen: dict[str, Any]) -> DedupSettings:
    from streamdedup.settings.load import load_settings  # noqa: PLC0415

    # Bands that are written down do not limit what is laid out beside them.
    written = load_settings(config).dedup
    free = load_settings(config, dedup={**chosen, "bands": None, "rows": None}).dedup
    return free.model_copy(update={"bands": written.bands, "rows": written.rows})


def _banding(bands: int | None, rows: int | None) -> Any:
    from streamdedup.sketch.bands import Banding  # noqa: PLC0415

    return None if bands is None or rows is None else Banding(bands, rows)


def _plan(dedup: DedupSettings) -> Plan:
    from streamdedup.analysis.tune import Plan  # noqa: PLC0415

    return Plan(
        threshold=dedup.threshold,
        recall=dedup.recall,
        num_perm=dedup.num_perm,
        corpus=dedup.corpus_documents,
        background=dedup.background,
        signature_bytes=dedup.sketch_parameters().signature_bytes,
    )


def _shown(advice: Advice) -> list[Option]:
    at = advice.pick.banding.rows
    return [
        option
        for option in advice.options
        if at - _SHOWN_BELOW <= option.banding.rows <= at + _SHOWN_ABOVE
    ]


def _drawn(advice: Advice) -> list[Option]:
    """Return the options whose curves are drawn: the pick, what was asked about, and neighbours."""
    at = advice.pick.banding.rows
    beside = [o for o in advice.options if abs(o.banding.rows - at) == 2]  # noqa: PLR2004
    asked = [advice.given] if advice.given and advice.given.banding != advice.pick.banding else []
    return [advice.pick, *asked, *beside]


def _table(advice: Advice) -> Table:
    from streamdedup.analysis.tune import SIMILARITIES  # noqa: PLC0415

    plan = advice.plan
    title = (
        f"threshold {plan.threshold:g}, recall {plan.recall:g}, {plan.num_perm} values, "
        f"{plan.corpus:,} documents, background {plan.background:.3g}"
    )
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    table.add_column("")
    for name in ("bands", "rows", f"recall\nat {plan.threshold:g}"):
        table.add_column(name, justify="right")
    for at in SIMILARITIES:
        table.add_column(f"P\nat {at:g}", justify="right")
    table.add_column("random\nper lookup", justify="right")
    table.add_column("bytes per\ndocument", justify="right")
    for option in _shown(advice):
        is_pick = option.banding == advice.pick.banding
        _add_row(table, option, "pick" if is_pick else "", "bold green" if is_pick else "")
    if advice.given is not None:
        table.add_section()
        _add_row(table, advice.given, "given", "red" if advice.doubts else "")
    return table


def _add_row(table: Table, option: Option, mark: str, style: str) -> None:
    table.add_row(
        mark,
        str(option.banding.bands),
        str(option.banding.rows),
        f"{option.recall:.4f}",
        *(_probability(value) for value in option.probabilities),
        _count(option.random_candidates),
        str(option.bytes_per_document),
        style=style,
    )


def _probability(value: float) -> str:
    return f"{value:.4f}" if value >= 0.00005 else f"{value:.0e}"  # noqa: PLR2004 - four digits


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"  # noqa: PLR2004 - two digits
