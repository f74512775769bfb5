"""*Blocking.* ``make demo-spark``: deduplicates an archive on Spark, and starts a stream from it.

It makes an archive of sample documents, runs ``streamdedup backfill`` and ``streamdedup index
import``, and then judges new documents, as a stream would bring them. Everything stays in
``demo-out-spark``.
"""

from __future__ import annotations

import itertools
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from deploy.samples import DUPLICATES, documents
from streamdedup import Deduplicator, Document

DOCUMENTS = 100_000
FILES = 8
FIRST_MS = 1_700_000_000_000
OUT = Path("demo-out-spark")
ARCHIVE = OUT / "archive"
SHOWN = 3
SHOWN_CHARACTERS = 60

console = Console(highlight=False)


class DemoFailed(Exception):
    """The demo cannot continue; the message is for the user."""


def main() -> int:
    """Run the demo; return the exit code."""
    shutil.rmtree(OUT, ignore_errors=True)
    try:
        copies = _make_archive()
        out = OUT / "result"
        _streamdedup("backfill", ARCHIVE, "--event-time-field", "time", "--out", out)
        _show_duplicates(copies)
        _start_stream()
    except DemoFailed as error:
        console.print(f"demo-spark: {error}", style="red")
        return 1
    console.print(f"\nEverything is in [bold]{OUT}[/bold]. docs/backfill.md says how to continue.")
    return 0


def _make_archive() -> set[str]:
    """Write the archive; return the ids of the copies."""
    samples = documents(random.Random(1), DUPLICATES)  # noqa: S311 - samples, not secrets
    rows = list(itertools.islice(samples, DOCUMENTS))
    ARCHIVE.mkdir(parents=True)
    for number in range(FILES):
        places = range(number * DOCUMENTS // FILES, (number + 1) * DOCUMENTS // FILES)
        content = {name: [rows[place][name] for place in places] for name in ("id", "text")}
        content["time"] = pa.array(
            [FIRST_MS + place for place in places], pa.timestamp("ms", "UTC")
        )
        pq.write_table(pa.table(content), ARCHIVE / f"part-{number}.parquet")
    copies = {row["id"] for row in rows if "planted" in row}
    console.print(
        f"[bold]An archive[/bold]: {DOCUMENTS:,} sample documents, {len(copies):,} of them copies"
    )
    return copies


def _streamdedup(*arguments: str | Path) -> None:
    command = ["streamdedup", *map(str, arguments)]
    console.print(f"\n[bold]$ {' '.join(command)}[/bold]")
    done = subprocess.run([sys.executable, "-m", *command], check=False)
    if done.returncode:
        raise DemoFailed(f"exit code {done.returncode}")


def _show_duplicates(copies: set[str]) -> None:
    duplicates = pq.read_table(OUT / "result/documents/outcome=duplicate")
    table = Table("duplicate", "text", "repeats", "similarity", title="Some duplicates")
    for row in duplicates.slice(0, SHOWN).to_pylist():
        match = row["matches"][0]
        text = row["text"][:SHOWN_CHARACTERS] + "..."
        table.add_row(row["id"], text, match["id"], f"{match['jaccard_estimate']:.3f}")
    console.print(table)
    found = len(copies & set(duplicates["id"].to_pylist()))
    console.print(f"{found:,} of {len(copies):,} copies were found.")


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
