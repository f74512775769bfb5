"""Connected components on Spark, against a union-find in plain Python."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from streamdedup.spark.steps import connected_components

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::FutureWarning")]

Edges = set[tuple[int, int]]


def union_find(edges: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return the smallest vertex of the component of each vertex."""
    parents: dict[int, int] = {}

    def root(vertex: int) -> int:
        parents.setdefault(vertex, vertex)
        while parents[vertex] != vertex:
            parents[vertex] = parents[parents[vertex]]
            vertex = parents[vertex]
        return vertex

    for one, two in edges:
        least, other = sorted((root(one), root(two)))
        parents[other] = least
    return {vertex: root(vertex) for vertex in list(parents)}


class Components:
    """Finds components, and counts the rounds."""

    def __init__(self, spark: SparkSession, work: Path) -> None:
        self._spark = spark
        self._work = work
        self.rounds = 0

    def __call__(self, edges: Edges) -> dict[int, int]:
        """Return the component of each vertex; edges lead in any direction, in any order."""
        chance = random.Random(len(edges))
        lines = [edge if chance.random() < 0.5 else edge[::-1] for edge in sorted(edges)]
        chance.shuffle(lines)
        frame = self._spark.createDataFrame(lines, "a long, b long")
        rows = connected_components(frame, self._store).collect()
        found = {row["vertex"]: row["component"] for row in rows}
        assert len(found) == len(rows), "a vertex has two components"
        return found

    def _store(self, table: DataFrame, name: str) -> DataFrame:
        self.rounds += 1
        path = str(self._work / name)
        table.write.parquet(path)
        return self._spark.read.schema(table.schema).parquet(path)


@pytest.fixture
def components(spark: SparkSession, tmp_path: Path) -> Components:
    """Return what finds components."""
    return Components(spark, tmp_path)


def renumbered(edges: Edges, seed: int) -> Edges:
    """Return the same graph with random numbers for its vertices."""
    chance = random.Random(seed)
    vertices = sorted({vertex for edge in edges for vertex in edge})
    numbers = dict(zip(vertices, chance.sample(range(2**40), len(vertices)), strict=True))
    return {(numbers[one], numbers[two]) for one, two in edges}


@pytest.mark.parametrize("seed", [1, 2])
def test_random_graphs(components: Components, seed: int) -> None:
    """About as many edges as vertices: components of all sizes."""
    chance = random.Random(seed)
    pairs = (chance.sample(range(1500), 2) for _ in range(700 * seed))
    edges = renumbered({(min(pair), max(pair)) for pair in pairs}, seed)
    expected = union_find(edges)
    assert 1 < len(set(expected.values())) < len(expected)
    assert components(edges) == expected


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_path(components: Components, shuffled: bool) -> None:
    """A path of 3,000 vertices takes rounds as its logarithm, whatever the order of numbers."""
    path = {(vertex, vertex + 1) for vertex in range(2999)}
    edges = renumbered(path, 3) if shuffled else path
    assert components(edges) == union_find(edges)
    assert components.rounds <= 16


@pytest.mark.parametrize("shape", ["star", "clique"])
def test_dense_shapes(components: Components, shape: str) -> None:
    """A star whose centre has the largest number, and a clique, next to each other's like."""
    if shape == "star":
        edges = {(leaf, 10**6 + leaf // 500) for leaf in range(1000)}
    else:
        edges = {(one, two) for one in range(60) for two in range(one)}
        edges |= {(one + 100, two + 100) for one, two in edges}
    assert components(edges) == union_find(edges)
    assert len(set(union_find(edges).values())) == 2
    assert components.rounds <= 4


def test_no_edges(components: Components) -> None:
    """Without edges there are no components."""
    assert components(set()) == {}
