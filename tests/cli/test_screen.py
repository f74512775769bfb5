"""Progress bars, tables and marked texts."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from streamdedup.cli.screen import judging_progress, marked, program, start, table
from streamdedup.dedup.differences import TextPart
from streamdedup.files.run import RunTally


@pytest.mark.parametrize("total", [1000, None], ids=["files", "a pipe"])
def test_a_terminal_gets_a_progress_bar(total: int | None) -> None:
    """The bar shows counts and throughput, and the percentage if the total is known."""
    drawn = io.StringIO()
    with judging_progress(Console(file=drawn, force_terminal=True, width=100)) as update:
        update(RunTally(1200, 300, 5, bytes_read=250, bytes_total=total, seconds=0.5))
    assert "1,505 documents, 300 duplicates, 5 rejected, 3,010/s" in drawn.getvalue()
    assert ("25%" in drawn.getvalue()) == (total is not None)


def test_a_file_gets_no_progress_bar() -> None:
    """Output that is not a terminal gets no bar."""
    drawn = io.StringIO()
    with judging_progress(Console(file=drawn)) as update:
        update(RunTally(1200, 300))
    assert drawn.getvalue() == ""


def test_a_table_aligns_text_left_and_numbers_right() -> None:
    """The first column is text; long cells are folded, not cut."""
    drawn = io.StringIO()
    console = Console(file=drawn, width=24)
    console.print(table("Title", ("name", "count"), [("a", "1"), ("long " * 8, "1,000")]))
    lines = drawn.getvalue().splitlines()
    assert lines[0].strip() == "Title"
    [short] = [line for line in lines if line.split() == ["a", "1"]]
    assert short.startswith(" a")
    assert short.rstrip().endswith("    1")
    assert drawn.getvalue().count("long") == 8


def test_differing_parts_are_coloured_or_in_brackets() -> None:
    """Brackets replace the colour if there is none."""
    parts = [TextPart("the ", differs=False), TextPart("cat", differs=True)]
    assert marked(parts, brackets=True).plain == "the [cat]"
    assert marked(parts, brackets=False).plain == "the cat"
    assert [str(span.style) for span in marked(parts, brackets=False).spans] == ["bold yellow"]


def test_the_start_up_names_the_compilation() -> None:
    """Only the first run compiles kernels."""
    assert start(RunTally(start_seconds=0.44)) == "0.4 s of start-up"
    assert start(RunTally(start_seconds=9.5, compile_seconds=9.04)) == (
        "9.5 s of start-up (compiling kernels took 9.0 s)"
    )


def test_the_program_is_named_as_it_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name if the path leads to it, else by its file."""
    monkeypatch.chdir(tmp_path)
    for folder in ("venv", "other"):
        script = tmp_path / folder / "streamdedup"
        script.parent.mkdir()
        script.write_text("#!/bin/sh\n")
        script.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "venv" / "streamdedup")])
    monkeypatch.setenv("PATH", str(tmp_path / "venv"))
    assert program() == "streamdedup"
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    assert program() == "venv/streamdedup"
    monkeypatch.setenv("PATH", "")
    assert program() == "venv/streamdedup"
