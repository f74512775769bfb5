"""Crashes and kills at any moment: the outputs are those of a run without them."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from streamdedup.files.docstrings import docstrings
from streamdedup.files.run import Hooks, InProcess, run
from streamdedup.index.store import Index
from streamdedup.settings.sections import Settings
from tests.files.workspace import (
    Crash,
    Workspace,
    counts,
    crash_after,
    in_batches_of,
    run_until_killed,
)

COUNT = 1500


@pytest.mark.parametrize("count", [1, 4, 9, 28, 30])
def test_a_crash_after_a_commit_loses_and_repeats_nothing(workspace: Workspace, count: int) -> None:
    """The next run continues with the next line."""
    with pytest.raises(Crash):
        run(workspace.job(), in_batches_of(4), Hooks(on_batch=crash_after(count)))
    judged = -(-count // 4) * 4
    tally = run(workspace.job(), in_batches_of(7))
    assert tally.judged_before == min(judged, 30)
    run(workspace.job(name="whole", index=None), Settings())
    assert workspace.outputs() == workspace.outputs("whole")


@pytest.mark.parametrize("commits", [0, 1, 2, 6])
@pytest.mark.parametrize("moment", ["before the commit", "between disk and memory"])
def test_a_crash_inside_a_commit_loses_and_repeats_nothing(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, commits: int, moment: str
) -> None:
    """Uncommitted lines are cut from the outputs and judged again."""
    name = "apply" if moment == "before the commit" else "_take"
    original, left = getattr(Index, name), commits + 1

    def apply(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise Crash
        return original(*arguments)

    monkeypatch.setattr(Index, name, apply)
    with pytest.raises(Crash):
        run(workspace.job(), in_batches_of(4))
    # The first commit claims the outputs.
    assert workspace.outputs()["kept"].count(b"\n") >= (commits - 1) * 2
    monkeypatch.undo()
    monkeypatch.setattr("streamdedup.files.run.SketchPool", InProcess)
    run(workspace.job(), in_batches_of(7))
    run(workspace.job(name="whole", index=None), in_batches_of(1000))
    assert workspace.outputs() == workspace.outputs("whole")


def write_input(path: Path) -> None:
    """Write docstrings, with blank and broken lines among them."""
    with path.open("wb") as file:
        for number, (name, text) in enumerate(islice(docstrings(), COUNT)):
            file.write(json.dumps({"id": name, "text": text}).encode() + b"\n")
            if number % 97 == 0:
                file.write(b"\n{broken\n")


@pytest.mark.long
def test_kills_at_any_moment_leave_no_trace(workspace: Workspace) -> None:
    """Repeated SIGKILL: the outputs are those of a run without kills."""
    write_input(workspace.input)
    whole = workspace.job(name="whole", index=None)
    tally = run(whole, in_batches_of(100_000))
    assert min(counts(tally)) > 0
    config = workspace.folder / "settings.yaml"
    config.write_text("batch: {documents: 20}\npool: {workers: 1}\n")
    job = workspace.job()
    arguments = [*job.inputs, "--config", str(config), "--index", str(job.index)]
    for kind in ("kept", "duplicates", "rejected"):
        arguments += [f"--{kind}", str(getattr(job, kind))]
    kept = Path(job.kept or "")
    moments = random.Random(5)
    total = len(workspace.outputs("whole")["kept"])
    killed = 0
    for share in (0.0, 0.5):
        length = int(total * (share + moments.random() * 0.4)) + 1
        killed += not run_until_killed(arguments, kept, length)
    assert killed
    assert run_until_killed(arguments, kept, 2**62)
    assert workspace.outputs() == workspace.outputs("whole")
