"""*Blocking.* ``streamdedup index``: look at an index, move it, make it anew, erase documents."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from streamdedup.cli.interrupts import Interrupted, Interrupts
from streamdedup.errors import REMEDY, IndexDamaged, SettingsError

# Modules that pull in numba and aiokafka are imported in the commands: --help need not wait.
if TYPE_CHECKING:
    from streamdedup.admin.explain import Candidate, Explanation
    from streamdedup.index.contents import Contents
    from streamdedup.index.progress import Progress as Told
    from streamdedup.settings.sections import Settings

app = typer.Typer(
    no_args_is_help=True,
    help="Look at an index, move it, make it anew, erase documents. Nobody else may have it open.",
)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the index.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="YAML file with the settings.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_WIDTH = 110
"""Columns where the output is no terminal."""
_SHOWN = 10
"""Candidates in a table; all of them are in the JSON."""


@app.command()
def stats(directory: Directory, as_json: AsJson = False) -> None:
    """Count what an index holds: documents, bytes by part, sizes of buckets, times.

    All postings are read for it, some 150 bytes a document. A running worker tells what can be told
    without that on `/metrics` and `/status`.

    Example: `streamdedup index stats ./index`

    Exit codes: 0 done, 9-12 the index.
    """
    from streamdedup.index.contents import count_contents  # noqa: PLC0415
    from streamdedup.index.view import View  # noqa: PLC0415

    with _long("counting") as progress, View(directory) as view:
        contents = count_contents(view, progress)
    if as_json:
        typer.echo(json.dumps(asdict(contents)))
    else:
        _print_contents(contents)


@app.command()
def check(directory: Directory, as_json: AsJson = False) -> None:
    """Read all of an index, and say what of it is not as it was written.

    Sums of all files, order and completeness of documents and postings, filters, the manifest. What
    a crash has left over is no damage.

    Example: `streamdedup index check ./index`

    Exit codes: 0 all is well, 9-11 the index cannot be looked at, 12 something is wrong.
    """
    from streamdedup.index.check import check as run_check  # noqa: PLC0415

    with _long("checking") as progress:
        report = run_check(directory, progress=progress)
    if as_json:
        typer.echo(json.dumps({"ok": not report.problems, **asdict(report)}))
    else:
        for line in (*report.problems, *(f"left over: {each}" for each in report.left_over)):
            typer.echo(line)
    if report.problems:
        raise IndexDamaged(f"{directory}: {len(report.problems)} problems were found; {REMEDY}")
    if not as_json:
        typer.echo(
            f"ok: {report.documents:,} documents, {report.segments:,} segments, "
            f"{report.bytes_checked:,} bytes"
        )


@app.command()
def explain(
    directory: Directory,
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A text, as a document would hold it.")
    ] = None,
    id_: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="A document of the index.")
    ] = None,
    namespace: Annotated[
        str, typer.Option(metavar="NAME", help="Namespace of the text's document.")
    ] = "",
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Say how a text, or a copy of a known document, would be judged if it came now, and why.

    Lists the documents that share a band with it, how similar they are, and what speaks against
    them. Sketches are made as the index says; threshold, bucket size and window are those of
    `--config`, else the defaults.

    Example: `streamdedup index explain ./index --text "Storm warning for the northern coast"`

    Exit codes: 0 done, 3 wrong settings, 4 no such document, 9-12 the index.
    """
    from streamdedup.admin.explain import explain_id, explain_text  # noqa: PLC0415
    from streamdedup.index.view import View  # noqa: PLC0415

    if (text is None) == (id_ is None):
        raise SettingsError("give one of --text and --id")
    settings, configured = _settings(config, directory), config is not None
    with View(directory) as view:
        if text is not None:
            found = [explain_text(view, text, settings, namespace=namespace, configured=configured)]
        else:
            found = explain_id(view, id_ or "", settings, configured=configured)
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], ensure_ascii=False))
    else:
        for each in found:
            _print_explanation(each, configured=configured)


@app.command()
def export(
    directory: Directory,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="New file: .tar, .tar.zst or .tar.gz.")
    ],
    as_json: AsJson = False,
) -> None:
    """Write an index into one file, every byte checked on the way.

    Packing saves little, since hashes have no pattern. Of a worker's index this is what its disk
    holds; the rest is in its changelog.

    Example: `streamdedup index export ./index index.tar`

    Exit codes: 0 done, 4 the file, 9-12 the index, 130 and 143 interrupted.
    """
    from streamdedup.index.archive import export_index  # noqa: PLC0415

    with _long("exporting") as progress:
        head = export_index(directory, file, progress)
    _say(
        {"documents": head.documents, "file": str(file), "bytes": file.stat().st_size},
        f"{head.documents:,} documents are in {file}, {file.stat().st_size:,} bytes",
        as_json=as_json,
    )


@app.command(name="import")
def import_(
    source: Annotated[
        Path, typer.Argument(metavar="FILE", help="An export, or the directory of another index.")
    ],
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where the index goes; holds none yet.")
    ],
    for_changelog: Annotated[
        bool,
        typer.Option(
            "--for-changelog",
            help="Bind it to the changelog of --config, which is empty or goes on behind it.",
        ),
    ] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Make an index of an export, or of the directory of another one; every byte is checked.

    The index stays what it was: the copy of its changelog, or one of the embedded mode. With
    `--for-changelog` it becomes the start of a stream: a worker that begins with it drops what the
    index knows. Keep the export then; a rebuild from the changelog alone does not have it.

    Example: `streamdedup dedup corpus.jsonl --index corpus`, then
    `streamdedup index import corpus /data/index --for-changelog --config streamdedup.yaml`

    Exit codes: 0 done, 3 wrong settings, 4 the file, 5-7 topics and broker, 9-13 the index, 130 and
    143 interrupted.
    """
    from streamdedup.index.archive import import_index  # noqa: PLC0415

    told = {"directory": str(directory)}
    with _long("importing") as progress:
        if not for_changelog:
            documents = import_index(source, directory, progress)
        elif config is None:
            raise SettingsError("--for-changelog needs --config")
        else:
            from streamdedup.admin.maintenance import import_for_changelog  # noqa: PLC0415

            importing = import_for_changelog(source, _settings(config, directory), progress)
            documents, told["log"] = asyncio.run(importing)
    _say(
        {"documents": documents, **told},
        f"{documents:,} documents are in " + ", the index of ".join(told.values()),
        as_json=as_json,
    )


@app.command()
def rebuild(
    directory: Directory,
    config: Annotated[Path, typer.Option("--config", "-c", help="YAML file with the settings.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    partial: Annotated[
        bool,
        typer.Option(
            "--partial", help="Go on where the changelog has lost documents of the window."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove a worker's index, and make it anew from the changelog.

    A worker does the same when it starts with an empty directory; this one tells how it goes, and
    says before what would be missing. What was imported before the changelog began is not in it.

    Example: `streamdedup index rebuild /data/index --config streamdedup.yaml`

    Exit codes: 0 done, 3 wrong settings or not confirmed, 5 topics, 6-7 the broker, 9-13 the index,
    130 and 143 interrupted.
    """
    from streamdedup.admin.maintenance import rebuild as run_rebuild  # noqa: PLC0415

    settings = _settings(config, directory)
    _confirm(f"Remove the index in {directory} and rebuild it?", yes=yes)
    with _long("rebuilding") as progress:
        rebuilt = asyncio.run(run_rebuild(settings, partial=partial, progress=progress))
    rate = rebuilt.documents / rebuilt.seconds
    told = (
        f"{rebuilt.documents:,} documents from {rebuilt.entries:,} entries in "
        f"{rebuilt.seconds:.1f} s: {rate:,.0f} documents/s"
    )
    if rebuilt.lost:
        told += f"; {rebuilt.lost:,} of the window are lost"
    _say({**asdict(rebuilt), "documents_per_second": round(rate)}, told, as_json=as_json)


@app.command()
def delete(
    directory: Directory,
    ids: Annotated[
        list[str], typer.Option("--id", metavar="ID", help="Of the document; again for more.")
    ],
    config: ConfigFile = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Erase documents from an index, as a law may ask: id, signature and text are overwritten.

    Of a worker's index, with the worker stopped and its `--config`: the changelog is told, so that
    a rebuild erases them too. Their numbers stay, and until they leave the window 40 bits of the
    hash of each band: no text can be read back from these, but a text that is known can be
    recognised. Not touched are the topics: the source, clean, duplicates and dead-letter records,
    and the changelog's own earlier entry, which holds id, signature and, under `dedup.verify:
    exact`, the text.

    Example: `streamdedup index delete /data/index --id story-17 --config streamdedup.yaml`

    Exit codes: 0 done, 3 wrong settings or not confirmed, 4 no such document (then none is erased),
    5 topics, 6-7 the broker, 8 a worker has started meanwhile, 9-13 the index.
    """
    from streamdedup.admin.maintenance import erase  # noqa: PLC0415
    from streamdedup.index.store import LOCAL_LOG  # noqa: PLC0415

    settings = _settings(config, directory)
    _confirm(f"Erase {', '.join(ids)} from {directory}?", yes=yes)
    with _long("erasing"):
        erased = asyncio.run(erase(settings, ids, configured=config is not None))
    told = [f"{erased.documents} documents erased from {directory}"]
    if erased.waiting:
        told.append(
            f"The bytes of {erased.waiting} are still to be overwritten: make room on the disk, "
            "and start the worker or run 'streamdedup dedup'"
        )
    if erased.log != LOCAL_LOG:
        told.append(
            "The topics still hold them until their retention ends: source, clean, duplicates, "
            "dead-letter, and the earlier entry of the changelog"
        )
    told.append("Exports made before still hold them, and so may blocks that the disk has freed")
    _say(asdict(erased), "\n".join(told), as_json=as_json)


def _settings(config: Path | None, directory: Path) -> Settings:
    from streamdedup.settings.load import load_settings  # noqa: PLC0415

    return load_settings(config, index={"directory": directory})


@contextmanager
def _long(what: str) -> Iterator[Told]:
    """Show how far a command is, on standard error, and let it be interrupted."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    task = bar.add_task(what, total=None)
    try:
        with Interrupts(), bar:
            yield lambda done, total: bar.update(task, completed=done, total=total)
    except Interrupted as interrupted:
        sys.stderr.write(f"streamdedup: {what} was interrupted\n")
        raise typer.Exit(interrupted.exit_code) from None


def _confirm(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise SettingsError("there is nobody to be asked; give --yes")
    if not typer.confirm(question, err=True):
        raise SettingsError("not confirmed; nothing was done")


def _say(facts: dict[str, Any], told: str, *, as_json: bool) -> None:
    typer.echo(json.dumps(facts) if as_json else told)


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDTH)


def _print_contents(contents: Contents) -> None:
    console = _console()
    documents = max(1, contents.documents)
    facts = {
        "belongs to": contents.log,
        "documents": f"{contents.documents:,}, the next one gets number {contents.next_number:,}",
        "segments": f"{contents.segments}, and {contents.tail_documents:,} documents in the tail",
        "applied": f"{contents.applied:,}",
        "erased": f"{contents.erased:,}, {contents.erased_waiting:,} still to be overwritten",
        "clock": _time(contents.clock_ms),
        "times": f"{_time(contents.oldest_ms)} to {_time(contents.newest_ms)}",
        "texts": "stored" if contents.holds_texts else "not stored",
        "disk": f"{contents.bytes_used:,} bytes, {contents.bytes_used / documents:.1f} a document",
    }
    for name, value in facts.items():
        console.print(f"{name:<11} {value}", markup=False)
    parts = _table("Bytes", "part", "bytes", "a document")
    for name, size in contents.bytes_by_part.items():
        parts.add_row(name, f"{size:,}", f"{size / documents:.1f}")
    console.print(parts)
    title = f"Buckets; the largest holds {contents.largest_bucket:,}"
    buckets = _table(title, "documents", "buckets")
    for name, count in contents.buckets.items():
        buckets.add_row(name, f"{count:,}")
    console.print(buckets)
    if contents.filters:
        filters = _table("Stored filters", "segment", "documents", "bits set")
        for each in contents.filters:
            filters.add_row(each.segment, f"{each.documents:,}", f"{each.fill:.1%}")
        console.print(filters)


def _print_explanation(explanation: Explanation, *, configured: bool) -> None:
    console = _console()
    judged = "" if explanation.number is None else "a copy now: "
    console.print(Text(judged + explanation.why, style="bold"), soft_wrap=True)
    if explanation.number is not None:
        topic, partition, offset = explanation.position or ("", 0, 0)
        effective = _time(explanation.effective_time_ms)
        console.print(f"number     {explanation.number:,}", markup=False)
        console.print(f"position   {topic}:{partition}:{offset}", markup=False, soft_wrap=True)
        console.print(f"event time {_time(explanation.event_time_ms)}, counts as {effective}")
    else:
        console.print(
            f"text       {explanation.normalised_characters:,} characters after normalisation, "
            f"{explanation.shingles:,} shingles"
        )
    console.print(
        f"bands      {explanation.bands_hit} of {explanation.bands} lead to candidates"
        + _unknown_bands(explanation)
    )
    console.print(
        f"settings   threshold {explanation.threshold:g}, window of "
        f"{explanation.window_documents:,} documents, from number {explanation.oldest_in_window:,}"
        + ("" if configured else " (not configured: defaults)")
    )
    if explanation.candidates:
        console.print(_candidates(explanation))


def _unknown_bands(explanation: Explanation) -> str:
    missing = explanation.bands - explanation.bands_known
    return f"; full buckets have forgotten it in {missing}" if missing else ""


def _candidates(explanation: Explanation) -> Table:
    candidates = explanation.candidates
    title = f"{len(candidates):,} candidates"
    if len(candidates) > _SHOWN:
        title += f", {_SHOWN} of them here"
    table = _table(title, "document", "number", "bands", "estimate", "exact", "verdict")
    for each in candidates[:_SHOWN]:
        table.add_row(
            Text(each.id),
            f"{each.number:,}",
            f"{len(each.bands)}{' + text' if each.same_text else ''}",
            f"{each.similarity:.3f}",
            "" if each.exact is None else f"{each.exact:.3f}",
            "itself" if each.number == explanation.number else _verdict(each),
        )
    return table


def _verdict(candidate: Candidate) -> str:
    if candidate.matches:
        return "match"
    if not candidate.same_namespace:
        return "another namespace"
    return "below the threshold" if candidate.in_window else "outside of the window"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left", overflow="fold")
    return table


def _time(time_ms: int | None) -> str:
    if time_ms is None:
        return "unknown"
    try:
        moment = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
    return moment.isoformat(sep=" ", timespec="seconds").replace("+00:00", " UTC")
