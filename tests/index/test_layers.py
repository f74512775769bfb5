"""The layers of an index: other shards, and a disk without room."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from streamdedup.errors import (
    IndexFull,
)
from streamdedup.index.store import LOCAL_LOG
from tests.index.updates import WIDTH, fill, hits, key
from tests.support.builders import (
    columns,
    open_index,
    small_settings,
)
from tests.support.paths import ROOT


@pytest.mark.parametrize("shards", [1, 3, 9, 64])
def test_other_shards(shards: int, tmp_path: Path) -> None:
    """Segments keep the shards that they were written with; merges use the new number."""
    probes = columns([[key(each)] * WIDTH for each in range(8)], 10**6)
    with open_index(small_settings(tmp_path, shards=2, delta_documents=16)) as index:
        fill(index, [[number] * 8 for number in range(4)])
        index.flush()
        index.settle()
    with open_index(small_settings(tmp_path, shards=shards, delta_documents=16)) as index:
        before = hits(index.probe(probes))
        fill(index, [[number] * 8 for number in range(4, 24)])
        index.flush()
        index.settle()
        assert index.stats().merges > 0
        after = hits(index.probe(probes))
    assert {cell: after[cell] for cell in before} == before
    assert len(before) == 4 * WIDTH
    assert len(after) == 8 * WIDTH


class TestNoRoom:
    """A full disk, or the most that the index may take of it."""

    CODE = """
import resource, sys
from pathlib import Path
from streamdedup.errors import IndexFull
from tests.support.builders import columns, open_index, small_settings, update_of

settings = small_settings(Path(sys.argv[1]), delta_documents=2048)
index = open_index(settings, sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    for step in range(1000):
        first = index.next_number
        documents = columns([[key << 40] * 9 for key in range(first, first + 100)], first)
        index.apply(update_of(documents, first), step + 1)
        print(index.applied, flush=True)
    index.close()
except Exception as error:
    print(type(error).__name__, error, sep="|", file=sys.stderr)
"""

    @pytest.mark.parametrize("log", [LOCAL_LOG, "changelog"], ids=["tail", "changelog"])
    @pytest.mark.parametrize("limit", [30_000, 100_000])
    def test_files_cannot_grow(self, log: str, limit: int, tmp_path: Path) -> None:
        """A refused write is reported in one line, and loses no applied update."""
        ended = subprocess.run(
            [sys.executable, "-c", self.CODE, str(tmp_path), log, str(limit)],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
        kind, _, message = ended.stderr.strip().partition("|")
        assert kind in {"IndexFull", "IndexUnusable"}, ended.stderr
        assert str(tmp_path) in message
        done = int(ended.stdout.split()[-1]) if ended.stdout else 0
        with open_index(small_settings(tmp_path, delta_documents=2048), log) as index:
            if log == LOCAL_LOG:
                assert index.applied >= done
            number = index.next_number
            assert number == 100 * index.applied
            found = index.probe(columns([[key(each)] * WIDTH for each in range(number)], 10**6))
            assert found.numbers.tolist() == list(range(number))

    def test_disk_budget(self, tmp_path: Path) -> None:
        """At the budget the index stops with one line; with a larger budget it continues."""
        settings = small_settings(tmp_path, delta_documents=1024)
        index_settings = settings.index.model_copy(update={"disk_budget": 1024**2})
        small = settings.model_copy(update={"index": index_settings})
        index = open_index(small, "changelog")
        with pytest.raises(IndexFull, match=r"no room left.*raise index\.disk_budget"):
            fill(index, [list(range(low, low + 512)) for low in range(0, 100_000, 512)])
        assert 0 < index.stats().bytes_used < 2 * 1024**2
        assert index.room().bytes_left < 1024**2
        with pytest.raises(IndexFull):
            index.close()
        with open_index(settings, "changelog") as index:
            done = index.next_number
            assert done > 0
            fill(index, [list(range(done, done + 512))])
            found = index.probe(columns([[key(each)] * WIDTH for each in (0, done + 511)], 10**6))
            assert found.numbers.tolist() == [0, done + 511]
