"""A stream continues an archive whose kept sketches were imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.broker.broker import Broker
from tests.support import continued
from tests.support.commands import CommandLine
from tests.support.continued import COUNT, HALF, WINDOW
from tests.testkit import kept_sketches

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize(
    "index",
    [
        pytest.param({}, id="no window", marks=pytest.mark.long),
        pytest.param(WINDOW, id="window"),
    ],
)
def test_verdicts_are_those_of_one_run(
    index: dict[str, Any],
    broker: Broker,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The worker judges the second half as one run over everything does."""
    stage = continued.prepared(broker.bootstrap, tmp_path, index)
    settings, documents = (
        stage.settings(),
        continued.with_late_copies(kept_sketches.documents(COUNT)),
    )
    first = kept_sketches.judge(settings, documents[:HALF])
    kept_sketches.write(tmp_path / "kept", first.table(settings), files=2, row_group_size=20)
    command = CommandLine(capfd)
    whole = kept_sketches.judge(settings, documents)
    imported = continued.check_continues(stage, tmp_path / "kept", documents, whole, command)
    assert imported["documents"] + imported["skipped"] == len(first.kept)
    assert bool(imported["skipped"]) == bool(index.get("window"))
    assert stage.topics["changelog"] in imported["log"]

    # The stream has filled the changelog; an archive of another length does not precede it.
    kept_sketches.write(tmp_path / "other", whole.table(settings))
    again = (tmp_path / "again", "--for-changelog", "-c", stage.config)
    complaint = command(11, "index", "import", tmp_path / "other", *again)
    assert f"the index ends with {len(whole.kept)}" in complaint
    assert not (tmp_path / "again").exists()
