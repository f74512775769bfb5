"""Verdicts and sketches stay the same when processes die, and however the archive is divided."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from pyarrow import parquet

from streamdedup.spark import backfill
from tests.spark.archives import Row, described, judged, made_up
from tests.spark.processes import DISTURBED, EXECUTOR, PYTHON, Run, is_busy, kill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.timeout(900),
]

DOCUMENTS = 6000
COLUMNS = {
    "id": "string",
    "text": "string",
    "time": "int64",
    "number": "int64",
    "forum": "string",
}
SCHEMA = pa.schema(list(COLUMNS.items()))
_log = logging.getLogger(__name__)


class Result(NamedTuple):
    """Verdicts in order, and the kept sketches in order."""

    verdicts: list[Row]
    sketches: list[Row]


class Archive(NamedTuple):
    """An archive in files, and what an undisturbed run says about it."""

    path: Path
    rows: list[Row]
    expected: Result


def write(rows: Sequence[Row], path: Path, files: int, seed: int) -> Path:
    """Write rows in any order into so many files of different sizes."""
    chance = random.Random(seed)
    shuffled = chance.sample(rows, len(rows))
    path.mkdir()
    ends = [0, *sorted(chance.sample(range(1, len(rows)), files - 1)), len(rows)]
    for number, (begin, end) in enumerate(pairwise(ends)):
        table = pa.Table.from_pylist(shuffled[begin:end], SCHEMA)
        parquet.write_table(table, path / f"{number}.parquet", row_group_size=1000)
    return path


def result_of(frame: DataFrame, work: Path) -> Result:
    """Deduplicate an archive in the session of the tests."""
    result = backfill(frame, DISTURBED, "number", str(work))
    documents = result.frame.orderBy("place").toArrow().to_pylist()
    return Result(documents, result.sketches.toArrow().to_pylist())


@pytest.fixture(scope="module")
def archive(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """An archive, with verdicts that are those of one process."""
    folder = tmp_path_factory.mktemp("archive")
    rows = made_up(DOCUMENTS, seed=9)
    path = write(rows, folder / "in", files=4, seed=1)
    expected = result_of(spark.read.parquet(str(path)), folder / "work")
    told = [(row["place"], row["outcome"], matches_of(row)) for row in expected.verdicts]
    assert told == [described(verdict)[:3] for verdict in judged(rows, DISTURBED)]
    assert {row["outcome"] for row in expected.verdicts} == {"kept", "duplicate"}
    places = [row["place"] for row in expected.sketches]
    assert places == sorted(places)
    assert 0 < len(places) < DOCUMENTS
    return Archive(path, rows, expected)


def matches_of(row: Row) -> list[tuple[Any, ...]]:
    """Return the matches of a document without the names of their fields."""
    return [tuple(match.values()) for match in row["matches"] or ()]


def check(out: Path, archive: Archive) -> None:
    """Compare what a disturbed run has written with what an undisturbed one says."""
    documents = parquet.read_table(out / "documents.parquet").to_pylist()
    sketches = parquet.read_table(out / "sketches.parquet").to_pylist()
    assert documents == archive.expected.verdicts
    assert sketches == archive.expected.sketches


def test_python_workers_that_die(archive: Archive, tmp_path: Path) -> None:
    """Busy Python workers are killed in every step that has some; the result stays the same."""
    chance = random.Random(1)
    seconds: dict[int, float] = {}
    kills: Counter[int] = Counter()
    with Run("local[2,4]", archive.path, tmp_path / "out") as run:
        while run.code() is None:
            time.sleep(0.1)
            busy = [process for process in run.victims(PYTHON) if is_busy(process, seconds)]
            # A task that is lost four times fails for good.
            if busy and kills[run.step] < 2:
                kill(chance.choice(busy))
                kills[run.step] += 1
        run.finish()
        lost = run.lost_tasks()
    _log.info("kills by the number of the step: %s; lost tasks by step: %s", kills, lost)
    assert len(lost) > 1
    check(tmp_path / "out", archive)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Spark's installation, in a folder that its workers may write to."""
    import pyspark

    folder = tmp_path / "home"
    folder.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


def test_executors_that_die(archive: Archive, home: Path, tmp_path: Path) -> None:
    """An executor is killed twice, with its finished tasks; the result stays the same."""
    seconds: dict[int, float] = {}
    wanted = [2, 7]  # while the sketches are made, and while components are judged
    out = tmp_path / "out"
    with Run("local-cluster[2,1,1024]", archive.path, out, SPARK_HOME=str(home)) as run:
        while run.code() is None:
            time.sleep(0.1)
            busy = [process for process in run.victims(PYTHON) if is_busy(process, seconds)]
            if busy and wanted and run.step >= wanted[0]:
                executors = run.victims(EXECUTOR)
                owners = [each for each in busy[0].parents() if each in executors]
                if owners:
                    kill(owners[0])
                    wanted.pop(0)
        run.finish()
        lost = run.lost_tasks()
        removed = run.lost_executors()
    _log.info("lost tasks by step: %s", lost)
    assert not wanted
    assert removed == 2
    assert lost
    check(out, archive)


@pytest.mark.parametrize(("partitions", "files", "shuffle"), [(1, 1, 1), (13, 2, 7), (None, 11, 7)])
def test_divisions(
    spark: SparkSession,
    archive: Archive,
    tmp_path: Path,
    partitions: int | None,
    files: int,
    shuffle: int,
) -> None:
    """Files, partitions and shuffles may be any: the verdicts and sketches are the same."""
    path = write(archive.rows, tmp_path / "in", files, seed=files)
    options = {
        "spark.sql.shuffle.partitions": str(shuffle),
        "spark.sql.adaptive.enabled": str(shuffle == 1).lower(),
    }
    before = {name: spark.conf.get(name) for name in options}
    try:
        for name, value in options.items():
            spark.conf.set(name, value)
        frame = spark.read.parquet(str(path))
        frame = frame if partitions is None else frame.repartition(partitions)
        assert result_of(frame, tmp_path / "work") == archive.expected
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
