"""*Blocking.* ``streamdedup dedup``: the embedded mode."""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from streamdedup.cli import options
from streamdedup.cli.terminal import interruptible

if TYPE_CHECKING:
    from streamdedup.files.job import Job
    from streamdedup.files.run import RunTally

_EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE
_for_file = partial(options.for_output, metavar="FILE", callback=options.filled)

InputFormat = Annotated[
    Literal["json", "csv", "tsv"],
    options.for_input(metavar="FORMAT", help="Format of standard input: json, csv or tsv."),
]
Kept = Annotated[
    str | None,
    _for_file(
        help="Kept lines, unchanged; - is stdout. Kept rows of Parquet and Arrow go to a .parquet, "
        ".arrow or .feather file, with all columns."
    ),
]
Duplicates = Annotated[
    str | None,
    _for_file(
        help="For each duplicate, the kept documents that it repeats: JSON Lines, or a table if "
        "FILE ends with .parquet, .arrow or .feather."
    ),
]
Rejected = Annotated[
    str | None, _for_file(help="For each line that is not a document, the reason (JSON Lines).")
]
IncludeValue = Annotated[
    bool, options.for_output("--include-value", help="Put the line itself into duplicates.")
]
JsonSummary = Annotated[
    bool, options.for_output("--json", help="Print the summary as one line of JSON on stdout.")
]
IndexDirectory = Annotated[
    Path | None,
    options.for_judgement(
        metavar="DIR",
        **options.FILLED,
        help="Keep the index here: later runs know these documents, and an interrupted run can "
        "be resumed. Without it the index is temporary.",
    ),
]
Verify = Annotated[
    str | None,
    options.for_judgement(
        metavar="HOW",
        help="estimate, or exact: compare the texts themselves near the threshold (dedup.verify, "
        "by default estimate).",
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
    input_format: InputFormat = "json",
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
    again = "run the same command again to resume"
    remedy = again if index is not None else "use --index to be able to resume"
    try:
        with interruptible(f"interrupted; {remedy}") as interrupts:
            from rich.console import Console

            from streamdedup.cli import screen
            from streamdedup.files import run
            from streamdedup.files.job import Job

            settings = options.load(
                config,
                dedup={"threshold": threshold, "profile": profile, "verify": verify},
                records={"text_fields": text_field, "id_field": id_field},
                output={"include_value": include_value or None},
                pool={"workers": workers},
            )
            job = Job(tuple(inputs), kept, duplicates, rejected, index, config, input_format)
            with screen.judging_progress(Console(stderr=True)) as update:
                hooks = run.Hooks(on_batch=update, shield=interrupts.shield)
                tally = run.run(job, settings, hooks)
    except BrokenPipeError:
        # The reader of an output has ended, for example head.
        raise typer.Exit(_EXIT_BROKEN_PIPE) from None
    if summary_json:
        counts = ("documents", "kept", "duplicates", "rejected")
        lines = ("blank_lines", "unfinished_lines", "judged_before")
        seconds = ("seconds", "start_seconds", "compile_seconds")
        facts = {name: getattr(tally, name) for name in (*counts, *lines)}
        facts |= {name: round(getattr(tally, name), 3) for name in seconds}
        facts["default_id"] = tally.default_id
        facts["documents_per_second"] = round(tally.documents_per_second, 1)
        summary = json.dumps(facts, separators=(",", ":"))
        typer.echo(summary, err="-" in job.outputs().values())
    else:
        typer.echo(_summary(tally, job), err=True)
        if tally.default_id is not None and settings.records.format != "text":
            typer.echo(
                f"  documents without an id have FILE:LINE as id, such as {tally.default_id}; name "
                "the field of ids with --id-field (records.id_field)",
                err=True,
            )
    run.check_tally(tally)


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
    first = tally.first_rejection
    if first is not None and tally.rejected < tally.documents:
        lines.append(f"  first rejected with {first.reason}: {first.message}")
    for count, what in (
        (tally.blank_lines, "blank lines skipped"),
        (tally.unfinished_lines, "last lines without a line feed left for the next run"),
        (tally.judged_before, "lines skipped that earlier runs had judged"),
    ):
        if count:
            lines.append(f"  {count:,} {what}")
    return "\n".join(lines)
