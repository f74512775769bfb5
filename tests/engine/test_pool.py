"""The pool: real processes that are killed, that die of a record, that lose their parent."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from streamdedup.engine import pool
from streamdedup.engine.pool import SketchPool
from streamdedup.model import Position, Record, Rejection, SketchedBatch
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import Settings
from tests.support.paths import ROOT

POISON = b"this record ends its process"


def fragile(records: Sequence[Record], refused: dict[int, Rejection]) -> SketchedBatch:
    """Prepare a batch, but die of poison: what a fault in a library would do."""
    if any(POISON in (each.value or b"") for at, each in enumerate(records) if at not in refused):
        os._exit(1)
    return pool.prepare(records, refused)


def settings() -> Settings:
    """Return settings with one process."""
    return load_settings(pool={"workers": 1}, records={"format": "text"})


def records(*values: bytes) -> list[Record]:
    """Return records at following offsets."""
    return [Record(Position("t", 0, at), value) for at, value in enumerate(values)]


@pytest.fixture
def restarts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where restarts are noted; and let the processes import this module."""
    monkeypatch.syspath_prepend(str(ROOT))
    return []


@pytest.fixture
def sound(restarts: list[str]) -> Iterator[SketchPool]:
    """A warm pool of one process."""
    made = SketchPool(settings(), lambda: restarts.append("restart"))
    made.warm()
    yield made
    made.close()


@pytest.fixture
def poisonable(restarts: list[str]) -> Iterator[SketchPool]:
    """A pool of one process that dies of poison."""
    made = SketchPool(settings(), lambda: restarts.append("restart"), fragile)
    yield made
    made.close()


def kill_processes() -> None:
    """Kill every process that sketches for this one, as the kernel does when memory is out."""
    for child in psutil.Process().children():
        if "spawn_main" in " ".join(child.cmdline()):
            child.kill()
            child.wait()


def test_result(sound: SketchPool) -> None:
    """A batch comes back sketched, with the records that were to be refused."""
    died = Rejection("produce", "RecordTooLarge", "too large")
    batch = sound.result(sound.submit(records(b"one", b"\xff", b"three"), {2: died}))
    assert batch.rows == [0]
    assert {at: each.reason for at, each in batch.rejections.items()} == {
        1: "InvalidUtf8",
        2: "RecordTooLarge",
    }


def test_killed_process(sound: SketchPool, restarts: list[str]) -> None:
    """Batches whose process was killed are recovered whole, and the pool goes on."""
    pending = [sound.submit(records(b"text %d" % at)) for at in range(8)]
    kill_processes()
    for batch in map(sound.result, pending):
        assert batch.rows == [0]
    assert sound.result(sound.submit(records(b"afterwards"))).rows == [0]
    assert restarts == ["restart"]


def test_poison(poisonable: SketchPool) -> None:
    """A record that always ends its process is refused, and it alone."""
    refused = {0: Rejection("produce", "RecordTooLarge", "too large")}
    pending = poisonable.submit(records(b"refused", POISON, b"sound"), refused)
    other = poisonable.submit(records(b"of another batch"))
    batch = poisonable.result(pending)
    assert batch.rows == [2]
    assert {at: each.reason for at, each in batch.rejections.items()} == {
        0: "RecordTooLarge",
        1: "ProcessDied",
    }
    assert poisonable.result(other).rows == [0]


PARENT = """
import sys, time
from streamdedup.engine.pool import SketchPool
from streamdedup.settings.load import load_settings
if __name__ == "__main__":
    pool = SketchPool(load_settings(pool={"workers": 1}))
    pool.warm()
    print("warm", flush=True)
    time.sleep(600)
"""


def is_gone(process: psutil.Process) -> bool:
    """Whether a process has ended, be it that nobody has asked for its exit code yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_orphans_die(tmp_path: Path) -> None:
    """When the parent is killed its processes end by themselves, and keep no memory."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT, encoding="utf-8")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        try:
            assert parent.stdout.readline() == b"warm\n"
            children = psutil.Process(parent.pid).children(recursive=True)
            assert any("spawn_main" in " ".join(each.cmdline()) for each in children)
        finally:
            parent.kill()
    for _ in range(600):
        if all(map(is_gone, children)):
            return
        time.sleep(0.1)
    pytest.fail("the processes outlive their parent")
