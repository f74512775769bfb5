"""A process that is killed while it flushes and merges: nothing that was acknowledged is lost."""

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
    """Open the index with deltas so small that it always flushes and merges."""
    return open_index(small_settings(directory, delta_documents=100, window_documents=4000))


def keys_of(first: int, count: int) -> list[list[int]]:
    """Return the band keys of documents by their numbers; each is of one of them alone."""
    return [
        [(number * COLUMNS + column + 1) * 0x9E3779B97F4A7C15 % 2**64 for column in range(COLUMNS)]
        for number in range(first, first + count)
    ]


def killed(directory: Path, seconds: float) -> int:
    """Let a process fill the index for a while, kill it, and return what it had acknowledged."""
    with subprocess.Popen(
        [sys.executable, "-c", CODE, str(directory)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        time.sleep(seconds)
        process.kill()
        # The last line may have been cut short by the end.
        lines = process.stdout.read().split("\n")[:-1]
    return int(lines[-1]) if lines else 0


@pytest.mark.timeout(120)
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Killed a few times, each time everything in the window is found, and the index is sound."""
    moments = random.Random(5)
    acknowledged = 0
    merges = 0
    for _ in range(4):
        acknowledged = max(acknowledged, killed(tmp_path, moments.uniform(0.05, 0.6)))
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
