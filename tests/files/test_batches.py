"""The lines of the inputs, in batches: across files, over the limit, before damage."""

from __future__ import annotations

import gzip
import json
import os

import pytest

from streamdedup.errors import InputError
from streamdedup.files.run import Hooks, Tally, run
from streamdedup.settings.sections import LimitSettings, Settings
from tests.files.workspace import Workspace, counts, documents, in_batches_of, line


def test_a_batch_may_span_files(workspace: Workspace) -> None:
    """Many small files need as few commits as one large file, and the order of lines is kept."""
    paths = []
    for number in range(30):
        paths.append(workspace.folder / f"{number:02}.jsonl")
        paths[-1].write_bytes(documents(number, number + 1))
    commits: list[Tally] = []
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
