"""``streamdedup backfill`` without PySpark; tests/spark runs it with PySpark."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamdedup.extras import install
from tests.cli.examples import Command


def test_pyspark_is_not_installed(
    command: Command, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """One line says what to install, and nothing is written."""
    assert command("backfill", "in.jsonl", "--order", "id", "--out", "out") == 4
    output, errors = capfdbinary.readouterr()
    assert output == b""
    assert errors.decode() == (f"streamdedup: pyspark is not installed; run {install('spark')}\n")
    assert list(Path().iterdir()) == [Path("in.jsonl")]


def test_an_option_that_is_no_pair(
    command: Command, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Options of Spark are checked before Spark is needed."""
    for option in ("spark.driver.memory", "=8g"):
        assert command("backfill", "in.jsonl", "--out", "out", "--conf", option) == 3
        expected = f"streamdedup: --conf {option} is not NAME=VALUE\n"
        assert capfdbinary.readouterr().err.decode() == expected
