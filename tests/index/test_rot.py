"""Bytes that change on the disk: never a crash, and no wrong answer past a check."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamdedup.batches import DocumentColumns
from streamdedup.errors import IndexDamaged, StreamdedupError
from streamdedup.index.check import check
from streamdedup.index.store import Index
from tests.index.damage import entries
from tests.support.builders import COLUMNS, columns, open_index, small_settings, update_of

pytestmark = pytest.mark.damages_index

DOCUMENTS, BATCH = 6600, 550
GEOMETRY: dict[str, Any] = {"delta_documents": 1100, "window_documents": 20_000}
"""A slice of five blocks with stored filters, and runs of two blocks."""
RIGHT, WRONG, CRASHED = 0, 100, 101
MANIFEST = "manifest/data.mdb"


def documents(first: int, count: int) -> DocumentColumns:
    """Return documents whose keys no other document has."""
    keys = np.random.default_rng(first).integers(0, 2**64, (count, COLUMNS), dtype=np.uint64)
    return columns(keys.tolist(), first)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound index, with a tail."""
    directory = tmp_path_factory.mktemp("sound")
    index = open_index(small_settings(directory, **GEOMETRY))
    for first in range(0, DOCUMENTS, BATCH):
        index.apply(update_of(documents(first, BATCH), first), first + 1)
        index.settle()
    index.flush()
    index.settle()
    index.apply(update_of(documents(DOCUMENTS, 5), DOCUMENTS), DOCUMENTS + 1)
    index._release()  # noqa: SLF001 - a crash, so that the tail stays
    kinds = {(entry.count > 4 * 1024, entry.stores_filter) for entry in entries(directory)}
    assert kinds == {(True, True), (False, False)}
    assert check(directory).problems == []
    return directory


def answer(directory: Path) -> int:
    """Open an index, and look up all its documents: ``RIGHT``, ``WRONG``, or an exit code."""
    try:
        index = open_index(small_settings(directory, **GEOMETRY))
        return RIGHT if finds_all(index) else WRONG
    except StreamdedupError as error:
        return error.exit_code
    except BaseException:  # noqa: BLE001 - any other error fails the test
        return CRASHED


def finds_all(index: Index) -> bool:
    """Return whether an index finds each document under all of its keys, and nothing else."""
    found = []
    for first in [*range(0, DOCUMENTS, BATCH), DOCUMENTS]:
        count = min(BATCH, DOCUMENTS + 5 - first)
        candidates = index.probe(documents(first, count))
        numbers = np.repeat(np.arange(first, first + count), COLUMNS)
        ids = [f"id-{first + row}" for row in range(count)]
        hits = np.array_equal(candidates.hit_numbers, numbers)
        found.append(hits and candidates.documents.ids == ids)
    return all(found)


def answer_and_scrub(directory: Path) -> tuple[int, int]:
    """Return the answer of another process, and that of a scrub in one."""
    return in_fork(lambda: answer(directory)), in_fork(lambda: scrub(directory))


def scrub(directory: Path) -> int:
    """Scrub a whole index: ``RIGHT``, or an exit code."""
    try:
        index = open_index(small_settings(directory, **GEOMETRY))
        size = sum(sum(entry.parts.values()) for entry in index._layers.entries)  # noqa: SLF001
        while index.stats().scrubbed_bytes < size:
            index._layers.scrub.step()  # noqa: SLF001 - without its pauses
    except StreamdedupError as error:
        return error.exit_code
    except BaseException:  # noqa: BLE001 - any other error fails the test
        return CRASHED
    return RIGHT


def in_fork(work: Any) -> int:
    """Return the exit code of a child process; a crash gives a negative one."""
    pid = os.fork()
    if pid == 0:
        os._exit(work())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def spoil(path: Path, place: int, rng: random.Random) -> None:
    """Flip a bit, replace eight bytes or clear a page."""
    content = bytearray(path.read_bytes())
    match rng.choice(["bit", "bytes", "page"]):
        case "bit":
            content[place] ^= 1 << rng.randrange(8)
        case "bytes":
            content[place : place + 8] = rng.randbytes(len(content[place : place + 8]))
        case "page":
            start = place // 4096 * 4096
            content[start : start + 4096] = bytes(4096)
    path.write_bytes(content)


def places_of(file: Path, rng: random.Random, count: int) -> list[int]:
    """Return places of a file: of its first pages more than of the others."""
    size = file.stat().st_size
    return [rng.randrange(min(8192, size)) for _ in range(count // 4)] + [
        rng.randrange(size) for _ in range(count - count // 4)
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["documents.mdb", "shard-000.mdb", "shard-001.mdb"])
def test_segments(kind: str, seed: int, sound: Path, tmp_path: Path) -> None:
    """Changed bytes of a segment's file do no harm, or end with the exit code of damage.

    The checker finds all of them. Damaged documents are never returned. Damaged postings may hide a
    document until the scrub finds them.
    """
    rng = random.Random(f"{kind} {seed}")
    entry = entries(sound)[rng.choice([0, -1])]
    name = f"segments/{entry.name}/{kind}"
    for place in places_of(sound / name, rng, 4):
        copy = Path(shutil.copytree(sound, tmp_path / f"{place}"))
        spoil(copy / name, place, rng)
        if (copy / name).read_bytes() == (sound / name).read_bytes():
            continue
        found, scrubbed = answer_and_scrub(copy)
        allowed = {RIGHT, IndexDamaged.exit_code} | ({WRONG} if "shard" in kind else set())
        assert found in allowed, place
        assert scrubbed in {RIGHT, IndexDamaged.exit_code}, place
        assert found == RIGHT or scrubbed == IndexDamaged.exit_code, place
        assert check(copy).problems, place


@pytest.mark.parametrize("seed", range(6))
def test_manifest(seed: int, sound: Path, tmp_path: Path) -> None:
    """Changed bytes of the manifest do no harm, or end with an exit code that the docs list.

    The checker finds those that do.
    """
    rng = random.Random(seed)
    for place in places_of(sound / MANIFEST, rng, 8):
        copy = Path(shutil.copytree(sound, tmp_path / f"{place}"))
        spoil(copy / MANIFEST, place, rng)
        found = in_fork(lambda copy=copy: answer(copy))
        assert found in {RIGHT, IndexDamaged.exit_code}, place
        if found:
            assert check(copy).problems, place


def grow(index: Index) -> None:
    """Add documents until a slice is merged."""
    for first in range(3300, DOCUMENTS, BATCH):
        index.apply(update_of(documents(first, BATCH), first), first + 1)
        index.settle()


@pytest.mark.parametrize("kind", ["documents", "postings"])
def test_a_merge_never_copies_damage(kind: str, tmp_path: Path) -> None:
    """A merge that reads damage ends the index; the damaged segments stay as they are."""
    settings = small_settings(tmp_path, **GEOMETRY)
    index = open_index(settings)
    for first in range(0, 3300, BATCH):
        index.apply(update_of(documents(first, BATCH), first), first + 1)
    index.flush()
    index.settle()
    before = index._layers.entries  # noqa: SLF001
    victim = index._layers._segments.held[0]  # noqa: SLF001
    file = victim.documents if kind == "documents" else victim.shards[1].file
    with file.path.open("r+b") as raw:  # long after it was written, and checked
        os.pwrite(raw.fileno(), b"\0rotten\0", int(file._offsets[1]) + 1000)  # noqa: SLF001
    with pytest.raises(IndexDamaged, match="remove the index directory"):
        grow(index)
    index.close()
    assert before[0] in entries(tmp_path)
    assert check(tmp_path).problems


@pytest.mark.parametrize("kind", ["documents.mdb", "shard-000.mdb"])
def test_rot_while_open(kind: str, sound: Path, tmp_path: Path) -> None:
    """A value that changes after its check is an error or another value, never a crash."""
    copy = Path(shutil.copytree(sound, tmp_path / "index"))
    rng = random.Random(kind)

    def rot() -> int:
        index = open_index(small_settings(copy, **GEOMETRY))
        outcomes = {RIGHT if finds_all(index) else WRONG}
        for path in copy.glob(f"segments/*/{kind}"):
            content = path.read_bytes()
            for _ in range(30):
                with path.open("r+b") as raw:
                    os.pwrite(raw.fileno(), rng.randbytes(8), rng.randrange(len(content) - 8))
                outcomes.add(probed(index))
            with path.open("r+b") as raw:
                os.pwrite(raw.fileno(), content, 0)
        return max(outcomes)

    assert in_fork(rot) == IndexDamaged.exit_code


def probed(index: Index) -> int:
    """Look up all documents: ``RIGHT``, whatever is found, or an exit code."""
    try:
        finds_all(index)
    except StreamdedupError as error:
        return error.exit_code
    except BaseException:  # noqa: BLE001 - any other error fails the test
        return CRASHED
    return RIGHT
