"""*Blocking.* ``streamdedup dedup``: the embedded mode."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamdedup.cli import options
from streamdedup.cli.interrupts import Interrupts, interruptible

if TYPE_CHECKING:
    from streamdedup.files.job import Job
    from streamdedup.files.run import RunTally
    from streamdedup.settings.sections import Settings

_EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE

Kept = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        callback=options.filled,
        help="Kept lines, unchanged; - is stdout. Kept rows of Parquet and Arrow go to a .parquet, "
        ".arrow or .feather file, with all columns.",
        rich_help_panel=options.OUTPUT,
    ),
]
Duplicates = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        callback=options.filled,
        help="For each duplicate, the kept documents that it repeats: JSON Lines, or a table if "
        "FILE ends with .parquet, .arrow or .feather.",
        rich_help_panel=options.OUTPUT,
    ),
]
Rejected = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        callback=options.filled,
        help="For each line that is not a document, the reason (JSON Lines).",
        rich_help_panel=options.OUTPUT,
    ),
]
IncludeValue = Annotated[
    bool,
    typer.Option(
        "--include-value",
        help="Put the line itself into duplicates.",
        rich_help_panel=options.OUTPUT,
    ),
]
JsonSummary = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print the summary as one line of JSON on stdout.",
        rich_help_panel=options.OUTPUT,
    ),
]
IndexDirectory = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        **options.FILLED,
        help="Keep the index here: later runs know these documents, and an interrupted run can "
        "be resumed. Without it the index is temporary.",
        rich_help_panel=options.JUDGEMENT,
    ),
]
Verify = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        help="estimate, or exact: compare the texts themselves near the threshold (dedup.verify, "
        "by default estimate).",
        rich_help_panel=options.JUDGEMENT,
    ),
]
Workers = Annotated[int | None, typer.Option(help="Sketching processes (pool.workers).")]


def dedup(
    inputs: options.Files,
    kept: Kept = None,
    duplicates: Duplicates = None,
    rejected: Rejected = None,
    include_value: IncludeValue = False,
    summary_json: JsonSummary = False,
    index: IndexDirectory = None,
    threshold: options.Threshold = None,
    profile: options.Profile = None,
    verify: Verify = None,
    text_field: options.TextField = None,
    id_field: options.IdField = None,
    config: options.ConfigFile = None,
    workers: Workers = None,
) -> None:
    """Find near-duplicates in files: JSON Lines, CSV, Parquet or Arrow.

    Every line or row gets one verdict: kept, duplicate (with the kept documents that it repeats and
    their similarity) or rejected. Without output files only the summary is printed. With `--index`,
    run the same command again to resume after an interruption or a crash; no line is judged or
    written twice.

    Examples: `streamdedup dedup posts.jsonl.gz --kept kept.jsonl`,
    `streamdedup dedup 'data/*.parquet' --text-field body --kept kept.parquet --index index`

    Parquet and Arrow need the extra `arrow`.

    Exit codes: 0 done, 3 invalid settings, 4 an input or output file, or every line was rejected,
    9-13 the index, 130 and 143 interrupted.
    """
    try:
        with interruptible(f"interrupted; {_remedy(index)}") as interrupts:
            from streamdedup.files.job import Job
            from streamdedup.settings.load import load_settings

            overrides = options.overrides(
                dedup={"threshold": threshold, "profile": profile, "verify": verify},
                records={"text_fields": text_field, "id_field": id_field},
                output={"include_value": include_value or None},
                pool={"workers": workers},
            )
            settings = load_settings(config, **overrides)
            job = Job(tuple(inputs), kept, duplicates, rejected, index, config)
            tally = _run(job, settings, interrupts)
    except BrokenPipeError:
        # The reader of an output has ended, for example head.
        raise typer.Exit(_EXIT_BROKEN_PIPE) from None
    if summary_json:
        typer.echo(_json_summary(tally), err="-" in job.outputs().values())
    else:
        typer.echo(_summary(tally, job), err=True)
    _check_success(tally)


def _run(job: Job, settings: Settings, interrupts: Interrupts) -> RunTally:
    from rich.console import Console

    from streamdedup.cli import screen
    from streamdedup.files import run

    with screen.judging_progress(Console(stderr=True)) as update:
        return run.run(job, settings, run.Hooks(on_batch=update, shield=interrupts.shield))


def _check_success(tally: RunTally) -> None:
    from streamdedup.errors import InputError

    first = tally.first_rejection
    if first is not None and tally.rejected == tally.documents:
        raise InputError(
            f"every line was rejected, the first with {first.reason}: {first.message}; check the "
            "input, --text-field and records.format"
        )


def _remedy(index: Path | None) -> str:
    if index is None:
        return "use --index to be able to resume"
    return "run the same command again to resume"


def _json_summary(tally: RunTally) -> str:
    return json.dumps(
        {
            "documents": tally.documents,
            "kept": tally.kept,
            "duplicates": tally.duplicates,
            "rejected": tally.rejected,
            "blank_lines": tally.blank_lines,
            "unfinished_lines": tally.unfinished_lines,
            "judged_before": tally.judged_before,
            "seconds": round(tally.seconds, 3),
            "start_seconds": round(tally.start_seconds, 3),
            "compile_seconds": round(tally.compile_seconds, 3),
            "documents_per_second": round(tally.documents_per_second, 1),
        },
        separators=(",", ":"),
    )


def _summary(tally: RunTally, job: Job) -> str:
    from streamdedup.cli import screen

    rate = f"{tally.documents_per_second:,.0f} per second"
    seconds = f"{tally.seconds:.1f} s ({rate}), after {screen.start(tally)}"
    lines = [f"{tally.documents:,} documents in {seconds}"]
    for name, count, path in (
        ("kept", tally.kept, job.kept),
        ("duplicates", tally.duplicates, job.duplicates),
        ("rejected", tally.rejected, job.rejected),
    ):
        share = f"{count / tally.documents:8.1%}" if tally.documents else " " * 8
        target = {None: "", "-": "  to stdout"}.get(path, f"  in {path}")
        lines.append(f"  {name:<11}{count:>12,}{share}{target}")
    if tally.blank_lines:
        lines.append(f"  {tally.blank_lines:,} blank lines skipped")
    if tally.unfinished_lines:
        lines.append(
            f"  {tally.unfinished_lines:,} last lines without a line feed left for the next run"
        )
    if tally.judged_before:
        lines.append(f"  {tally.judged_before:,} lines skipped that earlier runs had judged")
    return "\n".join(lines)
