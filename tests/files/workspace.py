"""*Blocking.* What the tests of the embedded mode share: a folder for a job, and documents."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from streamdedup.files.job import Job
from streamdedup.files.run import RunTally
from streamdedup.settings.dedup import DedupSettings
from streamdedup.settings.sections import BatchSettings, Settings


class Workspace:
    """A folder with an input, an index and outputs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.input = folder / "in.jsonl"

    def job(self, *inputs: Path | str, name: str = "first", index: str | None = "index") -> Job:
        """Return a job with all three outputs."""
        return Job(
            tuple(str(path) for path in inputs or (self.input,)),
            kept=str(self.folder / f"{name}.kept"),
            duplicates=str(self.folder / f"{name}.duplicates"),
            rejected=str(self.folder / f"{name}.rejected"),
            index=self.folder / index if index else None,
        )

    def outputs(self, name: str = "first") -> dict[str, bytes]:
        """Return the content of a job's outputs."""
        return {
            kind: (self.folder / f"{name}.{kind}").read_bytes()
            for kind in ("kept", "duplicates", "rejected")
        }

    def duplicates(self, name: str = "first") -> list[tuple[str, str]]:
        """Return the ids (duplicate, original) of a job's duplicates."""
        lines = self.outputs(name)["duplicates"].splitlines()
        return [(record["id"], record["original"]) for record in map(json.loads, lines)]


def line(number: int, text: str) -> bytes:
    """Return a document as a line."""
    return json.dumps({"id": f"d{number}", "text": text}).encode() + b"\n"


def texts(count: int) -> list[str]:
    """Return texts; every third is nearly the text before it."""
    words = random.Random(7)
    made: list[str] = []
    for number in range(count):
        if number % 3 == 2:
            made.append(made[-1] + "!")
        else:
            made.append(" ".join(str(words.randrange(10**6)) for _ in range(20)))
    return made


def documents(first: int, last: int) -> bytes:
    """Return the documents from number ``first`` to ``last``, exclusive, as lines."""
    return b"".join(
        line(number, text) for number, text in enumerate(texts(last)) if number >= first
    )


def in_batches_of(count: int, **sections: Any) -> Settings:
    """Return settings with small batches."""
    return Settings(batch=BatchSettings(documents=count), **sections)


def exactly(threshold: float) -> Settings:
    """Return settings with exact verification."""
    return Settings(dedup=DedupSettings(threshold=threshold, verify="exact"))


def counts(tally: RunTally) -> tuple[int, int, int]:
    """Return the numbers of kept, duplicate and rejected documents."""
    return tally.kept, tally.duplicates, tally.rejected


class Crash(Exception):  # noqa: N818 - an event, not an error
    """Ends a run in the middle, as a power failure would."""


def crash_after(count: int) -> Any:
    """Return a hook that crashes once this many documents are committed."""

    def hook(tally: RunTally) -> None:
        if tally.documents >= count:
            raise Crash

    return hook


def run_until_killed(arguments: list[str], output: Path, length: int, pattern: str = "") -> bool:
    """Run the command; kill it once an output has this length. Return whether it completed.

    Args:
        arguments: of the command.
        output: a file, or with ``pattern`` its folder.
        length: in bytes.
        pattern: matches the name of the file.
    """
    command = [sys.executable, "-m", "streamdedup", "dedup", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    with process:
        while process.poll() is None:
            found = list(output.glob(pattern)) if pattern else [output]
            if any(_size(path) >= length for path in found):
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.001)
        _, errors = process.communicate()
    assert process.returncode in {0, -signal.SIGKILL}, errors.decode()
    return process.returncode == 0


def _size(path: Path) -> int:
    """Return the size of a file; -1 if there is none, or not any more."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1
