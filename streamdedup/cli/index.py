"""*Blocking.* ``streamdedup index``: inspects, moves and rebuilds an index; erases documents."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamdedup.cli import options
from streamdedup.cli.terminal import confirm, interruptible, report
from streamdedup.errors import REMEDY, IndexDamaged, SettingsError

if TYPE_CHECKING:
    from streamdedup.admin.explain import Candidate, Explanation
    from streamdedup.index.view import Contents

_CANDIDATES = 10
"""Candidates in a table; the JSON has all of them."""

app = typer.Typer(
    no_args_is_help=True,
    help="Inspect, move and rebuild an index, and erase documents. No other process may have it "
    "open.",
)

_path = partial(typer.Argument, **options.FILLED)
Directory = Annotated[Path, _path(metavar="DIR", help="Directory of the index.")]
NewDirectory = Annotated[
    Path, _path(metavar="DIR", help="Directory of the new index; holds none yet.")
]
QueryText = Annotated[
    str | None, typer.Option(metavar="TEXT", help="A text, as a document would contain it.")
]
QueryId = Annotated[
    str | None, typer.Option("--id", metavar="ID", help="The id of a document of the index.")
]
Namespace = Annotated[str, typer.Option(metavar="NAME", help="Namespace of the text.")]
ExportFile = Annotated[Path, _path(metavar="FILE", help="New file: .tar, .tar.zst or .tar.gz.")]
Source = Annotated[
    Path,
    _path(
        metavar="SOURCE",
        help="An export, the directory of another index, or kept sketches: a folder of Parquet "
        "files, or one file (.parquet).",
    ),
]
ForChangelog = Annotated[
    bool,
    typer.Option(
        "--for-changelog",
        help="Bind the index to the changelog of --config; the changelog is empty or continues it.",
    ),
]
Partial = Annotated[
    bool,
    typer.Option(
        "--partial", help="Continue even if the changelog has lost documents of the window."
    ),
]
ErasedIds = Annotated[
    list[str], typer.Option("--id", metavar="ID", help="Id of a document; repeat it for more.")
]


@app.command()
def stats(directory: Directory, as_json: options.AsJson = False) -> None:
    """Count what an index contains: documents, bytes by part, sizes of buckets, times.

    The command reads all postings, about 150 bytes per document. The `/metrics` and `/status` of a
    running worker show the figures that need no such scan.

    Example: `streamdedup index stats ./index`

    Exit codes: 0 done, 9-12 the index.
    """
    from streamdedup.index.view import View, count_contents

    with _step("counting") as progress, View(directory) as view:
        contents = count_contents(view, progress)
    if as_json:
        typer.echo(json.dumps(asdict(contents)))
    else:
        _print_contents(contents)


@app.command()
def check(directory: Directory, as_json: options.AsJson = False) -> None:
    """Read all of an index, and report everything that differs from what was written.

    It checks the checksums of all files, the order and completeness of documents and postings, the
    filters and the manifest. Files that a crash has left over are not damage.

    Example: `streamdedup index check ./index`

    Exit codes: 0 the index is sound, 9-11 the index cannot be opened, 12 it is damaged.
    """
    from streamdedup.index.check import check as run_check

    with _step("checking") as progress:
        found = run_check(directory, progress=progress)
    lines = [*found.problems, *(f"left over: {file}" for file in found.left_over)]
    if not found.problems:
        lines.append(
            f"ok: {found.documents:,} documents, {found.segments:,} segments, "
            f"{found.bytes_checked:,} bytes"
        )
    report({"ok": not found.problems, **asdict(found)}, "\n".join(lines), as_json=as_json)
    if found.problems:
        raise IndexDamaged(f"{directory}: {len(found.problems)} problems were found; {REMEDY}")


@app.command()
def explain(
    directory: Directory,
    text: QueryText = None,
    id_: QueryId = None,
    namespace: Namespace = "",
    config: options.ConfigFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Explain the verdict that a text, or a copy of an indexed document, would get now.

    It lists the documents that share a band with the text, their similarities, and the reasons
    against a match. The index determines the sketches; `--config`, or else the defaults, determine
    threshold, bucket size and window.

    Example: `streamdedup index explain ./index --text "Storm warning for the northern coast"`

    Exit codes: 0 done, 3 invalid settings, 4 no such document, 9-12 the index.
    """
    from streamdedup.admin.explain import explain_id, explain_text
    from streamdedup.index.view import View

    if (text is None) == (id_ is None):
        raise SettingsError("give one of --text and --id")
    settings = options.load(config, index={"directory": directory})
    configured = config is not None
    with View(directory) as view:
        explanations = (
            explain_id(view, id_ or "", settings, configured=configured)
            if text is None
            else [explain_text(view, text, settings, namespace=namespace, configured=configured)]
        )
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in explanations], ensure_ascii=False))
    else:
        for one in explanations:
            _print_explanation(one, configured=configured)


@app.command()
def export(directory: Directory, file: ExportFile, as_json: options.AsJson = False) -> None:
    """Write an index into one file, and check every byte.

    Compression saves little, because hashes have no pattern. The export of a worker's index holds
    what is on its disk; later documents are only in its changelog.

    Example: `streamdedup index export ./index index.tar`

    Exit codes: 0 done, 4 the file, 9-12 the index, 130 and 143 interrupted.
    """
    from streamdedup.index.archive import export_index

    with _step("exporting") as progress:
        head = export_index(directory, file, progress)
    size = file.stat().st_size
    report(
        {"documents": head.documents, "file": str(file), "bytes": size},
        f"exported {head.documents:,} documents to {file}, {size:,} bytes",
        as_json=as_json,
    )


@app.command(name="import")
def import_(
    source: Source,
    directory: NewDirectory,
    for_changelog: ForChangelog = False,
    config: options.ConfigFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Create an index from an export, another index, or the kept sketches of an archive.

    Of an export or index every byte is checked. The new index has the log of the old one: a
    changelog, or that of the embedded mode.

    Kept sketches are Parquet files. `--config` has the settings of the archive's deduplication, by
    default the defaults. Only documents that are still in the window are loaded.

    With `--for-changelog` the index becomes the start of a stream: a worker that starts with it
    drops the documents that the index knows. Keep SOURCE then, because a rebuild from the changelog
    alone does not contain it.

    Example: `streamdedup dedup corpus.jsonl --index corpus`, then
    `streamdedup index import corpus /data/index --for-changelog --config streamdedup.yaml`

    Exit codes: 0 done, 3 invalid settings, 4 the file, 5-7 topics and broker, 9-13 the index, 130
    and 143 interrupted.
    """
    import asyncio

    from streamdedup.admin.maintenance import find_changelog, import_for_changelog
    from streamdedup.files.kept_sketches import import_sketches, is_kept_sketches
    from streamdedup.index.archive import import_index

    if for_changelog and config is None:
        raise SettingsError("--for-changelog needs --config")
    of_archive = is_kept_sketches(source)
    facts: dict[str, Any] = {"documents": 0, "directory": str(directory)}
    with _step("importing") as progress:
        settings = options.load(config, index={"directory": directory})
        changelog = asyncio.run(find_changelog(settings)) if for_changelog else None
        if of_archive:
            facts |= import_sketches(source, settings, changelog, progress)._asdict()
        elif changelog is None:
            facts["documents"] = import_index(source, directory, progress)
        else:
            facts["documents"] = import_for_changelog(source, settings, changelog, progress)
        if changelog is not None:
            facts["log"] = changelog.log
    message = f"imported {facts['documents']:,} documents into {directory}"
    if changelog is not None:
        message += f", the index of {facts['log']}"
    if "skipped" in facts:
        message += f"; {facts['skipped']:,} older ones are not in the window"
    report(facts, message, as_json=as_json)


@app.command()
def rebuild(
    directory: Directory,
    config: options.RequiredConfigFile,
    yes: options.Yes = False,
    partial: Partial = False,
    as_json: options.AsJson = False,
) -> None:
    """Remove the index of a worker, and rebuild it from the changelog.

    A worker that starts with an empty directory does the same. This command shows the progress, and
    refuses to start if documents would be missing. The rebuilt index does not contain documents
    that were imported before the changelog began.

    Example: `streamdedup index rebuild /data/index --config streamdedup.yaml`

    Exit codes: 0 done, 3 invalid settings or not confirmed, 5 topics, 6-7 the broker, 9-13 the
    index, 130 and 143 interrupted.
    """
    import asyncio

    from streamdedup.admin.maintenance import rebuild as run_rebuild

    settings = options.load(config, index={"directory": directory})
    confirm(f"Remove the index in {directory} and rebuild it?", yes=yes)
    with _step("rebuilding") as progress:
        rebuilt = asyncio.run(run_rebuild(settings, partial=partial, progress=progress))
    rate = rebuilt.documents / rebuilt.seconds
    message = (
        f"{rebuilt.documents:,} documents from {rebuilt.entries:,} entries in "
        f"{rebuilt.seconds:.1f} s: {rate:,.0f} documents/s"
    )
    if rebuilt.lost:
        message += f"; {rebuilt.lost:,} documents of the window are lost"
    report({**asdict(rebuilt), "documents_per_second": round(rate)}, message, as_json=as_json)


@app.command()
def delete(
    directory: Directory,
    ids: ErasedIds,
    config: options.ConfigFile = None,
    yes: options.Yes = False,
    as_json: options.AsJson = False,
) -> None:
    """Erase documents from an index, as privacy laws require: id, signature and text.

    The bytes are overwritten. For the index of a worker, stop the worker and pass its `--config`:
    an entry in the changelog makes a rebuild erase the documents too. Until they leave the window,
    their numbers and 40 bits of each band's hash remain. No text can be read back from these bits,
    but a known text can be recognised.

    The topics are not changed: source, clean, duplicates and dead-letter records, and the
    changelog's earlier entry with id, signature and, under `dedup.verify: exact`, the text.

    Example: `streamdedup index delete /data/index --id story-17 --config streamdedup.yaml`

    Exit codes: 0 done, 3 invalid settings or not confirmed, 4 no such document (none is erased), 5
    topics, 6-7 the broker, 8 a worker has started meanwhile, 9-13 the index.
    """
    import asyncio

    from streamdedup.admin.maintenance import erase
    from streamdedup.index.store import LOCAL_LOG

    settings = options.load(config, index={"directory": directory})
    confirm(f"Erase {', '.join(ids)} from {directory}?", yes=yes)
    with _step("erasing"):
        erased = asyncio.run(erase(settings, ids, configured=config is not None))
    lines = [f"{erased.documents} documents erased from {directory}"]
    if erased.waiting:
        lines.append(
            f"The bytes of {erased.waiting} documents are not overwritten yet: free space on the "
            "disk, and start the worker or run 'streamdedup dedup'"
        )
    if erased.log != LOCAL_LOG:
        lines.append(
            "The topics contain the documents until their retention ends: source, clean, "
            "duplicates, dead-letter, and the changelog's earlier entry"
        )
    lines.append("Earlier exports contain them, and so may blocks that the disk has freed")
    report(asdict(erased), "\n".join(lines), as_json=as_json)


@contextmanager
def _step(name: str) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of a long step, and let the operator interrupt it."""
    from streamdedup.cli import screen

    with interruptible(f"{name} was interrupted"), screen.progress(name) as show:
        yield partial(show, name)


def _print_contents(contents: Contents) -> None:
    from streamdedup.cli import screen

    console = screen.standard_output()
    documents = max(1, contents.documents)
    facts = {
        "log": contents.log,
        "documents": f"{contents.documents:,}, next number {contents.next_number:,}",
        "segments": f"{contents.segments}, and {contents.tail_documents:,} documents in the tail",
        "applied": f"{contents.applied:,}",
        "erased": f"{contents.erased:,}, {contents.erased_waiting:,} not overwritten yet",
        "clock": _time(contents.clock_ms),
        "times": f"{_time(contents.oldest_ms)} to {_time(contents.newest_ms)}",
        "texts": "stored" if contents.holds_texts else "not stored",
        "disk": f"{contents.bytes_used:,} bytes, {contents.bytes_used / documents:.1f} a document",
    }
    for name, value in facts.items():
        console.print(f"{name:<11} {value}", markup=False)
    parts = [
        (name, f"{size:,}", f"{size / documents:.1f}")
        for name, size in contents.bytes_by_part.items()
    ]
    console.print(screen.table("Bytes", ("part", "bytes", "a document"), parts))
    buckets = [(name, f"{count:,}") for name, count in contents.buckets.items()]
    title = f"Buckets; the largest holds {contents.largest_bucket:,}"
    console.print(screen.table(title, ("documents", "buckets"), buckets))
    if contents.filters:
        filters = [
            (one.segment, f"{one.documents:,}", f"{one.fill:.1%}") for one in contents.filters
        ]
        columns = ("segment", "documents", "bits set")
        console.print(screen.table("Stored filters", columns, filters))


def _print_explanation(explanation: Explanation, *, configured: bool) -> None:
    from rich.text import Text

    from streamdedup.cli import screen

    console = screen.standard_output()
    subject = "" if explanation.number is None else "a copy now: "
    console.print(Text(subject + explanation.why, style="bold"), soft_wrap=True)
    if explanation.number is not None:
        topic, partition, offset = explanation.position or ("", 0, 0)
        effective = _time(explanation.effective_time_ms)
        console.print(f"number     {explanation.number:,}", markup=False)
        console.print(f"position   {topic}:{partition}:{offset}", markup=False, soft_wrap=True)
        console.print(f"event time {_time(explanation.event_time_ms)}, effective {effective}")
    else:
        console.print(
            f"text       {explanation.normalised_characters:,} characters after normalisation, "
            f"{explanation.shingles:,} shingles"
        )
    missing = explanation.bands - explanation.bands_known
    console.print(
        f"bands      {explanation.bands_hit} of {explanation.bands} lead to candidates"
        + (f"; full buckets have dropped it in {missing}" if missing else "")
    )
    console.print(
        f"settings   threshold {explanation.threshold:g}, window of "
        f"{explanation.window_documents:,} documents, from number {explanation.oldest_in_window:,}"
        + ("" if configured else " (no --config: defaults)")
    )
    candidates = explanation.candidates
    if not candidates:
        return
    title = f"{len(candidates):,} candidates"
    if len(candidates) > _CANDIDATES:
        title += f", the first {_CANDIDATES}"
    rows = [
        (
            Text(one.id),
            f"{one.number:,}",
            f"{len(one.bands)}{' + text' if one.same_text else ''}",
            f"{one.similarity:.3f}",
            "" if one.exact is None else f"{one.exact:.3f}",
            _verdict(one, explanation.number),
        )
        for one in candidates[:_CANDIDATES]
    ]
    columns = ("document", "number", "bands", "estimate", "exact", "verdict")
    console.print(screen.table(title, columns, rows))


def _verdict(candidate: Candidate, number: int | None) -> str:
    if candidate.number == number:
        return "itself"
    if candidate.matches:
        return "match"
    if not candidate.same_namespace:
        return "another namespace"
    return "below the threshold" if candidate.in_window else "outside the window"


def _time(time_ms: int | None) -> str:
    if time_ms is None:
        return "unknown"
    try:
        moment = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
    return moment.isoformat(sep=" ", timespec="seconds").replace("+00:00", " UTC")
