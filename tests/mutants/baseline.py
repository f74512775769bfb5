"""*Blocking.* Which tests execute which lines, and how long they take."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest


class _Seconds:
    """A plugin of pytest that measures the processor time of each test, with its fixtures."""

    def __init__(self) -> None:
        self.of_tests: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = os.times()
        try:
            return (yield)
        finally:
            self.of_tests[item.nodeid] = sum(os.times()[:4]) - sum(before[:4])


def main() -> int:
    """Run the tests of the arguments, and write ``baseline.json``."""
    seconds = _Seconds()
    options = ["-q", "-p", "no:xdist", "--cov=streamdedup", "--cov-context=test", "--cov-report="]
    code = pytest.main([*options, *sys.argv[1:]], plugins=[seconds])
    data = coverage.CoverageData()
    data.read()
    lines: dict[str, dict[int, list[str]]] = {}
    for file in data.measured_files():
        contexts = data.contexts_by_lineno(file)
        path = str(Path(file).relative_to(Path.cwd()))
        lines[path] = {
            line: sorted({each.rpartition("|")[0] for each in found if each})
            for line, found in contexts.items()
        }
    Path("baseline.json").write_text(json.dumps({"seconds": seconds.of_tests, "lines": lines}))
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
