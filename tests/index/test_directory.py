"""The directory of an index: its lock, and directories that cannot be used."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from streamdedup import failpoints
from streamdedup.errors import (
    IndexDamaged,
    IndexLocked,
    IndexUnusable,
)
from streamdedup.index.archive import import_index
from streamdedup.index.check import check
from streamdedup.index.directory import holds_index, remove_index
from streamdedup.index.store import Index
from streamdedup.index.view import View
from streamdedup.settings.sections import Settings
from tests.index.updates import WIDTH, fill, key
from tests.support.builders import (
    columns,
    open_index,
    small_settings,
)
from tests.support.paths import ROOT


class TestLock:
    """One process owns an index."""

    def test_second_in_this_process(self, tmp_path: Path) -> None:
        """An index cannot be opened twice; once closed, it can be opened again."""
        with open_index(small_settings(tmp_path)), pytest.raises(IndexLocked):
            open_index(small_settings(tmp_path))
        open_index(small_settings(tmp_path)).close()

    def test_second_process(self, tmp_path: Path) -> None:
        """This process is refused while another has the index open, until that one is killed."""
        code = (
            "import sys, time; from pathlib import Path\n"
            "from tests.support.builders import open_index, small_settings\n"
            "index = open_index(small_settings(Path(sys.argv[1])))\n"
            "print('open', flush=True); time.sleep(600)"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"open\n"
            with pytest.raises(IndexLocked, match="another process"):
                open_index(small_settings(tmp_path))
            other.send_signal(signal.SIGKILL)
        open_index(small_settings(tmp_path)).close()

    def test_close_twice(self, tmp_path: Path) -> None:
        """Closing a closed index does nothing."""
        index = open_index(small_settings(tmp_path))
        index.close()
        index.close()


@pytest.mark.parametrize("path", ["file/index", "file"], ids=["under-a-file", "a-file"])
def test_unusable_directory(path: str, tmp_path: Path) -> None:
    """A path that cannot be a directory is refused, and the error names it."""
    (tmp_path / "file").touch()
    with pytest.raises(IndexUnusable, match="file"):
        open_index(small_settings(tmp_path / path))


def test_unwritable_directory(tmp_path: Path) -> None:
    """A directory without write permission is refused."""
    tmp_path.chmod(0o500)
    pid = os.fork()
    if pid == 0:  # Root may write everywhere, so a child process tries as an ordinary user.
        if os.geteuid() == 0:
            os.setuid(65534)
        os._exit(outcome_of(small_settings(tmp_path / "index")))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def removed(directory: Path) -> None:
    """Remove a directory."""
    shutil.rmtree(directory)


def moved(directory: Path) -> None:
    """Move a directory away."""
    directory.rename(directory.with_name("elsewhere"))


def replaced(directory: Path) -> None:
    """Put an empty directory into the place of another one."""
    moved(directory)
    directory.mkdir()


def replaced_by_an_index(directory: Path) -> None:
    """Put another index into the place of an index."""
    moved(directory)
    with open_index(small_settings(directory, delta_documents=16)) as other:
        fill(other, [[number] for number in range(20)])


CALLS: dict[str, Callable[[Index], object]] = {
    "apply": lambda index: fill(index, [[40]]),
    "probe": lambda index: index.probe(columns([[key(1)] * WIDTH])),
    "flush": Index.flush,
    "settle": Index.settle,
    "room": Index.room,
    "close": Index.close,
}


@pytest.mark.damages_index
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("change", [removed, moved, replaced, replaced_by_an_index])
def test_a_directory_that_goes_while_it_is_in_use(
    change: Callable[[Path], None], call: str, tmp_path: Path
) -> None:
    """The next call says so, nothing is written to its place, and a new start is possible."""
    settings = small_settings(tmp_path / "index", delta_documents=16)
    index = open_index(settings)
    fill(index, [[number] for number in range(20)])
    index.settle()  # a flush that is under way may still write to the place
    change(tmp_path / "index")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(IndexUnusable, match="removed, moved or replaced") as raised:
        CALLS[call](index)
    assert str(tmp_path / "index") in str(raised.value)
    if call != "close":
        with pytest.raises(IndexUnusable, match="removed, moved or replaced"):
            fill(index, [[41]])
        index.close()
    assert sorted(tmp_path.rglob("*")) == before
    with open_index(settings) as again:
        fill(again, [[42]])


@pytest.mark.damages_index
def test_a_directory_that_goes_during_a_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory does not come back with a segment only, which a new start would refuse."""
    settings = small_settings(tmp_path / "index", delta_documents=16)
    index = open_index(settings)

    def remove(point: str) -> None:
        if point == "flush":
            removed(tmp_path / "index")

    monkeypatch.setattr(failpoints, "_handler", remove)
    with pytest.raises(IndexUnusable, match="index"):
        fill(index, [[number] for number in range(40)])
    with contextlib.suppress(IndexUnusable):
        index.close()
    assert not (tmp_path / "index").exists()


@pytest.mark.damages_index
def test_names_that_cannot_be_looked_at(tmp_path: Path) -> None:
    """Every way to open an index names the directory, and the reason of the system."""
    directory = tmp_path / ("x" * 300)
    ways: list[Callable[[], object]] = [
        lambda: open_index(small_settings(directory)),
        lambda: View(directory),
        lambda: check(directory),
        lambda: import_index(tmp_path, directory),
        lambda: holds_index(directory),
    ]
    for way in ways:
        with pytest.raises(IndexUnusable, match="xxx: File name too long"):
            way()


def outcome_of(settings: Settings) -> int:
    """Open an index; return 0 if that works, 1 if it is unusable and 2 for any other error."""
    try:
        open_index(settings).close()
    except IndexUnusable:
        return 1
    except BaseException:  # noqa: BLE001 - any other error fails the test
        return 2
    return 0


def test_foreign_files(tmp_path: Path) -> None:
    """Files that are not segments stay where they are, and do not keep the index from opening."""
    foreign = [tmp_path / "segments" / name for name in (".DS_Store", "7.bak", "notes/x")]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("not ours")
    (tmp_path / "segments" / "00000009").mkdir()
    settings = small_settings(tmp_path, delta_documents=16)
    with pytest.raises(IndexDamaged, match="has no header"):
        open_index(settings)
    (tmp_path / "segments" / "00000009").rmdir()
    for _ in range(2):
        with open_index(settings) as index:
            fill(index, [[number] for number in range(20)])
    assert [path.read_text() for path in foreign] == ["not ours"] * 3


@pytest.mark.damages_index
def test_removal_keeps_foreign_files(tmp_path: Path) -> None:
    """A directory that a user names by mistake may have folders with the names of an index."""
    with open_index(small_settings(tmp_path, delta_documents=16)) as index:
        fill(index, [[number] for number in range(40)])
    names = ("manifest/of/cargo", "segments/7.bak", "segments/notes/x", "importing/list")
    foreign = [tmp_path / name for name in names]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("not ours")
    remove_index(tmp_path)
    left = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {*foreign, tmp_path / "lock"}


def test_removal_of_a_file_in_place_of_the_manifest(tmp_path: Path) -> None:
    """It stays too."""
    (tmp_path / "manifest").write_text("not ours")
    remove_index(tmp_path)
    assert (tmp_path / "manifest").read_text() == "not ours"
