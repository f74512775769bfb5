"""The archives of the Spark benchmark have the planned sizes and copies, and the truth is true."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from benchmarks.archives import Archive, made, places, similarity, texts, truth
from benchmarks.spark_check import KEPT, check

SIZE = 2000


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """Return an archive made by two processes."""
    return made(tmp_path_factory.mktemp("archive"), SIZE, processes=2)


def _documents(archive: Archive) -> pa.Table:
    return parquet.read_table(archive.documents)


def test_each_document_stands_once_in_the_order_of_the_times(archive: Archive) -> None:
    """The files follow each other; inside a file the rows are shuffled."""
    files = sorted(archive.documents.iterdir())
    assert len(files) == 8
    stored = [places(parquet.read_table(file)["id"]) for file in files]
    assert [sorted(file.tolist()) for file in stored] == np.arange(SIZE).reshape(8, -1).tolist()
    assert all((np.diff(file) < 0).any() for file in stored)
    table = _documents(archive).sort_by("time")
    assert (places(table["id"]) == np.arange(SIZE)).all()
    assert table["time"].type == pa.timestamp("us", tz="UTC")
    assert len(table["time"].unique()) == SIZE


def test_the_truth_names_the_copies_and_their_similarity(archive: Archive) -> None:
    """A copy is later than its original, and as similar as the texts in the files are."""
    found = truth(archive)
    assert len(found.copies) == pytest.approx(SIZE / 10, rel=0.2)
    assert (found.similarities == 1).mean() == pytest.approx(0.5, abs=0.1)
    assert (found.similarities >= 0.8).mean() > 0.95
    assert (found.originals < found.copies).all()
    assert (np.diff(found.copies) > 0).all()
    assert not np.isin(found.originals, found.copies).any()
    stored = _documents(archive).sort_by("id")["text"].to_pylist()
    for copy, original, similar in zip(*(column.tolist() for column in found), strict=True):
        assert similarity(stored[copy], stored[original]) == similar
    assert len(set(stored)) == SIZE - (found.similarities == 1).sum()


def test_texts_are_those_of_the_files(archive: Archive) -> None:
    """Texts can be made again by their places alone."""
    stored = _documents(archive).sort_by("id")["text"].to_pylist()
    some = np.array([SIZE - 1, 0, *truth(archive).copies[:20].tolist()])
    assert texts(SIZE, some) == [stored[place] for place in some.tolist()]
    assert np.mean([len(text) for text in stored]) == pytest.approx(260, rel=0.03)


def test_a_complete_archive_is_used_and_another_is_replaced(tmp_path: Path) -> None:
    """An archive that is made in the place of another leaves none of its files."""
    archive = made(tmp_path, 80, processes=1)
    first = min(archive.documents.iterdir())
    first.write_bytes(b"touched")
    assert made(tmp_path, 80, processes=1) == archive
    assert first.read_bytes() == b"touched"
    assert made(tmp_path, 4, processes=1).size == 4
    assert len(_documents(archive)) == 4
    made(tmp_path, 80, processes=1)
    assert len(_documents(archive)) == 80


def test_a_check_tells_right_and_false_duplicates_apart(archive: Archive) -> None:
    """Recall counts the copies that are similar enough; a false pair is found by its texts."""
    found = truth(archive)
    rows = np.arange(SIZE)
    originals = np.full(SIZE, KEPT)

    def checked() -> tuple[float, ...]:
        done = check(found, rows, originals, 0.8, lambda some: texts(SIZE, some))
        assert done.rows == SIZE
        return done.exact_recall, done.near_recall, done.duplicates, done.false, done.lowest

    assert checked() == (0, 0, 0, 0, 1)
    near = (found.similarities >= 0.8) & (found.similarities < 1)
    originals[found.copies[near]] = found.originals[near]
    assert checked() == (0, 1, near.sum(), 0, 1)
    originals[found.copies[~near]] = found.originals[~near]
    below = found.similarities[found.similarities < 0.8]
    assert len(below)
    assert checked() == (1, 1, len(found.copies), len(below), below.min())
    unrelated = int(np.setdiff1d(rows[1:], found.copies)[0])
    originals[unrelated] = 0
    false = len(below) + 1
    assert checked()[2:4] == (len(found.copies) + 1, false)
    assert checked()[4] < 0.2


def test_a_repeated_verdict_is_counted(archive: Archive) -> None:
    """A document with two verdicts is counted once more than it should be."""
    rows = np.array([3, 5, 3])
    done = check(truth(archive), rows, np.full(3, KEPT), 0.8, lambda some: texts(SIZE, some))
    assert (done.rows, done.repeated) == (3, 1)
