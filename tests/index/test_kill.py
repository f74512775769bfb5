"""A process is killed while it flushes and merges: no acknowledged update is lost."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from streamdedup.index.check import check
from streamdedup.index.store import Index
from tests.support.builders import COLUMNS, columns, open_index, small_settings
from tests.support.paths import ROOT

BATCH = 50
CODE = """
import sys
from pathlib import Path
from tests.support.builders import columns, update_of
from tests.index.test_kill import BATCH, keys_of, opened

index = opened(Path(sys.argv[1]))
print("open", flush=True)
while True:
    first = index.next_number
    documents = columns(keys_of(first, BATCH), first)
    index.apply(update_of(documents, first), index.applied + 1)
    print(index.applied, flush=True)
"""


def opened(directory: Path) -> Index:
    """Open the index with deltas so small that it flushes and merges all the time."""
    return open_index(small_settings(directory, delta_documents=100, window_documents=4000))


def keys_of(first: int, count: int) -> list[list[int]]:
    """Return the band keys of documents by their numbers; no two documents share one."""
    return [
        [(number * COLUMNS + column + 1) * 0x9E3779B97F4A7C15 % 2**64 for column in range(COLUMNS)]
        for number in range(first, first + count)
    ]


def killed(directory: Path, updates: int, seconds: float) -> int:
    """Kill a process that fills the index, and return the last update that it acknowledged.

    Args:
        directory: directory of the index.
        updates: that the process acknowledges first.
        seconds: that it then continues.
    """
    with subprocess.Popen(
        [sys.executable, "-c", CODE, str(directory)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        lines = [process.stdout.readline() for _ in range(updates)]
        time.sleep(seconds)
        process.kill()
        # The kill may cut the last line short.
        lines += [line for line in process.stdout if line.endswith("\n")]
    return int(lines[-1])


@pytest.mark.timeout(120)
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """After each of some kills, everything in the window is found, and the index is sound."""
    moments = random.Random(5)
    acknowledged = 0
    merges, kills = 0, 0
    while kills < 4 or (merges == 0 and kills < 16):  # a killed process may have merged before
        kills += 1
        acknowledged = max(acknowledged, killed(tmp_path, 30, moments.uniform(0, 0.05)))
        assert check(tmp_path, bucket_size=64).problems == []
        with opened(tmp_path) as index:
            assert acknowledged <= index.applied <= acknowledged + 1
            number = index.next_number
            assert number == BATCH * index.applied
            first = max(0, number - 4000)
            found = index.probe(columns(keys_of(first, number - first), 10**9))
            assert found.numbers.tolist() == list(range(first, number))
            assert found.documents.ids == [f"id-{each}" for each in range(first, number)]
            places = (np.arange(first, number) % BATCH).astype(np.uint8)
            np.testing.assert_array_equal(found.documents.sketches.signatures[:, 0], places)
            index.settle()
            merges += index.stats().merges
        acknowledged = index.applied
    report = check(tmp_path, bucket_size=64)
    assert (report.problems, report.left_over) == ([], [])
    assert acknowledged > 100
    assert merges > 0
