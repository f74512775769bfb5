"""*Blocking.* Entry point of ``make mutants``."""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path

from tests.mutants.run import Results, test_mutants
from tests.mutants.targets import TARGETS

REASONS = Path("tests/mutants/survivors.toml")
LEAST_KILLED = 0.9


def main() -> int:
    """Print the table; 1 if a survivor has no reason, or if too few are killed."""
    options = _options()
    problems: list[str] = []
    rows = ["| folder | mutants | tested | killed | share | survivors with a reason |", "|---|" * 6]
    rows[1] = "|---|---|---|---|---|---|"
    reasons = tomllib.loads(REASONS.read_text())
    for target in TARGETS:
        if options.folders and target.folder not in options.folders:
            continue
        most = None if options.all else options.sample
        results = test_mutants(target, most, options.workers, again=options.again)
        outcomes = [killed for named in results.killed.values() for killed in named.values()]
        share = sum(outcomes) / max(1, len(outcomes))
        found = _problems(results, reasons)
        explained = len(outcomes) - sum(outcomes) - sum("survived" in each for each in found)
        rows.append(
            f"| `{target.folder}` | {results.mutants} | {len(outcomes)} | {sum(outcomes)} "
            f"| {100 * share:.1f} % | {explained} |"
        )
        problems += found
        if share < LEAST_KILLED:
            problems.append(f"{target.folder}: fewer than {100 * LEAST_KILLED:.0f} % are killed")
    print("\n".join([*problems, "", *rows]))
    return int(bool(problems))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("folders", nargs="*", choices=[[], *(each.folder for each in TARGETS)])
    parser.add_argument("--sample", type=int, default=120, help="mutants of a folder")
    parser.add_argument("--all", action="store_true", help="all mutants")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--again", action="store_true", help="only the last run's survivors")
    return parser.parse_args()


def _problems(results: Results, reasons: dict[str, dict[str, str]]) -> list[str]:
    problems = []
    for path, named in results.killed.items():
        known = reasons.get(path, {})
        problems += [
            f"survived: {path}: {name}"
            for name, killed in named.items()
            if not killed and name not in known
        ]
    for path, names in results.names.items():
        gone = set(reasons.get(path, {})) - names
        problems += [
            f"{REASONS} names a mutant that does not exist: {path}: {name}" for name in sorted(gone)
        ]
    return problems


if __name__ == "__main__":
    sys.exit(main())
