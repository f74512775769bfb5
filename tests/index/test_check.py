"""The checker: it finds each kind of damage, and never ends by it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import numpy as np
import pytest

from streamdedup.errors import IndexLocked, IndexUnusable
from streamdedup.formats import changelog
from streamdedup.index.check import check
from streamdedup.index.check_report import Report
from streamdedup.index.entries import SegmentEntry, Tail
from streamdedup.index.manifest import Manifest
from streamdedup.index.segment_writer import checksum
from streamdedup.index.store import LOCAL_LOG
from streamdedup.model import IndexUpdate
from tests.support.builders import COLUMNS, columns, open_index, small_settings, update_of

pytestmark = pytest.mark.damages_index
changed = msgspec.structs.replace


def update(first: int, count: int) -> IndexUpdate:
    """Return the update that keeps some documents; two follow on each other in a bucket."""
    keys = [[(number // 2) << 40] * COLUMNS for number in range(first, first + count)]
    documents = columns(keys, first)
    documents.event_times_ms[:] = range(1_000_000 + first, 1_000_000 + first + count)
    return update_of(documents, first)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound index: a merged segment with filters, several runs, an erased document, a tail."""
    directory = tmp_path_factory.mktemp("sound")
    settings = small_settings(directory, delta_documents=16, window_documents=200)
    index = open_index(settings)
    for step in range(14):
        index.apply(update(10 * step, 10), step + 1)
        index.settle()
    nothing = replace(update(140, 0), deleted=(5, 120))
    index.apply(nothing, 15)
    index.flush()
    index.settle()
    index.apply(update(140, 3), 16)
    index._release()  # noqa: SLF001 - a crash, so that the tail stays
    return directory


@pytest.fixture
def index(sound: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoiled."""
    return Path(shutil.copytree(sound, tmp_path / "index"))


def entries(directory: Path) -> list[SegmentEntry]:
    """Return what the manifest says of the segments."""
    with closing(Manifest(directory, None)) as manifest:
        return manifest.segments()


def announce(directory: Path, entry: SegmentEntry) -> None:
    """Have the manifest say something else of a segment."""
    with closing(Manifest(directory, None)) as manifest:
        manifest.announce(segment=entry)


def test_sound(index: Path) -> None:
    """Nothing is wrong with what was written, and everything was looked at."""
    told: list[tuple[int, int]] = []
    report = check(index, bucket_size=64, progress=lambda done, total: told.append((done, total)))
    found = entries(index)
    size = sum(entry.size for entry in found)
    assert report == Report([], [], 143, len(found), size)
    assert any(entry.shards[0].plane_bytes for entry in found)
    assert not all(entry.shards[0].plane_bytes for entry in found)
    assert told[-1] == (size, size)
    assert told == sorted(told)


def test_left_over(index: Path) -> None:
    """What a crash may leave is named, and is no damage."""
    (index / "segments" / "00009999").mkdir()
    (index / "segments" / "00009999" / "documents.mdb").touch()
    report = check(index)
    assert report.problems == []
    assert report.left_over == ["segments/00009999 is left over"]


def test_open_or_not_there(index: Path, tmp_path: Path) -> None:
    """An index that is open, and a directory that holds none, are no case for the checker."""
    with pytest.raises(IndexUnusable, match="holds no index"):
        check(tmp_path / "nothing")
    settings = small_settings(index, delta_documents=16, window_documents=200)
    with open_index(settings), pytest.raises(IndexLocked):
        check(index)


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
    """A segment's file that is gone, of another length, or of other content is named."""
    entry = entries(index)[1]
    spoil(index / "segments" / entry.name / name)
    [problem] = check(index).problems
    assert problem.startswith(f"segment {entry.name}: {name}: ")
    assert message in problem


def flip(path: Path, at: int) -> None:
    """Turn all bits of a byte."""
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize("size", [0, 100, 4096, 8192, 20_000])
def test_manifest_cut(size: int, index: Path) -> None:
    """A manifest that was cut is named."""
    path = index / "manifest" / "data.mdb"
    path.write_bytes(path.read_bytes()[:size])
    [problem] = check(index).problems
    assert problem.startswith("manifest: ")


def test_manifest_gone(index: Path) -> None:
    """Segments without a manifest are no index."""
    shutil.rmtree(index / "manifest")
    assert check(index).problems == ["manifest: data.mdb is missing"]


def test_manifest_flipped(index: Path) -> None:
    """Whatever byte of the manifest is another one, the checker lives and tells."""
    path = index / "manifest" / "data.mdb"
    content = path.read_bytes()
    found = 0
    for at in range(0, len(content), max(1, len(content) // 150)):
        flip(path, at)
        found += bool(check(index).problems)
        path.write_bytes(content)
    # Many bytes lie in pages that are free.
    assert found > 5


def first_shard(entry: SegmentEntry, **changes: Any) -> SegmentEntry:
    """Return the entry with its first shard described otherwise."""
    return changed(entry, shards=[changed(entry.shards[0], **changes), *entry.shards[1:]])


def moved(places: bytes) -> bytes:
    """Return distances of which the last one is another."""
    found = np.frombuffer(places, dtype=np.int64).copy()
    found[-1] += 8
    return found.tobytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: changed(e, count=e.count + 1), "a block of|begins with"),
        (lambda e: changed(e, count=0), "it has 0 documents"),
        (lambda e: changed(e, count=2**25), "it has 33554432 documents"),
        (lambda e: changed(e, blocks=moved(e.blocks)), "not where the manifest says"),
        (lambda e: changed(e, blocks=e.blocks * 2), "number of blocks"),
        (lambda e: changed(e, parts={**e.parts, "postings": 1}), "its values have"),
        (lambda e: changed(e, shards=e.shards[1:]), "does not begin with column 0"),
        (lambda e: changed(e, shards=e.shards[:1]), "columns instead of 9"),
        (lambda e: first_shard(e, chunks=moved(e.shards[0].chunks)), "not where the manifest"),
        (lambda e: first_shard(e, chunk_bits=1), "tables of other lengths"),
        (lambda e: first_shard(e, chunk_bits=99), "tables of other lengths"),
        (lambda e: first_shard(e, starts=e.shards[0].starts[:-1]), "tables of other lengths"),
        (lambda e: first_shard(e, starts=bytes(len(e.shards[0].starts))), "bytes for 0 postings"),
        (lambda e: first_shard(e, plane_bytes=8, planes=b""), "tables of other lengths"),
        (lambda e: first_shard(e, plane_bytes=7, planes=bytes(32)), "filters of 7 bytes"),
    ],
    ids=range(15),
)
def test_entries(change: Callable[[SegmentEntry], SegmentEntry], message: str, index: Path) -> None:
    """What the manifest says of a segment is believed only where the files agree."""
    announce(index, change(entries(index)[-1]))
    problems = "\n".join(check(index).problems)
    assert any(each in problems for each in message.split("|")), problems


def test_times(index: Path) -> None:
    """A segment's times are those of its documents, once the clock is settled."""
    with closing(Manifest(index, None)) as manifest:
        checkpoint = manifest.checkpoint()
        state = msgspec.msgpack.decode(checkpoint.clock)
        state[1] = True
        settled = changed(checkpoint, clock=msgspec.msgpack.encode(state))
        last = manifest.segments()[-1]
        manifest.announce(checkpoint=settled, segment=changed(last, newest_ms=last.newest_ms - 1))
    [problem] = check(index).problems
    assert "the times range from" in problem


def test_missing_segment(index: Path) -> None:
    """A gap between two segments is named."""
    with closing(Manifest(index, None)) as manifest:
        _, gone, *_ = manifest.segments()
        manifest.announce(instead_of=[gone])
    [problem] = check(index).problems
    assert f"instead of {gone.first}" in problem


def patch(directory: Path, entry: SegmentEntry, name: str, old: bytes, new: bytes) -> None:
    """Write other bytes into a file, and the sum that follows from them into the manifest."""
    path = directory / "segments" / entry.name / name
    content = path.read_bytes()
    assert len(old) == len(new)
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    file = {"sum": checksum(path)}
    if name == entry.documents.name:
        announce(directory, changed(entry, documents=changed(entry.documents, **file)))
    else:
        announce(directory, first_shard(entry, file=changed(entry.shards[0].file, **file)))


def value(directory: Path, entry: SegmentEntry, name: str, key: bytes) -> bytes:
    """Return a value of a file."""
    path = directory / "segments" / entry.name / name
    with (
        closing(lmdb.open(str(path), subdir=False, readonly=True, lock=False)) as environment,
        environment.begin() as txn,
    ):
        found = txn.get(key)
    assert found is not None
    return bytes(found)


def swap(content: bytes, one: int, other: int, size: int) -> bytes:
    """Exchange two pieces of some bytes."""
    parts = bytearray(content)
    parts[one : one + size], parts[other : other + size] = (
        parts[other : other + size],
        parts[one : one + size],
    )
    return bytes(parts)


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
    """Postings are in order, once for each document, and lead to one."""
    entry = next(each for each in entries(index) if not each.shards[0].plane_bytes)
    # All columns have the same keys: it is the first one with these bytes that is spoiled.
    postings = value(index, entry, "shard-000.mdb", b"c\0\0\0")
    path = index / "segments" / entry.name / "shard-000.mdb"
    content = path.read_bytes()
    at = content.index(postings)
    spoiled = change(postings, len(postings) // 7)
    path.write_bytes(content[:at] + spoiled + content[at + len(postings) :])
    announce(index, first_shard(entry, file=changed(entry.shards[0].file, sum=checksum(path))))
    problems = check(index).problems
    assert len(problems) == 1
    assert message in problems[0]


def test_bucket_size(index: Path) -> None:
    """A bucket may hold no more documents than the index was told; two follow on here."""
    assert check(index, bucket_size=2).problems == []
    problems = check(index, bucket_size=1).problems
    assert all("a bucket has 2 documents" in problem for problem in problems)
    assert len(problems) >= COLUMNS


def test_filter(index: Path) -> None:
    """A stored filter that would miss a document is named."""
    entry = next(each for each in entries(index) if each.shards[0].plane_bytes)
    path = index / "segments" / entry.name / "shard-000.mdb"
    plane = value(index, entry, "shard-000.mdb", b"f\0\0")
    content = path.read_bytes()
    at = content.index(plane)
    path.write_bytes(content[:at] + bytes(len(plane)) + content[at + len(plane) :])
    announce(index, first_shard(entry, file=changed(entry.shards[0].file, sum=checksum(path))))
    [problem] = check(index).problems
    assert "its filter would miss a document" in problem


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: b"\1\0\0\0" + v[4:], "does not begin"),
        (lambda v: v[:16] + b"\3" + v[17:], "do not follow on each other"),
        (lambda v: v.replace(b"id-", b"id\xff", 1), "not valid UTF-8"),
        (lambda v: v[:120] + (9999).to_bytes(4, "little") + v[124:], "do not fill it"),
        (lambda v: v[:40] + (5).to_bytes(8, "little") + v[48:], "does not name"),
    ],
    ids=["count", "width", "utf-8", "ids", "source"],
)
def test_blocks(change: Callable[[bytes], bytes], message: str, index: Path) -> None:
    """A block whose layout contradicts itself is named, not followed."""
    entry = entries(index)[-1]
    block = value(index, entry, "documents.mdb", b"d\0\0\0\0")
    patch(index, entry, "documents.mdb", block, change(block))
    [problem] = check(index).problems
    assert "block 0" in problem
    assert message in problem


def test_offsets_go_back(index: Path) -> None:
    """Within a source, offsets ascend with the numbers; over segments too."""
    entry = entries(index)[-1]
    block = value(index, entry, "documents.mdb", b"d\0\0\0\0")
    base = 8 + 16 * 3
    patch(index, entry, "documents.mdb", block, block[:base] + bytes(8) + block[base + 8 :])
    problems = check(index).problems
    assert any("the offsets of documents 0 do not ascend" in problem for problem in problems)


def test_not_overwritten(index: Path) -> None:
    """A document that is still there although it is said to be overwritten is named."""
    with closing(Manifest(index, None)) as manifest:
        manifest.announce(overwritten=[7])
    [problem] = check(index).problems
    assert "says they are overwritten" in problem


def test_erased_that_never_was(index: Path) -> None:
    """An erased number that no document has yet is named."""
    with closing(Manifest(index, None)) as manifest:
        manifest.announce(erased=[999])
    assert check(index).problems == [
        "checkpoint: documents that never existed are erased, the first is 999"
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"next_number": 99}, "the segments end with 140, the checkpoint says 99"),
        ({"applied": -1}, "below zero"),
        ({"sources": [("documents", 0, 9)] * 2}, "twice"),
        ({"sources": [("documents", 0, -9)]}, "an offset below zero"),
        ({"sources": []}, "does not name"),
        ({"clock": b"no clock"}, "the clock cannot be read"),
    ],
    ids=["number", "applied", "twice", "offset", "sources", "clock"],
)
def test_checkpoint(changes: dict[str, Any], message: str, index: Path) -> None:
    """What the segments stand for, together, is what they hold."""
    with closing(Manifest(index, None)) as manifest:
        manifest.announce(checkpoint=changed(manifest.checkpoint(), **changes))
    assert message in "\n".join(check(index).problems)


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (b"no update", "changelog"),
        (None, "update 20 begins with 150 instead of 143"),
    ],
    ids=["no-update", "gap"],
)
def test_tail(tail: bytes | None, message: str, index: Path) -> None:
    """The tail goes on where the segments end, without a gap."""
    fingerprint = small_settings(index).dedup.sketch_parameters().fingerprint()
    [entry] = changelog.encode(update(150, 2), fingerprint, 2**40)
    with closing(Manifest(index, None)) as manifest:
        manifest.append(20, Tail(entry if tail is None else tail, {}))
    [problem] = check(index).problems
    assert problem.startswith("tail: ")
    assert message in problem


def test_tail_beside_a_changelog(index: Path) -> None:
    """An index that has a changelog keeps no tail."""
    with closing(Manifest(index, None)) as manifest:
        assert manifest.header.log == LOCAL_LOG
        header, checkpoint = changed(manifest.header, log="changelog"), manifest.checkpoint()
        manifest.rebind(header, checkpoint)
    assert check(index).problems == [
        "tail: an index with a changelog (changelog) must not have a tail"
    ]


@pytest.mark.parametrize(
    "header", [{"format": 1}, {"format": 2, "parameters": {}, "log": "x"}, {}], ids=str
)
def test_header(header: dict[str, Any], index: Path) -> None:
    """The index of another release is not looked into."""
    with (
        closing(Manifest(index, None)) as manifest,
        manifest._lmdb.begin(write=True, db=manifest._meta) as txn,  # noqa: SLF001
    ):
        txn.put(b"header", json.dumps(header).encode())
    [problem] = check(index).problems
    assert problem.startswith("manifest: ")
