"""The memory of a run does not grow with its tables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

_TEXT_BYTES = 20_000
_GROUP_ROWS = 1500
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz     .", dtype=np.uint8)


def write(path: Path, rows: int) -> None:
    """Write unrelated texts, 30 MB in each row group."""
    rng = np.random.default_rng(3)
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    with parquet.ParquetWriter(path, schema) as writer:
        for first in range(0, rows, _GROUP_ROWS):
            letters = _LETTERS[rng.integers(0, 32, (_GROUP_ROWS, _TEXT_BYTES), dtype=np.uint8)]
            texts = [row.tobytes().decode() for row in letters]
            writer.write_table(pa.table([range(first, first + _GROUP_ROWS), texts], schema=schema))


def peak_mb(folder: Path, source: Path) -> float:
    """Return the peak resident memory of a run's main process in MB."""
    kept = folder / "kept.parquet"
    command = [sys.executable, "-m", "streamdedup", "dedup", str(source), "--kept", str(kept)]
    command += ["--index", str(folder / f"index-{source.stem}"), "--json"]
    kept.unlink(missing_ok=True)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert parquet.read_metadata(kept).num_rows == parquet.read_metadata(source).num_rows
    return usage.ru_maxrss / 1024


@pytest.mark.long
def test_memory_does_not_grow_with_the_table(tmp_path: Path) -> None:
    """Three times the rows, 180 MB and then 540 MB of text, all of them kept."""
    small, large = tmp_path / "small.parquet", tmp_path / "large.parquet"
    write(small, 6 * _GROUP_ROWS)
    write(large, 18 * _GROUP_ROWS)
    grown = peak_mb(tmp_path, large) - peak_mb(tmp_path, small)
    print(f"grown by {grown:.0f} MB")  # noqa: T201 - shown if it fails
    assert grown < 180  # half of the additional text
