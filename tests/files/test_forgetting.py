"""What an index remembers of inputs and jobs is limited, whatever their number."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamdedup.errors import InputError
from streamdedup.files import job as jobs
from streamdedup.files.job import Job
from streamdedup.files.run import RunTally, run
from streamdedup.index.check import check
from streamdedup.index.view import View
from streamdedup.settings.sections import IndexSettings, Settings
from tests.files.workspace import Workspace, line
from tests.support.streams import standard_input

SETTINGS = Settings(index=IndexSettings(window_documents=8, sync=False))
PER_FILE = 4


@pytest.fixture(autouse=True)
def _short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "KNOWN_INPUTS", 3)
    monkeypatch.setattr(jobs, "KNOWN_JOBS", 2)


def content(number: int) -> bytes:
    """Return the lines of a file, with texts of their own."""
    documents = range(PER_FILE * number, PER_FILE * (number + 1))
    return b"".join(line(each, f"{each} " * 20) for each in documents)


def file(workspace: Workspace, number: int) -> Path:
    """Return a file with lines of its own."""
    path = workspace.folder / f"{number}.jsonl"
    path.write_bytes(content(number))
    return path


def run_on(workspace: Workspace, *numbers: int, name: str = "first") -> RunTally:
    """Run a job over some files."""
    return run(workspace.job(*(file(workspace, each) for each in numbers), name=name), SETTINGS)


def remembered(workspace: Workspace) -> tuple[int, int]:
    """Return how many sources and notes the closed index holds."""
    directory = workspace.folder / "index"
    assert check(directory).problems == []
    with View(directory) as view:
        topics = {topic for topic, _, _ in view.state.sources.entries()} - {""}
        return len(topics), len(view.state.notes)


def test_many_inputs_one_by_one(workspace: Workspace) -> None:
    """The sources and notes of a job with a new file in each run stop growing."""
    found = []
    for number in range(24):
        assert run_on(workspace, number).kept == PER_FILE
        found.append(remembered(workspace))
    assert max(found[12:]) <= max(found[:12])


def test_standard_input_again_and_again(workspace: Workspace) -> None:
    """Each run over standard input is a source, which is forgotten like a file."""
    found = []
    for number in range(16):
        with standard_input(content(number)):
            assert run(workspace.job("-"), SETTINGS).kept == PER_FILE
        found.append(remembered(workspace))
    assert max(found[8:]) <= max(found[:8])


def test_inputs_that_the_runs_name_are_never_forgotten(workspace: Workspace) -> None:
    """A rerun judges nothing twice, even if it names more files than the index must remember."""
    for last in range(1, 16):
        tally = run_on(workspace, *range(last))
        assert (tally.kept, tally.judged_before) == (PER_FILE, PER_FILE * (last - 1))
        assert run_on(workspace, *range(last)).documents == 0
        # Nor does another job forget them.
        assert run_on(workspace, 100 + last, name="second").kept == PER_FILE


def test_the_last_inputs_are_remembered(workspace: Workspace) -> None:
    """A file with documents in the window is not judged again, nor one of the last few."""
    for number in range(12):
        run_on(workspace, number)
    assert run_on(workspace, 9, 10, 11).documents == 0


def test_an_input_is_forgotten_with_its_last_document(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index remembers the file that a run names, and those in the window when it started."""
    monkeypatch.setattr(jobs, "KNOWN_INPUTS", 1)
    for number in range(6):
        run_on(workspace, number)
        with View(workspace.folder / "index") as view:
            found = {Path(topic).stem for topic, _, _ in view.state.sources.entries()}
        # Two files fill the window.
        assert found == {str(each) for each in (number - 2, number - 1, number) if each >= 0}


def test_a_forgotten_input_is_a_new_one(workspace: Workspace) -> None:
    """The lines of a file that nothing remembers are judged and indexed like any others."""
    for number in range(16):
        run_on(workspace, number)
    assert run_on(workspace, 0).kept == PER_FILE
    copy = workspace.folder / "copy.jsonl"
    copy.write_bytes(content(0))
    assert run(workspace.job(copy), SETTINGS).duplicates == PER_FILE


def test_many_jobs(workspace: Workspace) -> None:
    """The notes of jobs stop growing, and a forgotten job does not overwrite its outputs."""
    found = []
    for number in range(16):
        assert run_on(workspace, number, name=f"job-{number}").kept == PER_FILE
        found.append(remembered(workspace))
    assert max(found[8:]) <= max(found[:8])
    assert run_on(workspace, 15, name="job-15").judged_before == PER_FILE
    before = workspace.outputs("job-0")
    with pytest.raises(InputError, match="is not empty, and a new job would overwrite it"):
        run_on(workspace, 0, name="job-0")
    assert workspace.outputs("job-0") == before


def test_paths_that_look_like_notes(workspace: Workspace) -> None:
    """The name of a file may hold the words of a note's key."""
    odd = workspace.folder / "job a input b"
    odd.write_bytes(content(0))
    for number in range(1, 16):
        job = Job((str(odd), str(file(workspace, number))), index=workspace.folder / "index")
        assert run(job, SETTINGS).judged_before == (PER_FILE if number > 1 else 0)
