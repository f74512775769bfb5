"""*Blocking.* Runs the command line in this process."""

from __future__ import annotations

import io
import sys

import pytest

from streamdedup.cli import main


class CommandLine:
    """Runs ``streamdedup`` without a terminal."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, code: int, *arguments: object) -> str:
        """Run a command that must end with this exit code.

        Returns:
            Its standard output; for a command that fails, its one line on standard error.
        """
        ended, output, errors = self.run(*arguments)
        assert ended == code, output + errors
        if not code:
            return output
        assert len(errors.splitlines()) == 1, errors
        assert errors.startswith("streamdedup: ")
        return errors

    def run(self, *arguments: object) -> tuple[int, str, str]:
        """Run a command; return its exit code, standard output and standard error."""
        self._capfd.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["streamdedup", *map(str, arguments)])
            patch.setattr(sys, "stdin", io.StringIO())
            with pytest.raises(SystemExit) as ended:
                main.main()
        output, errors = self._capfd.readouterr()
        return int(ended.value.code or 0), output, errors
