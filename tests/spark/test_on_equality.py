"""Spark's verdicts are those of one process over the same order."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from streamdedup import Settings, load_settings
from streamdedup.files.docstrings import docstrings
from streamdedup.spark import Backfill, backfill
from tests.spark.archives import Row, described, described_row, judged, made_up
from tests.support.corpora import DATA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::FutureWarning")]

SCHEMA = "id string, text string, time long, number long, forum string"


def check(
    spark: SparkSession,
    work: Path,
    rows: list[Row],
    settings: Settings,
    *,
    partitions: int = 3,
    schema: str = SCHEMA,
) -> Backfill:
    """Compare Spark's verdicts on shuffled rows with those of one process; ``number`` orders."""
    shuffled = random.Random(partitions).sample(rows, len(rows))
    frame = spark.createDataFrame(shuffled, schema).repartition(partitions)
    result = backfill(frame, settings, "number", str(work))
    found = {row["number"]: described_row(row) for row in result.frame.collect()}
    expected = [described(verdict) for verdict in judged(rows, settings)]
    assert [found[row["number"]] for row in rows] == expected
    outcomes = [outcome for _, outcome, *_ in expected]
    assert result.report["buckets_bounded"] == 0
    assert result.report["documents"] == len(rows)
    assert result.report["kept"] == outcomes.count("kept")
    assert result.report["duplicates"] == outcomes.count("duplicate") > 0
    assert result.report["rejected"] == outcomes.count("rejected")
    return result


VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "exact": {"dedup": {"verify": "exact"}},
    "exact near 1": {"dedup": {"verify": "exact", "threshold": 0.97}},
    "window": {"index": {"window": "5m"}, "records": {"event_time_field": "time"}},
    "window and lateness": {
        "index": {"window": "10m", "allowed_lateness": "30s"},
        "dedup": {"verify": "exact"},
        "records": {"event_time_field": "time"},
    },
    "namespaces": {
        "records": {"namespace_field": "forum", "event_time_field": "time"},
        "output": {"max_matches": 2},
        "dedup": {"shingle_unit": "word", "shingle_size": 2, "threshold": 0.6},
    },
    "few bits": {
        "dedup": {"num_perm": 100, "signature_bits": 1, "bands": 9, "rows": 4, "threshold": 0.7}
    },
    "rejections": {
        "dedup": {"empty_text": "reject"},
        "limits": {"text_bytes": 300, "id_bytes": 12},
        "records": {"id_field": "forum"},
    },
}


@pytest.mark.parametrize("name", VARIANTS)
def test_settings(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """All kinds of settings, over an archive with copies, near-copies and empty texts."""
    number = list(VARIANTS).index(name)
    settings = load_settings(**VARIANTS[name])
    rows = made_up(1500, seed=number)
    result = check(spark, tmp_path, rows, settings, partitions=1 + 2 * number)
    assert result.report["buckets_truncated"] == 0


def test_one_text_is_most_of_the_archive(spark: SparkSession, tmp_path: Path) -> None:
    """A component is judged in parts, and it has kept documents in each of them."""
    settings = load_settings(index={"window": "6h"}, records={"event_time_field": "time"})
    [popular, *others] = made_up(400, seed=4)
    near = [row for row in others if row["text"].startswith(popular["text"][:20])]
    assert len({row["text"] for row in near}) > 3
    chance = random.Random(1)
    rows: list[Row] = []
    for number in range(140_000):
        row = chance.choice(near) if chance.random() < 0.01 else popular
        time_ms = 1_700_000_000_000 + 1000 * number
        rows.append({**row, "id": f"document-{number}", "number": number, "time": time_ms})
    result = check(spark, tmp_path, rows, settings)
    assert 130_000 < result.report["duplicates"] < len(rows) - 6


def test_docstrings(spark: SparkSession, tmp_path: Path) -> None:
    """Real text with real near-duplicates."""
    rows: list[Row] = [
        {"id": name, "text": text, "time": None, "number": number, "forum": ""}
        for number, (name, text) in enumerate(docstrings())
    ]
    check(spark, tmp_path, rows, load_settings(dedup={"verify": "exact"}), partitions=5)


@pytest.mark.skipif(not DATA.is_dir(), reason="the corpora are not here; docstrings are tested")
@pytest.mark.parametrize("window", [None, "30d"])
@pytest.mark.parametrize("name", ["news_reuters", "forum_cypherpunks", "tweets_ira"])
def test_corpora(spark: SparkSession, tmp_path: Path, name: str, window: str | None) -> None:
    """News, forum posts and tweets, in the order of their times."""
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        documents = [json.loads(line) for line in lines]
    rows: list[Row] = [
        {
            "id": str(document["id"]),
            "text": document["text"],
            "time": document["date"],
            "number": number,
            "forum": "",
        }
        for number, document in enumerate(documents)
    ]
    settings = load_settings(
        records={"event_time_field": "time"},
        index={"window": window, "bucket_size": 4096},
        dedup={"verify": "exact" if window else "estimate"},
    )
    schema = SCHEMA.replace("time long", "time string")
    check(spark, tmp_path, rows, settings, partitions=4, schema=schema)
