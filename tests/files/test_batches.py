"""The lines of the inputs, in batches: across files, over the limit, before damage."""

from __future__ import annotations

import gzip
import json
import os

import pytest

from streamdedup.errors import InputError
from streamdedup.files import batches
from streamdedup.files.job import Job
from streamdedup.files.run import Hooks, RunTally, run
from streamdedup.settings.sections import LimitSettings, Settings
from tests.files.workspace import (
    Crash,
    Workspace,
    counts,
    crash_after,
    documents,
    in_batches_of,
    line,
)
from tests.support.streams import open_standard_input, standard_input


def test_a_batch_may_span_files(workspace: Workspace) -> None:
    """Many small files need as few commits as one large file, and the order of lines is kept."""
    paths = []
    for number in range(30):
        paths.append(workspace.folder / f"{number:02}.jsonl")
        paths[-1].write_bytes(documents(number, number + 1))
    commits: list[RunTally] = []
    run(workspace.job(*paths), in_batches_of(10), Hooks(on_batch=commits.append))
    assert [tally.documents for tally in commits] == [10, 20, 30]
    whole = workspace.job(name="whole", index=None)
    run(whole, Settings())
    assert workspace.outputs()["kept"] == workspace.outputs("whole")["kept"]
    again = run(workspace.job(*paths), in_batches_of(10))
    assert (again.documents, again.judged_before) == (0, 30)


def test_a_line_over_the_limit_is_rejected_without_its_value(workspace: Workspace) -> None:
    """Only the long line is rejected; the lines beside it are judged."""
    workspace.input.write_bytes(line(1, "a story") + line(2, "x" * 5000) + line(3, "other news"))
    tally = run(workspace.job(), Settings(limits=LimitSettings(value_bytes=1000)))
    assert counts(tally) == (2, 0, 1)
    rejected = json.loads(workspace.outputs()["rejected"])
    assert rejected["reason"] == "ValueTooLarge"
    assert rejected["message"].startswith("the line has 5024 bytes, limits.value_bytes is 1000")
    assert rejected["value"] is None


def test_a_file_name_that_is_not_utf8_is_escaped_in_positions(workspace: Workspace) -> None:
    """JSON can encode the positions of every file."""
    path = workspace.folder / os.fsdecode(b"caf\xe9.jsonl")
    path.write_bytes(line(1, "a story") + b'{"text": "a story"}\n')
    run(workspace.job(path), Settings())
    duplicate = json.loads(workspace.outputs()["duplicates"])
    assert duplicate["id"] == "caf\\xe9.jsonl:2"
    assert duplicate["position"]["topic"].endswith("/caf\\xe9.jsonl")


@pytest.mark.parametrize("size", [4, 1000])
@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(documents(0, 30))[:-20],
        gzip.compress(documents(0, 30) + b'{"id": "half')[:-8],
    ],
    ids=["cut off", "cut off inside a line"],
)
def test_lines_before_damage_are_judged_once(
    workspace: Workspace, size: int, content: bytes
) -> None:
    """The error follows the commit; a repaired file is read from the mark on."""
    workspace.input.write_bytes(content)
    with pytest.raises(InputError, match="cut off"):
        run(workspace.job(), in_batches_of(size))
    judged = sum(output.count(b"\n") for output in workspace.outputs().values())
    workspace.input.write_bytes(gzip.compress(documents(0, 30)))
    tally = run(workspace.job(), in_batches_of(size))
    assert (tally.judged_before, tally.documents) == (judged, 30 - judged)
    run(workspace.job(name="whole", index=None), Settings())
    assert workspace.outputs() == workspace.outputs("whole")


@pytest.mark.parametrize("size", [2, 1000])
@pytest.mark.parametrize("after_a_file", [False, True])
def test_results_do_not_wait_for_the_next_lines(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, after_a_file: bool, size: int
) -> None:
    """What was read is judged before a pipe sends more, up to the last whole line."""
    monkeypatch.setattr(batches, "LINGER_S", 0.05)
    workspace.input.write_bytes(documents(0, 3))
    lines = documents(3, 18).splitlines(keepends=True)
    steps = [lines[0], lines[1] + lines[2][:9], lines[2][9:], b"".join(lines[3:])]
    base = 3 if after_a_file else 0
    expected = [base, base + 1, base + 2, base + 3, base + 15]
    seen: list[int] = []

    def answer(tally: RunTally) -> None:
        if tally.documents == expected[len(seen)]:
            seen.append(tally.documents)
            if steps:
                sink.write(steps.pop(0))
            else:
                sink.close()

    with open_standard_input() as sink:
        if not after_a_file:
            answer(RunTally())
        inputs = [workspace.input, "-"] if after_a_file else ["-"]
        run(workspace.job(*inputs), in_batches_of(size), Hooks(on_batch=answer))
    assert seen == expected
    workspace.input.write_bytes(documents(0 if after_a_file else 3, 18))
    run(workspace.job(name="whole", index=None), Settings())
    assert workspace.outputs()["kept"] == workspace.outputs("whole")["kept"]


def test_a_run_that_ends_while_it_waits_is_continued(workspace: Workspace) -> None:
    """The lines that were judged before the next came are not judged again."""
    lines = documents(0, 6).splitlines(keepends=True)
    with open_standard_input() as sink:
        sink.write(lines[0] + lines[1] + lines[2][:9])
        with pytest.raises(Crash):
            run(workspace.job("-"), Settings(), Hooks(on_batch=crash_after(1)))
    with standard_input(b"".join(lines)):
        tally = run(workspace.job("-"), Settings())
    assert (tally.judged_before, tally.documents) == (2, 4)


def test_an_output_that_fails_while_the_input_waits(workspace: Workspace) -> None:
    """The error is one of the output, and ends the run before more is read."""
    job = Job(("-",), kept="/dev/full", index=workspace.folder / "index")
    with open_standard_input() as sink:
        sink.write(documents(0, 2))
        with pytest.raises(InputError, match="cannot write /dev/full: No space left on device"):
            run(job, Settings())
