"""``streamdedup backfill`` as it is typed: files, formats, errors, spark-submit, Ctrl-C."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow as pa
import pytest
from pyarrow import parquet

import streamdedup.__main__
from streamdedup import Settings
from tests.spark.archives import Row, judged, made_up
from tests.spark.processes import LIMIT_S, command_line, end_all, environment, family
from tests.spark.run_commands import ENDED
from tests.support.paths import ROOT
from tests.support.patience import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

CONFIG = """
dedup: {verify: exact}
index: {window: 10m}
records: {event_time_field: time}
"""
SETTINGS = Settings.model_validate(
    {
        "dedup": {"verify": "exact"},
        "index": {"window": "10m"},
        "records": {"event_time_field": "time"},
    }
)
START = re.compile(
    r"WARNING: Using incubator modules|Setting |To adjust logging level|Using Spark's default log4j"
    r"|[\d/]+ [\d:]+ WARN (Utils|NativeCodeLoader)"
)
"""What Java and Spark print before they read a configuration."""
STEP = re.compile(r"[a-z]+( [a-z]+)? +\d+\.\d s$")
TRACES = ("\tat ", "Traceback", "Caused by")
"""How the lines of stack traces begin."""


class Ended(NamedTuple):
    """How a command ended; the lines on standard error are those that are not Spark's start."""

    code: int
    output: str
    errors: list[str]

    def error(self, code: int) -> str:
        """Return the one line of a command that had to fail with a code."""
        assert self.code == code, self.errors
        lines = [line for line in self.errors if not STEP.match(line)]
        assert len(lines) == 1, lines
        assert lines[0].startswith("streamdedup: ")
        return lines[0]


def lines_of(errors: str) -> list[str]:
    """Return the lines that are not Spark's start."""
    return [line for line in errors.splitlines() if line and not START.match(line)]


def run(*command: object, **env: str) -> Ended:
    """Run a program."""
    done = subprocess.run(
        list(map(str, command)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        env=environment(**env),
    )
    return Ended(done.returncode, done.stdout, lines_of(done.stderr))


def streamdedup_backfill(*arguments: object, **env: str) -> Ended:
    """Run the command in a process of its own."""
    return run(sys.executable, "-m", "streamdedup", "backfill", *arguments, **env)


def run_all(commands: Sequence[Sequence[object]]) -> list[Ended]:
    """Run commands one after the other in one process."""
    lines = [["backfill", *map(str, command)] for command in commands]
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.run_commands"],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_S,
        env=environment(),
        cwd=ROOT,
    )
    pattern = rf"((?:.*\n)*?){ENDED}(\d+)\n"
    outputs, errors = (re.findall(pattern, text) for text in (done.stdout, done.stderr))
    return [
        Ended(int(code), output, lines_of(said))
        for (output, code), (said, _) in zip(outputs, errors, strict=True)
    ]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """An archive in the order of its times, which are all different."""
    made = made_up(600, seed=4)
    return [{**row, "time": 1_700_000_000_000 + 1000 * n} for n, row in enumerate(made)]


@pytest.fixture
def files(rows: list[Row], tmp_path: Path) -> Path:
    """The archive as Parquet files, not in order."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number, begin in enumerate((400, 0, 200)):
        table = pa.Table.from_pylist(rows[begin : begin + 200])
        parquet.write_table(table, folder / f"{number}.parquet")
    return folder


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A settings file."""
    path = tmp_path / "streamdedup.yaml"
    path.write_text(CONFIG)
    return path


def counts_of(rows: list[Row]) -> dict[str, list[str]]:
    """Return the ids of each outcome, as one process judges them in order."""
    outcomes: dict[str, list[str]] = {}
    for row, verdict in zip(rows, judged(rows, SETTINGS), strict=True):
        outcomes.setdefault(verdict.outcome.value, []).append(row["id"])
    return outcomes


@pytest.fixture(scope="module", autouse=True)
def _warmed() -> None:
    """Put all kernels into the cache, so that no command says that it compiles some."""
    assert run(sys.executable, "-m", "streamdedup", "warm").code == 0


def test_parquet(files: Path, config: Path, rows: list[Row], tmp_path: Path) -> None:
    """A settings file and Parquet files in; folders of outcomes, sketches and a summary out."""
    out = tmp_path / "out"
    ended = streamdedup_backfill(files, "--config", config, "--out", out, "--json")
    assert ended.code == 0, ended.errors
    assert all(map(STEP.match, ended.errors)), ended.errors
    report = json.loads(ended.output)
    outcomes = counts_of(rows)
    assert {name: report[name] for name in ("documents", "kept", "duplicates", "rejected")} == {
        "documents": len(rows),
        "kept": len(outcomes["kept"]),
        "duplicates": len(outcomes["duplicate"]),
        "rejected": 0,
    }
    table = parquet.read_table(out / "documents")
    assert {*rows[0], "place", "outcome", "matches", "rejection"} == set(table.column_names)
    for outcome, ids in outcomes.items():
        written = parquet.read_table(out / "documents" / f"outcome={outcome}").sort_by("place")
        assert written["id"].to_pylist() == ids
    kept = [row for row in rows if row["id"] in set(outcomes["kept"])]
    sketches = parquet.read_table(out / "sketches")
    assert set(sketches["id"].to_pylist()) < {row["id"] for row in kept}
    assert sorted(path.name for path in out.iterdir()) == ["documents", "sketches"]


def test_json_lines_through_spark_submit(rows: list[Row], config: Path, tmp_path: Path) -> None:
    """Compressed JSON Lines in, JSON Lines out, in a session that spark-submit configures."""
    source, out = tmp_path / "in.jsonl.gz", tmp_path / "out"
    with gzip.open(source, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    submit = Path(find_pyspark()) / "bin" / "spark-submit"
    conf = ("spark.driver.bindAddress=127.0.0.1", "spark.driver.host=127.0.0.1")
    options = [option for pair in conf for option in ("--conf", pair)]
    program = streamdedup.__main__.__file__
    ended = run(
        *(submit, "--master", "local[2]", *options, program, "backfill", source),
        *("--config", config, "--out", out, "--format", "json", "--order", "number"),
        PYSPARK_PYTHON=sys.executable,
    )
    assert ended.code == 0, ended.errors
    outcomes = counts_of(rows)
    for outcome, ids in outcomes.items():
        written: list[dict[str, Any]] = []
        for path in (out / "documents" / f"outcome={outcome}").glob("*.json"):
            written += map(json.loads, path.read_text(encoding="utf-8").splitlines())
        assert [row["id"] for row in sorted(written, key=lambda row: int(row["place"]))] == ids
    # spark-submit sends both streams of a Python program to its standard output.
    [summary] = [line for line in ended.output.splitlines() if " documents in " in line]
    assert summary.startswith(f"{len(rows)} documents in ")


def find_pyspark() -> str:
    """Return the folder of PySpark, which is Spark's home."""
    import pyspark

    return str(Path(pyspark.__file__).parent)


def test_errors_are_one_line(files: Path, rows: list[Row], tmp_path: Path) -> None:
    """Each error names what is wrong, with its exit code, and leaves no output."""
    out, taken = tmp_path / "out", tmp_path / "taken"
    taken.mkdir()
    clash, jsonl = tmp_path / "clash.parquet", tmp_path / "a.jsonl"
    parquet.write_table(pa.Table.from_pylist([{**row, "Outcome": 1} for row in rows]), clash)
    jsonl.write_text("{}\n")
    good = (files, "--order", "number", "--out", out)
    cases: list[tuple[int, str, tuple[object, ...]]] = [
        (4, f"{taken} already exists", (files, "--order", "number", "--out", taken)),
        (4, f"{taken} already exists", (*good, "--work", taken)),
        (4, "would contain --out", (*good, "--work", out)),
        (4, "would contain --out", (files, "--order", "nr", "--out", out / "a", "--work", out)),
        (4, "Path does not exist", (tmp_path / "no", "--order", "number", "--out", out)),
        (4, "no column 'nr' to order it by", (files, "--order", "nr", "--out", out)),
        (4, "no column 'txet'", (*good, "--text-field", "txet")),
        (4, "a column 'Outcome', as the result has", (clash, "--order", "number", "--out", out)),
        (4, "JSON Lines and Parquet", (files, jsonl, "--order", "number", "--out", out)),
        (3, "the order of the archive is unknown", (files, "--out", out)),
        (3, "--conf memory is not NAME=VALUE", (*good, "--conf", "memory")),
        (3, "threshold", (*good, "--threshold", "2")),
    ]
    found = run_all([arguments for *_, arguments in cases])
    for (code, expected, _), ended in zip(cases, found, strict=True):
        assert expected in ended.error(code)
    assert not out.exists()
    assert list(taken.iterdir()) == []


def test_every_row_is_rejected(files: Path, tmp_path: Path) -> None:
    """The outputs are written, and the error says where the reasons are."""
    out, config = tmp_path / "out", tmp_path / "few.yaml"
    config.write_text("limits: {text_bytes: 1}\ndedup: {empty_text: reject}\n")
    arguments = (files, "--order", "number", "--out", out, "--config", config, "--json")
    [ended] = run_all([arguments])
    assert "every row was rejected" in ended.error(4)
    rejected = parquet.read_table(out / "documents" / "outcome=rejected")
    assert len(rejected) == 600
    assert {line["reason"] for line in rejected["rejection"].to_pylist()}


def test_a_corrupt_file(files: Path, tmp_path: Path) -> None:
    """A damaged file in the middle of a folder is named, without a stack trace."""
    content = bytearray((files / "1.parquet").read_bytes())
    content[100:2000] = bytes(1900)
    (files / "1.parquet").write_bytes(content)
    out = tmp_path / "out"
    ended = streamdedup_backfill(files, "--order", "number", "--out", out)
    assert ended.code == 4, ended.errors
    assert ended.errors[-1].startswith("streamdedup: Spark: ")
    assert "1.parquet" in ended.errors[-1]
    assert not any(line.startswith(TRACES) for line in ended.errors)
    assert not (out / "_work").exists()


def test_spark_does_not_start(files: Path, tmp_path: Path) -> None:
    """Without Java the line says what is needed; spark-submit says before it what it misses."""
    arguments = (files, "--order", "number", "--out", tmp_path / "out")
    ended = streamdedup_backfill(*arguments, JAVA_HOME=str(tmp_path / "no-java"))
    assert ended.code == 3
    *before, last = ended.errors
    assert all("spark-class" in line for line in before), before
    assert last.startswith("streamdedup: Spark does not start")
    assert "Java 17 or newer" in last
    ended = streamdedup_backfill(*arguments, "--conf", "spark.driver.memory=lots")
    assert ended.code == 3
    assert ended.errors[-1].startswith("streamdedup: Spark does not start")
    assert not any(line.startswith(TRACES) for line in ended.errors)


@pytest.mark.parametrize(("number", "step"), [(signal.SIGINT, ""), (signal.SIGTERM, "order")])
def test_interrupts(files: Path, tmp_path: Path, number: signal.Signals, step: str) -> None:
    """Ctrl-C and a stop end it with one line, in the middle of a job, and leave no process."""
    out, log = tmp_path / "out", tmp_path / "log"
    arguments = ["backfill", str(files), "--order", "number", "--out", str(out)]
    with log.open("wb") as errors:
        process = psutil.Popen(
            [sys.executable, "-m", "streamdedup", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            env=environment(),
            start_new_session=True,
        )
    started: list[psutil.Process] = []
    try:
        if step:
            wait_until(lambda: f"{step} " in log.read_text(), "the first step", LIMIT_S)
            wait_until(lambda: "pyspark.daemon" in commands(process), "the next one", LIMIT_S)
        else:
            wait_until((out / "_work" / "rows").exists, "the first table", LIMIT_S)
        started = family(process)
        if number == signal.SIGINT:
            # As a terminal does for Ctrl-C; Spark's Python workers have a group of their own.
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        assert process.wait(LIMIT_S) == 128 + number, log.read_text()
        _, alive = psutil.wait_procs(started, timeout=LIMIT_S)
        assert not alive
    finally:
        end_all([*started, process])
    lines = lines_of(log.read_text())
    assert not any(line.startswith(TRACES) for line in lines), lines
    ours = [line for line in lines if line.startswith("streamdedup: ")]
    assert ours == [f"streamdedup: interrupted; remove {out} and run the command again"]


def commands(process: psutil.Process) -> str:
    """Return the commands of the processes that a process has started."""
    return "\n".join(map(command_line, family(process)))
