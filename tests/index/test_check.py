"""The checker lists every kind of damage, and survives it."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from streamdedup.errors import IndexLocked, IndexUnusable
from streamdedup.formats import changelog
from streamdedup.index.check import CheckReport, check
from streamdedup.index.layout import Tail
from streamdedup.index.manifest import Manifest
from streamdedup.index.store import LOCAL_LOG
from tests.index.damage import (
    build_sound_index,
    changed,
    entries,
    flip,
    update,
)
from tests.support.builders import open_index, small_settings

pytestmark = pytest.mark.damages_index


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound index."""
    return build_sound_index(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def index(sound: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(sound, tmp_path / "index"))


def test_sound(index: Path) -> None:
    """A sound index has no problems, and all its bytes are checked."""
    steps: list[tuple[int, int]] = []
    report = check(index, bucket_size=64, progress=lambda *step: steps.append(step))
    found = entries(index)
    size = sum(entry.size for entry in found)
    assert report == CheckReport([], [], 143, len(found), size)
    assert any(entry.shards[0].plane_bytes for entry in found)
    assert not all(entry.shards[0].plane_bytes for entry in found)
    assert steps[-1] == (size, size)
    assert steps == sorted(steps)


def test_left_over(index: Path) -> None:
    """The remains of a crash are listed, but not as damage."""
    (index / "segments" / "00009999").mkdir()
    (index / "segments" / "00009999" / "documents.mdb").touch()
    report = check(index)
    assert report.problems == []
    assert report.left_over == ["segments/00009999 is left over"]


def test_open_or_not_there(index: Path, tmp_path: Path) -> None:
    """The checker refuses an open index, and a directory without one."""
    with pytest.raises(IndexUnusable, match="holds no index"):
        check(tmp_path / "nothing")
    settings = small_settings(index, delta_documents=16, window_documents=200)
    with open_index(settings), pytest.raises(IndexLocked):
        check(index)


@pytest.mark.parametrize("size", [0, 100, 4096, 8192, 20_000])
def test_manifest_cut(size: int, index: Path) -> None:
    """A truncated manifest is a problem."""
    path = index / "manifest" / "data.mdb"
    path.write_bytes(path.read_bytes()[:size])
    [problem] = check(index).problems
    assert problem.startswith("manifest: ")


def test_manifest_gone(index: Path) -> None:
    """Segments without a manifest are a problem."""
    shutil.rmtree(index / "manifest")
    assert check(index).problems == ["manifest: data.mdb is missing"]


def test_manifest_flipped(index: Path) -> None:
    """The checker survives any changed byte of the manifest, and notices most of them."""
    path = index / "manifest" / "data.mdb"
    content = path.read_bytes()
    found = 0
    for offset in range(0, len(content), max(1, len(content) // 150)):
        flip(path, offset)
        found += bool(check(index).problems)
        path.write_bytes(content)
    # Many bytes lie in free pages.
    assert found > 5


def test_missing_segment(index: Path) -> None:
    """A gap between two segments is a problem."""
    with closing(Manifest(index, None)) as manifest:
        _, gone, *_ = manifest.segments()
        manifest.announce(instead_of=[gone])
    [problem] = check(index).problems
    assert f"instead of {gone.first}" in problem


def test_erased_that_never_existed(index: Path) -> None:
    """An erased number that no document has yet is a problem."""
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
        ({"sources": [("documents", 0, 9)], "written": [-9]}, "an offset below zero"),
        ({"sources": [("documents", 0, 9)], "written": [9, 9]}, "no written offset"),
        ({"sources": []}, "does not name"),
        ({"clock": b"no clock"}, "the clock cannot be read"),
    ],
    ids=["number", "applied", "twice", "offset", "written", "unwritten", "sources", "clock"],
)
def test_checkpoint(changes: dict[str, Any], message: str, index: Path) -> None:
    """The checkpoint must agree with the segments."""
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
    """The tail continues where the segments end, without a gap."""
    fingerprint = small_settings(index).dedup.sketch_parameters().fingerprint()
    [entry] = changelog.encode(update(150, 2), fingerprint, 2**40)
    with closing(Manifest(index, None)) as manifest:
        manifest.append(20, Tail(entry if tail is None else tail, {}))
    [problem] = check(index).problems
    assert problem.startswith("tail: ")
    assert message in problem


def test_tail_beside_a_changelog(index: Path) -> None:
    """An index with a changelog must not have a tail."""
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
    """The index of another release is a problem, and is not read any further."""
    with (
        closing(Manifest(index, None)) as manifest,
        manifest._write() as records,  # noqa: SLF001
    ):
        records.put("meta", b"header", json.dumps(header).encode())
    [problem] = check(index).problems
    assert problem.startswith("manifest: ")
