"""The disk of an index: its file system, the estimate of its size, and what the check reports."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from streamdedup.admin import disk
from streamdedup.admin.disk import (
    check_disk,
    document_bytes,
    file_system,
    nearest_existing,
    needed_bytes,
    used_bytes,
)
from streamdedup.admin.findings import Findings, Severity
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import Settings


def test_the_nearest_existing_directory(tmp_path: Path) -> None:
    """The first start creates the missing directories below it."""
    assert nearest_existing(tmp_path) == tmp_path
    assert nearest_existing(tmp_path / "a" / "b") == tmp_path


@pytest.mark.parametrize("directory", ["/", "/proc", "/proc/self", "/dev"])
def test_the_file_system_is_the_one_that_findmnt_reports(directory: str) -> None:
    """The answer is that of the operating system's own program, below mount points as well."""
    command = ["findmnt", "--noheadings", "--output", "FSTYPE", "--target", directory]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert file_system(Path(directory)) == ran.stdout.split()[-1]


def test_a_mount_with_a_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux writes it as an octal number."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:0 / / rw - ext4 /dev/sda rw\n2 1 8:1 / /a\\040disk rw - xfs /dev/sdb rw\n"
    )
    monkeypatch.setattr(disk, "_MOUNTS", mounts)
    assert file_system(Path("/a disk/index")) == "xfs"
    assert file_system(Path("/a")) == "ext4"


def test_the_default_index_takes_341_bytes_a_document() -> None:
    """The figure of docs/sizing.md, and the slack of merges and expiry on top."""
    assert document_bytes(Settings()) == 341
    assert needed_bytes(load_settings(index={"window_documents": 1000})) == 460_350


def test_more_values_and_bands_need_more_bytes() -> None:
    """A signature of twice the length needs 128 bytes more; a band needs 8.25."""
    longer = load_settings(dedup={"num_perm": 512, "bands": 20, "rows": 7})
    assert document_bytes(longer) == 469
    wider = load_settings(dedup={"bands": 24, "rows": 7})
    assert document_bytes(wider) == 374


def test_used_bytes_are_counted_in_blocks(tmp_path: Path) -> None:
    """A sparse file without content occupies nothing."""
    (tmp_path / "below").mkdir()
    empty = used_bytes(tmp_path)
    (tmp_path / "below" / "file").write_bytes(b"x" * 100_000)
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(10**9)
    assert 100_000 <= used_bytes(tmp_path) - empty < 200_000


@pytest.mark.parametrize(
    ("budget", "level", "words"),
    [
        ("1MiB", Severity.WARNING, "index.disk_budget allows 1.0 MB"),
        ("999999999", Severity.OK, "index.disk_budget allows 1000.0 MB"),
        ("1000000000", Severity.OK, "index.disk_budget allows 1.0 GB"),
        (None, Severity.OK, "the disk has"),
    ],
    ids=["too small a budget", "megabytes", "gigabytes", "no budget"],
)
def test_the_room_is_compared_with_the_estimate(
    tmp_path: Path, budget: str | None, level: Severity, words: str
) -> None:
    """The message names the estimate, the limit that applies, and the settings that change it."""
    index = {"directory": str(tmp_path), "disk_budget": budget, "window_documents": 10_000}
    findings = Findings()
    check_disk(load_settings(index=index), findings)
    [room] = [one for one in findings.collected if one.check == "disk room"]
    assert room.level is level
    assert "10000 documents (index.window_documents) of 341 bytes" in room.message
    assert words in room.message


def test_a_directory_below_a_file_is_an_error(tmp_path: Path) -> None:
    """Its exit code is that of a worker, 9."""
    (tmp_path / "file").touch()
    findings = Findings()
    check_disk(load_settings(index={"directory": str(tmp_path / "file" / "index")}), findings)
    first = findings.collected[0]
    assert (first.check, first.level, first.exit_code) == ("index directory", Severity.ERROR, 9)
    assert "is not a directory; change index.directory" in first.message
