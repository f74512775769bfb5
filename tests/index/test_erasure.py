"""Erased documents: no longer found at once, and no longer on the disk soon after."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from streamdedup.index.manifest import Manifest, compact_manifest
from streamdedup.index.store import LOCAL_LOG, Index
from streamdedup.model import IndexUpdate
from streamdedup.settings.sections import Settings
from tests.support.builders import COLUMNS, columns, open_index, small_settings, update_of

UNIQUE = "a-name-that-is-found-nowhere-else"
SIGNATURE = bytes(range(100, 116))


def document(index: Index, id_: str, key: int) -> IndexUpdate:
    """Return the update that keeps one document, with the signature."""
    update = update_of(columns([[key << 40] * COLUMNS], index.next_number), index.next_number)
    update.documents.sketches.signatures[:] = list(SIGNATURE)
    return replace(update, documents=replace(update.documents, ids=[id_]))


def erase(index: Index, *numbers: int) -> None:
    """Erase documents, in an update of nothing else."""
    nothing = update_of(columns([]), index.next_number)
    index.apply(replace(nothing, deleted=numbers), index.applied + 1)


def fill(index: Index, count: int) -> None:
    """Keep some other documents, one by one."""
    for _ in range(count):
        first = index.next_number
        documents = columns([[(first + 1000) << 40] * COLUMNS], first)
        index.apply(update_of(documents, first), index.applied + 1)


def holds(directory: Path, content: bytes) -> list[str]:
    """Return the files that hold some bytes."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return [path.name for path in files if content in path.read_bytes()]


def settings_of(directory: Path) -> Settings:
    """Return settings under which 16 documents are a segment."""
    return small_settings(directory, delta_documents=16, bucket_size=2)


@pytest.mark.parametrize("log", [LOCAL_LOG, "changelog"], ids=["tail", "changelog"])
@pytest.mark.parametrize("others", [0, 3, 40, 400], ids="after-{}".format)
def test_bytes_are_overwritten(others: int, log: str, tmp_path: Path) -> None:
    """In memory, in a run, in a slice: the id and the signature are gone from all files."""
    with open_index(settings_of(tmp_path), log) as index:
        fill(index, 5)
        index.apply(document(index, UNIQUE, 1), index.applied + 1)
        fill(index, others)
        if others:
            index.flush()
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
    compact_manifest(tmp_path)  # LMDB keeps what was in the pages that it has freed
    assert holds(tmp_path, UNIQUE.encode()) + holds(tmp_path, SIGNATURE) == []
    with open_index(settings_of(tmp_path), log) as index:
        assert index.numbers_of(UNIQUE) == []
        found = index.probe(columns([[1 << 40] * COLUMNS, [1000 << 40] * COLUMNS], 10**6))
        assert found.numbers.tolist() == [0]


def test_a_place_in_the_bucket_stays_taken(tmp_path: Path) -> None:
    """An erasure brings no older document back into a full bucket."""
    settings = settings_of(tmp_path)
    probe = columns([[1 << 40] * COLUMNS], 10**6)
    with open_index(settings) as index:
        for _ in range(3):
            index.apply(document(index, "id", 1), index.applied + 1)
        assert index.probe(probe).numbers.tolist() == [1, 2]
        erase(index, 1)
        assert index.probe(probe).numbers.tolist() == [2]
        index.flush()
        index.settle()
        assert index.probe(probe).numbers.tolist() == [2]
    with open_index(settings) as index:
        assert index.probe(probe).numbers.tolist() == [2]


def test_a_replayed_position_stays_judged(tmp_path: Path) -> None:
    """An erased document's position is still that of a kept one: a replay is not kept again."""
    with open_index(settings_of(tmp_path)) as index:
        index.apply(document(index, UNIQUE, 1), 1)
        erase(index, 0)
        index.flush()
        index.settle()
        found = index.probe(columns([[1 << 40] * COLUMNS], 0))
        assert found.already_judged.tolist() == [True]
        assert found.already_kept == {0}


def test_erasures_leave_with_their_segment(tmp_path: Path) -> None:
    """What is known of an erased document is forgotten when it would have left the window."""
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
