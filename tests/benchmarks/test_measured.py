"""A program is measured to its end or to its limit, and its figures are read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.measured import TookTooLong, measure
from benchmarks.processes import ProcessEnded, descendants_of

_WORKS = """
import time
end = time.process_time() + 0.7
while time.process_time() < end:
    pass
print('{"documents": 7}')
print('a line of a library at the end')
"""


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
