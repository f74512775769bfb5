"""The backfill on Spark at growing archives, and against Spark's own ``MinHashLSH``.

Each run has a fresh Spark on two processors of this machine. Archives of posts are made once and
kept, with 10 % planted copies: half exact, half near ones of which the similarity is known.

Part ``scale``: ``streamdedup.spark``, with default settings, on up to 20 million documents. Part
``peer``: both on growing archives, until the peer fails or is over its time limit. Each table of
``MinHashLSH`` has a single hash function: with ``t`` tables its recall at similarity ``J`` is
``1 - (1 - J)^t``. Three tables give .992 at the threshold of .8; the default settings of
streamdedup ask for .99.

"near" is the recall of near copies that are similar enough. "false" counts duplicates that are less
similar than the threshold to the document that they name, and "lowest" is the lowest similarity
among them. Processor time and seconds are without the start of Spark; bytes are compressed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pyarrow import compute, parquet

from benchmarks import archives, spark_check, spark_events
from benchmarks.measured import (
    TookTooLong,
    descendants_of,
    java_below,
    measure,
    name_of,
    proportional_of,
    resident_of,
    terminable,
)
from benchmarks.progress import Steps
from deploy.processes import ProcessEnded

OURS, PEER = "streamdedup", "minhashlsh"
_PARTS = ("scale", "peer")
_DOCUMENTS = (1_000_000, 5_000_000, 20_000_000)
_PEER_DOCUMENTS = (5_000, 10_000, 20_000, 30_000, 50_000, 100_000)
_TABLES = 3
_LIMIT_S = 600.0
_THRESHOLD = 0.8
_HEADER = (
    f"{'':11} {'documents':>10} {'docs/s':>8} {'seconds':>8} {'start s':>8} {'CPU us/doc':>11} "
    f"{'shuffled B/doc':>15} {'JVM MB':>7} {'Python MB':>10} {'exact':>7} {'near':>7} {'false':>6} "
    f"{'lowest':>7} {'other load':>11}"
)


class Run(NamedTuple):
    """One program on one archive.

    Attributes:
        program: name of the program.
        documents: documents of the archive.
        seconds: seconds of the job, without the start of Spark.
        start_s: seconds of the start.
        cpu_s: processor seconds of all processes in ``seconds``.
        java_bytes: peak resident memory of Java.
        python_bytes: peak resident memory of all Python processes together.
        other_load: number of processors that were busy with anything else.
        tasks: what Spark's tasks did.
        check: whether the duplicates are right.
        report: seconds by step and counts, as the program reports them.
    """

    program: str
    documents: int
    seconds: float
    start_s: float
    cpu_s: float
    java_bytes: int
    python_bytes: int
    other_load: float
    tasks: spark_events.Tasks
    check: spark_check.Check
    report: dict[str, Any]


class _Peaks:
    """The peak memory of the processes of a run. Memory that processes share counts once."""

    def __init__(self) -> None:
        self.java = self.python = 0

    def look(self, pid: int) -> None:
        """Look at the processes below ``pid``, which starts Java, which starts Python."""
        java = java_below(pid)
        if java is not None:
            self.java = max(self.java, resident_of(java).main_peak)
            # Java starts small programs, which share its memory for a moment.
            below = [child for child in descendants_of(java) if name_of(child).startswith("python")]
            self.python = max(self.python, sum(map(proportional_of, [pid, *below])))


class Bench:
    """Runs programs on archives.

    Args:
        folder: folder for the archives, which stay there.
        options: more options of the job.
        steps: shows the progress.
    """

    def __init__(self, folder: Path, options: Sequence[str], steps: Steps) -> None:
        self._folder = folder
        self._options = list(options)
        self._steps = steps

    def run(
        self, program: str, documents: int, tables: int = _TABLES, limit_s: float | None = None
    ) -> Run:
        """Run a program on an archive.

        Raises:
            TookTooLong: it took longer than ``limit_s``.
            ProcessEnded: it failed.
        """
        self._steps.begin("writing the archive", documents)
        archive = archives.made(
            self._folder / str(documents), documents, os.cpu_count() or 1, self._steps.reach
        )
        self._steps.begin(f"{program}: {documents:,} documents")
        work = Path(tempfile.mkdtemp(prefix=f"{program}-", dir=self._folder))
        try:
            return self._run(program, archive, work, tables, limit_s)
        finally:
            shutil.rmtree(work)

    def _run(
        self,
        program: str,
        archive: archives.Archive,
        work: Path,
        tables: int,
        limit_s: float | None,
    ) -> Run:
        output, peaks = work / "found", _Peaks()
        command = [sys.executable, "-m", "benchmarks.spark_job", program, str(archive.documents)]
        command += [str(output), "--documents", str(archive.size), "--work", str(work / "run")]
        command += ["--tables", str(tables), *self._options]
        figures = measure(command, work, limit_s, peaks.look).figures
        return Run(
            program=program,
            documents=archive.size,
            seconds=figures["seconds"],
            start_s=figures["start_s"],
            cpu_s=figures["cpu_s"],
            java_bytes=peaks.java,
            python_bytes=peaks.python,
            other_load=figures["other_load"],
            tasks=spark_events.read(work / "run" / "events"),
            check=checked(program, archive, output),
            report=figures["report"],
        )


def checked(program: str, archive: archives.Archive, output: Path) -> spark_check.Check:
    """Compare the output of a program with the truth."""
    table = parquet.read_table(output)
    kept = f"document-{spark_check.KEPT}"
    originals = archives.places(compute.fill_null(table["original"], kept))
    found = spark_check.check(
        archives.truth(archive),
        archives.places(table["id"]),
        originals,
        _THRESHOLD,
        lambda places: archives.texts(archive.size, places),
    )
    if found.repeated or (program == OURS and found.rows != archive.size):
        raise ProcessEnded(f"{program}: not one verdict for each document: {found}")
    return found


def line_of(run: Run) -> str:
    """Return the row of a run."""
    found = run.check
    return (
        f"{run.program:11} {run.documents:10,} {run.documents / run.seconds:8,.0f} "
        f"{run.seconds:8.1f} {run.start_s:8.1f} {run.cpu_s / run.documents * 1e6:11,.1f} "
        f"{run.tasks.shuffled_bytes / run.documents:15,.0f} {run.java_bytes / 1e6:7,.0f} "
        f"{run.python_bytes / 1e6:10,.0f} {found.exact_recall:7.4f} {found.near_recall:7.4f} "
        f"{found.false:6,} {found.lowest:7.3f} {run.other_load:11.2f}"
    )


def exponent(runs: Sequence[Run]) -> float:
    """Return the exponent of the growth of the seconds over two or more sizes: 1 is linear."""
    sizes = np.log([run.documents for run in runs])
    return float(np.polyfit(sizes, np.log([run.seconds for run in runs]), 1)[0])


def scale(bench: Bench, sizes: Sequence[int], steps: Steps) -> list[Run]:
    """Run the backfill on growing archives; print what it cost, step by step."""
    steps.say(_HEADER)
    runs: list[Run] = []
    for documents in sizes:
        run = bench.run(OURS, documents)
        runs.append(run)
        steps.say(line_of(run))
        steps.say(f"{'':11} {run.tasks}")
        steps.say(f"{'':11} {json.dumps(run.report)}")
    if len(runs) > 1:
        steps.say(f"seconds grow with the documents to the power of {exponent(runs):.2f}")
    return runs


def against_peer(
    bench: Bench, sizes: Sequence[int], tables: int, limit_s: float, *, alone: bool, steps: Steps
) -> list[Run]:
    """Run both programs on growing archives, until the peer does not finish."""
    steps.say(f"\n{PEER} with {tables} tables, at most {limit_s:g} s; {PEER} / {OURS} below each")
    steps.say(_HEADER)
    runs: list[Run] = []
    for documents in sizes:
        ours = None if alone else bench.run(OURS, documents)
        if ours is not None:
            runs.append(ours)
            steps.say(line_of(ours))
        try:
            theirs = bench.run(PEER, documents, tables, limit_s)
        except TookTooLong:
            steps.say(f"{PEER:11} {documents:10,}: not done after {limit_s:g} s")
            break
        except ProcessEnded as error:
            steps.say(f"{PEER:11} {documents:10,}: {str(error).splitlines()[-1]}")
            break
        runs.append(theirs)
        steps.say(line_of(theirs))
        if ours is not None:
            steps.say(ratio_of(theirs, ours))
    finished = [run for run in runs if run.program == PEER]
    if len(finished) > 1:
        steps.say(f"{PEER}: seconds grow to the power of {exponent(finished):.2f}")
    return runs


def ratio_of(theirs: Run, ours: Run) -> str:
    """Return the ratio of what two runs cost, with what they found."""
    return (
        f"{'':11} {theirs.seconds / ours.seconds:.1f} times the seconds, "
        f"{theirs.cpu_s / ours.cpu_s:.1f} times the processor time; near recall "
        f"{theirs.check.near_recall:.4f} to {ours.check.near_recall:.4f}"
    )


def parse() -> argparse.Namespace:
    """Parse the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--parts", nargs="*", default=_PARTS, choices=_PARTS)
    parser.add_argument("--documents", nargs="+", type=int, default=_DOCUMENTS)
    parser.add_argument("--peer-documents", nargs="+", type=int, default=_PEER_DOCUMENTS)
    parser.add_argument("--tables", type=int, default=_TABLES, help="hash tables of the peer")
    parser.add_argument("--limit", type=float, default=_LIMIT_S, help="seconds for the peer")
    parser.add_argument("--peer-alone", action="store_true", help="part peer without streamdedup")
    parser.add_argument("--archives", type=Path, help="folder for archives (default: temporary)")
    parser.add_argument("--verify", default="estimate", choices=["estimate", "exact"])
    parser.add_argument("--memory", default="4g", help="heap of Java (default: 4g)")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    return parser.parse_args()


def run_parts(arguments: argparse.Namespace, folder: Path) -> list[Run]:
    """Run the parts that the arguments name."""
    runs: list[Run] = []
    with Steps() as steps:
        options = ["--memory", arguments.memory, "--verify", arguments.verify]
        options += [f"--conf={setting}" for setting in arguments.conf]
        bench = Bench(folder, options, steps)
        if "scale" in arguments.parts:
            runs += scale(bench, arguments.documents, steps)
        if "peer" in arguments.parts:
            runs += against_peer(
                bench,
                arguments.peer_documents,
                arguments.tables,
                arguments.limit,
                alone=arguments.peer_alone,
                steps=steps,
            )
    return runs


def main() -> None:
    """Run the benchmark, and remove everything but the archives."""
    arguments = parse()
    try:
        with terminable(), tempfile.TemporaryDirectory(prefix="bench-") as name:
            folder = arguments.archives or Path(name)
            folder.mkdir(parents=True, exist_ok=True)
            runs = run_parts(arguments, folder.resolve())
    except ProcessEnded as error:
        raise SystemExit(f"bench-spark: {error}") from error
    except KeyboardInterrupt:
        raise SystemExit("bench-spark: interrupted") from None
    if arguments.json:
        figures = [
            {**run._asdict(), "tasks": run.tasks._asdict(), "check": run.check._asdict()}
            for run in runs
        ]
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
