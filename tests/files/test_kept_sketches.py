"""Kept sketches of an archive become an index, and the stream continues as in one run."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamdedup.batches import IndexUpdate
from streamdedup.dedup.clock import Clock
from streamdedup.engine.deduplicator import Deduplicator
from streamdedup.errors import IndexUnusable
from streamdedup.files.kept_sketches import Loaded, import_sketches
from streamdedup.index.check import check
from streamdedup.index.directory import STAGING
from streamdedup.index.upkeep import FAN_IN, UpkeepLimits
from streamdedup.index.view import View
from streamdedup.model import Verdict
from streamdedup.settings.sections import Settings
from tests.support.builders import open_index, small_settings
from tests.testkit import kept_sketches
from tests.testkit.kept_sketches import MINUTE, START_MS

COUNT = 600
SIGNATURE = kept_sketches.SCHEMA.get_field_index("signature")


def told(verdicts: list[Verdict]) -> list[Any]:
    """Return what verdicts say, apart from positions."""
    return [
        (verdict.id, verdict.outcome, [(m.id, m.jaccard_estimate, m.jaccard) for m in found])
        for verdict in verdicts
        for found in (verdict.matches,)
    ]


DOCUMENTS = kept_sketches.documents(COUNT)
HALF = COUNT // 2
HOUR = dt.timedelta(hours=1)


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({}, id="no window"),
        pytest.param({"window_documents": 60}, id="a window by number"),
        pytest.param({"window": HOUR}, id="a window by time"),
        pytest.param(
            {"window": 2 * HOUR, "window_documents": 90, "allowed_lateness": HOUR / 2}, id="both"
        ),
        pytest.param({"bucket_size": 2}, id="small buckets"),
        pytest.param({"verify": "exact"}, id="with texts"),
    ],
)
def test_verdicts_are_those_of_one_run(limits: dict[str, Any], tmp_path: Path) -> None:
    """One run judges everything; the other one judges the second half after the import."""
    settings = small_settings(tmp_path / "index", delta_documents=32, **limits)
    expected = kept_sketches.judge(settings, DOCUMENTS).verdicts
    first = kept_sketches.judge(settings, DOCUMENTS[:HALF])
    kept_sketches.write(tmp_path / "kept", first.table(settings), files=3, row_group_size=20)
    loaded = import_sketches(tmp_path / "kept", settings)
    assert sum(loaded) == len(first.kept)
    with View(tmp_path / "index") as view:
        assert view.next_number == len(first.kept)
        assert view.clock.state() == first.clock
    assert check(tmp_path / "index").problems == []
    with Deduplicator(settings, tmp_path / "index") as deduplicator:
        deduplicator.index.settle()
        assert deduplicator.index.stats().merges == 0
        verdicts = deduplicator.process(DOCUMENTS[HALF:])
    assert sum(not verdict.kept for verdict in expected[HALF:]) > HALF // 20
    assert told(verdicts) == told(expected[HALF:])


def test_the_index_has_the_segments_of_a_live_one(tmp_path: Path) -> None:
    """Full parts of the window are one segment each, as after all merges of a live index."""
    limits: dict[str, Any] = {"delta_documents": 16, "window_documents": 500}
    settings = small_settings(tmp_path / "index", **limits)
    judged = kept_sketches.judge(settings, DOCUMENTS)
    kept_sketches.write(tmp_path / "kept", judged.table(settings))
    import_sketches(tmp_path / "kept", settings)
    live = small_settings(tmp_path / "live", **limits)
    with Deduplicator(live, tmp_path / "live") as deduplicator:
        for start in range(0, COUNT, 10):
            deduplicator.process(DOCUMENTS[start : start + 10])
        deduplicator.index.flush()
        deduplicator.index.settle()
    ours, theirs = (segments_by_part(one) for one in (settings, live))
    filling = max(ours)
    assert filling >= 3
    assert ours.pop(filling) <= FAN_IN
    assert theirs.pop(filling) <= FAN_IN
    assert ours == theirs == dict.fromkeys(range(filling), 1)


def segments_by_part(settings: Settings) -> dict[int, int]:
    """Return the number of segments that begin in each part of an index."""
    width = UpkeepLimits.of(settings.index).part_documents
    with View(settings.index.directory) as view:
        return Counter(entry.first // width for entry in view.entries)


@pytest.mark.parametrize("statistics", [True, False])
def test_older_documents_are_skipped(statistics: bool, tmp_path: Path) -> None:
    """Those behind the newest N, and those before the first one within reach of the clock.

    With statistics, their row groups are not read: their signatures would be refused.
    """
    settings = small_settings(tmp_path / "index")
    judged = kept_sketches.judge(settings, DOCUMENTS)
    table, total = judged.table(settings), len(judged.kept)
    if statistics:
        wrong = pa.repeat(pa.scalar(b"short", pa.binary()), 100)
        rest = table.column("signature").slice(100)
        signatures = pa.chunked_array([wrong, *rest.chunks])
        table = table.set_column(SIGNATURE, "signature", signatures)
    path = tmp_path / "kept.parquet"
    pq.write_table(table, path, row_group_size=20, write_statistics=statistics)
    by_number = small_settings(tmp_path / "number", window_documents=110)
    assert import_sketches(path, by_number) == Loaded(110, total - 110)
    by_time = small_settings(tmp_path / "time", window=HOUR, allowed_lateness=HOUR / 2)
    now_ms = Clock.from_state(judged.clock).now_ms
    in_reach = np.flatnonzero(judged.effective_times_ms + 90 * MINUTE > now_ms)
    assert 50 < total - in_reach[0] < total - 100
    assert import_sketches(path, by_time) == Loaded(total - in_reach[0], in_reach[0])
    with View(tmp_path / "time") as view:
        assert (view.next_number, view.documents_held) == (total, total - in_reach[0])


def test_an_archive_of_long_ago_gives_its_clock(tmp_path: Path) -> None:
    """No document is in reach; the index continues with the archive's clock and numbers."""
    settings = small_settings(tmp_path / "index", window=HOUR, allowed_lateness=dt.timedelta(0))
    judged = kept_sketches.judge(settings, DOCUMENTS[:100])
    clock = Clock.from_state(judged.clock)
    clock.advance(np.full(16, START_MS * 2))
    kept_sketches.write(tmp_path / "kept", judged._replace(clock=clock.state()).table(settings))
    assert import_sketches(tmp_path / "kept", settings) == Loaded(0, len(judged.kept))
    with Deduplicator(settings, tmp_path / "index") as deduplicator:
        assert deduplicator.index.clock.now_ms == START_MS * 2
        assert deduplicator.index.next_number == len(judged.kept)
        assert deduplicator.process([DOCUMENTS[0]])[0].kept


def test_an_interrupted_import_leaves_nothing(tmp_path: Path) -> None:
    """The directory is free for the next import."""
    settings = small_settings(tmp_path / "index", delta_documents=16)
    judged = kept_sketches.judge(settings, DOCUMENTS)
    kept_sketches.write(tmp_path / "kept", judged.table(settings))

    def interrupt(done: int, _: int) -> None:
        if done > 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_sketches(tmp_path / "kept", settings, progress=interrupt)
    assert [path.name for path in (tmp_path / "index").iterdir()] == ["lock"]
    assert import_sketches(tmp_path / "kept", settings) == Loaded(len(judged.kept), 0)


@pytest.mark.damages_index
def test_a_killed_import_is_not_an_index(tmp_path: Path) -> None:
    """Its remains are not opened; the next import replaces them."""
    settings = small_settings(tmp_path / "index", delta_documents=16)
    judged = kept_sketches.judge(settings, DOCUMENTS)
    kept_sketches.write(tmp_path / "kept", judged.table(settings))
    with open_index(small_settings(tmp_path / "index" / STAGING, delta_documents=16)) as remains:
        remains.apply(IndexUpdate(0, judged.kept, (), judged.effective_times_ms), 1)
        remains.flush()
    with pytest.raises(IndexUnusable, match="interrupted import; run the import again"):
        open_index(settings)
    assert import_sketches(tmp_path / "kept", settings) == Loaded(len(judged.kept), 0)
    assert sorted(path.name for path in (tmp_path / "index").iterdir()) == [
        "lock",
        "manifest",
        "segments",
    ]
