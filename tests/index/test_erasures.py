"""Erased documents: not found from then on, and soon not on disk either."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from streamdedup.batches import IndexUpdate
from streamdedup.columns import Strings
from streamdedup.index.check import check
from streamdedup.index.erasures import Erasures
from streamdedup.index.manifest import Manifest, compact_manifest
from streamdedup.index.store import LOCAL_LOG, Index
from streamdedup.settings.sections import Settings
from tests.index.late import finish_jobs_late
from tests.support.builders import COLUMNS, columns, open_index, small_settings, update_of

UNIQUE = "a-name-that-is-found-nowhere-else"
SIGNATURE = bytes.fromhex("9b04e7c13a58f62d71be0fd34c8a2596")


def document(index: Index, id_: str, key: int) -> IndexUpdate:
    """Return the update that keeps one document, with the signature."""
    update = update_of(columns([[key << 40] * COLUMNS], index.next_number), index.next_number)
    update.documents.sketches.signatures[:] = list(SIGNATURE)
    return replace(update, documents=replace(update.documents, ids=Strings.of([id_])))


def erase(index: Index, *numbers: int, kept: int = 0) -> None:
    """Erase documents, in an update that also keeps some others."""
    first = index.next_number
    documents = columns([[number << 40] * COLUMNS for number in range(kept)], first)
    index.apply(replace(update_of(documents, first), deleted=numbers), index.applied + 1)


def fill(index: Index, count: int) -> None:
    """Keep some other documents, one in each update."""
    for _ in range(count):
        first = index.next_number
        documents = columns([[(first + 1000) << 40] * COLUMNS], first)
        index.apply(update_of(documents, first), index.applied + 1)


def holds(directory: Path, content: bytes) -> list[str]:
    """Return the names of the files that hold some bytes."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return [path.name for path in files if content in path.read_bytes()]


def settings_of(directory: Path) -> Settings:
    """Return settings with deltas of 16 documents."""
    return small_settings(directory, delta_documents=16, bucket_size=2)


@pytest.mark.parametrize("log", [LOCAL_LOG, "changelog"], ids=["tail", "changelog"])
@pytest.mark.parametrize("others", [0, 3, 40, 400], ids="after-{}".format)
def test_bytes_are_overwritten(others: int, log: str, tmp_path: Path) -> None:
    """Id and signature leave all files, whether the document is in memory, in a run or a slice."""
    with open_index(settings_of(tmp_path), log) as index:
        fill(index, 5)
        index.apply(document(index, UNIQUE, 1), index.applied + 1)
        fill(index, others)
        if others:
            index.flush()
            index.settle()  # a merge removes files
            assert UNIQUE.encode() in b"".join(
                path.read_bytes() for path in tmp_path.rglob("documents.mdb")
            )
        erase(index, 5)
        assert index.numbers_of(UNIQUE) == []
        index.flush()
        index.settle()
        in_segments = holds(tmp_path / "segments", UNIQUE.encode())
        assert in_segments + holds(tmp_path / "segments", SIGNATURE) == []
        assert index.probe(columns([[1 << 40] * COLUMNS], 10**6)).numbers.tolist() == []
    compact_manifest(tmp_path)  # LMDB does not overwrite the pages that it frees
    assert holds(tmp_path, UNIQUE.encode()) + holds(tmp_path, SIGNATURE) == []
    with open_index(settings_of(tmp_path), log) as index:
        assert index.numbers_of(UNIQUE) == []
        found = index.probe(columns([[1 << 40] * COLUMNS, [1000 << 40] * COLUMNS], 10**6))
        assert found.numbers.tolist() == [0]


def test_a_place_in_the_bucket_stays_taken(tmp_path: Path) -> None:
    """After an erasure, no older document returns to a full bucket, and the erased one is told."""
    settings = settings_of(tmp_path)
    probe = columns([[1 << 40] * COLUMNS], 10**6)
    with open_index(settings) as index:
        for _ in range(3):
            index.apply(document(index, "id", 1), index.applied + 1)
        assert index.probe(probe).numbers.tolist() == [1, 2]
        erase(index, 1)
        found = [index.probe(probe)]
        index.flush()
        index.settle()
        found.append(index.probe(probe))
    with open_index(settings) as index:
        found.append(index.probe(probe))
    for each in found:
        assert set(each.hit_numbers.tolist()) == {1, 2}
        assert each.numbers.tolist() == [2]
        assert each.erased == {1}


def test_a_replayed_position_stays_judged(tmp_path: Path) -> None:
    """An erased document's position still counts as kept: a replay is not kept again."""
    with open_index(settings_of(tmp_path)) as index:
        index.apply(document(index, UNIQUE, 1), 1)
        erase(index, 0)
        index.flush()
        index.settle()
        found = index.probe(columns([[1 << 40] * COLUMNS], 0))
        assert found.already_judged.tolist() == [True]
        assert found.already_kept == {0}


def test_erasures_leave_with_their_segment(tmp_path: Path) -> None:
    """An erasure is forgotten when the document leaves the window."""
    settings = small_settings(tmp_path, delta_documents=16, window_documents=50)
    with open_index(settings) as index:
        fill(index, 30)
        erase(index, 3, 29)
        fill(index, 200)
        index.flush()
        index.settle()
        assert index.stats().expired > 0
    with closing(Manifest(tmp_path, None, readonly=True)) as manifest:
        assert manifest.erased() == {}


def stored_erasures(directory: Path) -> dict[int, bool]:
    """Return what the manifest of a closed index says."""
    with closing(Manifest(directory, None, readonly=True)) as manifest:
        return manifest.erased()


@pytest.mark.parametrize("kept", [0, 1], ids=["checkpoint", "flush"])
def test_a_late_announcement_does_not_undo_an_overwriting(kept: int, tmp_path: Path) -> None:
    """A checkpoint may be older than the rewriting of a segment that it does not know of yet."""
    with open_index(settings_of(tmp_path)) as index:
        finish_jobs_late(index)
        fill(index, 20)
        index.flush()
        index.settle()
        erase(index, 3, kept=kept)
        index.flush()
        index.settle()
    assert stored_erasures(tmp_path) == {3: False}


def test_a_late_announcement_does_not_revive_an_expired_erasure(tmp_path: Path) -> None:
    """A flush may erase a document whose segment has just left the index."""
    with open_index(small_settings(tmp_path, delta_documents=16, window_documents=50)) as index:
        finish_jobs_late(index)
        fill(index, 30)
        index.flush()
        index.settle()
        erase(index, 3, kept=70)
        index.flush()
        index.settle()
        assert index.stats().expired > 0
    assert stored_erasures(tmp_path) == {}


def test_an_abandoned_merge_does_not_lose_an_erasure(tmp_path: Path) -> None:
    """The checkpoint holds the erasure, and the bytes are overwritten after a restart."""
    with open_index(settings_of(tmp_path)) as index:
        fill(index, 20)
        index.flush()
        index.settle()
        erase(index, 3)
        index.flush()
    assert set(stored_erasures(tmp_path)) == {3}
    with open_index(settings_of(tmp_path)) as index:
        index.settle()
    assert stored_erasures(tmp_path) == {3: False}
    assert check(tmp_path).left_over == []


def test_an_erasure_never_goes_back() -> None:
    """A replayed erasure leaves an overwritten document overwritten."""
    erasures = Erasures({1: True, 2: False})
    erasures.add([2, 3])
    assert erasures.waiting() == {1, 3}
    erasures.overwritten([1])
    erasures.add([1])
    assert erasures.waiting() == {3}
    assert len(erasures) == 3
    erasures.forget(3)
    assert (3 in erasures, 2 in erasures) == (True, False)


def test_erased_numbers_are_told_apart() -> None:
    """Numbers are split into those that are held and those that are erased."""
    numbers = np.array([1, 2, 5], dtype=np.int64)
    held, erased = Erasures({5: False, 7: True}).split(numbers)
    assert held.tolist() == [1, 2]
    assert erased == {5}
    held, erased = Erasures().split(numbers)
    assert held.tolist() == [1, 2, 5]
    assert erased == frozenset()
