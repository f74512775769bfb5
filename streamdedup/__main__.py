"""*Blocking.* The program: ``streamdedup`` and ``python -m streamdedup``.

Imports take a second. A container that is stopped meanwhile has done nothing yet, and ends with 0.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command line; a signal before the worker has begun ends it with exit code 0."""
    if sys.argv[1:2] == ["run"]:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end)
    from streamdedup.cli.main import main as run_command

    run_command()


def _end(_number: int, _frame: FrameType | None) -> None:
    # Not SystemExit: an import may catch it, and nothing is open that needs cleaning up.
    os._exit(0)


if __name__ == "__main__":
    main()
