"""*Blocking.* The judge of every fault test: what a stream's outcomes must be, whatever happened.

1. Every source position has exactly one outcome, in one of the three output topics.
2. Every match is an earlier kept document, and no document matches itself.
3. The verdicts are those of an uninterrupted run over the documents in the order of judgement.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streamdedup.files.job import Job
from streamdedup.files.run import run
from streamdedup.formats import changelog
from streamdedup.model import SourceRange
from tests.support.stage import Stage

Place = tuple[int, int]
"""Partition and offset."""
Verdicts = dict[str, list[tuple[str, float]]]
"""The matches of each document by its id, with the estimates; no match for a kept one."""


def ranges_in_order(stage: Stage) -> list[SourceRange]:
    """Return the source ranges in the order of judgement."""
    fingerprint = stage.settings().fingerprint
    return [
        source_range
        for record in stage.read("changelog")
        for source_range in changelog.decode(record.value, fingerprint).ranges
    ]


def assert_undisturbed(stage: Stage, *, mode_changed: bool = False) -> Counter[str]:
    """Check all outcomes of a stage; return their number by role.

    Args:
        stage: whose source topic is written completely.
        mode_changed: whether a worker has followed edges. It judges again what a judge had judged
            when the edges ended; the first verdicts count.

    Raises:
        AssertionError: a record is lost, judged twice, or judged differently.
    """
    documents = {(record.partition, record.offset): record.value for record in stage.read("source")}
    outcomes = stage.outcomes()
    assert outcomes.keys() == documents.keys(), (
        f"without an outcome: {sorted(documents.keys() - outcomes.keys())[:5]}, without a source "
        f"record: {sorted(outcomes.keys() - documents.keys())[:5]}"
    )
    order = [
        (partition, offset)
        for _, partition, start, stop in ranges_in_order(stage)
        for offset in range(start, stop)
        if (partition, offset) in documents
    ]
    if mode_changed:
        order = list(dict.fromkeys(order))
    assert sorted(order) == sorted(documents)
    _check_matches(stage, outcomes, order)
    expected = _undisturbed(stage, [documents[place] for place in order])
    found = _verdicts(
        [record.value for record in stage.read("clean")],
        [record.value for record in stage.read("duplicates")],
    )
    different = [name for name in expected if found.get(name) != expected[name]]
    assert found == expected, f"{len(different)} other verdicts, such as that of {different[:3]}"
    return Counter(outcomes.values())


def _check_matches(stage: Stage, outcomes: Mapping[Place, str], order: list[Place]) -> None:
    turn = {place: number for number, place in enumerate(order)}
    for record in stage.read("duplicates"):
        content = json.loads(record.value)
        place = (content["position"]["partition"], content["position"]["offset"])
        assert content["matches"]
        for match in content["matches"]:
            original = (match["position"]["partition"], match["position"]["offset"])
            assert original != place
            assert match["id"] != content["id"]
            assert outcomes[original] == "clean"
            assert turn[original] < turn[place]


def _undisturbed(stage: Stage, documents: list[bytes | None]) -> Verdicts:
    """Judge the documents in this process, with the settings of the stage."""
    folder: Path = stage.folder / "undisturbed"
    folder.mkdir()
    source, kept, duplicates = (folder / name for name in ("in", "kept", "duplicates"))
    source.write_bytes(b"".join((document or b"") + b"\n" for document in documents))
    run(Job((str(source),), str(kept), str(duplicates)), stage.settings())
    return _verdicts(kept.read_bytes().splitlines(), duplicates.read_bytes().splitlines())


def _verdicts(kept: list[Any], duplicates: list[Any]) -> Verdicts:
    verdicts: Verdicts = {json.loads(value)["id"]: [] for value in kept}
    for value in duplicates:
        content = json.loads(value)
        assert content["id"] not in verdicts
        verdicts[content["id"]] = [
            (match["id"], match["jaccard_estimate"]) for match in content["matches"]
        ]
    return verdicts


def assert_all_judged_once(stage: Stage, total: int, partition: int = 0) -> None:
    """Check each outcome of a partition with the numbered ``documents(0, total)``."""
    judged = {
        offset: role for (number, offset), role in stage.outcomes().items() if number == partition
    }
    assert judged == {
        offset: "duplicates" if offset % 10 == 9 else "clean" for offset in range(total)
    }
