"""Inputs whose first line shows that they are not JSON Lines."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from streamdedup.analysis.corpus import read_corpus
from streamdedup.errors import InputError
from streamdedup.files.first_line import check_json
from streamdedup.files.job import Job
from streamdedup.files.run import run
from streamdedup.settings.sections import RecordSettings, Settings
from tests.files.workspace import Workspace, counts
from tests.support.streams import standard_input

DOCUMENTS = [{"text": "Storm warning tonight"}, {"text": "Harvest festival", "id": "b"}]
ARRAY = json.dumps(DOCUMENTS)
INDENTED = "\n".join(json.dumps(one, indent=2) for one in DOCUMENTS)


@pytest.mark.parametrize(
    ("content", "found", "command"),
    [
        (ARRAY, "one JSON array", "jq -c '.[]'"),
        (f"\ufeff {ARRAY}\n", "one JSON array", "jq -c '.[]'"),
        (json.dumps(DOCUMENTS, indent=2), "one JSON array", "jq -c '.[]'"),
        ("[\r\n" + ARRAY[1:], "one JSON array", "jq -c '.[]'"),
        (INDENTED, "JSON with objects over several lines", "jq -c ."),
    ],
    ids=["one line", "byte order mark", "indented", "carriage return", "objects"],
)
@pytest.mark.parametrize("index", [None, "index"])
def test_json_that_is_not_lines_is_an_error(
    workspace: Workspace, content: str, found: str, command: str, index: str | None
) -> None:
    """The line has the command that converts the file; no line of it is judged."""
    path = workspace.folder / "my posts.json"
    path.write_text(content)
    message = (
        f"{path} is {found}, and not one object per line; convert it with {command} '{path}' > "
        f"'{path}.jsonl'"
    )
    with pytest.raises(InputError) as dedup:
        run(workspace.job(path, index=index), Settings())
    with pytest.raises(InputError) as evaluate:
        read_corpus([str(path)], Settings())
    assert str(dedup.value) == str(evaluate.value) == message
    assert set(workspace.outputs().values()) == {b""}


@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq")
@pytest.mark.parametrize("content", [ARRAY, INDENTED])
@pytest.mark.parametrize("name", ["it's.json", "in.json.gz"])
def test_the_command_converts_the_file(workspace: Workspace, content: str, name: str) -> None:
    """What the message says works for names with quotes, and for compressed files."""
    path = workspace.folder / name
    path.write_bytes(gzip.compress(content.encode()) if name.endswith("gz") else content.encode())
    with pytest.raises(InputError) as error:
        run(Job((str(path),)), Settings())
    subprocess.run(["/bin/sh", "-c", str(error.value).partition("convert it with ")[2]], check=True)
    lines = Path(f"{str(path).removesuffix('.gz')}.jsonl")
    assert counts(run(Job((str(lines),)), Settings())) == (2, 0, 0)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("a.json", "jq -c '.[]' a.json > a.json.jsonl"),
        ("a.GZ", "gzip -dc a.GZ | jq -c '.[]' > a.jsonl"),
        ("a.jsonl.zst", "zstd -dc a.jsonl.zst | jq -c '.[]' > a.jsonl.jsonl"),
        ("a.bz2", "bzip2 -dc a.bz2 | jq -c '.[]' > a.jsonl"),
        ("it's", "jq -c '.[]' 'it'\"'\"'s' > 'it'\"'\"'s.jsonl'"),
    ],
)
def test_the_command_never_writes_to_the_input(name: str, command: str) -> None:
    """It decompresses the file, and quotes its name."""
    with pytest.raises(InputError) as error:
        check_json(b"[{", name)
    assert str(error.value).endswith(f"; convert it with {command}")


def test_an_array_in_a_pipe_is_an_error() -> None:
    """The command belongs into the pipe."""
    message = "standard input is one JSON array, .*; put jq -c '.\\[\\]' before it in the pipe"
    with standard_input(ARRAY.encode()), pytest.raises(InputError, match=message):
        run(Job(("-",)), Settings())


@pytest.mark.parametrize(
    ("content", "settings", "expected"),
    [
        ('[INFO] started\n{"text": "a"}\n', {}, (1, 0, 1)),
        ('["a"]\n{"text": "a"}\n', {}, (1, 0, 1)),
        ('{"text":\n{"text": "a"}\n', {}, (1, 0, 1)),
        ("[{\n{\n", {"records": RecordSettings(format="text")}, (2, 0, 0)),
    ],
    ids=["log line", "array of a line", "cut object", "text"],
)
def test_one_bad_line_is_only_rejected(
    workspace: Workspace, content: str, settings: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    """Other first lines, and texts, are judged as before."""
    workspace.input.write_text(content)
    assert counts(run(workspace.job(), Settings(**settings))) == expected


def test_an_object_that_is_still_written_waits_for_its_end(workspace: Workspace) -> None:
    """A brace without a line feed may be the beginning of a line."""
    workspace.input.write_bytes(b"{")
    assert run(workspace.job(), Settings()).unfinished_lines == 1
    workspace.input.write_bytes(b'{"text": "One story"}\n')
    assert counts(run(workspace.job(), Settings())) == (1, 0, 0)
