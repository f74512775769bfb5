"""An index whose call is interrupted: nothing half-done is ever written, or used."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path

import pytest

from streamdedup.errors import IndexDamaged, IndexUnusable
from streamdedup.index.store import LOCAL_LOG, Index
from tests.index.updates import WIDTH, fill, hits, key
from tests.support.builders import columns, open_index, small_settings, update_of
from tests.support.interrupts import interrupt_at


@pytest.mark.parametrize("log", [LOCAL_LOG, "changelog"], ids=["tail", "changelog"])
def test_an_interrupt_at_any_step_loses_and_breaks_nothing(log: str, tmp_path: Path) -> None:
    """After Ctrl-C the index closes; the next open finds the update as a whole, or not at all."""
    settings = small_settings(tmp_path, delta_documents=16)
    durable, step, stopped = 0, 0, True
    while stopped:
        with open_index(settings, log) as index:
            assert index.next_number == 3 * index.applied
            assert index.applied >= durable
            fill(index, [[number] * 3 for number in range(index.applied, index.applied + 5)])
            durable = index.applied if log == LOCAL_LOG else index.stats().durable
            stopped = interrupt_at(step, partial(flush_one_more, index))
        step += 5
    assert step > 100
    with open_index(settings, log) as index:
        found = hits(index.probe(columns([[key(each)] * WIDTH for each in range(durable)], 10**6)))
    assert found.keys() == {(row, column) for row in range(durable) for column in range(WIDTH)}


def flush_one_more(index: Index) -> None:
    """Apply an update that the delta has no room for, and adopt its segment."""
    fill(index, [[index.applied] * 3])
    index.flush()


def test_an_interrupted_index_says_to_open_it_again(tmp_path: Path) -> None:
    """Every later call fails with the same advice, not with damage; it closes without writing."""
    settings = small_settings(tmp_path)
    with open_index(settings) as index:
        fill(index, [[1]])
        assert interrupt_at(20, index.flush)
        for call in (index.flush, index.settle, partial(fill, index, [[2]])):
            with pytest.raises(IndexUnusable, match="interrupted; close the index and open it"):
                call()
    with open_index(settings) as index:
        assert index.applied == 1
        fill(index, [[2]])


def test_a_refused_update_does_not_count_as_an_interrupt(tmp_path: Path) -> None:
    """An error of our own leaves the index as it was."""
    with open_index(small_settings(tmp_path)) as index:
        fill(index, [[1]])
        with pytest.raises(IndexDamaged, match="next document has number 1"):
            index.apply(update_of(columns([[key(2)] * WIDTH], 5), 5), 2)
        fill(index, [[2]])
        assert index.next_number == 2


def test_a_forked_process_is_refused(tmp_path: Path) -> None:
    """The child gets an error that says so, and closing there changes nothing for the parent."""
    settings = small_settings(tmp_path, delta_documents=16)
    index = open_index(settings)
    fill(index, [[number] for number in range(20)])
    child = os.fork()
    if child == 0:
        os._exit(use_in_child(index))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    fill(index, [[20]])
    index.close()
    with open_index(settings) as index:
        assert index.next_number == 21


def use_in_child(index: Index) -> int:
    """Use and close an index of the parent; return 0 if the error names both processes."""
    try:
        fill(index, [[7]])
    except IndexUnusable as error:
        index.close()
        return int(not {str(os.getppid()), str(os.getpid())} <= set(re.findall(r"\d+", str(error))))
    return 2


def test_a_child_does_not_hold_the_lock(tmp_path: Path) -> None:
    """After the parent has closed the index it opens again, though a fork has the lock's file."""
    index = open_index(small_settings(tmp_path))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        index.close()
        open_index(small_settings(tmp_path)).close()
    finally:
        os.close(writing)
        os.waitpid(child, 0)
        os.close(reading)


def test_a_relative_directory_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that changes its working directory continues to use the same index."""
    (tmp_path / "home").mkdir()
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    with open_index(small_settings(Path("index"), delta_documents=16)) as index:
        fill(index, [[number] for number in range(10)])
        monkeypatch.chdir(tmp_path / "away")
        fill(index, [[number] for number in range(10, 40)])
    assert list((tmp_path / "away").iterdir()) == []
    with open_index(small_settings(tmp_path / "home" / "index")) as index:
        assert index.stats().documents == 40
