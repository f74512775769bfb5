"""*Blocking.* Tests the mutants of one target in copies of the project below build/mutants."""

from __future__ import annotations

import hashlib
import json
import os
import queue
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.broker.obtain import BOOTSTRAP_VARIABLE, running_broker
from tests.mutants.mutations import Mutant, mutants_of
from tests.mutants.targets import Target

PLACE = Path("build/mutants")
_COPIED = ("streamdedup", "tests", "deploy", "config", "docs", "pyproject.toml", "README.md")
_NO_TESTS = 5
"""Exit code of pytest."""
_SLOW_S = 5
"""Few of the tests that take more of a processor are run again for a mutant."""
_MOST_SLOW = 3


@dataclass
class Results:
    """The outcomes of a target's mutants.

    Attributes:
        file: keeps them between runs.
        killed: whether the tests noticed, by module and name of the mutant.
        mutants: how many mutants there are, tested or not.
        names: the names of all, by module.
    """

    file: Path
    killed: dict[str, dict[str, bool]] = field(default_factory=dict)
    mutants: int = 0
    names: dict[str, set[str]] = field(default_factory=dict)

    def keep(self, path: str, name: str, *, killed: bool) -> None:
        """Add an outcome."""
        self.killed.setdefault(path, {})[name] = killed
        self.file.write_text(json.dumps(self.killed, indent=1, ensure_ascii=False))


def test_mutants(target: Target, most: int | None, workers: int, *, again: bool) -> Results:
    """Test a sample of a target's mutants, or all of them.

    Args:
        target: the folder.
        most: size of the sample; None for all.
        workers: how many processes test mutants.
        again: whether to test only the survivors of the last run.
    """
    PLACE.mkdir(parents=True, exist_ok=True)
    results = Results(PLACE / f"{target.folder}.json")
    before = json.loads(results.file.read_text()) if again else {}
    results.killed = before
    found = {str(path): mutants_of(path.read_text()) for path in target.modules()}
    results.names = {path: {mutant.name for mutant in mutants} for path, mutants in found.items()}
    results.mutants = sum(map(len, found.values()))
    chosen = _chosen(found, most)
    if again:
        chosen = [(path, one) for path, one in chosen if not before.get(path, {}).get(one.name)]
        for path, named in before.items():
            before[path] = {
                name: killed
                for name, killed in named.items()
                if killed and name in results.names.get(path, ())
            }
    with ExitStack() as stack:
        environment = _environment(target)
        if target.needs_kafka:
            broker = stack.enter_context(running_broker())
            environment[BOOTSTRAP_VARIABLE] = broker.bootstrap
        baseline = _baseline(target, environment)
        jobs: queue.SimpleQueue[tuple[str, Mutant]] = queue.SimpleQueue()
        for job in chosen:
            jobs.put(job)
        with ThreadPoolExecutor(workers) as threads:
            running = [
                threads.submit(
                    _work, f"{target.folder}-{number}", jobs, baseline, environment, results
                )
                for number in range(workers)
            ]
        for each in running:
            each.result()
    return results


def _chosen(found: dict[str, list[Mutant]], most: int | None) -> list[tuple[str, Mutant]]:
    """Return the same sample in every run: of each module, its share of ``most``."""
    share = 1 if most is None else min(1, most / max(1, sum(map(len, found.values()))))
    ranked = [
        (rank / len(mutants), path, mutant)
        for path, mutants in found.items()
        for rank, mutant in enumerate(sorted(mutants, key=lambda each: _lot(path, each)))
        if rank < share * len(mutants)
    ]
    return [(path, mutant) for _, path, mutant in sorted(ranked, key=lambda each: each[0])]


def _lot(path: str, mutant: Mutant) -> bytes:
    return hashlib.sha256(f"{path} {mutant.name}".encode()).digest()


def _environment(target: Target) -> dict[str, str]:
    return {**os.environ, **target.environment, "PYTHONHASHSEED": "0"}


@contextmanager
def _copy(name: str) -> Iterator[Path]:
    copy = (PLACE / f"copy-{name}").absolute()
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    for part in _COPIED:
        if Path(part).is_dir():
            shutil.copytree(part, copy / part)
        else:
            shutil.copy2(part, copy / part)
    yield copy
    shutil.rmtree(copy, ignore_errors=True)


def _baseline(target: Target, environment: dict[str, str]) -> dict[str, Any]:
    with _copy(target.folder) as copy:
        command = [sys.executable, "-m", "tests.mutants.baseline", *target.options]
        ran = subprocess.run(
            command, cwd=copy, env={**environment, "PYTHONPATH": str(copy)}, check=False
        )
        if ran.returncode:
            sys.exit(f"the tests of {target.folder} fail without a mutant; fix them first")
        baseline: dict[str, Any] = json.loads((copy / "baseline.json").read_text())
    return baseline


def _work(
    name: str,
    jobs: queue.SimpleQueue[tuple[str, Mutant]],
    baseline: dict[str, Any],
    environment: dict[str, str],
    results: Results,
) -> None:
    with _copy(name) as copy:
        worker = subprocess.Popen(
            [sys.executable, "-m", "tests.mutants.worker", *_files(baseline)],
            cwd=copy,
            env={**environment, "PYTHONPATH": str(copy)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        sound: set[str] = set()
        while True:
            try:
                path, mutant = jobs.get_nowait()
            except queue.Empty:
                break
            tests = _tests(path, mutant, baseline)
            if not tests:
                results.keep(path, mutant.name, killed=False)
                continue
            code, took = _ask(worker, path, mutant.source, tests, baseline)
            if code != 0 and path not in sound:
                # The tests of the unchanged module must pass in the same way.
                if _ask(worker, path, Path(path).read_text(), tests, baseline)[0] != 0:
                    sys.exit(f"tests of {path} fail without a mutant; see {copy}/worker.log")
                sound.add(path)
            results.keep(path, mutant.name, killed=code not in (0, _NO_TESTS))
            outcome = "survived" if code in (0, _NO_TESTS) else "killed"
            print(f"{outcome} {took:5.1f} s {code} {path} {mutant.name}", flush=True)
        worker.communicate()


def _ask(
    worker: subprocess.Popen[str],
    path: str,
    source: str,
    tests: list[str],
    baseline: dict[str, Any],
) -> tuple[int | None, float]:
    """Return the exit code of the tests with a changed module, and how long they took."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    seconds = 10 + 5 * sum(baseline["seconds"].get(test, 0) for test in tests)
    compiled = _has_compiled_kernels(path, source)
    job = {"path": path, "source": source, "tests": tests, "seconds": seconds, "compiled": compiled}
    worker.stdin.write(json.dumps(job) + "\n")
    worker.stdin.flush()
    code, took = json.loads(worker.stdout.readline())
    return code, took


def _has_compiled_kernels(path: str, source: str) -> bool:
    """Return whether a module is compiled in the tests; those of verdicts and formats are not."""
    return path.startswith("streamdedup/index/") and "import kernel" in source


def _files(baseline: dict[str, Any]) -> list[str]:
    return sorted({test.partition("::")[0] for test in baseline["seconds"]})


def _tests(path: str, mutant: Mutant, baseline: dict[str, Any]) -> list[str]:
    """Return the tests that execute a mutant's lines, those of its module and fast ones first.

    A line that is executed on import needs all tests, and one of a compiled kernel those of its
    module.
    """
    executed: dict[str, list[str]] = baseline["lines"].get(path, {})
    lines = range(mutant.first_line, mutant.last_line + 1)
    seconds: dict[str, float] = baseline["seconds"]
    tests = executing = {test for line in lines for test in executed.get(str(line), [])}
    near = {test for found in executed.values() for test in found}
    own = f"/test_{Path(path).stem}.py::"
    if not tests and _has_compiled_kernels(path, mutant.source):
        tests = near | {test for test in seconds if own in test}
    tests = tests or set(seconds)

    def rank(test: str) -> tuple[bool, bool, float]:
        return own not in test, test not in near, seconds[test]

    known = sorted((test for test in tests if test in seconds), key=rank)
    slow = [test for test in known if seconds[test] >= _SLOW_S]
    return [test for test in known if test not in slow] + slow[: _MOST_SLOW if executing else 0]
