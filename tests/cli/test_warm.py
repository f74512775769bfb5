"""``streamdedup warm`` compiles everything, once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(cache: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command that must succeed, with its own cache of kernels."""
    done = subprocess.run(
        [sys.executable, "-m", "streamdedup", *map(str, arguments)],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.long
def test_nothing_is_compiled_after_it(tmp_path: Path) -> None:
    """Neither by a second run nor by a command; without it, the command says that it compiles."""
    text = "Der Rat tagte am Montag, um \u00fcber den Haushalt zu befinden"
    lines = tmp_path / "in.jsonl"
    lines.write_text(json.dumps({"id": "a", "text": text}, ensure_ascii=False))
    cold = run(tmp_path / "cold", "dedup", lines, "--kept", tmp_path / "kept")
    assert cold.stderr.count("compiling kernels, some") == 1
    cache = tmp_path / "warm"
    assert int(run(cache, "warm").stdout.split()[0]) > 100
    assert run(cache, "warm").stdout.startswith("0 kernels compiled")
    warm = run(cache, "dedup", lines, "--kept", tmp_path / "kept")
    assert "compiling" not in warm.stderr
