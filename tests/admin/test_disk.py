"""What an index directory lies on, and the room that is reckoned for it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from streamdedup.admin.disk import document_bytes, existing, file_system, needed_bytes, used_bytes
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import Settings


def test_the_nearest_directory_that_there_is(tmp_path: Path) -> None:
    """What the first start would make lies below it."""
    assert existing(tmp_path) == tmp_path
    assert existing(tmp_path / "a" / "b") == tmp_path


@pytest.mark.parametrize("place", ["/", "/proc", "/proc/self", "/dev"])
def test_the_file_system_is_the_one_that_the_system_names(place: str) -> None:
    """The answer is that of the system's own program, below mount points as well."""
    asked = subprocess.run(
        ["findmnt", "--noheadings", "--output", "FSTYPE", "--target", place],  # noqa: S607
        capture_output=True,
        text=True,
        check=True,
    )
    assert file_system(Path(place)) == asked.stdout.split()[-1]


def test_the_default_index_takes_341_bytes_a_document() -> None:
    """The figure of docs/sizing.md, and the slack of merges and expiry on top."""
    assert document_bytes(Settings()) == 341
    assert needed_bytes(load_settings(index={"window_documents": 1000})) == 460_350


def test_more_values_and_bands_take_more() -> None:
    """Twice the signature is 128 bytes more; a band is 8.25."""
    longer = load_settings(dedup={"num_perm": 512, "bands": 20, "rows": 7})
    assert document_bytes(longer) == 469
    wider = load_settings(dedup={"bands": 24, "rows": 7})
    assert document_bytes(wider) == 374


def test_what_is_used_is_counted_in_blocks(tmp_path: Path) -> None:
    """A file that has a length and no content takes nothing."""
    (tmp_path / "below").mkdir()
    empty = used_bytes(tmp_path)
    (tmp_path / "below" / "file").write_bytes(b"x" * 100_000)
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(10**9)
    assert 100_000 <= used_bytes(tmp_path) - empty < 200_000
