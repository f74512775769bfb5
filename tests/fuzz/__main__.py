"""*Blocking* (processes). Runs the targets, each in a process, and prints the counts.

A crash or a hang of the process is a finding, like every exception that is not expected. Each round
has another seed: that of the last round plus one. A finding prints the seed and the number of its
block: ``--seed S --target NAME --block N`` repeats it.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.fuzz.cases import Finding
from tests.fuzz.registry import TARGETS, Target

_HANG_S = 600
"""A block of this length is a finding. The first one may have to compile kernels."""
_RECORDED_BLOCKS = 64
"""After so many blocks the counts are written, for the case that the process dies."""


class Result(NamedTuple):
    """What became of a target."""

    cases: int
    blocks: int
    seconds: float
    problem: str = ""


def main() -> int:
    """Run rounds of the targets; return 1 if there was a finding."""
    options = _options()
    if options.child:
        return _run_child(options)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    chosen = [target for target in TARGETS if options.target in ("", target.name)]
    if not chosen:
        names = ", ".join(target.name for target in TARGETS)
        print(f"unknown target {options.target!r}; expected one of: {names}", file=sys.stderr)
        return 2
    total: dict[str, Result] = {}
    while not any(result.problem for result in total.values()):
        print(f"seed {seed}", flush=True)
        for target in chosen:
            result, coverage = _run(target, seed, options, sum(each.share for each in chosen))
            total[target.name] = _sum(total.get(target.name), result)
            _print(target.name, result, coverage)
            if result.problem:
                print(f"\nFINDING in {target.name}:\n{result.problem}\nrepeat it with", end=" ")
                print(f"--seed {seed} --target {target.name} --block {result.blocks}\n", flush=True)
        seed += 1
        if sum(result.cases for result in total.values()) >= options.cases:
            break
    print("in all")
    whole = Result(0, 0, 0.0)
    for name, result in total.items():
        _print(name, result)
        whole = _sum(whole, result)
    _print("total", whole)
    return int(bool(whole.problem))


def _sum(one: Result | None, other: Result) -> Result:
    if one is None:
        return other
    return Result(
        one.cases + other.cases,
        one.blocks + other.blocks,
        one.seconds + other.seconds,
        one.problem or other.problem,
    )


def _print(name: str, result: Result, coverage: str = "") -> None:
    rate = result.cases / result.seconds if result.seconds else 0
    print(
        f"  {name:<12} {result.cases:>12,} cases {result.seconds:>8.1f} s {rate:>8,.0f} cases/s"
        f"  {coverage}".rstrip(),
        flush=True,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=90, help="time of a round of all targets")
    parser.add_argument("--cases", type=int, default=0, help="rounds until so many cases have run")
    parser.add_argument("--seed", type=int, help="of the first round; default: a random one")
    parser.add_argument("--target", default="", help="only this one")
    parser.add_argument("--block", type=int, default=-1, help="only this block of the target")
    parser.add_argument("--coverage", action="store_true", help="measure covered lines; slow")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def _run(target: Target, seed: int, options: argparse.Namespace, shares: int) -> tuple[Result, str]:
    """Run a target in a process; return its result, and its coverage if that is measured."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "tests.fuzz", "--child", str(report), "--seed", str(seed)]
        command += ["--target", target.name, "--block", str(options.block)]
        command += ["--seconds", str(options.seconds * target.share / shares)]
        environment = dict(os.environ)
        if options.coverage:
            command.append("--coverage")
            # Lines of kernels count only if they are not compiled. Those of the index must be.
            compiled = target.place.startswith("fuzz_index")
            environment |= {"NUMBA_DISABLE_JIT": str(int(not compiled)), "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        found = json.loads(report.read_text()) if report.exists() else {}
    result = Result(*(found.get("result") or (0, 0, 0.0)))
    if done.returncode and not result.problem:
        end = "\n".join(done.stderr.splitlines()[-30:])
        result = result._replace(problem=f"the process ended with {done.returncode}\n{end}")
    return result, found.get("coverage", "")


def _run_child(options: argparse.Namespace) -> int:
    [target] = [each for each in TARGETS if each.name == options.target]
    measured = _Coverage(target) if options.coverage else None
    report = Path(options.child)
    result = _repeat(target, options, report)
    found: dict[str, Any] = {"result": result}
    if measured:
        found["coverage"] = measured.lines()
    report.write_text(json.dumps(found))
    return int(bool(result.problem))


class _Coverage:
    """Measures the lines of a target's modules; started before they are imported."""

    def __init__(self, target: Target) -> None:
        import coverage  # noqa: PLC0415 - only where it is asked for

        names = [f"streamdedup/{name.replace('.', '/')}.py" for name in target.covers]
        self._coverage = coverage.Coverage(
            data_file=None, config_file="pyproject.toml", include=[f"*/{name}" for name in names]
        )
        self._coverage.set_option("run:source", None)
        self._coverage.set_option("run:branch", False)
        self._names = names
        self._coverage.start()

    def lines(self) -> str:
        """Return the covered share of the lines of each module."""
        self._coverage.stop()
        shares = []
        for name in self._names:
            _, lines, _, missing, _ = self._coverage.analysis2(name)
            share = 100 * (1 - len(missing) / max(1, len(lines)))
            shares.append(f"{name.removeprefix('streamdedup/')} {share:.0f} %")
        return ", ".join(shares)


def _repeat(target: Target, options: argparse.Namespace, report: Path) -> Result:
    """Run blocks until the time or the number of cases is reached."""
    module, _, name = target.place.partition(".")
    fuzzed = getattr(importlib.import_module(f"tests.fuzz.{module}"), name)
    cases = 0
    number = max(options.block, 0)
    with fuzzed() as block:
        started = time.monotonic()
        end = started + options.seconds
        while True:
            faulthandler.dump_traceback_later(_HANG_S, exit=True)
            if number % _RECORDED_BLOCKS == 0:
                so_far = Result(cases, number, time.monotonic() - started)
                report.write_text(json.dumps({"result": so_far}))
            try:
                cases += block(Random(f"{options.seed}:{target.name}:{number}"))
            except Finding as finding:
                return Result(cases, number, time.monotonic() - started, str(finding))
            number += 1
            if time.monotonic() >= end or options.block >= 0:
                faulthandler.cancel_dump_traceback_later()
                return Result(cases, number, time.monotonic() - started)


if __name__ == "__main__":
    sys.exit(main())
