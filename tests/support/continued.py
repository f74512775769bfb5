"""*Blocking.* A stream that continues an archive whose kept sketches are imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from streamdedup.model import Document, Verdict
from tests.support.commands import CommandLine
from tests.support.stage import Stage
from tests.testkit import kept_sketches

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
    stage: Stage,
    archive: Path,
    documents: list[Document],
    whole: kept_sketches.Archive,
    command: CommandLine,
) -> dict[str, Any]:
    """Check that a worker judges the second half of documents as one run over all of them does.

    Args:
        stage: of the worker.
        archive: the kept sketches of the first half.
        documents: all of them.
        whole: what one run says of them.
        command: runs the import.

    Returns:
        What the import of the archive has reported.
    """
    into = (stage.index, "--for-changelog", "-c", stage.config, "--json")
    imported: dict[str, Any] = json.loads(command(0, "index", "import", archive, *into))
    stage.produce_json(
        {"id": one.id, "text": one.text, "at": one.event_time_ms} for one in documents[HALF:]
    )
    stage.run_until_committed({0: COUNT - HALF})
    expected = [of_verdict(verdict) for verdict in whole.verdicts[HALF:]]
    of_archive = {one.id for one in documents[:HALF]}
    assert sum(bool(of_archive & {id_ for id_, _ in found}) for _, found in expected) > 2
    assert "late-60" in {id_ for id_, found in expected if found}
    assert of_topics(stage) == expected
    return imported
