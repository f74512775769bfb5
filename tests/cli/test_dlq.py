"""The parts of ``dlq`` and ``reinstate`` that need no broker; tests/integration has the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamdedup.cli import main
from streamdedup.cli.corrections import _age


@pytest.mark.parametrize(
    "arguments",
    [["dlq", "replay", "--position", "documents:0"], ["reinstate", "documents:0"]],
    ids=lambda value: value[0],
)
def test_an_invalid_position_is_an_invalid_call(tmp_path: Path, arguments: list[str]) -> None:
    """The message shows the form; no broker is asked."""
    config = tmp_path / "streamdedup.yaml"
    config.write_text("kafka: {bootstrap_servers: '127.0.0.1:9'}\n")
    call = [*arguments, "--config", str(config)]
    result = CliRunner().invoke(main.app, call, env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "expected TOPIC:PARTITION:OFFSET" in result.stderr


@pytest.mark.parametrize(
    ("age_s", "expected"),
    [(0, "0s"), (59, "59s"), (60, "1m"), (7200, "2h"), (200_000, "2d"), (-7200, "-2h")],
)
def test_ages_have_one_unit(age_s: int, expected: str) -> None:
    """Timestamps may also be in the future."""
    assert _age(1e9, (10**9 - age_s) * 1000) == expected


def test_a_missing_timestamp_has_no_age() -> None:
    """Kafka's value for it is -1."""
    assert _age(1e9, -1) == "unknown"
