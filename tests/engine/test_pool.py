"""The pool: real processes that are killed or stopped, by a signal or by a record."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from streamdedup.batches import SketchedBatch
from streamdedup.engine import pool
from streamdedup.engine.pool import SketchPool, prepare
from streamdedup.engine.prepare import Preparer, RawBatch
from streamdedup.model import Position, Record, Rejection
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import Settings
from tests.support.paths import ROOT

POISON = b"this record ends its process"


def fragile(batch: RawBatch, refused: dict[int, Rejection]) -> SketchedBatch:
    """Prepare a batch; end the process at a poisonous record, as a bug in a library might."""
    if any(POISON in value for row, value in enumerate(batch.values) if row not in refused):
        os._exit(1)
    return prepare(batch, refused)


def weak(batch: RawBatch, refused: dict[int, Rejection]) -> SketchedBatch:
    """Prepare a batch; end the process if the batch is large, as the OOM killer might."""
    if sum(len(value) for row, value in enumerate(batch.values) if row not in refused) > 250:
        os._exit(1)
    return prepare(batch, refused)


def slow(batch: RawBatch, refused: dict[int, Rejection]) -> SketchedBatch:
    """Prepare a batch; hang at a poisonous record."""
    if any(POISON in value for row, value in enumerate(batch.values) if row not in refused):
        signal.pause()
    return prepare(batch, refused)


def cut_short(batch: RawBatch, refused: dict[int, Rejection]) -> SketchedBatch:
    """Prepare a batch; with poison, end the process in the middle of sending the result."""

    def send_half(connection: Any, message: bytes) -> None:
        os.write(connection.fileno(), message[: len(message) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    if any(POISON in value for row, value in enumerate(batch.values) if row not in refused):
        pytest.MonkeyPatch().setattr(Connection, "_send", send_half)
    return prepare(batch, refused)


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


def pool_processes() -> list[psutil.Process]:
    """Return the pool processes of this process."""
    children = psutil.Process().children()
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


def is_gone(process: psutil.Process) -> bool:
    """Whether a process has ended, even if its exit code was not collected yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def assert_end(children: Sequence[psutil.Process]) -> None:
    """Check that processes end."""
    for _ in range(600):
        if all(map(is_gone, children)):
            return
        time.sleep(0.1)
    pytest.fail("some processes do not end")


def kill_processes() -> None:
    """Kill the pool processes, as the kernel does when memory runs out."""
    for child in pool_processes():
        child.kill()
        child.wait()


def test_result(sound: SketchPool) -> None:
    """A batch is sketched, with the rejections that were passed in."""
    died = Rejection("produce", "RecordTooLarge", "too large")
    batch = sound.result(sound.submit(records(b"one", b"\xff", b"three"), {2: died}))
    assert batch.rows.tolist() == [0]
    assert {row: rejection.reason for row, rejection in batch.rejections.items()} == {
        1: "InvalidUtf8",
        2: "RecordTooLarge",
    }


def test_killed_process(sound: SketchPool, restarts: list[str]) -> None:
    """Batches whose process was killed are recovered whole, and the pool continues."""
    pending = [sound.submit(records(b"text %d" % number)) for number in range(8)]
    kill_processes()
    for batch in map(sound.result, pending):
        assert batch.rows.tolist() == [0]
    assert sound.result(sound.submit(records(b"afterwards"))).rows == [0]
    assert restarts == ["restart"]


def test_poison(poisonable: SketchPool) -> None:
    """A record that always kills its process is refused, and no other record."""
    refused = {0: Rejection("produce", "RecordTooLarge", "too large")}
    pending = poisonable.submit(records(b"refused", POISON, b"sound"), refused)
    other = poisonable.submit(records(b"of another batch"))
    batch = poisonable.result(pending)
    assert batch.rows.tolist() == [2]
    assert {row: rejection.reason for row, rejection in batch.rejections.items()} == {
        0: "RecordTooLarge",
        1: "ProcessDied",
    }
    assert poisonable.result(other).rows == [0]


@pytest.mark.long
def test_batch_that_kills_only_as_a_whole(restarts: list[str]) -> None:
    """Its parts are prepared one by one, and no record is refused."""
    originals = records(
        b"\xff", *(b"text %02d of a batch" % number * 3 for number in range(6)), b""
    )
    refused = {4: Rejection("produce", "RecordTooLarge", "too large")}
    made = SketchPool(settings(), lambda: restarts.append("restart"), weak)
    try:
        batch = made.result(made.submit(originals, refused))
    finally:
        made.close()
    expected = Preparer(settings()).prepare_records(originals, refused)
    assert (batch.positions, batch.rows.tolist(), batch.blank) == (
        expected.positions,
        [1, 2, 3, 5, 6, 7],
        frozenset({5}),
    )
    assert (batch.rejections, batch.ranges) == (expected.rejections, expected.ranges)
    for name in ("ids", "positions", "texts"):
        assert list(getattr(batch.documents, name)) == list(getattr(expected.documents, name))
    for name in ("event_times_ms", "namespaces"):
        np.testing.assert_array_equal(
            getattr(batch.documents, name), getattr(expected.documents, name)
        )
    for name in ("signatures", "band_keys"):
        np.testing.assert_array_equal(
            getattr(batch.documents.sketches, name), getattr(expected.documents.sketches, name)
        )


def test_stopped_process(sound: SketchPool, restarts: list[str]) -> None:
    """A process that does not answer is killed, and its batch recovered whole."""
    (stopped,) = pool_processes()
    stopped.suspend()
    usual, sound.patience_s = sound.patience_s, 0.1
    assert sound.result(sound.submit(records(b"a text"))).rows == [0]
    sound.patience_s = usual
    assert_end([stopped])
    assert sound.result(sound.submit(records(b"afterwards"))).rows == [0]
    assert restarts == ["restart"]


DYING_WHILE_SENDING = """
from streamdedup.engine.pool import SketchPool
from tests.engine.test_pool import POISON, cut_short, records, settings
if __name__ == "__main__":
    pool = SketchPool(settings(), task=cut_short)
    print(pool.result(pool.submit(records(POISON))).rejections[0].reason)
    pool.close()
"""


@pytest.mark.long
def test_a_process_that_dies_while_it_sends_a_result(tmp_path: Path) -> None:
    """The record is found, and Python can exit, although the executor waits for the rest."""
    script = tmp_path / "script.py"
    script.write_text(DYING_WHILE_SENDING, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        check=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=90,
    )
    assert done.stdout == "ProcessDied\n"


@pytest.mark.long
def test_record_at_which_a_process_hangs(
    restarts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a record is refused like one that kills its process."""
    monkeypatch.setattr(pool, "_WORK_S", 1.0)
    made = SketchPool(settings(), lambda: restarts.append("restart"), slow)
    try:
        made.patience_s = 0.1
        batch = made.result(made.submit(records(POISON)))
    finally:
        made.close()
    assert batch.rows.tolist() == []
    assert batch.rejections[0].reason == "ProcessDied"


def test_close_with_a_stopped_process(restarts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing does not wait for a process that does not answer."""
    monkeypatch.setattr(pool, "_GRACE_S", 0.1)
    made = SketchPool(settings(), lambda: restarts.append("restart"))
    made.warm()
    (stopped,) = pool_processes()
    stopped.suspend()
    pending = made.submit(records(b"a text"))
    made.close()
    assert_end([stopped])
    with pytest.raises(RuntimeError, match="closed"):
        made.result(pending)


UNGUARDED = """
from streamdedup.engine.pool import SketchPool
from streamdedup.model import Position, Record
from streamdedup.settings.load import load_settings
pool = SketchPool(load_settings(pool={"workers": 1}))
pending = [pool.submit([Record(Position("t", 0, 0), b"{}")] * 50) for _ in range(3)]
pool.result(pending[0])
"""


@pytest.mark.parametrize("source", ["a file", "standard input"])
def test_script_that_cannot_start_processes(source: str, tmp_path: Path) -> None:
    """One error says what is wrong, after two processes have failed instead of a hundred."""
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED, encoding="utf-8")
    with script.open("rb") as opened:
        done = subprocess.run(
            [sys.executable, str(script) if source == "a file" else "-"],
            stdin=opened,
            capture_output=True,
            check=False,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("streamdedup.errors.PoolUnusable: sketch processes end")
    assert done.stderr.count("raise RuntimeError(") + done.stderr.count("<stdin>'\n") == 2


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
    assert_end(children)
