"""A child is stopped with its group, and none outlives the process that started it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deploy.processes import Child, ProcessEnded
from tests.support.paths import ROOT
from tests.support.patience import wait_until

_SPIN = """
import subprocess, sys, time
if sys.argv[1:]:
    print(subprocess.Popen([sys.executable, __file__]).pid, flush=True)
time.sleep(1000)
"""
_OWNER = """
import sys, time
from pathlib import Path
from deploy.processes import Child
folder = Path(sys.argv[1])
for number in range(2):
    with Child([sys.executable, "-c", ""], folder / "ended") as child:
        child.wait(60)
(folder / "scratch").mkdir()
child = Child([sys.executable, sys.argv[2], "parent"], folder / "log", folder=folder / "scratch")
print(child.pid, flush=True)
time.sleep(1000)
"""


@pytest.fixture
def spin(tmp_path: Path) -> Path:
    """Return a program that does not end, with a descendant that ignores its parent's end."""
    script = tmp_path / "spin.py"
    script.write_text(_SPIN)
    return script


def test_a_process_is_stopped_with_its_descendants(spin: Path, tmp_path: Path) -> None:
    """The descendant ignores the end of its parent, and is ended too."""
    with Child([sys.executable, str(spin), "parent"], tmp_path / "log") as child:
        wait_until(lambda: child.log().endswith("\n"), "the descendant")
        descendant = int(child.log())
    assert child.code() is not None
    wait_until(lambda: not _runs(descendant), "the end of the descendant")


def test_a_process_that_ends_is_reported_with_its_output(tmp_path: Path) -> None:
    """The message has the exit code and the last lines."""
    with Child([sys.executable, "-c", "exit('broken')"], tmp_path / "log") as child:
        child.wait(60)
        with pytest.raises(ProcessEnded, match="ended with 1:\nbroken"):
            child.check()


def test_a_wait_has_a_limit(spin: Path, tmp_path: Path) -> None:
    """The message says what did not happen."""
    with (
        Child([sys.executable, str(spin)], tmp_path / "log") as child,
        pytest.raises(ProcessEnded, match=r"the answer took longer than 0\.2 s"),
    ):
        child.wait_for(lambda: False, 0.2, "the answer")


def test_lines_of_json_are_events(tmp_path: Path) -> None:
    """A line that is not complete yet is not read; the event of a server has its port."""
    program = 'print("text"); print(\'{"event": "listening", "port": 7}\'); print("{", end="")'
    with Child([sys.executable, "-c", program], tmp_path / "log") as child:
        child.wait(60)
    assert child.events() == [{"event": "listening", "port": 7}]
    assert child.address() == "http://127.0.0.1:7"


def test_the_watchdog_ends_the_children_of_a_killed_process(spin: Path, tmp_path: Path) -> None:
    """The group of a child that runs is killed, and its folder deleted."""
    command = [sys.executable, "-c", _OWNER, str(tmp_path), str(spin)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        log = tmp_path / "log"
        wait_until(lambda: log.read_text().endswith("\n"), "the descendant")
        owner.kill()
    both = (child, int(log.read_text()))
    wait_until(lambda: not any(map(_runs, both)), "the end of both")
    wait_until(lambda: not (tmp_path / "scratch").exists(), "the end of the folder")
    assert log.exists()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
