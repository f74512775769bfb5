"""*Blocking.* Archives of posts as Parquet files, with planted copies and the truth about them.

    python -m benchmarks.archives FOLDER --documents 20000000

``FOLDER/documents`` has the columns id, text and time. The documents are in their order over the
files, and shuffled inside each file: the time says the order. ``FOLDER/truth`` has a row for each
copy: its id, the id of its original, and their similarity. Both are the same in every run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from benchmarks.progress import Steps
from streamdedup.columns import I64
from tests.testkit.documents import POST_BYTES, Documents, Plan, document_id, plan
from tests.testkit.texts import jaccard, shingles

EXACT = NEAR = 0.05
"""Shares of exact and of near copies."""
REPLACED = 1 / 20
"""Of a near copy's words; the similarities are 0.76 to 1, and 99% of them are at least 0.8."""
_FORMAT = 1
_FILE_DOCUMENTS = 100_000
_FILES = 8
"""A small archive has this many files, so that all processors can read it."""
_GROUP_DOCUMENTS = 25_000
_FIRST_TIME_US = 1_700_000_000_000_000
_STEP_US = 10_000
_COMPLETE = "archive.json"
"""Written last; it says what the archive was made from."""
_TIME = pa.timestamp("us", tz="UTC")
_SCHEMA = pa.schema([("id", pa.string()), ("text", pa.string()), ("time", _TIME)])


class Archive(NamedTuple):
    """The folders of an archive.

    Attributes:
        documents: Parquet files with id, text and time.
        truth: Parquet files with id, original and similarity of each copy.
        size: number of documents.
    """

    documents: Path
    truth: Path
    size: int


class Truth(NamedTuple):
    """The copies of an archive.

    Attributes:
        copies: places of the copies, ascending, ``(n,)`` int64.
        originals: places of their originals, ``(n,)`` int64.
        similarities: Jaccard similarities of their sets of shingles, ``(n,)`` float64.
    """

    copies: I64
    originals: I64
    similarities: NDArray[np.float64]


class _Part(NamedTuple):
    """What makes one file: its first place, and its part of the plan."""

    folder: Path
    number: int
    start: int
    planned: Plan


def made(
    folder: Path, count: int, processes: int, on_progress: Callable[[int], None] = lambda _: None
) -> Archive:
    """Return the archive of ``count`` documents in a folder; make it if it is not there.

    Args:
        folder: folder for this archive alone.
        count: number of documents.
        processes: processes that make files.
        on_progress: called with the number of documents that are done.
    """
    archive = Archive(folder / "documents", folder / "truth", count)
    file_documents = min(_FILE_DOCUMENTS, -(-count // _FILES))
    described = json.dumps({"format": _FORMAT, "documents": count, "file": file_documents})
    complete = folder / _COMPLETE
    if complete.exists() and complete.read_text() == described:
        return archive
    complete.unlink(missing_ok=True)
    for path in (archive.documents, archive.truth):
        path.mkdir(parents=True, exist_ok=True)
        for old in path.glob("part-*.parquet"):
            old.unlink()
    done = 0
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for written in pool.imap_unordered(_write, _parts(folder, count, file_documents)):
            done += written
            on_progress(done)
    complete.write_text(described)
    return archive


def truth(archive: Archive) -> Truth:
    """Read the truth about an archive."""
    table = parquet.read_table(archive.truth).sort_by("id")
    return Truth(
        places(table["id"]), places(table["original"]), table["similarity"].to_numpy().copy()
    )


def texts(count: int, places: I64) -> list[str]:
    """Return the texts of documents by their places, in an archive of ``count`` documents."""
    planned = plan(count, EXACT, NEAR)
    originals = planned.originals[places]
    given = np.where(planned.near[places], places, originals)
    return Documents(POST_BYTES, replaced=REPLACED).texts(originals, given)


def places(ids: pa.ChunkedArray) -> I64:
    """Return the places of documents by their ids."""
    digits = pa.compute.utf8_slice_codeunits(ids, len("document-"))
    found: I64 = digits.cast(pa.int64()).to_numpy()
    return found


def _parts(folder: Path, count: int, file_documents: int) -> Iterator[_Part]:
    planned = plan(count, EXACT, NEAR)
    for number, start in enumerate(range(0, count, file_documents)):
        rows = slice(start, start + file_documents)
        yield _Part(folder, number, start, Plan(planned.originals[rows], planned.near[rows]))


def _write(part: _Part) -> int:
    """Write one file of documents and one of truth; return the number of documents."""
    count = len(part.planned.originals)
    order = np.random.default_rng(part.start).permutation(count)
    name = f"part-{part.number:05}.parquet"
    documents = Documents(POST_BYTES, replaced=REPLACED)
    with parquet.ParquetWriter(
        part.folder / "documents" / name, _SCHEMA, use_dictionary=[]
    ) as file:
        for first in range(0, count, _GROUP_DOCUMENTS):
            file.write_table(_documents(documents, part, order[first : first + _GROUP_DOCUMENTS]))
    parquet.write_table(_truth(documents, part), part.folder / "truth" / name)
    return count


def _documents(documents: Documents, part: _Part, rows: I64) -> pa.Table:
    """Return rows of a part."""
    at = rows + part.start
    originals = part.planned.originals[rows]
    texts = documents.texts(originals, np.where(part.planned.near[rows], at, originals))
    times = pa.array(_FIRST_TIME_US + at * _STEP_US).cast(_TIME)
    return pa.table([[document_id(place) for place in at.tolist()], texts, times], _SCHEMA)


def _truth(documents: Documents, part: _Part) -> pa.Table:
    """Return the copies of a part."""
    planned = part.planned
    at = np.arange(len(planned.originals)) + part.start
    copies = planned.originals != at
    similarities = np.ones(len(at))
    near = np.flatnonzero(planned.near)
    originals = planned.originals[near]
    pairs = zip(
        documents.texts(originals, originals), documents.texts(originals, at[near]), strict=True
    )
    similarities[near] = [similarity(one, other) for one, other in pairs]
    return pa.table(
        {
            "id": [document_id(place) for place in at[copies].tolist()],
            "original": [document_id(place) for place in planned.originals[copies].tolist()],
            "similarity": similarities[copies],
        }
    )


def similarity(one: str, other: str) -> float:
    """Return the exact similarity of two texts of these archives, as the profile ``plain`` has it.

    Normalising them is case folding: they have no other character that it changes.
    """
    return jaccard(shingles(one.casefold()), shingles(other.casefold()))


def main() -> None:
    """Make an archive."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    started_at = time.perf_counter()
    with Steps() as steps:
        steps.begin("writing the archive", arguments.documents)
        made(arguments.folder, arguments.documents, arguments.processes, steps.reach)
    print(f"{arguments.documents:,} documents, {time.perf_counter() - started_at:.1f} s")


if __name__ == "__main__":
    main()
