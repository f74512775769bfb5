"""``streamdedup dedup`` as it is typed: flags, streams, exit codes."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from pyarrow import feather, parquet

from tests.cli.examples import LINES, Command
from tests.support.streams import closed_standard_output, standard_input

KEPT = LINES[0] + LINES[2]


def summary(output: bytes) -> dict[str, Any]:
    """Return the counts of a JSON summary."""
    found: dict[str, Any] = json.loads(output)
    return found


def test_without_outputs_a_summary_is_printed(
    command: Command, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The simplest call writes no file, and prints to standard error."""
    assert command("dedup", "in.jsonl") == 0
    output, errors = capfdbinary.readouterr()
    assert output == b""
    words = [line.split() for line in errors.decode().splitlines()]
    assert words[0][:3] == ["4", "documents", "in"]
    assert words[1:] == [
        ["kept", "2", "50.0%"],
        ["duplicates", "2", "50.0%"],
        ["rejected", "0", "0.0%"],
    ]
    assert list(Path().iterdir()) == [Path("in.jsonl")]


def test_the_summary_says_where_everything_went(
    command: Command, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """It has file names, blank lines, and lines that earlier runs judged."""
    Path("in.jsonl").write_bytes(b"\n".join(LINES) + b'{"text": "half')
    arguments = ("dedup", "in.jsonl", "--kept", "k", "--duplicates", "-", "--index", "ix")
    assert command(*arguments) == 0
    errors = capfdbinary.readouterr().err.decode()
    assert "  in k\n" in errors
    assert "  to stdout\n" in errors
    assert "3 blank lines skipped" in errors
    assert "1 last lines without a line feed left for the next run" in errors
    assert command(*arguments) == 0
    assert "7 lines skipped that earlier runs had judged" in capfdbinary.readouterr().err.decode()


@pytest.mark.parametrize(
    ("outputs", "stream"),
    [((), 0), (("--kept", "k"), 0), (("--kept", "-"), 1), (("--rejected", "-"), 1)],
    ids=["no output", "a file", "kept on stdout", "rejected on stdout"],
)
def test_the_json_summary_leaves_a_taken_stdout_alone(
    command: Command,
    capfdbinary: pytest.CaptureFixture[bytes],
    outputs: tuple[str, ...],
    stream: int,
) -> None:
    """The JSON line goes to standard output unless an output goes there."""
    assert command("dedup", "in.jsonl", "--json", *outputs) == 0
    found = summary(capfdbinary.readouterr()[stream])
    seconds, rate = found.pop("seconds"), found.pop("documents_per_second")
    assert rate == pytest.approx(4 / seconds, rel=0.5)
    assert found.pop("start_seconds") >= found.pop("compile_seconds") >= 0
    assert found == {
        "documents": 4,
        "kept": 2,
        "duplicates": 2,
        "rejected": 0,
        "blank_lines": 0,
        "unfinished_lines": 0,
        "judged_before": 0,
        "default_id": None,
    }


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--kept", KEPT),
        ("--rejected", b""),
    ],
)
def test_an_output_may_be_standard_output(
    command: Command, capfdbinary: pytest.CaptureFixture[bytes], flag: str, expected: bytes
) -> None:
    """Standard output contains only the output."""
    assert command("dedup", "in.jsonl", flag, "-") == 0
    assert capfdbinary.readouterr().out == expected


def test_duplicates_on_standard_output_name_their_originals(
    command: Command, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Each duplicate is a JSON line; its value comes only when asked for."""
    assert command("dedup", "in.jsonl", "--duplicates", "-") == 0
    found = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [(each["id"], each["original"]) for each in found] == [("b", "a"), ("d", "a")]
    assert found[1]["matches"][0]["jaccard_estimate"] == 1.0
    assert all("value" not in each for each in found)
    assert command("dedup", "in.jsonl", "--duplicates", "-", "--include-value") == 0
    found = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [each["value"].encode() + b"\n" for each in found] == [LINES[1], LINES[3]]


@pytest.mark.parametrize(
    "pack",
    [bytes, gzip.compress, zstandard.compress],
    ids=["plain", "gzip", "zstd"],
)
def test_standard_input_may_be_packed(
    command: Command,
    capfdbinary: pytest.CaptureFixture[bytes],
    pack: Callable[[bytes], bytes],
) -> None:
    """A pipe works like a file, compressed or not."""
    with standard_input(pack(b"".join(LINES))):
        assert command("dedup", "-", "--kept", "-") == 0
    assert capfdbinary.readouterr().out == KEPT


def test_standard_input_may_be_csv(
    command: Command, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The flag names its format; the kept rows have the header."""
    rows = b"text;id\nOne story;a\nAnother tale;b\nOne story;c\n"
    with standard_input(rows):
        assert command("dedup", "-", "--input-format", "csv", "--kept", "-") == 0
    assert capfdbinary.readouterr().out == rows.removesuffix(b"One story;c\n")
    assert command("dedup", "in.jsonl", "--input-format", "csv") == 4
    assert command("dedup", "-", "--input-format", "parquet") == 2


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (("--text-field", "body.main"), ["1", "in.jsonl:2", "3"]),
        (("--text-field", "title"), ["1", "3"]),
        (("--text-field", "title", "--text-field", "body.main"), ["1", "in.jsonl:2", "3"]),
        (("--text-field", "body.main", "--id-field", "body.key"), ["x", "y", "in.jsonl:3"]),
    ],
    ids=["dotted path", "one field", "two fields", "id field"],
)
def test_fields_are_dotted_paths(
    command: Command, tmp_path: Path, arguments: tuple[str, ...], kept: list[str]
) -> None:
    """The flags name the fields of text and id; the default id is FILE:LINE."""
    title, stories = "Same title for the lot", ("budget and council", "storm", "ferries in port")
    rows: list[dict[str, Any]] = [
        {"id": 1, "title": title, "body": {"main": stories[0], "key": "x"}},
        {"title": title, "body": {"main": stories[1], "key": "y"}},
        {"id": 3, "title": "Another title altogether", "body": {"main": stories[2]}},
    ]
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert command("dedup", "in.jsonl", *arguments, "--index", "ix", "--kept", "k") == 0
    assert kept == ids_in_index(tmp_path / "ix", "in.jsonl", arguments, command)


def ids_in_index(
    directory: Path, name: str, arguments: tuple[str, ...], command: Command
) -> list[str]:
    """Return the ids of the kept documents: a copy of the input repeats each of them."""
    Path("copies").mkdir()
    Path("copies", name).write_bytes(Path("k").read_bytes())
    outputs = ("--duplicates", "d", "--index", str(directory))
    assert command("dedup", f"copies/{name}", *arguments, *outputs) == 0
    return [json.loads(line)["original"] for line in Path("d").read_text().splitlines()]


def test_flags_win_over_environment_and_file(
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """An absent flag does not change the configuration."""
    Path("c.yaml").write_text("dedup: {threshold: 1.0}\noutput: {include_value: true}\n")

    def threshold(*arguments: str) -> float:
        assert command("dedup", "in.jsonl", "--duplicates", "-", *arguments) == 0
        first = json.loads(capfdbinary.readouterr().out.splitlines()[0])
        assert ("value" in first) == ("--config" in arguments)
        found: float = first["threshold"]
        return found

    assert threshold() == 0.8
    assert threshold("--config", "c.yaml") == 1.0
    monkeypatch.setenv("STREAMDEDUP_DEDUP__THRESHOLD", "0.9")
    assert threshold("--config", "c.yaml") == 0.9
    assert threshold("--config", "c.yaml", "--threshold", "0.7") == 0.7


def test_the_profile_says_what_is_the_same(
    command: Command, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Under the profile for posts two short links are the same."""
    Path("in.jsonl").write_text(
        '{"text": "look https://t.co/abcdefgh"}\n{"text": "look https://t.co/12345678"}\n'
    )
    assert command("dedup", "in.jsonl", "--json", "--profile", "post") == 0
    assert summary(capfdbinary.readouterr().out)["duplicates"] == 1
    assert command("dedup", "in.jsonl", "--json") == 0
    assert summary(capfdbinary.readouterr().out)["duplicates"] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("in.jsonl", "missing.jsonl"), 4, "cannot read missing.jsonl: No such file or directory"),
        (("in.jsonl", "."), 4, "the input ./in.jsonl is given twice"),
        (("in.jsonl", "in.jsonl"), 4, "the input in.jsonl is given twice"),
        (("in.jsonl", "--kept", "in.jsonl"), 4, "the output in.jsonl is one of the inputs"),
        (("in.jsonl", "--kept", "no/k"), 4, "cannot write no/k: No such file or directory"),
        (("cut.gz",), 4, "cut.gz ends too early: the compressed data is cut off"),
        (("in.jsonl", "--threshold", "2"), 3, "dedup.threshold: Input should be less than or"),
        (("in.jsonl", "--profile", "prose"), 3, "dedup.profile: unknown profile 'prose'"),
        (("in.jsonl", "--config", "none.yaml"), 3, "cannot read none.yaml: No such file"),
        (
            ("in.jsonl", "--index", "in.jsonl"),
            9,
            "cannot write the index directory {here}/in.jsonl",
        ),
        (("in.jsonl", "--index", "ix", "--threshold", "0.9"), 11, "{here}/ix: the index was"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_an_error_is_one_line_and_an_exit_code(
    command: Command,
    capfdbinary: pytest.CaptureFixture[bytes],
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    """The line says what to change; there is no traceback."""
    Path("cut.gz").write_bytes(gzip.compress(b"".join(LINES))[:-9])
    assert command("dedup", "in.jsonl", "--index", "ix") == 0
    assert command("dedup", *arguments) == code
    errors = capfdbinary.readouterr().err.decode()
    assert errors.startswith(f"streamdedup: {message.format(here=Path.cwd())}")
    assert errors.count("\n") == 1


@pytest.mark.parametrize("outputs", [(), ("--json",)], ids=["table", "json"])
def test_a_run_that_rejects_every_line_fails(
    command: Command, capfdbinary: pytest.CaptureFixture[bytes], outputs: tuple[str, ...]
) -> None:
    """The summary and the outputs are written; the last line has the first reason."""
    Path("csv").write_bytes(b"id,text\n1,a story\n")
    assert command("dedup", "csv", "--rejected", "r", *outputs) == 4
    errors = capfdbinary.readouterr().err.decode()
    assert "streamdedup: every line was rejected, the first with InvalidJson: " in errors
    assert errors.endswith("; check the input, --text-field and records.format\n")
    assert len(Path("r").read_bytes().splitlines()) == 2
    Path("csv").write_bytes(b"id,text\n" + LINES[0])
    assert command("dedup", "csv", *outputs) == 0


@pytest.mark.parametrize(
    ("name", "content", "default"),
    [
        ("a.jsonl", b'{"text": "a story", "key": "k"}\n', "a.jsonl:1"),
        ("a.csv", b"key,text\n\nk,a story\n", "a.csv:3"),
        ("a.jsonl", b'{"text": "a story", "key": "k", "id": "a"}\n{"text": "another"}', None),
        ("a.csv", b"id,key,text\na.csv,k,a story\n", None),
        ("a.csv", b"text,key\ncut\n", None),
    ],
    ids=["lines", "csv", "ids", "ids of csv", "rejected"],
)
def test_ids_that_are_lines_are_reported(
    command: Command,
    capfdbinary: pytest.CaptureFixture[bytes],
    name: str,
    content: bytes,
    default: str | None,
) -> None:
    """Once, with the flag that names the field; other files of the same run may have ids."""
    Path(name).write_bytes(content)
    Path(f"0{name}").write_bytes(content.replace(b"key", b"id") if default else content)
    files = (f"0{name}", name) if name.endswith("jsonl") else (name,)
    note = f"such as {default}; name the field of ids with --id-field (records.id_field)\n"
    code = 4 if content.endswith(b"cut\n") else 0
    assert command("dedup", *files) == code
    assert capfdbinary.readouterr().err.decode().count(note) == (default is not None)
    assert command("dedup", *files, "--json") == code
    output, errors = capfdbinary.readouterr()
    assert summary(output)["default_id"] == default
    assert b"such as" not in errors
    if not code:
        assert command("dedup", name, "--id-field", "key") == 0
        assert b"such as" not in capfdbinary.readouterr().err


def test_lines_of_text_have_no_field_of_ids(
    command: Command, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The summary names no flag that would not help."""
    monkeypatch.setenv("STREAMDEDUP_RECORDS__FORMAT", "text")
    assert command("dedup", "in.jsonl") == 0
    assert b"--id-field" not in capfdbinary.readouterr().err


def test_a_missing_field_is_reported_with_those_that_exist(
    command: Command, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """By dedup and evaluate, in the last line or, if only some lines lack it, in the summary."""
    reason = (
        "MissingText: the document has no text field 'text'; it has the fields 'id', 'body'; set "
        "records.text_fields"
    )
    other = b'{"id": "a", "body": "A story"}\n'
    Path("other.jsonl").write_bytes(other * 2)
    for name, start in (
        ("dedup", "every line was rejected"),
        ("evaluate", "the input holds no document to evaluate on: 2 lines were rejected"),
    ):
        assert command(name, "other.jsonl") == 4
        assert (
            capfdbinary.readouterr()
            .err.decode()
            .endswith(
                f"streamdedup: {start}, the first with {reason}; check the input, --text-field and "
                "records.format\n"
            )
        )
    Path("other.jsonl").write_bytes(other + LINES[0])
    assert command("dedup", "other.jsonl") == 0
    assert f"  first rejected with {reason}\n" in capfdbinary.readouterr().err.decode()
    assert command("dedup", "other.jsonl", "--text-field", "body", "--text-field", "text") == 0


def test_no_input_is_a_usage_error(command: Command) -> None:
    """Standard input is read only if - is given."""
    assert command("dedup") == 2


def test_a_closed_pipe_ends_the_command_quietly(
    command: Command, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """For example ``streamdedup dedup ... --kept - | head -n 1``."""
    with closed_standard_output():
        assert command("dedup", "in.jsonl", "--kept", "-") == 141
    assert capfdbinary.readouterr().err == b""


def test_an_interrupted_run_stops_at_once_and_resumes_later(
    command: Command, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A run that waits for input stops too; committed lines are not judged again."""
    lines = [
        b'{"id": "%d", "text": "%s"}\n' % (number, b"%d" % number * 20) for number in range(10)
    ]
    arguments = ["dedup", "-", "--kept", "k", "--index", "ix"]
    with subprocess.Popen(
        [sys.executable, "-m", "streamdedup", *arguments],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "STREAMDEDUP_BATCH__DOCUMENTS": "1"},
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"".join(lines))
        process.stdin.flush()
        while not Path("k").exists() or not Path("k").stat().st_size:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 143
        assert process.stderr is not None
        errors = process.stderr.read()
    assert errors == b"streamdedup: interrupted; run the same command again to resume\n"
    judged = len(Path("k").read_bytes().splitlines())
    with standard_input(b"".join(lines)):
        assert command(*arguments, "--json") == 0
    assert summary(capfdbinary.readouterr().out)["judged_before"] == judged
    assert Path("k").read_bytes() == b"".join(lines)


@pytest.mark.parametrize("name", ["dedup", "demo"])
def test_an_interruption_before_the_first_line_is_one_line_too(
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
    name: str,
) -> None:
    """Ctrl-C while the settings are loaded prints the same line."""
    monkeypatch.setattr(
        "streamdedup.settings.load.load_settings",
        lambda *_, **__: signal.raise_signal(signal.SIGINT),
    )
    monkeypatch.setattr("streamdedup.files.docstrings.sysconfig.get_path", lambda _: "nothing")
    assert command(name, *(["in.jsonl"] if name == "dedup" else [])) == 130
    errors = capfdbinary.readouterr().err
    assert errors.startswith(b"streamdedup: interrupted")
    assert errors.count(b"\n") == 1


def test_exact_verification_is_a_flag(
    command: Command, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """An index without texts is refused in one line that says what to do."""
    exact = ("dedup", "in.jsonl", "--verify", "exact", "--json")
    assert command(*exact, "--index", "texts") == 0
    assert summary(capfdbinary.readouterr().out)["duplicates"] == 2
    assert command("dedup", "in.jsonl", "--index", "bare") == 0
    capfdbinary.readouterr()
    assert command(*exact, "--index", "bare") == 11
    errors = capfdbinary.readouterr().err
    assert b"without the texts that dedup.verify exact compares; set dedup.verify" in errors
    assert errors.count(b"\n") == 1
    assert command("dedup", "in.jsonl", "--verify", "twice") == 3


def test_parquet_in_and_out(command: Command, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """A pattern is expanded here; the columns are named like fields."""
    table = pa.Table.from_pylist([json.loads(line) for line in LINES]).rename_columns(["k", "body"])
    Path("data").mkdir()
    parquet.write_table(table.slice(0, 2), "data/1.parquet")
    parquet.write_table(table.slice(2), "data/2.parquet")
    fields = ("--text-field", "body", "--id-field", "k")
    outputs = ("--kept", "kept.parquet", "--duplicates", "duplicates.feather", "--index", "ix")
    assert command("dedup", "data/*.parquet", *fields, *outputs, "--json") == 0
    assert json.loads(capfdbinary.readouterr().out)["duplicates"] == 2
    assert parquet.read_table("kept.parquet").equals(table.take([0, 2]))
    assert feather.read_table("duplicates.feather")["original"].to_pylist() == ["a", "a"]
    assert command("dedup", "data", *fields, *outputs) == 0
    assert b"4 lines skipped" in capfdbinary.readouterr().err
    assert command("dedup", "data", "--kept", "kept.parquet") == 4
    errors = capfdbinary.readouterr().err.decode()
    assert errors == (
        "streamdedup: data/1.parquet has no column 'text'; its columns are k, body; set "
        "records.text_fields (--text-field)\n"
    )


def test_formats_of_topics_do_not_matter_for_files(command: Command, tmp_path: Path) -> None:
    """The settings of a worker on a topic in Avro serve for a sample of it in JSON Lines."""
    config, posts, kept = (tmp_path / name for name in ("c.yaml", "posts.jsonl", "kept.jsonl"))
    config.write_text("records: {format: registry}\nregistry: {urls: [http://127.0.0.1:1]}\n")
    posts.write_text('{"text": "one text"}\n{"text": "one text"}\n')
    assert command("dedup", str(posts), "--kept", str(kept), "--config", str(config)) == 0
    assert kept.read_text() == '{"text": "one text"}\n'
    assert command("evaluate", str(posts), "--config", str(config)) == 0
