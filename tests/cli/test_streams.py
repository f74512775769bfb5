"""The program with standard streams that are closed or full, and with other limits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-m", "streamdedup"]
LINE = '{"text": "Storm warning for the northern coast"}\n'


def run(folder: Path, command: str) -> tuple[int, str]:
    """Run a command of the shell, in which ``$P`` is the program; return its code and errors."""
    (folder / "in.jsonl").write_text(LINE)
    done = subprocess.run(
        ["/bin/bash", "-c", command],
        cwd=folder,
        env={**os.environ, "P": " ".join(PROGRAM)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("$P tune >/dev/full", "write standard output: No space left on device"),
        ("$P --version >&-", "write standard output: Bad file descriptor"),
        ("$P dedup in.jsonl --kept - --index ix >&-", "write standard output: Bad file descriptor"),
        ("$P dedup - <&-", "read standard input: Bad file descriptor"),
    ],
)
def test_a_stream_that_cannot_be_used_is_an_error_of_one_line(
    tmp_path: Path, command: str, problem: str
) -> None:
    """A closed one is not replaced by the next file that is opened."""
    assert run(tmp_path, command) == (4, f"streamdedup: cannot {problem}\n")
    assert run(tmp_path, "[ ! -e ix ] || $P index check ix") == (0, "")


def test_closed_standard_error_leaves_the_exit_code(tmp_path: Path) -> None:
    """The line of the error has no reader."""
    assert run(tmp_path, "$P config show --config no.yaml 2>&-") == (3, "")


def test_too_few_open_files_are_an_error_of_one_line(tmp_path: Path) -> None:
    """The message names the command that raises the limit."""
    command = "export STREAMDEDUP_BATCH__DOCUMENTS=1; cat in.jsonl in.jsonl in.jsonl > more.jsonl; "
    code, errors = run(tmp_path, f"{command} ulimit -n 12; $P dedup more.jsonl")
    line = "streamdedup: too many open files; raise the limit, for example with ulimit -n 1024\n"
    assert (code, errors.endswith(line), "Traceback" in errors) == (16, True, False)


def test_an_interrupt_during_the_imports_leaves_no_traceback(tmp_path: Path) -> None:
    """The process ends by the signal."""
    (tmp_path / "typer.py").write_text(
        "import time\nprint('importing', flush=True)\ntime.sleep(60)"
    )
    process = subprocess.Popen(
        [*PROGRAM, "tune"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"importing\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (-signal.SIGINT, b"")
