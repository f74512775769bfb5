"""Jobs of several runs: what a run adds, skips or refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from streamdedup.errors import IndexDamaged, InputError
from streamdedup.files.job import Job
from streamdedup.files.run import Hooks, run
from streamdedup.index.store import Index
from streamdedup.settings.sections import LimitSettings, OutputSettings, RecordSettings, Settings
from tests.files.workspace import (
    Crash,
    Workspace,
    counts,
    crash_after,
    documents,
    in_batches_of,
    line,
    texts,
)
from tests.support.streams import standard_input


def test_a_second_run_knows_the_documents_of_the_first(workspace: Workspace) -> None:
    """With an index, a new file's duplicates name documents of an older file."""
    other = workspace.folder / "other.jsonl"
    other.write_bytes(line(100, texts(30)[4]) + line(101, "something new"))
    run(workspace.job(), Settings())
    assert counts(run(workspace.job(other, name="second"), Settings())) == (1, 1, 0)
    assert workspace.duplicates("second") == [("d100", "d4")]


def test_a_later_file_of_a_job_is_appended_to_its_outputs(workspace: Workspace) -> None:
    """The lines of the first file stay, and none is repeated."""
    other = workspace.folder / "other.jsonl"
    other.write_bytes(documents(30, 60))
    run(workspace.job(), Settings())
    run(workspace.job(other), Settings())
    run(workspace.job(workspace.input, other), Settings())
    workspace.input.write_bytes(documents(0, 60))
    run(workspace.job(name="whole", index=None), Settings())
    assert workspace.outputs()["kept"] == workspace.outputs("whole")["kept"]


def test_a_finished_job_judges_only_new_lines(workspace: Workspace) -> None:
    """A second run skips the judged lines, and judges the lines that were added since."""
    run(workspace.job(), Settings())
    first = workspace.outputs()
    again = run(workspace.job(), Settings())
    assert (again.documents, again.judged_before) == (0, 30)
    assert workspace.outputs() == first
    workspace.input.write_bytes(documents(0, 36))
    more = run(workspace.job(), Settings())
    assert (counts(more), more.judged_before) == ((4, 2, 0), 30)
    assert workspace.outputs()["kept"].startswith(first["kept"])


@pytest.mark.parametrize("cut", [1, 2, 10, 1_000_000])
def test_a_half_written_last_line_is_left_for_the_next_run(workspace: Workspace, cut: int) -> None:
    """A line that is still being written is neither rejected nor judged in part."""
    first, last = documents(0, 3), documents(3, 4)
    settings = Settings(limits=LimitSettings(value_bytes=1000))
    if cut > len(last):
        last = line(3, "x" * (2 * cut))
    workspace.input.write_bytes(first + last[:-cut])
    for number in range(2):
        tally = run(workspace.job(), settings)
        assert counts(tally) == ((0, 0, 0) if number else (2, 1, 0) if cut > 1 else (3, 1, 0))
        assert tally.unfinished_lines == (cut > 1)
    workspace.input.write_bytes(first + last + documents(4, 6))
    tally = run(workspace.job(), settings)
    assert (tally.judged_before, tally.unfinished_lines) == (3 if cut > 1 else 4, 0)
    run(workspace.job(name="whole", index=None), settings)
    assert workspace.outputs() == workspace.outputs("whole")


@pytest.mark.parametrize("content", [b"a story\nhalf a st", b"a story\n  "], ids=["text", "blank"])
def test_a_last_line_of_text_waits_for_its_line_feed(workspace: Workspace, content: bytes) -> None:
    """Any text may grow; a blank beginning of a line is not worth a word."""
    settings = Settings(records=RecordSettings(format="text"))
    workspace.input.write_bytes(content)
    tally = run(workspace.job(), settings)
    assert (counts(tally), tally.unfinished_lines) == ((1, 0, 0), bool(content[8:].strip()))
    workspace.input.write_bytes(content + b"ory\n")
    assert counts(run(workspace.job(), settings)) == (1, 0, 0)
    assert workspace.outputs()["kept"] == content + b"ory\n"


def test_without_an_index_or_from_a_pipe_the_last_line_is_judged(workspace: Workspace) -> None:
    """Nothing can grow, or no later run would read it."""
    half = documents(0, 3)[:-3]
    workspace.input.write_bytes(half)
    assert counts(run(workspace.job(index=None), Settings())) == (2, 0, 1)
    with standard_input(half):
        assert counts(run(workspace.job("-", name="second"), Settings())) == (2, 0, 1)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_another_job_over_a_known_file_gets_the_same_verdicts(
    workspace: Workspace, size: int
) -> None:
    """A replayed line is never its own duplicate, and new lines follow."""
    run(workspace.job(), Settings())
    workspace.input.write_bytes(documents(0, 45))
    run(workspace.job(name="again"), in_batches_of(size))
    run(workspace.job(name="fresh", index=None), in_batches_of(1000))
    assert workspace.outputs("again") == workspace.outputs("fresh")


def test_lines_that_another_job_has_judged_must_be_unchanged(workspace: Workspace) -> None:
    """A line is a replay only if the file still begins with the same lines."""
    run(workspace.job(), Settings())
    workspace.input.write_bytes(documents(1, 40))
    with pytest.raises(InputError, match=r"has changed: .*the 30 lines"):
        run(workspace.job(name="again"), Settings())


def test_an_output_belongs_to_one_job(workspace: Workspace) -> None:
    """Other outputs make another job, which would overwrite the output from the start."""
    run(workspace.job(), Settings())
    job = Job((str(workspace.input),), kept=workspace.job().kept, index=workspace.folder / "index")
    with pytest.raises(InputError, match="was written by a job with other outputs"):
        run(job, Settings())
    Path(workspace.job().kept or "").unlink()
    assert run(job, Settings()).documents == 30


def test_a_new_job_refuses_outputs_with_content(workspace: Workspace) -> None:
    """Without its index a job is new, and would overwrite the outputs of the earlier runs."""
    run(workspace.job(), Settings())
    before = workspace.outputs()
    shutil.rmtree(workspace.folder / "index")
    workspace.input.write_bytes(documents(30, 33))
    for _ in range(2):
        with pytest.raises(
            InputError, match=r"first\.kept is not empty, .*; move or remove the file"
        ):
            run(workspace.job(), Settings())
    assert workspace.outputs() == before
    for kind in before:
        (workspace.folder / f"first.{kind}").unlink()
    assert counts(run(workspace.job(), Settings())) == (2, 1, 0)


def test_the_settings_of_a_job_may_not_change(workspace: Workspace) -> None:
    """One output never holds two kinds of lines."""
    run(workspace.job(), Settings())
    changed = Settings(output=OutputSettings(include_value=True))
    with pytest.raises(InputError, match=r"output\.include_value False, now it is True; restore"):
        run(workspace.job(), changed)


def test_without_an_index_outputs_are_overwritten(workspace: Workspace) -> None:
    """There is no job to continue."""
    job = workspace.job(index=None)
    run(job, Settings())
    first = workspace.outputs()
    assert run(job, Settings()).documents == 30
    assert workspace.outputs() == first


def test_standard_input_is_a_new_source_each_time(workspace: Workspace) -> None:
    """After a completed run over standard input, the next run is not a replay."""
    for number in (1, 2):
        with standard_input(documents(0, 6)):
            tally = run(workspace.job("-"), in_batches_of(4))
        assert counts(tally) == ((4, 2, 0) if number == 1 else (0, 6, 0))
    topics = [
        json.loads(record)["position"]["topic"]
        for record in workspace.outputs()["duplicates"].splitlines()
    ]
    assert topics == ["stdin#1"] * 2 + ["stdin#2"] * 6


def test_an_interrupted_standard_input_is_continued(workspace: Workspace) -> None:
    """The judged part of the same content is skipped."""
    with standard_input(documents(0, 30)), pytest.raises(Crash):
        run(workspace.job("-"), in_batches_of(4), Hooks(on_batch=crash_after(8)))
    with standard_input(documents(0, 30)):
        tally = run(workspace.job("-"), in_batches_of(4))
    assert (tally.judged_before, tally.documents) == (8, 22)
    with standard_input(documents(0, 30)):
        run(workspace.job("-", name="whole", index="other"), Settings())
    assert workspace.outputs() == workspace.outputs("whole")


@pytest.mark.parametrize(
    "other", [documents(3, 30), documents(0, 6), documents(0, 8)[:-1] + b" {}\n" + documents(9, 30)]
)
@pytest.mark.parametrize("judged", [documents(0, 30), documents(0, 8)[:-1]])
def test_an_interrupted_standard_input_blocks_no_other(
    workspace: Workspace, judged: bytes, other: bytes
) -> None:
    """Content that does not begin with the judged lines is judged as a new input, whole."""
    with standard_input(judged), pytest.raises(Crash):
        run(workspace.job("-"), in_batches_of(4), Hooks(on_batch=crash_after(8)))
    with standard_input(other):
        tally = run(workspace.job("-"), in_batches_of(4))
    assert (tally.judged_before, tally.documents) == (0, len(other.splitlines()))
    topics = [
        json.loads(record)["position"]["topic"]
        for record in workspace.outputs()["duplicates"].splitlines()
    ]
    assert sorted(set(topics)) == ["stdin#1", "stdin#2"]


def test_an_unreadable_note_is_damage(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run does not start from the beginning if a note has an unknown format."""
    run(workspace.job(), Settings())
    monkeypatch.setattr(Index, "note", lambda *_: b"\xc1")
    with pytest.raises(IndexDamaged, match="cannot be read"):
        run(workspace.job(), Settings())


@pytest.mark.parametrize(
    ("inputs", "changes", "message"),
    [
        (["a", "a"], {}, "the input .*a is given twice"),
        (["a", "./a"], {}, "the input .*a is given twice"),
        (["a", "link"], {}, "the input .*link is given twice"),
        (["a", "hard link"], {}, "the input .*hard link is given twice"),
        (["-", "-"], {}, "the input - is given twice"),
        (["a"], {"kept": "a"}, "the output .*a is one of the inputs"),
        (["a"], {"rejected": "link"}, "the output .*link is one of the inputs"),
        (["a"], {"kept": "x", "duplicates": "x"}, "two outputs go to the same file"),
        (["a"], {"kept": "x", "rejected": "./x"}, "two outputs go to the same file"),
        (["a"], {"duplicates": "-", "rejected": "-"}, "two outputs go to the same file"),
    ],
)
def test_conflicting_files_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    inputs: list[str],
    changes: dict[str, Any],
    message: str,
) -> None:
    """They are refused before any file is opened or cut."""
    monkeypatch.chdir(tmp_path)
    Path("a").write_bytes(documents(0, 3))
    Path("link").symlink_to("a")
    Path("hard link").hardlink_to("a")
    with pytest.raises(InputError, match=message):
        run(Job(tuple(inputs), **changes), Settings())
    assert Path("a").read_bytes() == documents(0, 3)
