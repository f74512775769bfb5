"""Runs commands in one process, so that they share the start of Java.

``python -m tests.spark.run_commands`` reads a JSON list of argument lists. After each command it
prints its exit code on both streams, as ``exit code N``.
"""

from __future__ import annotations

import json
import sys

from streamdedup.cli import main

ENDED = "exit code "


def run_all() -> None:
    """Run."""
    for arguments in json.load(sys.stdin):
        sys.argv = ["streamdedup", *arguments]
        try:
            main.main()
        except SystemExit as ended:
            for stream in (sys.stdout, sys.stderr):
                stream.write(f"{ENDED}{ended.code or 0}\n")
                stream.flush()


if __name__ == "__main__":
    run_all()
