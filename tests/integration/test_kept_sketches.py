"""A stream continues an archive whose kept sketches were imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.broker.broker import Broker
from streamdedup.model import Document, Verdict
from tests.support import kept_sketches
from tests.support.commands import CommandLine
from tests.support.stage import Stage

pytestmark = pytest.mark.kafka

COUNT = 400
HALF = COUNT // 2
WINDOW = {"window": "90m", "allowed_lateness": "30m", "clock": "event"}

Said = tuple[str, list[tuple[str, float]]]
"""The id of a document, and the ids and estimated similarities of its matches."""


def of_verdict(verdict: Verdict) -> Said:
    """Return what a verdict says, apart from positions."""
    return verdict.id, [(m.id, round(m.jaccard_estimate, 6)) for m in verdict.matches]


def of_topics(stage: Stage) -> list[Said]:
    """Return what a worker has said about each document, in the order of the source."""
    contents = [json.loads(record.value) for _, record in sorted(stage.records().items())]
    return [
        (
            content["id"],
            [(m["id"], round(m["jaccard_estimate"], 6)) for m in content.get("matches", ())],
        )
        for content in contents
    ]


def with_late_copies(documents: list[Document]) -> list[Document]:
    """Return documents of which two late ones have the same text; both come after the archive.

    In a window of 90 minutes the second one is a duplicate only if the first one is held for as
    long as the clock of the archive says: its own time would have left the index already.
    """
    for minutes in (3, 60):
        place = HALF + minutes
        time_ms = kept_sketches.START_MS + (place - 90) * kept_sketches.MINUTE
        documents[place] = Document("The same late text. " * 5, f"late-{minutes}", time_ms)
    return documents


def prepared(bootstrap: str, folder: Path, index: dict[str, Any]) -> Stage:
    """Return the stage of a worker that continues an archive."""
    stage = Stage(bootstrap, folder)
    stage.configure(
        index={"delta_documents": 32, **index},
        records={"event_time_field": "at"},
        batch={"documents": 30},
    )
    stage.create_topics()
    return stage


def check_continues(
    stage: Stage, archive: Path, documents: list[Document], command: CommandLine
) -> dict[str, Any]:
    """Check that a worker judges the second half of documents as one run over all of them does.

    Returns:
        What the import of the archive has reported.
    """
    into = (stage.index, "--for-changelog", "-c", stage.config, "--json")
    imported: dict[str, Any] = json.loads(command(0, "index", "import", archive, *into))
    stage.produce_json(
        {"id": one.id, "text": one.text, "at": one.event_time_ms} for one in documents[HALF:]
    )
    stage.run_until_committed({0: COUNT - HALF})
    whole = kept_sketches.judge(stage.settings(), documents)
    expected = [of_verdict(verdict) for verdict in whole.verdicts[HALF:]]
    of_archive = {one.id for one in documents[:HALF]}
    assert sum(bool(of_archive & {id_ for id_, _ in found}) for _, found in expected) > 2
    assert "late-60" in {id_ for id_, found in expected if found}
    assert of_topics(stage) == expected
    return imported


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
    stage = prepared(broker.bootstrap, tmp_path, index)
    settings, documents = stage.settings(), with_late_copies(kept_sketches.documents(COUNT))
    first = kept_sketches.judge(settings, documents[:HALF])
    kept_sketches.write(tmp_path / "kept", first.table(settings), files=2, row_group_size=20)
    command = CommandLine(capfd)
    imported = check_continues(stage, tmp_path / "kept", documents, command)
    assert imported["documents"] + imported["skipped"] == len(first.kept)
    assert bool(imported["skipped"]) == bool(index.get("window"))
    assert stage.topics["changelog"] in imported["log"]

    # The stream has filled the changelog; an archive of another length does not precede it.
    whole = kept_sketches.judge(settings, documents)
    kept_sketches.write(tmp_path / "other", whole.table(settings))
    again = (tmp_path / "again", "--for-changelog", "-c", stage.config)
    complaint = command(11, "index", "import", tmp_path / "other", *again)
    assert f"the index ends with {len(whole.kept)}" in complaint
    assert not (tmp_path / "again").exists()
