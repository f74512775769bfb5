"""The checker compares the segments with the manifest, and their values with each other."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from streamdedup.errors import IndexDamaged
from streamdedup.index.check import check
from streamdedup.index.layout import SegmentEntry
from streamdedup.index.manifest import Manifest
from streamdedup.index.segment import Segment
from tests.index.damage import (
    announce,
    build_sound_index,
    changed,
    entries,
    first_file,
    first_shard,
    flip,
    moved,
    patch,
    summed,
    swap,
    value,
)
from tests.support.builders import COLUMNS

pytestmark = pytest.mark.damages_index


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound index."""
    return build_sound_index(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def index(sound: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(sound, tmp_path / "index"))


def changed_documents(entry: SegmentEntry, **changes: Any) -> SegmentEntry:
    """Return the entry with changes to the file of its documents."""
    return changed(entry, documents=changed(entry.documents, **changes))


def with_filters(entry: SegmentEntry, size: int) -> SegmentEntry:
    """Return the entry with filters of some size in its first shard."""
    shard = entry.shards[0]
    columns = len(shard.starts) // (4 * 257)
    tables = {"offsets": 8 * columns, "sizes": 4 * columns, "sums": 8 * columns}
    file = {name: getattr(shard.file, name) + bytes(more) for name, more in tables.items()}
    return first_shard(entry, plane_bytes=size, file=changed(shard.file, **file))


@pytest.mark.parametrize("name", ["documents.mdb", "shard-000.mdb", "shard-001.mdb"])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.unlink(), "the file is missing"),
        (lambda path: path.write_bytes(b""), "the file has 0 bytes"),
        (lambda path: path.write_bytes(path.read_bytes()[:-4096]), "the manifest says"),
        (lambda path: path.write_bytes(path.read_bytes() + bytes(4096)), "the manifest says"),
        (lambda path: flip(path, 8192 + 100), "its checksum differs"),
        (lambda path: flip(path, -1), "its checksum differs"),
    ],
    ids=["gone", "emptied", "cut", "longer", "flipped", "flipped-at-the-end"],
)
def test_files(name: str, spoil: Callable[[Path], Any], message: str, index: Path) -> None:
    """A missing, longer, shorter or changed file of a segment is a problem."""
    entry = entries(index)[1]
    spoil(index / "segments" / entry.name / name)
    [problem] = check(index).problems
    assert problem.startswith(f"segment {entry.name}: {name}: ")
    assert message in problem


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: changed(e, count=e.count + 1), "a block of|begins with"),
        (lambda e: changed(e, count=0), "it has 0 documents"),
        (lambda e: changed(e, count=2**25), "it has 33554432 documents"),
        (
            lambda e: changed_documents(e, offsets=moved(e.documents.offsets)),
            "not where the manifest says",
        ),
        (
            lambda e: changed_documents(e, offsets=e.documents.offsets * 2),
            "tables of other lengths",
        ),
        (lambda e: changed(e, parts={**e.parts, "postings": 1}), "its values have"),
        (lambda e: changed(e, shards=e.shards[1:]), "does not begin with column 0"),
        (lambda e: changed(e, shards=e.shards[:1]), "columns instead of 9"),
        (
            lambda e: first_file(e, offsets=moved(e.shards[0].file.offsets)),
            "not where the manifest says",
        ),
        (lambda e: first_shard(e, chunk_bits=1), "tables of other lengths"),
        (lambda e: first_shard(e, chunk_bits=99), "tables of other lengths"),
        (lambda e: first_shard(e, chunk_bits=-1), "tables of other lengths"),
        (lambda e: changed_documents(e, sums=e.documents.sums[:-1]), "tables of other lengths"),
        (lambda e: first_shard(e, starts=e.shards[0].starts[:-1]), "tables of other lengths"),
        (lambda e: first_shard(e, starts=bytes(len(e.shards[0].starts))), "bytes for 0 postings"),
        (lambda e: first_shard(e, plane_bytes=8), "tables of other lengths"),
        (lambda e: with_filters(e, 7), "filters of 7 bytes"),
        (lambda e: changed(e, filter_first=e.end), "its filter begins with document"),
    ],
    ids=range(18),
)
def test_entries(change: Callable[[SegmentEntry], SegmentEntry], message: str, index: Path) -> None:
    """The manifest's record of a segment must agree with the files, also when it is opened."""
    entry = change(entries(index)[-1])
    announce(index, entry)
    problems = "\n".join(check(index).problems)
    assert any(each in problems for each in message.split("|")), problems
    if message == "tables of other lengths":
        with pytest.raises(IndexDamaged, match=message):
            Segment(index, entry, COLUMNS)
    else:
        with contextlib.suppress(IndexDamaged):
            Segment(index, entry, COLUMNS).close()


def test_times(index: Path) -> None:
    """A segment's times must be those of its documents."""
    last = entries(index)[-1]
    announce(index, changed(last, newest_ms=last.newest_ms - 1))
    [problem] = check(index).problems
    assert "the times range from" in problem


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v, _: v[:-3] + b"\xff\xff\xff", "leads to document 16777215"),
        (lambda v, n: swap(v, 4 * n, 4 * n + 3, 3), "do not ascend"),
        (lambda v, n: v[: 4 * n + 3] + b"\3\0\0" + v[4 * n + 6 :], "two postings"),
    ],
    ids=["number", "order", "twice"],
)
def test_postings(change: Callable[[bytes, int], bytes], message: str, index: Path) -> None:
    """Postings must ascend, and each document may have only one."""
    entry = next(each for each in entries(index) if not each.shards[0].plane_bytes)
    # All columns have the same keys: the first one with these bytes is damaged.
    postings = value(index, entry, "shard-000.mdb", b"c\0\0\0")
    path = index / "segments" / entry.name / "shard-000.mdb"
    content = path.read_bytes()
    start = content.index(postings)
    spoiled = change(postings, len(postings) // 7)
    path.write_bytes(content[:start] + spoiled + content[start + len(postings) :])
    announce(index, first_shard(entry, file=summed(path, entry.shards[0].file)))
    problems = check(index).problems
    assert len(problems) == 1
    assert message in problems[0]


def test_bucket_size(index: Path) -> None:
    """A bucket may not be larger than the index allows; the largest here holds two."""
    assert check(index, bucket_size=2).problems == []
    problems = check(index, bucket_size=1).problems
    assert all("a bucket has 2 documents" in problem for problem in problems)
    assert len(problems) >= COLUMNS


def test_filter(index: Path) -> None:
    """A stored filter that would miss a document is a problem."""
    entry = next(each for each in entries(index) if each.shards[0].plane_bytes)
    path = index / "segments" / entry.name / "shard-000.mdb"
    plane = value(index, entry, "shard-000.mdb", b"f\0\0")
    content = path.read_bytes()
    start = content.index(plane)
    path.write_bytes(content[:start] + bytes(len(plane)) + content[start + len(plane) :])
    announce(index, first_shard(entry, file=summed(path, entry.shards[0].file)))
    [problem] = check(index).problems
    assert "its filter would miss a document" in problem


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: b"\1\0\0\0" + v[4:], "does not begin"),
        (lambda v: v[:16] + b"\3" + v[17:], "do not follow on each other"),
        (lambda v: v.replace(b"id-", b"id\xff", 1), "not valid"),
        (lambda v: v[:120] + (9999).to_bytes(4, "little") + v[124:], "do not fill it"),
        (lambda v: v[:40] + (5).to_bytes(8, "little") + v[48:], "does not name"),
    ],
    ids=["count", "width", "utf-8", "ids", "source"],
)
def test_blocks(change: Callable[[bytes], bytes], message: str, index: Path) -> None:
    """A block that contradicts itself is a problem, and is not read by its own offsets."""
    entry = entries(index)[-1]
    block = value(index, entry, "documents.mdb", b"d\0\0\0\0")
    patch(index, entry, "documents.mdb", block, change(block))
    [problem] = check(index).problems
    assert "block 0" in problem
    assert message in problem


def test_offsets_go_back(index: Path) -> None:
    """Within a source, offsets must ascend with the numbers, across segments as well."""
    entry = entries(index)[-1]
    block = value(index, entry, "documents.mdb", b"d\0\0\0\0")
    base = 8 + 16 * 3
    patch(index, entry, "documents.mdb", block, block[:base] + bytes(8) + block[base + 8 :])
    problems = check(index).problems
    assert any("the offsets of documents 0 do not ascend" in problem for problem in problems)


def test_not_overwritten(index: Path) -> None:
    """Bytes that the manifest declares overwritten must not be there."""
    with closing(Manifest(index, None)) as manifest:
        manifest.announce(overwritten=[7])
    [problem] = check(index).problems
    assert "says they are overwritten" in problem
