"""*Blocking.* ``streamdedup backfill``: deduplicates an archive on Apache Spark."""

from __future__ import annotations

import json
import sys
import time
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from streamdedup.cli import options
from streamdedup.cli.terminal import interruptible
from streamdedup.errors import InputError, SettingsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrameWriter

_for_spark = partial(typer.Option, rich_help_panel="Spark")

Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...",
        help="Parquet or JSON Lines: files, directories or patterns, on any file system that Spark "
        "reads. JSON Lines end with .jsonl, .ndjson or .json, also compressed.",
    ),
]
Out = Annotated[
    str,
    options.for_output(
        "--out",
        metavar="DIR",
        callback=options.filled,
        help="New directory: documents/ with the verdicts, sketches/ for `index import`.",
    ),
]
Order = Annotated[
    list[str] | None,
    options.for_input(
        metavar="COLUMN",
        help="Column that orders the documents; repeat it for ties. Default: the event time.",
    ),
]
EventTimeField = Annotated[
    str | None,
    options.for_input(
        metavar="COLUMN", help="Column of the event time (records.event_time_field)."
    ),
]


class OutputFormat(StrEnum):
    """Values of ``--format``."""

    PARQUET = "parquet"
    JSON = "json"


Format = Annotated[OutputFormat, options.for_output("--format", help="Of documents/.")]
Work = Annotated[
    str | None,
    _for_spark(
        metavar="DIR",
        callback=options.filled,
        help="New directory for the tables between the steps, removed at the end; all executors "
        "share it. Default: in --out.",
    ),
]
Master = Annotated[
    str | None,
    _for_spark(
        help="Where Spark runs. Default: as spark-submit says, else this machine (local[*])."
    ),
]
Conf = Annotated[
    list[str] | None,
    _for_spark(
        metavar="NAME=VALUE",
        help="An option of Spark, such as spark.driver.memory=8g. Repeat it for more.",
    ),
]


def backfill(
    inputs: Inputs,
    out: Out,
    order: Order = None,
    text_field: options.TextField = None,
    id_field: options.IdField = None,
    event_time_field: EventTimeField = None,
    threshold: options.Threshold = None,
    profile: options.Profile = None,
    output_format: Format = OutputFormat.PARQUET,
    summary_json: options.AsJson = False,
    config: options.ConfigFile = None,
    work: Work = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Deduplicate an archive on Apache Spark, with the verdicts of a stream in its order.

    A document is a duplicate only of an earlier kept one. `documents/` has every row of the
    archive, with its matches, in a folder for each outcome: kept, duplicate, rejected. `sketches/`
    is for `streamdedup index import`: a stream continues the archive with it.

    Examples: `streamdedup backfill 'news/*.parquet' --order published --out result`,
    `streamdedup backfill s3a://lake/news --event-time-field published --out s3a://lake/kept
    --master yarn`

    spark-submit runs the same command: docs/backfill.md shows how. It needs the extra
    `spark`, and Java 17 or newer.

    Exit codes: 0 done, 3 invalid settings, 4 an input or output, or every row was rejected, 130 and
    143 interrupted.
    """
    with interruptible(f"interrupted; remove {out} and run the command again"):
        settings = options.load(
            config,
            dedup={"threshold": threshold, "profile": profile},
            records={
                "text_fields": text_field,
                "id_field": id_field,
                "event_time_field": event_time_field,
            },
        )
        for option in conf or ():
            if option.find("=") < 1:
                raise SettingsError(f"--conf {option} is not NAME=VALUE")
        try:
            from streamdedup.spark.plan import backfill as run
            from streamdedup.spark.session import Folder, read, removed, session
        except ImportError as error:
            from streamdedup.extras import install

            raise InputError(f"{error.name} is not installed; run {install('spark')}") from None
        started = time.monotonic()
        with session(master, dict(option.split("=", 1) for option in conf or ())) as spark:
            if Folder(spark, out).exists():
                raise InputError(f"{out} already exists; choose another directory")
            work = work or f"{out}/_work"
            tables = Folder(spark, work)
            if tables.exists():
                raise InputError(f"{work} already exists; choose another directory")
            if tables.contains(Folder(spark, out)):
                raise InputError(
                    f"--work {work} is removed at the end, and would contain --out {out}; choose "
                    "another directory"
                )
            with removed(tables):
                result = run(read(spark, inputs), settings, order or [], work, progress=_show)
                _write(result.frame.write.partitionBy("outcome"), f"{out}/documents", output_format)
                _write(result.sketches.write, f"{out}/sketches", OutputFormat.PARQUET)
    report = {**result.report, "seconds": round(time.monotonic() - started, 1)}
    if summary_json:
        typer.echo(json.dumps(report, separators=(",", ":")))
    else:
        typer.echo(_summary(report, out, settings.index.window_documents), err=True)
    if report["documents"] and report["rejected"] == report["documents"]:
        raise InputError(
            f"every row was rejected; {out}/documents/outcome=rejected has the reasons"
        )


def _write(writer: DataFrameWriter, path: str, output_format: OutputFormat) -> None:
    started = time.monotonic()
    writer.format(output_format.value).save(path)
    _show(f"write {path.rpartition('/')[2]}", time.monotonic() - started)


def _show(step: str, seconds: float) -> None:
    sys.stderr.write(f"{step:<16}{seconds:>8.1f} s\n")


def _summary(report: dict[str, float], out: str, window_documents: int) -> str:
    count = report["documents"]
    rate = count / report["seconds"] if report["seconds"] else 0
    lines = [f"{count:,} documents in {report['seconds']:,.1f} s ({rate:,.0f} per second)"]
    for name in ("kept", "duplicates", "rejected"):
        share = f"{report[name] / count:8.1%}" if count else ""
        lines.append(f"  {name:<11}{report[name]:>14,}{share}")
    for name, meaning in (
        ("buckets_truncated", "buckets are larger than index.bucket_size"),
        ("buckets_bounded", "buckets are too large to compare all their documents"),
    ):
        if report[name]:
            lines.append(f"  {report[name]:,} {meaning}; see docs/backfill.md")
    if report["kept"] > window_documents:
        lines.append(
            f"  a stream would compare with the newest {window_documents:,} only "
            "(index.window_documents); see docs/backfill.md"
        )
    return "\n".join([*lines, f"  in {out}"])
