"""Other processes read the manifest: those that are killed, and those that never end a read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamdedup.index.check import check
from streamdedup.index.directory import DATA_FILE, MANIFEST
from tests.index.test_kill import BATCH, keys_of, opened
from tests.support.builders import columns, update_of

READER = """
import lmdb, sys
with lmdb.open(sys.argv[1], readonly=True, max_readers=16, max_dbs=4) as environment:
    with environment.begin() as transaction:
        transaction.stat(environment.open_db(b"meta", txn=transaction, create=False))
        print("reading", flush=True)
        sys.stdin.read()
"""


@contextmanager
def reader(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield a process within a read of the manifest; kill it in the end."""
    command = [sys.executable, "-c", READER, str(directory / MANIFEST)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "reading\n"
            yield process
        finally:
            process.kill()


def fill(directory: Path, updates: int) -> int:
    """Apply updates, which flush and merge all the time; return the bytes of the manifest."""
    with opened(directory) as index:
        for _ in range(updates):
            first = index.next_number
            documents = columns(keys_of(first, BATCH), first)
            index.apply(update_of(documents, first), index.applied + 1)
    return (directory / MANIFEST / DATA_FILE).stat().st_size


def test_killed_readers_leave_room_for_others(tmp_path: Path) -> None:
    """LMDB has 16 slots for readers, and a killed one keeps its slot until someone looks."""
    fill(tmp_path, 4)
    with reader(tmp_path):  # while it lives, LMDB does not clear all slots by itself
        for killed in range(24):
            with reader(tmp_path):
                pass
            if killed % 8 == 7:
                fill(tmp_path, 4)
        assert check(tmp_path, bucket_size=64).problems == []


def test_a_read_that_does_not_end(tmp_path: Path) -> None:
    """The manifest keeps the pages that it may still read, so it grows; later it uses them."""
    before = fill(tmp_path, 300)
    with reader(tmp_path):
        during = fill(tmp_path, 300)
    after = fill(tmp_path, 300)
    assert before < during < 50 * before
    assert after < 1.1 * during
