"""``streamdedup dedup`` and ``demo`` as they are typed: flags, streams, exit codes."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from rich.console import Console

from streamdedup.cli import demo, main
from streamdedup.cli.interrupts import Interrupted, Interrupts
from streamdedup.cli.progress import ProgressBar
from streamdedup.files.docstrings import docstrings
from streamdedup.files.run import Tally
from tests.support.streams import closed_standard_output, standard_input

LINES = [
    b'{"id": "a", "text": "The council met on Monday to settle the budget for the year."}\n',
    b'{"id": "b", "text": "The council met on Monday to settle the budget for the year!"}\n',
    b'{"id": "c", "text": "A storm closed the harbour, and all ferries stayed in port."}\n',
    b'{"id": "d", "text": "the Council met on Monday  to settle the budget for the year."}\n',
]
KEPT = LINES[0] + LINES[2]
Command = Callable[..., int]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Command:
    """Return a function that runs the command line here, and returns its exit code."""
    for name in os.environ:
        if name.upper().startswith("STREAMDEDUP_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_bytes(b"".join(LINES))

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["streamdedup", *arguments])
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as ended:
            main.main()
        code = ended.value.code
        return code if isinstance(code, int) else 0

    return run


def summary(output: bytes) -> dict[str, Any]:
    """Return a summary's counts."""
    found: dict[str, Any] = json.loads(output)
    return found


def test_without_outputs_a_summary_is_printed(
    command: Command, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The simplest call writes no file, and speaks on standard error."""
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
    """File names, blank lines, and what earlier runs had done."""
    Path("in.jsonl").write_bytes(b"\n".join(LINES))
    arguments = ("dedup", "in.jsonl", "--kept", "k", "--duplicates", "-", "--index", "ix")
    assert command(*arguments) == 0
    errors = capfdbinary.readouterr().err.decode()
    assert "  in k\n" in errors
    assert "  to stdout\n" in errors
    assert "3 blank lines passed over" in errors
    assert command(*arguments) == 0
    assert "7 lines passed over, judged by earlier runs" in capfdbinary.readouterr().err.decode()


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
    """One line of JSON, on standard output unless lines of an output go there."""
    assert command("dedup", "in.jsonl", "--json", *outputs) == 0
    found = summary(capfdbinary.readouterr()[stream])
    seconds, rate = found.pop("seconds"), found.pop("documents_per_second")
    assert rate == pytest.approx(4 / seconds, rel=0.5)
    assert found == {
        "documents": 4,
        "kept": 2,
        "duplicates": 2,
        "rejected": 0,
        "blank_lines": 0,
        "judged_before": 0,
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
    """Nothing else is written there."""
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
    """A pipe works like a file, whatever it carries."""
    with standard_input(pack(b"".join(LINES))):
        assert command("dedup", "-", "--kept", "-") == 0
    assert capfdbinary.readouterr().out == KEPT


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
    """Text and id come from where the flags say; a line without an id is FILE:LINE."""
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
    """A flag that is left out leaves the configuration alone."""
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
        (("in.jsonl", "."), 4, "cannot read .: Is a directory"),
        (("in.jsonl", "in.jsonl"), 4, "the input in.jsonl is given twice"),
        (("in.jsonl", "--kept", "in.jsonl"), 4, "the output in.jsonl is one of the inputs"),
        (("in.jsonl", "--kept", "no/k"), 4, "cannot write no/k: No such file or directory"),
        (("cut.gz",), 4, "cut.gz ends too early: the compressed data is cut off"),
        (("in.jsonl", "--threshold", "2"), 3, "dedup.threshold: Input should be less than or"),
        (("in.jsonl", "--profile", "prose"), 3, "dedup.profile: unknown profile 'prose'"),
        (("in.jsonl", "--config", "none.yaml"), 3, "cannot read none.yaml: No such file"),
        (("in.jsonl", "--index", "in.jsonl"), 9, "cannot write the index directory in.jsonl"),
        (("in.jsonl", "--index", "ix", "--threshold", "0.9"), 11, "ix: the index was"),
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
    """The operator is told what to change, without a traceback."""
    Path("cut.gz").write_bytes(gzip.compress(b"".join(LINES))[:-9])
    assert command("dedup", "in.jsonl", "--index", "ix") == 0
    assert command("dedup", *arguments) == code
    errors = capfdbinary.readouterr().err.decode()
    assert errors.startswith(f"streamdedup: {message}")
    assert errors.count("\n") == 1


def test_no_input_is_a_usage_error(command: Command) -> None:
    """Standard input must be asked for."""
    assert command("dedup") == 2


def test_a_reader_that_goes_away_ends_the_command_quietly(
    command: Command, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """As in ``streamdedup dedup ... --kept - | head -n 1``."""
    with closed_standard_output():
        assert command("dedup", "in.jsonl", "--kept", "-") == 141
    assert capfdbinary.readouterr().err == b""


def test_an_interrupted_run_stops_at_once_and_goes_on_later(
    command: Command, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Even one that waits for its input; what is committed stays, and is not judged again."""
    lines = [b'{"id": "%d", "text": "%s"}\n' % (place, b"%d" % place * 20) for place in range(10)]
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
    assert errors == b"streamdedup: interrupted; run again with the same arguments to go on\n"
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
    """Ctrl-C while the settings are read ends as it would later."""
    monkeypatch.setattr(
        "streamdedup.settings.load.load_settings",
        lambda *_, **__: signal.raise_signal(signal.SIGINT),
    )
    monkeypatch.setattr("streamdedup.files.docstrings.sysconfig.get_path", lambda _: "nothing")
    assert command(name, *(["in.jsonl"] if name == "dedup" else [])) == 130
    errors = capfdbinary.readouterr().err
    assert errors.startswith(b"streamdedup: interrupted")
    assert errors.count(b"\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_commit(number: signal.Signals) -> None:
    """Inside the shield nothing happens; behind it the first signal ends the run."""
    before = signal.getsignal(number)
    done = []

    def commit() -> None:
        with Interrupts() as interrupts:
            with interrupts.shield():
                signal.raise_signal(number)
                done.append("commit")
            done.append("never")

    with pytest.raises(Interrupted) as raised:
        commit()
    assert done == ["commit"]
    assert raised.value.exit_code == 128 + number
    assert signal.getsignal(number) == before


def test_a_second_signal_ends_the_process() -> None:
    """There is nothing to wait for outside a commit, and cleaning up may hang."""

    def stop() -> None:
        with Interrupts():
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL

    with pytest.raises(Interrupted):
        stop()


def test_a_failed_commit_is_not_hidden_by_a_signal() -> None:
    """The error that must be acted on wins."""

    def fail() -> None:
        with Interrupts() as interrupts, interrupts.shield():
            signal.raise_signal(signal.SIGINT)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


@pytest.mark.parametrize("total", [1000, None], ids=["files", "a pipe"])
def test_a_terminal_gets_a_progress_bar(total: int | None) -> None:
    """Counts and speed are drawn, and the share where the whole is known."""
    drawn = io.StringIO()
    with ProgressBar(Console(file=drawn, force_terminal=True, width=100)) as bar:
        bar.update(Tally(1200, 300, 5, bytes_read=250, bytes_total=total, seconds=0.5))
    assert "1,505 documents, 300 duplicates, 5 rejected, 3,010/s" in drawn.getvalue()
    assert ("25%" in drawn.getvalue()) == (total is not None)


def test_a_file_gets_no_progress_bar() -> None:
    """What is not a terminal gets the summary alone."""
    drawn = io.StringIO()
    with ProgressBar(Console(file=drawn)) as bar:
        bar.update(Tally(1200, 300))
    assert drawn.getvalue() == ""


MODULE = '''
"""The first module of a library that is made up, with a text of some length to be read."""


class Reader:
    """Reads records from a file, one after the other, until the file has come to its end."""

    def read(self):
        """Read one record; return nothing when the file has come to its end, or is closed."""

    if True:
        async def skip(self):
            """Skip one record; return nothing when the file has come to its end, or is closed."""


def read():
    """A lone surrogate: \\\\ud800"""


def read():
    """Read one record; return nothing when the file has come to its end, or is closed!"""

    def inner():
        """Inner."""
'''


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Return a folder of modules, some of which cannot or must not be read."""
    root = tmp_path / "library"
    for name, content in {
        "first.py": MODULE.replace("\\\\", "\\").encode(),
        "package/__init__.py": b'"""A package."""',
        "package/module.py": b'try:\n  pass\nexcept E:\n  def f():\n    """In a handler."""',
        "broken.py": b"def",
        "latin.py": b"# coding: latin-1\n'''caf\xe9'''",
        "binary.py": b"\xff\x00",
        "test/test_first.py": b'"""A test."""',
        "site-packages/other.py": b'"""Not the library."""',
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def test_the_corpus_is_every_documentation_string(library: Path) -> None:
    """Names are unique, nested definitions are found, and what cannot be read is left out."""
    found = dict(docstrings(library))
    assert list(found) == [
        "first",
        "first:Reader",
        "first:Reader.read",
        "first:Reader.skip",
        "first:read",
        "first:read.inner",
        "latin",
        "package",
        "package.module:f",
    ]
    assert found["latin"] == "café"


def test_the_demo_shows_pairs_and_leaves_its_files(
    command: Command,
    library: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """It runs twice in the same folder, and shows what differs between near-duplicates."""
    monkeypatch.setattr("streamdedup.files.docstrings.sysconfig.get_path", lambda _: str(library))
    for _ in range(2):
        assert command("demo", "--folder", "out") == 0
        output = capfdbinary.readouterr().out.decode()
        assert "9 documentation strings in out/docstrings.jsonl" in output
        assert "similarity 0." in output
        assert "[closed.]" in output
        assert "[closed!]" in output
        assert "streamdedup dedup out/docstrings.jsonl --kept out/kept.jsonl" in output
        assert max(map(len, output.splitlines()[:-10])) <= 80
    kept = len(Path("out/kept.jsonl").read_bytes().splitlines())
    assert kept + len(Path("out/duplicates.jsonl").read_bytes().splitlines()) == 9


def test_the_demo_keeps_its_hands_off_other_folders(
    command: Command, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A folder with anything else in it is not emptied."""
    assert command("demo", "--folder", ".") == 4
    assert b"streamdedup: . holds other files" in capfdbinary.readouterr().err
    assert Path("in.jsonl").exists()


def test_the_demo_gathers_text_for_others_too() -> None:
    """The Kafka demo takes the same corpus."""
    assert callable(demo.write_docstrings)


def test_exact_verification_is_a_flag(
    command: Command, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """An index that began without it is refused in one line that says what to do."""
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
