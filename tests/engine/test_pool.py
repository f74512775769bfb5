"""The pool: real processes that are killed, that a record kills, or that lose their parent."""

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
    """Prepare a batch; end the process at a poisonous record, as a bug in a library might."""
    if any(POISON in (one.value or b"") for row, one in enumerate(records) if row not in refused):
        os._exit(1)
    return pool.prepare(records, refused)


def settings() -> Settings:
    """Return settings with one process."""
    return load_settings(pool={"workers": 1}, records={"format": "text"})


def records(*values: bytes) -> list[Record]:
    """Return records at consecutive offsets."""
    return [Record(Position("t", 0, offset), value) for offset, value in enumerate(values)]


@pytest.fixture
def restarts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect restarts; let the processes import this module."""
    monkeypatch.syspath_prepend(str(ROOT))
    return []


@pytest.fixture
def sound(restarts: list[str]) -> Iterator[SketchPool]:
    """Yield a warm pool of one process."""
    made = SketchPool(settings(), lambda: restarts.append("restart"))
    made.warm()
    yield made
    made.close()


@pytest.fixture
def poisonable(restarts: list[str]) -> Iterator[SketchPool]:
    """Yield a pool of one process that dies at poison."""
    made = SketchPool(settings(), lambda: restarts.append("restart"), fragile)
    yield made
    made.close()


def kill_processes() -> None:
    """Kill the pool processes of this process, as the kernel does when memory runs out."""
    for child in psutil.Process().children():
        if "spawn_main" in " ".join(child.cmdline()):
            child.kill()
            child.wait()


def test_result(sound: SketchPool) -> None:
    """A batch is sketched, with the rejections that were passed in."""
    died = Rejection("produce", "RecordTooLarge", "too large")
    batch = sound.result(sound.submit(records(b"one", b"\xff", b"three"), {2: died}))
    assert batch.rows == [0]
    assert {row: rejection.reason for row, rejection in batch.rejections.items()} == {
        1: "InvalidUtf8",
        2: "RecordTooLarge",
    }


def test_killed_process(sound: SketchPool, restarts: list[str]) -> None:
    """Batches whose process was killed are recovered whole, and the pool continues."""
    pending = [sound.submit(records(b"text %d" % number)) for number in range(8)]
    kill_processes()
    for batch in map(sound.result, pending):
        assert batch.rows == [0]
    assert sound.result(sound.submit(records(b"afterwards"))).rows == [0]
    assert restarts == ["restart"]


def test_poison(poisonable: SketchPool) -> None:
    """A record that always kills its process is refused, and no other record."""
    refused = {0: Rejection("produce", "RecordTooLarge", "too large")}
    pending = poisonable.submit(records(b"refused", POISON, b"sound"), refused)
    other = poisonable.submit(records(b"of another batch"))
    batch = poisonable.result(pending)
    assert batch.rows == [2]
    assert {row: rejection.reason for row, rejection in batch.rejections.items()} == {
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
    """Whether a process has ended, even if its exit code was not collected yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_orphans_die(tmp_path: Path) -> None:
    """When the parent is killed, its processes end and free their memory."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT, encoding="utf-8")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        try:
            assert parent.stdout.readline() == b"warm\n"
            children = psutil.Process(parent.pid).children(recursive=True)
            assert any("spawn_main" in " ".join(child.cmdline()) for child in children)
        finally:
            parent.kill()
    for _ in range(600):
        if all(map(is_gone, children)):
            return
        time.sleep(0.1)
    pytest.fail("the processes outlived their parent")
