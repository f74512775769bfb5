"""A stream on Kafka continues an archive that Spark has deduplicated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from deploy.broker.broker import Broker
from streamdedup import Document, Settings, load_settings
from streamdedup.dedup.clock import Clock
from streamdedup.spark import Backfill, backfill
from tests.support import continued
from tests.support.commands import CommandLine
from tests.support.continued import COUNT, HALF, WINDOW
from tests.testkit import kept_sketches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::FutureWarning")]

SCHEMA = "id string, text string, at long, number long"
INDEX: list[dict[str, Any]] = [{}, WINDOW]


def deduplicate(
    spark: SparkSession, documents: list[Document], settings: Settings, work: Path
) -> Backfill:
    """Deduplicate documents on Spark, in their order."""
    rows = [(one.id, one.text, one.event_time_ms, row) for row, one in enumerate(documents)]
    frame = spark.createDataFrame(rows, SCHEMA).repartition(4)
    return backfill(frame, settings, "number", str(work))


@pytest.mark.parametrize("verify", ["estimate", "exact"])
@pytest.mark.parametrize("index", INDEX, ids=["no window", "window"])
def test_sketches_are_those_of_one_process(
    spark: SparkSession, tmp_path: Path, index: dict[str, Any], verify: str
) -> None:
    """The hand-over has the bytes that an index would have got; with a window, those in reach."""
    settings = load_settings(
        index=index, records={"event_time_field": "at"}, dedup={"verify": verify}
    )
    documents = kept_sketches.documents(COUNT)
    result = deduplicate(spark, documents, settings, tmp_path / "work")
    result.sketches.write.parquet(str(tmp_path / "sketches"))
    found = pq.read_table(tmp_path / "sketches")
    judged = kept_sketches.judge(settings, documents)
    expected = judged.table(settings).to_pylist()
    now_ms, reach = Clock.from_state(judged.clock).now_ms, settings.index.reach()
    if reach is not None:
        reach_ms = reach.total_seconds() * 1000
        expected = [row for row in expected if row["effective_time_ms"] + reach_ms > now_ms]
        assert 0 < len(expected) < len(judged.kept)
    assert found.to_pylist() == expected
    assert found.schema.equals(kept_sketches.SCHEMA)


@pytest.mark.kafka
@pytest.mark.parametrize("index", INDEX, ids=["no window", "window"])
def test_stream_continues(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    index: dict[str, Any],
) -> None:
    """Archive on Spark, then a worker on Kafka: the verdicts of one process over everything."""
    stage = continued.prepared(broker.bootstrap, tmp_path, index)
    documents = continued.with_late_copies(kept_sketches.documents(COUNT))
    result = deduplicate(spark, documents[:HALF], stage.settings(), tmp_path / "work")
    result.sketches.write.parquet(str(tmp_path / "sketches"))
    whole = kept_sketches.judge(stage.settings(), documents)
    command = CommandLine(capfd)
    imported = continued.check_continues(stage, tmp_path / "sketches", documents, whole, command)
    assert imported["documents"] + imported["skipped"] == result.sketches.count() > HALF // 4
