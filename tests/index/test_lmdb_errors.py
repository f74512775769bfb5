"""Errors of LMDB name what the operator can do: a full disk is told from a broken one."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import lmdb
import pytest

from streamdedup.errors import IndexFull, IndexUnusable
from streamdedup.index.directory import translated

MIB = 1024**2


@contextmanager
def short_writes_beyond(size: int) -> Iterator[None]:
    """Let the system cut writes at this size of a file, as it does when a disk becomes full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def write_cut_short(path: Path) -> None:
    """Write a value that is cut in the middle."""
    with (
        closing(lmdb.open(str(path), subdir=False, map_size=4 * MIB)) as environment,
        short_writes_beyond(MIB // 2 + 1),
        environment.begin(write=True) as transaction,
    ):
        transaction.put(b"key", bytes(MIB))
        transaction.commit()


def free(monkeypatch: pytest.MonkeyPatch, path: Path, size: int) -> None:
    """Let the disk have so many free bytes."""
    usage = shutil.disk_usage(path)._replace(free=size)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)


@pytest.mark.parametrize("name", ["data.mdb", ""], ids=["file", "directory"])
def test_a_short_write_on_a_full_disk(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB reports the last write on a disk that becomes full as an input/output error."""
    free(monkeypatch, tmp_path, 4096)
    expected = pytest.raises(IndexFull, match="is full; free some space")
    with expected as caught, translated(tmp_path / name):
        write_cut_short(tmp_path / "data.mdb")
    assert "Input/output error" in str(caught.value.__cause__)


def test_an_error_of_a_disk_with_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same error of a disk with room is an error of the disk."""
    free(monkeypatch, tmp_path, 1024 * MIB)
    with pytest.raises(IndexUnusable, match="Input/output error"), translated(tmp_path):
        write_cut_short(tmp_path / "data.mdb")


def test_a_path_that_is_gone(tmp_path: Path) -> None:
    """Without a file whose disk could be examined, the error itself is reported."""
    gone = tmp_path / "gone" / "data.mdb"
    with pytest.raises(IndexUnusable, match="Input/output error"), translated(gone):
        write_cut_short(tmp_path / "data.mdb")
