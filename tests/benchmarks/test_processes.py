"""Processes of the benchmarks are measured with their descendants, and none outlives the end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.processes import (
    Child,
    ProcessEnded,
    descendants_of,
    proportional_of,
    resident_of,
    running,
)
from tests.support.patience import wait_until

_SPIN = """
import subprocess, sys
if sys.argv[1:]:
    subprocess.Popen([sys.executable, __file__])
while True:
    sum(range(10_000))
"""


def test_a_process_is_measured_and_stopped_with_its_descendants(tmp_path: Path) -> None:
    """The descendant ignores the end of its parent, and is ended too."""
    script = tmp_path / "spin.py"
    script.write_text(_SPIN)
    with running(Child([sys.executable, str(script), "parent"], tmp_path / "log")) as child:
        wait_until(lambda: bool(descendants_of(child.pid)), "the descendant")
        wait_until(lambda: child.cost().main > 0 and child.cost().children > 0, "some work")
        (descendant,) = descendants_of(child.pid)
        assert child.cost().loop <= child.cost().main
        resident = resident_of(child.pid)
        assert resident.main_peak >= resident.main >= resident.main_anonymous > 0
        assert resident.children_peak >= resident.children > 0
        assert 0 < proportional_of(child.pid) <= resident_of(child.pid).main_peak
    assert child.code() is not None
    wait_until(lambda: not _runs(descendant), "the end of the descendant")


def test_a_process_that_ends_is_reported_with_its_output(tmp_path: Path) -> None:
    """The message has the exit code and the last lines; the process costs nothing more."""
    with running(Child([sys.executable, "-c", "exit('broken')"], tmp_path / "log")) as child:
        child.wait(60)
        with pytest.raises(ProcessEnded, match="ended with 1:\nbroken"):
            child.check()
        assert child.cost() == (0, 0, 0)
        assert proportional_of(child.pid) == 0


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
