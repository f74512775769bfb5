"""``streamdedup dedup`` against the same job with rensa and datasketch in memory.

Each program reads JSON Lines, and writes the kept lines and a line for each duplicate, on two
processors. ``streamdedup dedup`` runs as a user starts it, with default settings; its index is on
disk. It also reads and writes the same documents as Parquet, with the duplicates as a table, and as
CSV. benchmarks/files_peer.py has the job of the peers.

"docs/s" is without the start-up (imports, processes, opening the index), which has a column of its
own. Recall is that of the planted copies; "wrong" counts dropped documents that repeat nothing.
"other load" is the number of processors that were busy with anything else. A peer that is too slow
gets a prefix of the same file, which the table states.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import itertools
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.files_peer import BANDS, PEERS, ROWS
from benchmarks.measured import measure, terminable
from benchmarks.pipeline_check import Check, check
from benchmarks.progress import Steps
from deploy.processes import ProcessEnded
from streamdedup.columns import I64
from tests.testkit.documents import ARTICLE_BYTES, POST_BYTES, Documents, Plan, document_id, plan

_REPORTED_EVERY = 1000
_GROUP_ROWS = 50_000
"""Rows of a row group in the Parquet input."""
_QUICK = 10
"""A quick run has this part of the documents."""
_ID = re.compile(rb'"id":\s?"document-(\d+)"')
_OURS = "streamdedup"
_KINDS = ("jsonl", "parquet", "csv")
"""Kinds of files that ``streamdedup dedup`` reads and writes."""
_ROW_ID = re.compile(rb"document-(\d+)")


class Corpus(NamedTuple):
    """A file of documents, and how many of them each peer gets."""

    kind: str
    mean_bytes: int
    file_bytes: int
    peers: dict[str, int]


CORPORA = (
    Corpus("articles", ARTICLE_BYTES, 1_000_000_000, {"rensa": 100_000, "datasketch": 30_000}),
    Corpus("posts", POST_BYTES, 200_000_000, {"rensa": 700_000, "datasketch": 150_000}),
)
COPIES = {"15%": (0.10, 0.05), "90%": (0.60, 0.30)}
"""Shares of exact and of near copies."""


class Job(NamedTuple):
    """One program on one file.

    Attributes:
        program: name of the program.
        documents: documents that it read.
        seconds: seconds without the start-up.
        start_s: seconds of the start-up.
        cpu_us: processor time of all its processes per document, the start-up included.
        peak_bytes: peak resident memory of all its processes.
        other_load: number of processors that were busy with anything else.
        check: recall and wrong drops.
    """

    program: str
    documents: int
    seconds: float
    start_s: float
    cpu_us: float
    peak_bytes: int
    other_load: float
    check: Check

    @property
    def documents_per_s(self) -> float:
        """Documents per second without the start-up."""
        return self.documents / self.seconds


def run_program(
    program: str, path: Path, planned: Plan, folder: Path, peer_processes: int = 2
) -> Job:
    """Run a program on the first lines of a file, as many as the plan has."""
    documents = len(planned.originals)
    kept, duplicates = folder / f"kept{path.suffix}", folder / f"duplicates{path.suffix}"
    if path.suffix == ".csv":
        duplicates = folder / "duplicates.jsonl"
    outputs = ["--kept", str(kept), "--duplicates", str(duplicates)]
    if program == _OURS:
        command = [sys.executable, "-m", "streamdedup", "dedup", str(path), *outputs, "--json"]
    else:
        command = [sys.executable, "-m", "benchmarks.files_peer", program, str(path), *outputs]
        command += ["--documents", str(documents), "--processes", str(peer_processes)]
    measured = measure(command, folder)
    if measured.figures["documents"] != documents:
        raise ProcessEnded(f"{program} read {measured.figures['documents']} of {documents} lines")
    checked = check(planned, places(kept), places(duplicates))
    if not checked.exactly_once:
        raise ProcessEnded(f"{program}: lines are not exactly once in its outputs: {checked}")
    seconds = measured.figures["seconds"]
    return Job(
        program=program if path.suffix == ".jsonl" else path.suffix[1:],
        documents=documents,
        seconds=seconds,
        start_s=measured.wall_s - seconds,
        cpu_us=measured.cpu_s / documents * 1e6,
        peak_bytes=measured.peak_bytes,
        other_load=measured.other_load,
        check=checked,
    )


def places(path: Path) -> I64:
    """Return the places of the documents of an output file."""
    if path.suffix == ".parquet":
        from pyarrow import parquet  # noqa: PLC0415 - optional

        ids = parquet.read_table(path, columns=["id"])["id"]
        return np.array([int(id_.rpartition("-")[2]) for id_ in ids.to_pylist()], dtype=np.int64)
    if path.suffix == ".csv":
        with path.open("rb") as file:
            next(file)
            return np.array([int(_ROW_ID.match(line)[1]) for line in file], dtype=np.int64)  # type: ignore[index]
    with path.open("rb") as file:
        return np.array([int(_id(line)) for line in file], dtype=np.int64)


def _id(line: bytes) -> bytes:
    found = _ID.search(line)
    if found is None:
        raise ProcessEnded(f"an output line without an id: {line[:200]!r}")
    return found[1]


def write(path: Path, corpus: Corpus, planned: Plan, steps: Steps) -> None:
    """Write the documents of a plan, one per line."""
    with path.open("wb") as file:
        for number, value in enumerate(Documents(corpus.mean_bytes).values(planned)):
            file.write(value + b"\n")
            if number % _REPORTED_EVERY == 0:
                steps.reach(number)


def write_as(path: Path, source: Path) -> None:
    """Write the documents of a JSON Lines file as Parquet or CSV, with default settings."""
    with source.open("rb") as lines:
        if path.suffix == ".csv":
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, ["id", "text"])
                writer.writeheader()
                writer.writerows(map(json.loads, lines))
            return
        import pyarrow as pa  # noqa: PLC0415 - optional
        from pyarrow import parquet  # noqa: PLC0415 - optional

        schema = pa.schema([("id", pa.string()), ("text", pa.string())])
        with parquet.ParquetWriter(path, schema) as table:
            while part := [json.loads(line) for line in itertools.islice(lines, _GROUP_ROWS)]:
                table.write_table(pa.Table.from_pylist(part, schema))


def prefix(planned: Plan, documents: int) -> Plan:
    """Return the plan of the first documents."""
    return Plan(planned.originals[:documents], planned.near[:documents])


def run_corpus(
    corpus: Corpus,
    copies: str,
    part: int,
    peer_processes: int,
    folder: Path,
    steps: Steps,
    peers: Sequence[str] = tuple(PEERS),
) -> Iterator[Job]:
    """Yield the job of each program."""
    documents = corpus.file_bytes // corpus.mean_bytes // part
    planned = plan(documents, *COPIES[copies])
    path = folder / "input.jsonl"
    steps.begin(f"{corpus.kind}: writing", documents)
    write(path, corpus, planned, steps)
    for kind in _KINDS:
        if kind == "parquet" and not importlib.util.find_spec("pyarrow"):
            steps.say("pyarrow is not installed; skipping Parquet")
            continue
        given = path.with_suffix(f".{kind}")
        if given != path:
            steps.begin(f"{corpus.kind}: writing as {kind}")
            write_as(given, path)
        steps.begin(f"{corpus.kind}, {copies} copies: {kind}")
        yield run_program(_OURS, given, planned, folder, peer_processes)
    for program in peers:
        if not importlib.util.find_spec(program):
            steps.say(f"{program} is not installed; skipping its rows")
            continue
        count = min(documents, corpus.peers.get(program, documents * part) // part)
        steps.begin(f"{corpus.kind}, {copies} copies: {program}")
        yield run_program(program, path, prefix(planned, count), folder, peer_processes)


def line_of(job: Job, first: Job) -> str:
    """Return the row of a job, with its speed relative to that of the first one."""
    found = job.check
    return (
        f"{job.program:12} {job.documents:10,} {job.documents_per_s:9,.0f} "
        f"{first.documents_per_s / job.documents_per_s:13.2f} {job.start_s:8.1f} "
        f"{job.seconds:8.1f} {job.cpu_us:11.1f} {job.peak_bytes / 1e6:8,.0f} "
        f"{found.exact_recall:7.4f} {found.near_recall:7.4f} {found.false_drops:6,} "
        f"{job.other_load:11.2f}"
    )


def run(
    part: int,
    kinds: list[str],
    peer_processes: int,
    parent: Path | None,
    peers: Sequence[str] = tuple(PEERS),
) -> dict[str, Any]:
    """Run all corpora; return the figures."""
    figures: dict[str, Any] = {
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
        "peer_processes": peer_processes,
    }
    with Steps() as steps, tempfile.TemporaryDirectory(prefix="bench-", dir=parent) as name:
        folder = Path(name)
        steps.say(f"peers: {peer_processes} sketching processes, {BANDS} bands of {ROWS} rows")
        steps.begin("loading kernels")
        small = folder / "small.jsonl"
        small.write_text(json.dumps({"id": document_id(0), "text": "compiles the kernels"}) + "\n")
        run_program(_OURS, small, plan(1), folder)
        for corpus in (one for one in CORPORA if one.kind in kinds):
            for copies in COPIES:
                size = corpus.file_bytes // part / 1e6
                steps.say(
                    f"\n{corpus.kind} of {corpus.mean_bytes:,} bytes, {size:,.0f} MB, "
                    f"{copies} copies; load {os.getloadavg()[0]:.1f}"
                )
                steps.say(
                    f"{'':12} {'documents':>10} {'docs/s':>9} {'row 1 / this':>13} {'start s':>8} "
                    f"{'then s':>8} {'CPU us/doc':>11} {'peak MB':>8} {'exact':>7} {'near':>7} "
                    f"{'wrong':>6} {'other load':>11}"
                )
                jobs: list[Job] = []
                for job in run_corpus(corpus, copies, part, peer_processes, folder, steps, peers):
                    jobs.append(job)
                    steps.say(line_of(job, jobs[0]))
                figures[f"{corpus.kind}, {copies} copies"] = [
                    {**job._asdict(), "check": job.check._asdict()} for job in jobs
                ]
    return figures


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a tenth of the documents")
    kinds = [corpus.kind for corpus in CORPORA]
    parser.add_argument("--kinds", nargs="+", default=kinds, choices=kinds)
    parser.add_argument(
        "--peer-processes", type=int, default=2, help="processes that sketch for each peer"
    )
    parser.add_argument(
        "--peers", nargs="*", default=list(PEERS), choices=list(PEERS), help="peers to run"
    )
    parser.add_argument("--directory", type=Path, help="folder for all files; default: temporary")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    arguments = parser.parse_args()
    try:
        with terminable():
            part = _QUICK if arguments.quick else 1
            figures = run(
                part,
                arguments.kinds,
                arguments.peer_processes,
                arguments.directory,
                arguments.peers,
            )
    except ProcessEnded as error:
        raise SystemExit(f"bench-files: {error}") from error
    except KeyboardInterrupt:
        raise SystemExit("bench-files: interrupted") from None
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
