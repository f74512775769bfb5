"""*Blocking.* The program: ``streamdedup`` and ``python -m streamdedup``.

Imports take a second. A container that is stopped meanwhile has done nothing yet, and ends with 0.
Another command that is interrupted meanwhile ends by the signal, without a traceback.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command line; a signal before the worker has begun ends it with exit code 0."""
    _open_missing_streams()
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:2] == ["run"]:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end)
    from streamdedup.cli.main import main as run_command

    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, interrupt)
    run_command()


def _open_missing_streams() -> None:
    """Open standard streams that the caller has closed, so that using them is an error.

    Else the next file that is opened, such as one of the index, would become standard output.
    """
    for number, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, mode), True)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - open to the end
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - open to the end


def _end(_number: int, _frame: FrameType | None) -> None:
    # Not SystemExit: an import may catch it, and nothing is open that needs cleaning up.
    os._exit(0)


if __name__ == "__main__":
    main()
