"""*Blocking.* Tests mutants, one after the other, in a copy of the project that it may change.

Third-party packages are imported once. Each mutant has a process of its own, which is forked, and
which imports the changed project. Jobs come as lines of JSON, and so do answers.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import Phase

from tests.mutants.swap import swap

_PATIENCE = 6
"""How many times longer than its processor time a mutant may take: it may wait for something."""
MOST_BYTES = 6 * 2**30
"""Memory that a mutant may allocate."""


WARNINGS = ("-W", "ignore:overflow encountered:RuntimeWarning")
"""Options of pytest: plain kernels overflow."""
_OPTIONS = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"]
_OPTIONS += ["-W", "ignore::pytest.PytestAssertRewriteWarning", *WARNINGS]
_OURS = ("streamdedup", "tests", "deploy", "conftest")
BROKEN = 99
"""Exit code of a process in which pytest itself failed."""


class _Chosen:
    """A plugin of pytest that runs the chosen tests in their order."""

    def __init__(self, tests: list[str]) -> None:
        self._order = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._order),
            key=lambda item: self._order[item.nodeid],
        )


def main() -> None:
    """Answer each line of standard input: the exit code of pytest, or None if time was up."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open("worker.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 1)
    os.dup2(1, 2)
    _import_all(sys.argv[1:])
    for line in sys.stdin:
        job = json.loads(line)
        started = time.monotonic()
        code = _test(job)
        print(json.dumps([code, time.monotonic() - started]), file=answers, flush=True)


def _import_all(files: list[str]) -> None:
    """Import the project and the tests, so that no mutant has to."""
    hypothesis.settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate])
    hypothesis.settings.load_profile("mutants")  # a failure is enough
    if pytest.main([*_OPTIONS, "--collect-only", *files]) != pytest.ExitCode.OK:
        raise SystemExit("the tests cannot be imported")


def _test(job: dict[str, Any]) -> int | None:
    path = Path(job["path"])
    unchanged, times = path.read_bytes(), path.stat()
    for compiled in path.parent.joinpath("__pycache__").glob(f"{path.stem}.cpython-*.pyc"):
        compiled.unlink()
    path.write_text(job["source"])
    child = os.fork()
    if not child:
        os._exit(_run(path, unchanged.decode(), job))
    try:
        return _outcome(child, _PATIENCE * job["seconds"])
    finally:
        path.write_bytes(unchanged)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _run(path: Path, unchanged: str, job: dict[str, Any]) -> int:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    seconds = math.ceil(job["seconds"])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    sys.dont_write_bytecode = True
    files = dict.fromkeys(test.partition("::")[0] for test in job["tests"])
    try:
        if job["compiled"] or not swap(str(path.absolute()), unchanged, job["source"]):
            for name in [name for name in sys.modules if name.split(".")[0] in _OURS]:
                del sys.modules[name]
        code = pytest.main([*_OPTIONS, *files], plugins=[_Chosen(job["tests"])])
    except BaseException:  # noqa: BLE001 - a mutant may raise anything
        traceback.print_exc()
        return BROKEN
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return int(code)


def _outcome(child: int, seconds: float) -> int | None:
    """Return the exit code of a process, or None if it had to be killed."""
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


if __name__ == "__main__":
    main()
