"""The live figures of recall and precision beside the exact truth, over several seeds.

Run with ``python -m benchmarks.bench_quality --data FOLDER``. Without the folder only a generated
corpus is judged.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streamdedup.dedup.quality import interval
from tests.testkit.quality import CORPORA, GENERATED, Run, load, run, settings_of

RULES: tuple[tuple[float, dict[str, Any]], ...] = (
    (0.8, {"recall": 0.99}),
    (0.8, {"recall": 0.8}),
    (0.8, {"recall": 0.8, "verify": "exact"}),
    (0.7, {"recall": 0.8}),
    (0.8, {"bands": 9, "rows": 13}),
    (0.8, {"bands": 9, "rows": 13, "verify": "exact"}),
)
"""Thresholds and bands; the last ones find 40 % of the pairs at the threshold."""


def line(name: str, true: Sequence[float], live: Sequence[tuple[float, float]]) -> str:
    """Return how a figure and its standard error agree with the truth, over all seeds."""
    truth, figures = np.array(true), np.array(live)
    difference = figures[:, 0] - truth
    distance = np.abs(difference) / np.maximum(figures[:, 1], 1e-12)
    within = [int(np.count_nonzero(distance <= errors)) for errors in (1, 2)]
    return (
        f"  {name:10} true {truth.mean():.4f}  live {figures[:, 0].mean():.4f} "
        f"+- {figures[:, 1].mean():.4f}  bias {difference.mean():+.4f}  "
        f"within 1 error {within[0]}, 2 errors {within[1]}, of {len(truth)}"
    )


def shadow_line(runs: Sequence[Run]) -> str:
    """Return how the shadow sample agrees with the truth, over all seeds."""
    found = sum(each.shadow.get("found", 0) for each in runs)
    kept = [each.shadow.get("missed", 0) + each.shadow.get("refuted", 0) for each in runs]
    covered = 0
    for each, missed in zip(runs, kept, strict=True):
        hits = each.shadow.get("found", 0)
        low, high = interval(hits, hits + missed)
        covered += low <= each.truth.recall <= high
    return (
        f"  shadow     found {found} of {sum(each.truth.found for each in runs)}, kept repeats "
        f"{sum(kept)} of {sum(each.truth.missed for each in runs)}; its 95 % interval holds the "
        f"true recall {covered} times of {len(runs)}"
    )


def show(name: str, folder: Path, seeds: int) -> None:
    """Judge a corpus under all rules."""
    corpus = load(name, folder)
    for threshold, dedup in RULES:
        described = ", ".join(f"{key} {value}" for key, value in dedup.items())
        runs = [run(corpus, settings_of(threshold, seed, **dedup)) for seed in range(1, seeds + 1)]
        repeats = np.mean([each.truth.repeats for each in runs])
        print(f"{name}: threshold {threshold}, {described}; {repeats:.0f} repeats")
        recalls = [each.figures.recall for each in runs]
        print(line("recall", [each.truth.recall for each in runs], recalls))
        precisions = [each.figures.precision for each in runs]
        print(line("precision", [each.truth.precision for each in runs], precisions))
        print(shadow_line(runs), flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("shared/data"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--corpus", choices=[GENERATED, *CORPORA], action="append")
    arguments = parser.parse_args()
    present = CORPORA if arguments.data.is_dir() else ()
    for name in arguments.corpus or [GENERATED, *present]:
        show(name, arguments.data, arguments.seeds)


if __name__ == "__main__":
    main()
