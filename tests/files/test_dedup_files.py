"""The embedded mode as a function."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamdedup import RunTally, StreamdedupError, dedup_files
from streamdedup.errors import InputError
from streamdedup.files.run import run
from streamdedup.settings.sections import Settings
from tests.files.workspace import Crash, Workspace, counts, crash_after, documents, in_batches_of
from tests.support.paths import ROOT


def outputs_of(workspace: Workspace, name: str) -> dict[str, Any]:
    """Return arguments for all outputs, as paths of several types."""
    job = workspace.job(name=name)
    assert job.kept
    return {
        "kept": Path(job.kept),
        "duplicates": job.duplicates,
        "rejected": job.rejected,
        "index": workspace.folder / f"{name}-index",
    }


@pytest.mark.parametrize(
    "given", [str, Path, lambda path: [path], lambda path: iter([str(path)])], ids=range(4)
)
def test_it_does_what_a_run_does(workspace: Workspace, given: Callable[[Path], Any]) -> None:
    """One input or several, as texts or paths, with the same outputs and counts."""
    with workspace.input.open("ab") as file:
        file.write(b"no document\n")
    expected = run(workspace.job(), Settings())
    tally = dedup_files(given(workspace.input), **outputs_of(workspace, "second"))
    assert isinstance(tally, RunTally)
    assert counts(tally) == counts(expected) == (20, 10, 1)
    assert workspace.outputs("second") == workspace.outputs()


def test_a_caller_follows_the_progress_and_resumes(workspace: Workspace) -> None:
    """An exception of the callback ends the call; the next one continues, with the same index."""
    seen: list[int] = []
    arguments = outputs_of(workspace, "first") | {"settings": in_batches_of(4)}
    with pytest.raises(Crash):
        dedup_files(workspace.input, **arguments, on_progress=crash_after(12))
    tally = dedup_files(
        workspace.input, **arguments, on_progress=lambda tally: seen.append(tally.documents)
    )
    assert (tally.judged_before, tally.documents) == (12, 18)
    assert seen[0] == 4
    assert seen == sorted(seen)
    run(workspace.job(name="whole", index=None), Settings())
    assert workspace.outputs() == workspace.outputs("whole")


def test_an_input_without_documents_is_an_error(workspace: Workspace) -> None:
    """As for the command, the message says what to change, and the outputs are written."""
    workspace.input.write_bytes(b'{"body": "a story"}\n')
    with pytest.raises(InputError, match=r"the fields 'body'; set records\.text_fields"):
        dedup_files(workspace.input, **outputs_of(workspace, "first"))
    assert workspace.outputs()["rejected"].count(b"\n") == 1
    with pytest.raises(StreamdedupError, match="cannot read nothing: No such file"):
        dedup_files("nothing")
    with pytest.raises(ValueError, match="index is empty; give a path"):
        dedup_files(workspace.input, index="")


def test_a_script_without_a_guard_destroys_nothing(workspace: Workspace) -> None:
    """The processes that sketch import the script, and refuse the second call in one line."""
    workspace.input.write_bytes(documents(0, 300))
    script = workspace.folder / "script.py"
    script.write_text(
        "from streamdedup import Settings, dedup_files\n"
        "settings = Settings(batch={'documents': 100})\n"
        f"dedup_files({str(workspace.input)!r}, index='index', settings=settings)\n"
    )
    ended = subprocess.run(
        [sys.executable, script],
        cwd=workspace.folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert 'put the call into a block if __name__ == "__main__":' in ended.stderr
    assert "IndexLocked" not in ended.stderr
