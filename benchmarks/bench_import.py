"""``streamdedup index import`` of kept sketches, next to two other ways to the same index.

The archive is a planted stream without copies: 20 bands and the whole text, signatures of 128
bytes, ids of 20; Parquet with snappy. Everything is in the page cache. The window holds all of it.

- kept sketches: read from Parquet and loaded, with all merges that are due, forced to disk.
- apply: the same documents from memory, 5,000 at a time, as the embedded mode applies them; with
  the last flush and the merges. Only the calls are timed; the processor time is that of all.
- export: the import of an export of the same index, a copy of files with checksums.

The three take turns, and the medians of the repeats are printed. Of each index, copies of documents
of any age must be found under the ids of their originals.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from benchmarks.index_measure import index_directory
from benchmarks.index_use import count_wrong, find, load_kernels, open_index
from benchmarks.kept_sketches import in_archive, write_sketches
from benchmarks.planted_stream import BATCH, Stream
from streamdedup.files.kept_sketches import import_sketches
from streamdedup.index.archive import export_index, import_index
from streamdedup.index.store import LOCAL_LOG
from streamdedup.settings.sections import IndexSettings, Settings

_DOCUMENTS = 4_000_000
_QUICK = 500_000
_REPEATS = 3
_APPLIED = 5000
"""Documents of an update, the default of ``batch.documents``."""
_FOLLOWING = 40_000
"""Documents of the stream that follows the archive; only copies of the archive are counted."""
_COPIES = 0.25
_SAMPLED_S = 0.05


class Run(NamedTuple):
    """One way to an index, once."""

    wall_s: float
    cpu_s: float
    anonymous: int
    recall: float
    wrong: int


def main() -> None:
    """Parse the arguments, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--documents", type=int, default=_DOCUMENTS, help="default: %(default)s")
    size.add_argument(
        "--quick", dest="documents", action="store_const", const=_QUICK, help=f"only {_QUICK:,}"
    )
    parser.add_argument("--directory", type=Path, help="for the files; default: temporary")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    documents = arguments.documents // _APPLIED * _APPLIED
    load_kernels()
    with index_directory(arguments.directory) as folder:
        runs = measure(folder, documents)
    figures = print_runs(runs, documents)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    if any(run.recall < 1 or run.wrong for of_way in runs.values() for run in of_way):
        raise SystemExit("an index missed planted copies, or found wrong documents")


def measure(folder: Path, documents: int) -> dict[str, list[Run]]:
    """Create the index in each way several times, in turns."""
    index, export = folder / "index", folder / "index.tar"
    settings = Settings(index=IndexSettings(directory=index, window_documents=documents))
    write_sketches(folder / "kept", documents)
    import_sketches(folder / "kept", settings)  # once, so that the files are in the page cache
    export_index(index, export)
    ways: dict[str, Callable[[], float]] = {
        "kept sketches": lambda: _timed(lambda: import_sketches(folder / "kept", settings)),
        "apply": lambda: apply_all(index, documents),
        "export": lambda: _timed(lambda: import_index(export, index)),
    }
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    for _ in range(_REPEATS):
        for name, create in ways.items():
            shutil.rmtree(index)
            with Peak() as peak:
                cpu = time.process_time()
                wall_s = create()
                cpu_s = time.process_time() - cpu
            runs[name].append(Run(wall_s, cpu_s, peak.anonymous, *probe(index, documents)))
    return runs


def apply_all(directory: Path, documents: int) -> float:
    """Apply all documents to a new index; return the seconds that the calls took."""
    stream, seconds = Stream(documents, copies=0.0), 0.0
    with open_index(directory, documents, LOCAL_LOG) as index:
        for start in range(0, documents, _APPLIED):
            batch = in_archive(stream.batch(start, _APPLIED))
            update = batch.update(~batch.copies, start)
            seconds += _timed(partial(index.apply, update, index.applied + 1))
        return seconds + _timed(index.flush) + _timed(index.settle)


def probe(directory: Path, documents: int) -> tuple[float, int]:
    """Look up copies of documents of any age; return the recall, and how many were wrong."""
    stream, copies, hits, wrong = Stream(documents, copies=_COPIES), 0, 0, 0
    with open_index(directory, documents, LOCAL_LOG) as index:
        for start in range(documents, documents + _FOLLOWING, BATCH):
            batch = stream.batch(start)
            candidates = index.probe(batch.documents)
            of_archive = batch.copies & (batch.originals < documents)
            copies += int(of_archive.sum())
            hits += int(find(batch, candidates)[of_archive].sum())
            wrong += count_wrong(batch, candidates)
    return hits / copies, wrong


class Peak:
    """Samples the anonymous memory of this process, and keeps the largest.

    Attributes:
        anonymous: bytes more than at the beginning.
    """

    def __init__(self) -> None:
        self.anonymous = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        begin = _anonymous()
        while not self._done.wait(_SAMPLED_S):
            self.anonymous = max(self.anonymous, _anonymous() - begin)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def print_runs(runs: dict[str, list[Run]], documents: int) -> dict[str, Any]:
    """Print the medians, each relative to the first row."""
    print(f"\nimport of {documents:,} documents, medians of {_REPEATS} runs")
    print(
        f"{'':15} {'docs/s':>9} {'row 1 / this':>13} {'CPU us/doc':>11} {'memory MB':>10} "
        f"{'recall':>7} {'wrong':>6}"
    )
    figures: dict[str, Any] = {"documents": documents}
    for name, of_way in runs.items():
        wall_s = statistics.median(run.wall_s for run in of_way)
        cpu_us = statistics.median(run.cpu_s for run in of_way) / documents * 1e6
        figures[name] = {
            "documents_per_s": documents / wall_s,
            "cpu_us": cpu_us,
            "memory": max(run.anonymous for run in of_way),
            "recall": min(run.recall for run in of_way),
            "wrong": max(run.wrong for run in of_way),
            "runs_s": [run.wall_s for run in of_way],
        }
        first = figures["kept sketches"]["documents_per_s"]
        print(
            f"{name:15} {documents / wall_s:9,.0f} {first * wall_s / documents:13.2f} "
            f"{cpu_us:11.2f} {figures[name]['memory'] / 1e6:10,.0f} "
            f"{figures[name]['recall']:7.4f} {figures[name]['wrong']:6,}",
            flush=True,
        )
    return figures


def _anonymous() -> int:
    """Return the anonymous memory of this process in bytes; cheaper than a walk of its pages."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["RssAnon"].split()[0]) * 1024


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
