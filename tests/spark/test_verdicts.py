"""Components that Spark hands over in batches: each is judged whole."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from streamdedup import Settings
from streamdedup.dedup.resolve import Rule
from streamdedup.model import NO_TIMESTAMP
from streamdedup.spark import verdicts
from streamdedup.spark.batches import Batches
from streamdedup.spark.verdicts import EDGE, MEMBER, Window, judge_components
from tests.spark.brute_force import Component, Document, by_definition, made_up

Row = dict[str, Any]
WINDOW = Window(100_000, 130_000)
RULE = Rule.from_settings(
    Settings.model_validate(
        {
            "index": {"window": "100s", "allowed_lateness": "30s"},
            "records": {"event_time_field": "time"},
            "output": {"max_matches": 3},
        }
    )
)
PARTS = pa.schema(
    [
        ("component", pa.int64()),
        ("kind", pa.int8()),
        ("a", pa.int64()),
        ("b", pa.int64()),
        ("estimate", pa.float64()),
        ("jaccard", pa.float64()),
        ("id", pa.string()),
        ("event_time_ms", pa.int64()),
        ("effective_time_ms", pa.int64()),
        ("now_ms", pa.int64()),
    ]
)


def test_the_rule_has_the_window() -> None:
    """What the brute force takes as the window is that of the rule."""
    assert (RULE.window_ms, RULE.reach_ms) == WINDOW


def similarity(value: float) -> float | None:
    """Return a similarity of texts as a table has it."""
    return None if value < 0 else value


class Placed:
    """A component whose documents have places in an archive, as rows and as verdicts.

    Args:
        component: the documents.
        places: of the documents, ascending.
    """

    def __init__(self, component: Component, places: Sequence[int]) -> None:
        component.window = WINDOW
        self._component = component
        self._places = places
        self._firsts: dict[int, int] = {}
        for place, document in zip(places, component.documents, strict=True):
            self._firsts.setdefault(document.group, place)

    def rows(self) -> Iterator[Row]:
        """Yield the rows of the component, in any order."""
        number = min(self._firsts.values())
        for place, document in zip(self._places, self._component.documents, strict=True):
            yield {
                "component": number,
                "kind": MEMBER,
                "a": place,
                "b": self._firsts[document.group],
                "estimate": 1.0,
                "jaccard": similarity(document.of_copies),
                "id": f"id-{place}",
                "event_time_ms": document.compared_ms,
                "effective_time_ms": document.effective_ms,
                "now_ms": document.now_ms,
            }
        for (one, two), (estimate, jaccard) in self._component.edges.items():
            if one in self._firsts and two in self._firsts:
                yield {
                    "component": number,
                    "kind": EDGE,
                    "a": min(self._firsts[one], self._firsts[two]),
                    "b": max(self._firsts[one], self._firsts[two]),
                    "estimate": estimate,
                    "jaccard": similarity(jaccard),
                }

    def verdicts(self) -> Iterator[Row]:
        """Yield the verdicts on the documents."""
        documents = self._component.documents
        found = by_definition(self._component, RULE.max_matches)
        for place, document, matches in zip(self._places, documents, found, strict=True):
            yield {
                "_place": place,
                "grp": self._firsts[document.group],
                "matches": [self._match(document, *match) for match in matches] or None,
            }

    def _match(self, document: Document, other: int, estimate: float, jaccard: float) -> Row:
        times_ms = document.compared_ms, self._component.documents[other].compared_ms
        age_s = None if NO_TIMESTAMP in times_ms else (times_ms[0] - times_ms[1]) / 1000
        return {
            "id": f"id-{self._places[other]}",
            "place": self._places[other],
            "jaccard_estimate": estimate,
            "jaccard": similarity(jaccard),
            "age_s": age_s,
        }


def archive(seed: int, components: int, largest: int) -> list[Placed]:
    """Return components whose documents lie between each other in the archive."""
    chance = random.Random(seed)
    parts = [made_up(chance.getrandbits(32), chance.randint(1, largest)) for _ in range(components)]
    for part in parts:
        for document in part.documents:
            # Times in seconds; those of made_up are milliseconds.
            document.compared_ms *= 1000
            document.effective_ms *= 1000
            if document.now_ms != NO_TIMESTAMP:
                document.now_ms *= 1000
    owners = [number for number, part in enumerate(parts) for _ in part.documents]
    chance.shuffle(owners)
    places: list[list[int]] = [[] for _ in parts]
    for place, owner in enumerate(owners):
        places[owner].append(7 * place)
    return [Placed(part, mine) for part, mine in zip(parts, places, strict=True)]


def batches(rows: list[Row], size: int, chance: random.Random) -> Batches:
    """Return rows in order as record batches of any sizes."""
    rows.sort(key=lambda row: tuple(row[name] for name in ("component", "kind", "a", "b")))
    begin = 0
    while begin < len(rows):
        end = begin + chance.randint(1, size)
        yield pa.RecordBatch.from_pylist(rows[begin:end], PARTS)
        begin = end


def judged(parts: list[Placed], size: int, chance: random.Random) -> tuple[list[Row], list[int]]:
    """Return the verdicts in order of places, and the sizes of the batches that they came in."""
    rows = [row for part in parts for row in part.rows()]
    found = list(judge_components(RULE)(batches(rows, size, chance)))
    lines = [row for batch in found for row in batch.to_pylist()]
    return sorted(lines, key=lambda row: int(row["_place"])), [len(batch) for batch in found]


@pytest.mark.parametrize("seed", range(40))
def test_components_that_are_cut(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches may end anywhere; a component may be larger than what is judged at once."""
    chance = random.Random(seed)
    monkeypatch.setattr(verdicts, "_ROWS_AT_ONCE", chance.choice((1, 2, 10, 100)))
    parts = archive(seed, chance.choice((1, 3, 30)), chance.choice((1, 4, 25)))
    found, _ = judged(parts, chance.choice((1, 5, 60)), chance)
    expected = [row for part in parts for row in part.verdicts()]
    assert found == sorted(expected, key=lambda row: int(row["_place"]))


def test_components_are_judged_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive of many components is never in memory whole."""
    monkeypatch.setattr(verdicts, "_ROWS_AT_ONCE", 50)
    parts = archive(1, components=200, largest=3)
    _, sizes = judged(parts, 20, random.Random(1))
    assert max(sizes) < 80 < sum(sizes)


def test_a_large_component_is_judged_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies of one text are never in memory all together."""
    monkeypatch.setattr(verdicts, "_ROWS_AT_ONCE", 50)
    copies = Placed(Component([Document(0) for _ in range(1000)]), range(1000))
    found, sizes = judged([copies], 20, random.Random(1))
    assert found == list(copies.verdicts())
    assert max(sizes) < 80


def test_the_table_has_the_columns_that_spark_is_told() -> None:
    """A kept document has a null, not an empty list; names and types are those of ``JUDGED``."""
    pair = Component([Document(0), Document(1), Document(0), Document(2)], {(0, 1): (0.9, -1.0)})
    rows = list(Placed(pair, [1, 2, 3, 4]).rows())
    [batch] = judge_components(RULE)(batches(rows, 100, random.Random(1)))
    assert [matches is None for matches in batch["matches"].to_pylist()] == [
        True,
        False,
        False,
        True,
    ]
    match = pa.struct(
        [
            ("id", pa.string()),
            ("place", pa.int64()),
            ("jaccard_estimate", pa.float64()),
            ("jaccard", pa.float64()),
            ("age_s", pa.float64()),
        ]
    )
    schema = [("_place", pa.int64()), ("grp", pa.int64()), ("matches", pa.list_(match))]
    assert batch.schema == pa.schema(schema)
    batch.validate(full=True)


def test_unknown_times_have_no_age() -> None:
    """The age of a match is null if either time is unknown."""
    times_ms = (NO_TIMESTAMP, 50_000, NO_TIMESTAMP, 70_000)
    component = Component([Document(0, time_ms, time_ms) for time_ms in times_ms])
    found, _ = judged([Placed(component, [0, 1, 2, 3])], 9, random.Random(1))
    ages = [[match["age_s"] for match in row["matches"] or ()] for row in found]
    assert ages == [[], [None], [None], [None]]


def test_no_rows() -> None:
    """A task without rows, or with empty batches only, has no verdicts."""
    empty = pa.RecordBatch.from_pylist([], PARTS)
    assert list(judge_components(RULE)(iter([]))) == []
    assert list(judge_components(RULE)(iter([empty, empty]))) == []
