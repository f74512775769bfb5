"""The commands of docs/backfill.md work."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deploy.broker.broker import Broker
from tests.docs.blocks import blocks
from tests.spark.archives import made_up
from tests.support.paths import ROOT
from tests.support.stage import Stage

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

COUNT = 300
HERE = {
    "s3a://lake/news-kept": "kept",
    "s3a://lake/news": "archive",
    "--master yarn --num-executors 20 --executor-memory 8g": "--master local[2]",
    "/data/index": "index",
    "pip install '.[spark]'\n": "",
}
"""What replaces parts of the commands: this machine instead of a cluster."""


def commands() -> list[str]:
    """Return the shell blocks of the page, for this machine."""
    texts = [
        block.content
        for block in blocks()
        if (block.page, block.language) == ("docs/backfill.md", "sh")
    ]
    for old, new in HERE.items():
        assert any(old in text for text in texts)
        texts = [text.replace(old, new) for text in texts]
    return texts


def test_page(broker: Broker, tmp_path: Path) -> None:
    """Each block ends with 0; a worker then finds copies of documents of the archive."""
    stage = Stage(broker.bootstrap, tmp_path)
    stage.configure(records={"event_time_field": "published"})
    rows = made_up(COUNT, seed=1)
    times = [row["time"] and datetime.fromtimestamp(row["time"] / 1000, tz=UTC) for row in rows]
    columns = {"id": [row["id"] for row in rows], "text": [row["text"] for row in rows]}
    table = pa.table({**columns, "published": pa.array(times, pa.timestamp("ms", "UTC"))})
    (tmp_path / "archive").mkdir()
    pq.write_table(table, tmp_path / "archive" / "one.parquet")
    (tmp_path / "streamdedup.yaml").write_bytes(stage.config.read_bytes())
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    local, submitted, stream = commands()
    stream = stream.replace("\nstreamdedup run --config streamdedup.yaml\n", "\n")
    for text in (local, submitted, stream):
        done = subprocess.run(
            ["/bin/bash", "-e", "-c", text],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert pq.read_table(tmp_path / "result/documents").num_rows == COUNT
    assert pq.read_table(tmp_path / "kept/documents").num_rows == COUNT
    assert (tmp_path / "index").is_dir()
