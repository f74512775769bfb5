"""Files of segments are only read where values lie, and damage is found before it is used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from streamdedup.errors import IndexDamaged
from streamdedup.index.layout import FileEntry, sum_of
from streamdedup.index.segment import Mapped

VALUES = [b"a" * 5000, b"b" * 3, b"c" * 9000, b"d" * 70]
GAP = b"?" * 16


def write(path: Path) -> FileEntry:
    """Write a file with a gap before each value, and return its record."""
    path.write_bytes(b"".join(GAP + value for value in VALUES))
    sizes = [len(value) for value in VALUES]
    ends = np.cumsum([size + len(GAP) for size in sizes])
    return FileEntry(
        path.name,
        path.stat().st_size,
        0,
        (ends - sizes).tobytes(),
        np.array(sizes, dtype=np.uint32).tobytes(),
        np.array([sum_of(value) for value in VALUES], dtype=np.uint64).tobytes(),
    )


def overwrite(path: Path, place: int, content: bytes) -> None:
    """Change bytes of a file that may be mapped."""
    descriptor = os.open(path, os.O_WRONLY)
    os.pwrite(descriptor, content, place)
    os.close(descriptor)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a file."""
    return tmp_path / "values.mdb"


def test_sums() -> None:
    """XXH3-64 with its published value of no bytes; stored indexes have these sums."""
    assert sum_of(b"") == 0x2D06800538D394C2
    assert sum_of(b"", seed=1) != sum_of(b"")


def test_values(path: Path) -> None:
    """Each value is read where its record says; the gaps do not matter."""
    file = Mapped(path, write(path), fresh=False)
    overwrite(path, 0, b"!")
    assert [file.value(number).tobytes() for number in range(len(file))] == VALUES
    file.check(range(4))
    file.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"offsets": np.array([16, 5032, 5051, 15_000]).tobytes()},
        {"offsets": np.array([16, 5032, -1, 14_067]).tobytes()},
        {"sizes": np.array([5000, 3, 9000, 71], dtype=np.uint32).tobytes()},
        {"sizes": np.array([5000, 0, 9000, 70], dtype=np.uint32).tobytes()},
        {"sums": b""},
        {"size": 9},
        {"offsets": b"", "sizes": b"", "sums": b""},
    ],
    ids=["beyond", "before", "too-long", "empty", "no-sums", "size", "nothing"],
)
def test_records_that_lead_out_of_the_file(changes: dict[str, Any], path: Path) -> None:
    """No value may lie outside of the file."""
    with pytest.raises(IndexDamaged, match=r"values\.mdb"):
        Mapped(path, msgspec.structs.replace(write(path), **changes), fresh=True)


@pytest.mark.parametrize("number", [0, 3])
def test_ends_are_checked_at_once(number: int, path: Path) -> None:
    """The first and the last value show at once that a file has other content."""
    entry = write(path)
    overwrite(path, int(np.frombuffer(entry.offsets, dtype=np.int64)[number]), b"!")
    with pytest.raises(IndexDamaged, match="is not what was written; remove the index directory"):
        Mapped(path, entry, fresh=False)


def test_check_once(path: Path) -> None:
    """A value is checked before its first use, and again whenever it is copied."""
    file = Mapped(path, write(path), fresh=False)
    file.check_once(np.array([2, 2]))
    overwrite(path, 6000, b"!")
    overwrite(path, 5033, b"!")
    file.check_once(np.array([2, 0]))
    with pytest.raises(IndexDamaged, match="at byte 5032 is not"):
        file.check_once(np.array([2, 1]))
    with pytest.raises(IndexDamaged, match="at byte 5051 is not"):
        file.check([2])
    file.close()


def test_fresh(path: Path) -> None:
    """A file that was just written is not read at once."""
    entry = write(path)
    overwrite(path, 16, b"!")
    file = Mapped(path, entry, fresh=True)
    file.check_once(np.array([0]))
    with pytest.raises(IndexDamaged, match="at byte 16 is not"):
        file.check([0])
    file.close()


def test_sound_on_disk(path: Path) -> None:
    """Reading without the map finds changed bytes, and survives what the system cannot read."""
    file = Mapped(path, write(path), fresh=False)
    overwrite(path, 5033, b"!")
    with path.open("rb") as raw:
        sound = [file.is_sound_on_disk(raw.fileno(), number) for number in range(4)]
    assert sound == [True, False, True, True]
    folder = os.open(path.parent, os.O_RDONLY)  # reading it is an error of the system
    assert not file.is_sound_on_disk(folder, 0)
    os.close(folder)
    file.close()


def test_read(path: Path) -> None:
    """A value is read without the map, and checked; a missing file is damage."""
    file = Mapped(path, write(path), fresh=False)
    assert [file.read(number).tobytes() for number in range(4)] == VALUES
    overwrite(path, 5033, b"!")
    with pytest.raises(IndexDamaged, match="at byte 5032 is not"):
        file.read(1)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(IndexDamaged, match="is not what was written"):
        file.read(3)
    path.unlink()
    with pytest.raises(IndexDamaged, match="is not what was written"):
        file.read(0)
    file.close()


def test_read_through(path: Path) -> None:
    """A file is read in parts, up to its end, or until it is closed."""
    entry = write(path)
    file = Mapped(path, entry, fresh=True)
    assert list(file.read_through(4096)) == [4096, 4096, 4096, entry.size - 3 * 4096]
    parts = file.read_through(4096)
    assert next(parts) == 4096
    file.close()
    assert list(parts) == []


def test_close_while_a_value_is_in_use(path: Path) -> None:
    """A value that is still in use stays readable; a closed file returns no others."""
    file = Mapped(path, write(path), fresh=False)
    value = file.value(0)
    file.close()
    assert value.tobytes() == VALUES[0]
    assert not file.is_open
    with pytest.raises(RuntimeError, match="is closed"):
        file.value(0)
