"""*Blocking.* ``streamdedup dedup``: the embedded mode."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from streamdedup.cli.interrupts import Interrupted, Interrupts

if TYPE_CHECKING:
    from streamdedup.files.job import Job
    from streamdedup.files.run import Tally
    from streamdedup.settings.sections import Settings

_EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE
_JUDGED = "Judgement"
_OUT = "Output"
_IN = "Input"


def dedup(  # noqa: PLR0913, PLR0917 - one parameter per flag
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...", help="JSON Lines files, plain, gzip or zstd; - is stdin."
        ),
    ],
    kept: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Kept lines, as they are; - is stdout.", rich_help_panel=_OUT
        ),
    ] = None,
    duplicates: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="For each duplicate, which kept documents it repeats (JSON Lines).",
            rich_help_panel=_OUT,
        ),
    ] = None,
    rejected: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="For each line that is no document, why (JSON Lines).",
            rich_help_panel=_OUT,
        ),
    ] = None,
    include_value: Annotated[
        bool,
        typer.Option(
            "--include-value", help="Put the line itself into duplicates.", rich_help_panel=_OUT
        ),
    ] = False,
    summary_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the summary as one line of JSON on stdout.", rich_help_panel=_OUT
        ),
    ] = False,
    index: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep the index here: later runs know these documents, and an interrupted run "
            "can go on. Without it the index is temporary.",
            rich_help_panel=_JUDGED,
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Similarity that makes a duplicate (dedup.threshold, 0.8).",
            rich_help_panel=_JUDGED,
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Normalisation: plain, post, news, forum, or steps with commas (dedup.profile).",
            rich_help_panel=_JUDGED,
        ),
    ] = None,
    verify: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="estimate, or exact: near the threshold the texts themselves are compared "
            "(dedup.verify, estimate).",
            rich_help_panel=_JUDGED,
        ),
    ] = None,
    text_field: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Dotted path of the text (records.text_fields, text); again for more, which are "
            "joined with a line end.",
            rich_help_panel=_IN,
        ),
    ] = None,
    id_field: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Dotted path of the id (records.id_field, id). Without an id a document is "
            "FILE:LINE.",
            rich_help_panel=_IN,
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="YAML file with the settings.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Sketching processes (pool.workers).")] = None,
) -> None:
    """Find near-duplicates in JSON Lines files.

    Every line gets one verdict: kept, duplicate (of which kept document, and how similar) or
    rejected. Without output files only the summary is printed. With `--index`, a run that was
    interrupted or killed goes on when it is started again with the same arguments, and no line is
    judged or written twice.

    Exit codes: 0 done, 3 wrong settings, 4 an input or output file, 9-13 the index, 130 and 143
    interrupted.
    """
    try:
        with Interrupts() as interrupts:
            # Imported late, so that --help need not wait for numba.
            from streamdedup.files.job import Job  # noqa: PLC0415
            from streamdedup.settings.load import load_settings  # noqa: PLC0415

            overrides = _given(
                dedup={"threshold": threshold, "profile": profile, "verify": verify},
                records={"text_fields": text_field, "id_field": id_field},
                output={"include_value": include_value or None},
                pool={"workers": workers},
            )
            settings = load_settings(config, **overrides)
            job = Job(tuple(inputs), kept, duplicates, rejected, index)
            tally = _run(job, settings, interrupts)
    except Interrupted as interrupted:
        sys.stderr.write(f"streamdedup: interrupted; {_remedy(index)}\n")
        raise typer.Exit(interrupted.exit_code) from None
    except BrokenPipeError:
        # The reader of an output has gone, as head does; nobody is left to be told.
        raise typer.Exit(_EXIT_BROKEN_PIPE) from None
    if summary_json:
        typer.echo(_json_summary(tally), err="-" in job.outputs().values())
    else:
        typer.echo(_human_summary(tally, job), err=True)


def _given(**sections: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings that flags were given for; the others stay as they are configured."""
    chosen = {
        section: {name: value for name, value in values.items() if value is not None}
        for section, values in sections.items()
    }
    return {section: values for section, values in chosen.items() if values}


def _run(job: Job, settings: Settings, interrupts: Interrupts) -> Tally:
    from rich.console import Console  # noqa: PLC0415

    from streamdedup.cli.progress import ProgressBar  # noqa: PLC0415
    from streamdedup.files import run as embedded  # noqa: PLC0415

    with ProgressBar(Console(stderr=True)) as bar:
        hooks = embedded.Hooks(on_batch=bar.update, shield=interrupts.shield)
        return embedded.run(job, settings, hooks)


def _remedy(index: Path | None) -> str:
    if index is None:
        return "without --index there is nothing to go on from"
    return "run again with the same arguments to go on"


def _json_summary(tally: Tally) -> str:
    return msgspec.json.encode(
        {
            "documents": tally.documents,
            "kept": tally.kept,
            "duplicates": tally.duplicates,
            "rejected": tally.rejected,
            "blank_lines": tally.blank_lines,
            "judged_before": tally.judged_before,
            "seconds": round(tally.seconds, 3),
            "documents_per_second": round(tally.documents_per_second, 1),
        }
    ).decode()


def _human_summary(tally: Tally, job: Job) -> str:
    rate = f"{tally.documents_per_second:,.0f} per second"
    lines = [f"{tally.documents:,} documents in {tally.seconds:.1f} s ({rate})"]
    for name, count, path in (
        ("kept", tally.kept, job.kept),
        ("duplicates", tally.duplicates, job.duplicates),
        ("rejected", tally.rejected, job.rejected),
    ):
        share = f"{count / tally.documents:8.1%}" if tally.documents else " " * 8
        where = {None: "", "-": "  to stdout"}.get(path, f"  in {path}")
        lines.append(f"  {name:<11}{count:>12,}{share}{where}")
    if tally.blank_lines:
        lines.append(f"  {tally.blank_lines:,} blank lines passed over")
    if tally.judged_before:
        lines.append(f"  {tally.judged_before:,} lines passed over, judged by earlier runs")
    return "\n".join(lines)
