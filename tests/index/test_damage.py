"""Damaged files are refused with an error of ours, and never kill the process."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from streamdedup.errors import IndexDamaged, IndexUnusable, StreamdedupError
from streamdedup.index.manifest import Manifest
from streamdedup.settings.sections import Settings
from tests.support.builders import open_index, pass_through, sketched, small_settings

pytestmark = pytest.mark.damages_index

TEXTS = [f"text number {number} of {number * 7919} words" for number in range(30)]
MANIFEST = "manifest/data.mdb"
FILES = [
    MANIFEST,
    "segments/00000000/documents.mdb",
    "segments/00000000/shard-000.mdb",
    "segments/00000000/shard-001.mdb",
]
EACH_FILE = pytest.mark.parametrize("name", FILES)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound index of one segment."""
    directory = tmp_path_factory.mktemp("sound")
    settings = small_settings(directory)
    with open_index(settings) as index:
        for first in range(0, 30, 10):
            batch = sketched(TEXTS[first : first + 10], settings, first=first)
            pass_through(index, [batch], settings)
    assert all((directory / name).exists() for name in FILES)
    return directory


@pytest.fixture
def settings(sound: Path, tmp_path: Path) -> Settings:
    """The settings of a copy of it."""
    return small_settings(Path(shutil.copytree(sound, tmp_path / "index")))


def cut(settings: Settings, name: str, size: int) -> None:
    """Truncate a file."""
    path = settings.index.directory / name
    content = path.read_bytes()
    assert len(content) > size
    path.write_bytes(content[:size])


@EACH_FILE
@pytest.mark.parametrize("pages", [1, 2])
def test_cut(name: str, pages: int, settings: Settings) -> None:
    """A truncated file is refused before anything beyond its end is read."""
    cut(settings, name, pages * 4096)
    with pytest.raises(IndexDamaged, match=name.split("/")[-2]):
        open_index(settings)


@EACH_FILE
@pytest.mark.parametrize("size", [0, 10, 100], ids=["empty", "10-bytes", "100-bytes"])
def test_hardly_anything_left(name: str, size: int, settings: Settings) -> None:
    """An emptied file is not mistaken for a new one, and the other files remain."""
    cut(settings, name, size)
    for _ in range(2):
        with pytest.raises((IndexDamaged, IndexUnusable), match=name.split("/")[-2]):
            open_index(settings)
    assert all((settings.index.directory / file).exists() for file in FILES)


@EACH_FILE
def test_gone(name: str, settings: Settings) -> None:
    """A missing file is not recreated, and the other files remain."""
    (settings.index.directory / name).unlink()
    for _ in range(2):
        with pytest.raises(IndexDamaged, match=name.split("/")[-2]):
            open_index(settings)
    left = [each for each in FILES if each != name]
    assert all((settings.index.directory / each).exists() for each in left)


@pytest.mark.parametrize("name", ["manifest", "segments", "segments/00000000"])
def test_folder_gone(name: str, settings: Settings) -> None:
    """A missing directory is not recreated."""
    shutil.rmtree(settings.index.directory / name)
    with pytest.raises(IndexDamaged):
        open_index(settings)


def test_segment_forgotten(settings: Settings) -> None:
    """A segment that the manifest has lost leaves a gap, which is noticed."""
    directory = settings.index.directory
    smaller = small_settings(directory, delta_documents=16)
    with open_index(smaller) as index:
        batch = sketched([f"another text {number}" for number in range(9)], settings, first=100)
        pass_through(index, [batch], settings)
    with closing(Manifest(directory, None)) as manifest:
        manifest.announce(instead_of=manifest.segments()[-1:])
    with pytest.raises(IndexDamaged, match="the segments end with document 3, the manifest says 4"):
        open_index(settings)


@EACH_FILE
def test_no_magic(name: str, settings: Settings) -> None:
    """A file with other content is refused."""
    path = settings.index.directory / name
    path.write_bytes(b"\xff" * path.stat().st_size)
    with pytest.raises(IndexDamaged, match=name.split("/")[-2]):
        open_index(settings)


@EACH_FILE
@pytest.mark.parametrize("page", [0, 1])
def test_flipped_header(name: str, page: int, settings: Settings) -> None:
    """Each flipped byte in a header causes an error of ours, or no harm at all."""
    path = settings.index.directory / name
    sound = path.read_bytes()
    outcomes = set()
    for offset in range(page * 4096, page * 4096 + 152, 5):
        content = bytearray(sound)
        content[offset] ^= 0xFF
        path.write_bytes(content)
        pid = os.fork()
        if pid == 0:  # A crash would kill this process, so a child process looks.
            os._exit(use(settings))
        outcomes.add(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    assert outcomes <= {0, 1}


def use(settings: Settings) -> int:
    """Probe the index; return 0 if that works, 1 for an error of ours and 2 for any other."""
    try:
        with open_index(settings) as index:
            index.probe(sketched(TEXTS, settings, first=100).documents)
    except StreamdedupError:
        return 1
    except BaseException:  # noqa: BLE001 - any other error fails the test
        return 2
    return 0
