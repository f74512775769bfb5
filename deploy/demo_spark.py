"""*Blocking.* ``make demo-spark``: deduplicates an archive on Spark, and starts a stream from it.

It makes up an archive of posts, runs ``streamdedup backfill`` and ``streamdedup index import``, and
then judges new documents, as a stream would bring them. Everything stays in ``demo-out-spark``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from benchmarks.archives import Archive, made, truth
from streamdedup import Deduplicator, Document
from tests.testkit.documents import document_id

DOCUMENTS = 200_000
OUT = Path("demo-out-spark")
SHOWN = 3
SHOWN_CHARACTERS = 60

console = Console(highlight=False)


class DemoFailed(Exception):
    """The demo cannot continue; the message is for the user."""


def main() -> int:
    """Run the demo; return the exit code."""
    shutil.rmtree(OUT, ignore_errors=True)
    try:
        archive = _make_archive()
        _backfill(archive)
        _show_duplicates(archive)
        _start_stream()
    except DemoFailed as error:
        console.print(f"demo-spark: {error}", style="red")
        return 1
    console.print(f"\nEverything is in [bold]{OUT}[/bold]. docs/backfill.md says how to go on.")
    return 0


def _make_archive() -> Archive:
    console.print(f"[bold]An archive[/bold]: {DOCUMENTS:,} made-up posts, 10 % of them copies")
    return made(OUT / "archive", DOCUMENTS, os.cpu_count() or 1)


def _streamdedup(*arguments: str | Path) -> None:
    command = ["streamdedup", *map(str, arguments)]
    console.print(f"\n[bold]$ {' '.join(command)}[/bold]")
    done = subprocess.run([sys.executable, "-m", *command], check=False)
    if done.returncode:
        raise DemoFailed(f"exit code {done.returncode}")


def _backfill(archive: Archive) -> None:
    out = OUT / "result"
    _streamdedup("backfill", archive.documents, "--event-time-field", "time", "--out", out)


def _show_duplicates(archive: Archive) -> None:
    duplicates = pq.read_table(OUT / "result/documents/outcome=duplicate")
    table = Table("duplicate", "text", "repeats", "similarity", title="Some duplicates")
    for row in duplicates.slice(0, SHOWN).to_pylist():
        match = row["matches"][0]
        text = row["text"][:SHOWN_CHARACTERS] + "..."
        table.add_row(row["id"], text, match["id"], f"{match['jaccard_estimate']:.3f}")
    console.print(table)
    copies = truth(archive)
    planted = {document_id(place) for place in copies.copies[copies.similarities >= 0.8].tolist()}
    found = len(planted & set(duplicates["id"].to_pylist()))
    console.print(f"{found:,} of {len(planted):,} planted copies were found.")


def _start_stream() -> None:
    index = OUT / "index"
    _streamdedup("index", "import", OUT / "result/sketches", index)
    kept = pq.read_table(OUT / "result/documents/outcome=kept", columns=["id", "text"])
    first = kept.slice(0, 1).to_pylist()[0]
    new = [
        Document(f"RT {first['text']}", "live-1"),
        Document("Nothing in the archive says what this sentence says.", "live-2"),
    ]
    with Deduplicator(directory=index) as deduplicator:
        for document, verdict in zip(new, deduplicator.process(new), strict=True):
            line = f"{document.id}: {verdict.outcome}"
            if verdict.original:
                line += f" of {verdict.original.id}, {verdict.original.jaccard_estimate:.3f}"
            console.print(line)


if __name__ == "__main__":
    sys.exit(main())
