"""CSV with other delimiters, and CSV from standard input."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamdedup import dedup_files
from streamdedup.analysis.corpus import read_corpus
from streamdedup.errors import InputError
from streamdedup.files.job import Job
from streamdedup.files.run import Hooks, run
from streamdedup.settings.sections import RecordSettings, Settings
from tests.files.workspace import Crash, Workspace, counts, crash_after, in_batches_of, texts
from tests.support.streams import standard_input

HEADER = b'\xef\xbb\xbfid,"text",at\r\n'
ROWS = [
    f'{number},"{text}, a ""quoted""\r\nsecond line", ;\t|\r\n'.encode()
    for number, text in enumerate(texts(30))
]
CSV = HEADER + b"".join(ROWS)
KEPT = HEADER[3:] + b"".join(row for number, row in enumerate(ROWS) if number % 3 != 2)


def separated(delimiter: str, rows: bytes) -> bytes:
    """Return rows of which other characters separate the columns; texts keep their commas."""
    first = rows.replace(b'id,"text",at', f'id{delimiter}"text"{delimiter}at'.encode())
    return first.replace(b',"', f'{delimiter}"'.encode()).replace(
        b'", ;\t|\r', f'"{delimiter},x\r'.encode()
    )


@pytest.mark.parametrize("delimiter", [";", "\t", "|"], ids=["semicolon", "tab", "pipe"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_header_without_commas_has_another_delimiter(
    tmp_path: Path, delimiter: str, pack: Callable[[bytes], bytes]
) -> None:
    """Kept rows have their bytes, also after a crash; evaluate reads the same documents."""
    path, kept = tmp_path / "in.csv", tmp_path / "kept.csv"
    path.write_bytes(pack(separated(delimiter, CSV)))
    job = Job((str(path),), kept=str(kept), index=tmp_path / "index")
    with pytest.raises(Crash):
        run(job, in_batches_of(7), Hooks(on_batch=crash_after(9)))
    assert run(job, in_batches_of(7)).judged_before
    assert kept.read_bytes() == separated(delimiter, KEPT)
    assert [one.id for one in read_corpus([str(path)], Settings()).documents] == [
        *map(str, range(30))
    ]


@pytest.mark.parametrize(
    ("header", "fields", "found"),
    [
        ("text", ("text",), ["text"]),
        ("a;text,b", ("text,b",), ["a;text", "b"]),
        ("my;text|b", ("my;text",), ["my;text", "b"]),
        ("id;text|b", ("text",), ["id", "text|b"]),
        ("id;text;body", ("text", "body"), ["id", "text", "body"]),
        ('id;"text', ("text",), ['id;"text']),
        ("my;text", ("my;text",), ["my;text"]),
    ],
)
def test_the_delimiter_is_that_which_finds_the_text(
    tmp_path: Path, header: str, fields: tuple[str, ...], found: list[str]
) -> None:
    """A comma, or a column that has the name, comes first; else the error names the columns."""
    path = tmp_path / "in.csv"
    path.write_text(f"{header}\n")
    job, settings = Job((str(path),)), Settings(records=RecordSettings(text_fields=fields))
    if set(fields) <= set(found):
        assert counts(run(job, settings)) == (0, 0, 0)
        return
    message = (
        f"{path} has no column {fields[0]!r}; its columns are {', '.join(found)}; set "
        "records.text_fields (--text-field)"
    )
    with pytest.raises(InputError) as error:
        run(job, settings)
    assert str(error.value) == message


def test_an_error_names_the_columns_of_any_delimiter(tmp_path: Path) -> None:
    """The header is split into the most columns; a file of other columns is refused too."""
    path, other = tmp_path / "a.csv", tmp_path / "b.csv"
    path.write_text("id;title;body|x\n")
    with pytest.raises(InputError, match=r"its columns are id, title, body\|x; set records\.text"):
        run(Job((str(path),)), Settings())
    other.write_text("id|title|body\n")
    settings = Settings(records=RecordSettings(text_fields=("title",)))
    with pytest.raises(InputError, match=r"b\.csv has other columns than .*: id\|title\|body inst"):
        run(Job((str(path), str(other))), settings)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"], ids=["comma", "semicolon", "tab"])
def test_standard_input_may_be_csv(
    tmp_path: Path, pack: Callable[[bytes], bytes], delimiter: str
) -> None:
    """The header is read once, and is in the kept output; ids are lines of standard input."""
    kept, duplicates = tmp_path / "kept.csv", tmp_path / "duplicates.jsonl"
    content = CSV if delimiter == "," else separated(delimiter, CSV)
    with standard_input(pack(content)):
        tally = dedup_files("-", kept=kept, duplicates=duplicates, input_format="csv")
    assert counts(tally) == (20, 10, 0)
    assert kept.read_bytes() == (KEPT if delimiter == "," else separated(delimiter, KEPT))
    first = json.loads(duplicates.read_bytes().splitlines()[0])
    assert first["position"] == {"topic": "stdin#1", "partition": 0, "offset": 5}
    with standard_input(b"text\ttext\nx\ty\n"), pytest.raises(InputError, match="2 columns 'text'"):
        dedup_files("-", input_format="tsv")


@pytest.mark.parametrize("count", [1, 9, 28])
def test_csv_from_standard_input_is_resumed(workspace: Workspace, count: int) -> None:
    """Given again from its beginning, no row is judged twice; another beginning is new input."""
    kept = workspace.folder / "kept.csv"
    job = Job(("-",), kept=str(kept), index=workspace.folder / "index", input_format="csv")
    with standard_input(CSV), pytest.raises(Crash):
        run(job, in_batches_of(4), Hooks(on_batch=crash_after(count)))
    with standard_input(CSV):
        tally = run(job, in_batches_of(7))
    assert tally.judged_before > count
    assert tally.documents + (tally.judged_before - 1) // 2 == 30
    assert kept.read_bytes() == KEPT
    with standard_input(CSV), pytest.raises(Crash):
        run(job, in_batches_of(4), Hooks(on_batch=crash_after(count)))
    with standard_input(b"id,text,at\nx,Quite another story,\n"):
        tally = run(job, in_batches_of(7))
    assert (tally.judged_before, counts(tally)) == (0, (1, 0, 0))
    assert kept.read_bytes() == KEPT + b"x,Quite another story,\n"


@pytest.mark.parametrize("content", [b"", b"text\n", b"text"], ids=["empty", "header", "cut"])
def test_standard_input_without_rows_is_valid(workspace: Workspace, content: bytes) -> None:
    """As a file without rows; a second run appends no header."""
    kept = workspace.folder / "kept.csv"
    job = Job(("-",), kept=str(kept), index=workspace.folder / "index", input_format="csv")
    for _ in range(2):
        with standard_input(content):
            assert counts(run(job, Settings())) == (0, 0, 0)
        assert kept.read_bytes() == (b"text\n" if content else b"")


def test_files_and_standard_input_of_csv_are_one_run(tmp_path: Path) -> None:
    """They need one header; the format is only that of standard input."""
    path, kept = tmp_path / "in.csv", tmp_path / "kept.csv"
    path.write_text("text;id\nA story of the sea;1\n")
    content = b"text;id\nWords of the town;2\nA story of the sea;3\n"
    with standard_input(content):
        tally = dedup_files([path, "-"], kept=kept, input_format="csv")
    assert counts(tally) == (2, 1, 0)
    assert kept.read_text() == "text;id\nA story of the sea;1\nWords of the town;2\n"
    with standard_input(b"text\nx\n"), pytest.raises(InputError, match="standard input has other"):
        dedup_files([path, "-"], input_format="csv")
    with standard_input(b"\n"), pytest.raises(InputError, match=r"^standard input has no header;"):
        dedup_files("-", input_format="csv")
    with pytest.raises(InputError, match="'CSV' is not a format of standard input; give json, csv"):
        dedup_files("-", input_format="CSV")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="input format tsv is that of standard input, which is no"):
        dedup_files(path, input_format="tsv")


def test_the_output_fits_the_format_of_standard_input(tmp_path: Path) -> None:
    """Kept rows of CSV cannot go to a file of JSON Lines."""
    arguments: dict[str, Any] = {"kept": tmp_path / "kept.jsonl", "input_format": "csv"}
    with standard_input(CSV), pytest.raises(InputError, match="the kept lines of CSV are written"):
        dedup_files("-", **arguments)
