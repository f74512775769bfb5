"""Every user of the rule has a test that fails when the rule changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

_CHANGES = {
    "window_ms < 0 or bool(difference < np.uint64(window_ms))": "False",
    "max(0, next_number - window_documents)": "next_number",
}
_OF_USERS = {
    "worker and judge": "tests/dedup/test_judge.py::test_the_best_matches",
    "engine": "tests/engine/test_deduplicator.py::test_a_near_copy_is_a_duplicate_of_the_first",
    "explain": "tests/cli/test_index.py::test_explain_tells_the_verdict_and_its_reasons",
    "shadow sample": "tests/observe/test_shadow.py::test_the_window_by_time",
    "spark": "tests/spark/test_judging.py::test_a_chain_is_not_swallowed",
    "upkeep": "tests/index/test_upkeep.py::test_expiry_by_count",
}


@pytest.mark.long
@pytest.mark.compiled
def test_a_changed_rule_is_noticed(tmp_path: Path) -> None:
    """In a copy of the project whose window holds nothing, a test of each user fails."""
    for folder in ("streamdedup", "tests", "deploy"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    rule = tmp_path / "streamdedup" / "dedup" / "rule.py"
    text = rule.read_text(encoding="utf-8")
    for right, wrong in _CHANGES.items():
        assert text.count(right) == 1
        text = text.replace(right, wrong)
    rule.write_text(text, encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=no", *_OF_USERS.values()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    missing = [user for user, test in _OF_USERS.items() if f"FAILED {test}" not in result.stdout]
    assert missing == [], result.stdout
