"""Programs are measured to their end or to their limit, with their descendants."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.measured import (
    TookTooLong,
    cost_of,
    descendants_of,
    measure,
    proportional_of,
    resident_of,
)
from deploy.processes import Child, ProcessEnded
from tests.support.patience import wait_until

_WORKS = """
import time
end = time.process_time() + 0.7
while time.process_time() < end:
    pass
print('{"documents": 7}')
print('a line of a library at the end')
"""


_SPIN = """
import subprocess, sys
if sys.argv[1:]:
    subprocess.Popen([sys.executable, __file__])
while True:
    sum(range(10_000))
"""


def test_a_process_is_measured_with_its_descendants(tmp_path: Path) -> None:
    """The figures of the process and of its descendants are apart; the ended process has none."""
    script = tmp_path / "spin.py"
    script.write_text(_SPIN)
    with Child([sys.executable, str(script), "parent"], tmp_path / "log") as child:
        wait_until(lambda: bool(descendants_of(child.pid)), "the descendant")
        wait_until(lambda: min(cost_of(child.pid)[::2]) > 0, "some work of both")
        cost = cost_of(child.pid)
        assert cost.loop <= cost.main
        resident = resident_of(child.pid)
        assert resident.main_peak >= resident.main >= resident.main_anonymous > 0
        assert resident.children_peak >= resident.children > 0
        assert 0 < proportional_of(child.pid) <= resident_of(child.pid).main_peak
    assert cost_of(child.pid) == (0, 0, 0)
    assert proportional_of(child.pid) == 0


def _python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_the_figures_are_the_last_line_of_json(tmp_path: Path) -> None:
    """Processor time and memory are those of the program, which is looked at while it runs."""
    looked: list[int] = []
    measured = measure(_python(_WORKS), tmp_path, on_look=looked.append)
    assert measured.figures == {"documents": 7}
    assert 0.7 <= measured.cpu_s <= measured.wall_s + 0.1
    assert measured.peak_bytes > 10**6
    assert looked


def test_a_program_is_stopped_at_its_limit(tmp_path: Path) -> None:
    """The message has the limit, and the program is gone."""
    looked: list[int] = []
    with pytest.raises(TookTooLong, match=r"took longer than 0\.6 s"):
        measure(_python("import time; time.sleep(100)"), tmp_path, 0.6, looked.append)
    assert not Path("/proc", str(looked[0])).exists()
    assert not descendants_of(looked[0])


def test_a_program_that_fails_is_reported(tmp_path: Path) -> None:
    """The message has its last lines."""
    with pytest.raises(ProcessEnded, match="ended with 1:\nbroken"):
        measure(_python("exit('broken')"), tmp_path)
