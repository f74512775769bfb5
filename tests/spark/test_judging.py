"""Verdicts inside a component, against the rule in plain Python."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.spark.verdicts import NOT_COMPARED, Members, Neighbours, Window, judge
from tests.spark.brute_force import Component, Document, Match, by_definition, made_up
from tests.support.builders import examples


def judged(component: Component, most: int) -> list[list[Match]]:
    """Return the same from the kernel."""
    names = ("compared_ms", "effective_ms", "now_ms")
    compared_ms, effective_ms, now_ms = (
        np.array([getattr(each, name) for each in component.documents], dtype=np.int64)
        for name in names
    )
    groups = np.array([each.group for each in component.documents], dtype=np.int64)
    of_copies = np.array([each.of_copies for each in component.documents], dtype=np.float64)
    both = [(one, two, *values) for (one, two), values in component.edges.items()]
    both += [(two, one, estimate, jaccard) for one, two, estimate, jaccard in both]
    both.sort(key=lambda edge: edge[0])
    named = {*groups.tolist(), *(edge[0] for edge in both)}
    count = max(named, default=-1) + 1
    owners = np.array([edge[0] for edge in both], dtype=np.int64)
    neighbours = Neighbours(
        np.searchsorted(owners, np.arange(count + 1)).astype(np.int64),
        np.array([edge[1] for edge in both], dtype=np.int64),
        np.array([edge[2] for edge in both], dtype=np.float64),
        np.array([edge[3] for edge in both], dtype=np.float64),
    )
    members = Members(groups, compared_ms, effective_ms, now_ms, of_copies)
    found = judge(members, neighbours, component.window, most)
    given = [slice(0, count) for count in found.counts]
    columns = (found.members, found.estimates, found.similarities)
    return [
        list(zip(*(column[row, some].tolist() for column in columns), strict=True))
        for row, some in enumerate(given)
    ]


@pytest.mark.parametrize("seed", range(200))
def test_by_definition(seed: int) -> None:
    """Any graph, any groups, any window: only kept documents in the window make duplicates."""
    component = made_up(seed, count=1 + seed % 60)
    most = random.Random(seed).choice((1, 2, 3, 10, 100))
    assert judged(component, most) == by_definition(component, most)


def test_a_chain_is_not_swallowed() -> None:
    """A document that is near a duplicate only is kept."""
    edges = {(0, 1): (0.9, NOT_COMPARED), (1, 2): (0.9, NOT_COMPARED)}
    component = Component([Document(0), Document(1), Document(2)], edges)
    assert judged(component, 10) == [[], [(0, 0.9, NOT_COMPARED)], []]


def test_ties_go_to_the_earliest() -> None:
    """Of equally similar documents the earlier one comes first, also if only one is returned."""
    edges = {(group, 5): (0.8, NOT_COMPARED) for group in range(5)}
    component = Component([Document(group) for group in (3, 0, 4, 1, 2, 5)], edges)
    for most in range(1, 7):
        expected = [(earlier, 0.8, NOT_COMPARED) for earlier in range(5)][:most]
        assert judged(component, most)[-1] == expected


def test_texts_decide_over_estimates() -> None:
    """A match by texts is as good as its texts are similar, whatever was estimated."""
    edges = {(0, 3): (0.99, 0.8), (1, 3): (0.85, NOT_COMPARED), (2, 3): (0.7, 0.9)}
    component = Component([Document(group) for group in range(4)], edges)
    expected = [(2, 0.7, 0.9), (1, 0.85, NOT_COMPARED), (0, 0.99, 0.8)]
    assert judged(component, 10)[-1] == expected


def test_a_copy_of_an_expired_document_is_kept() -> None:
    """Beyond the window a copy is kept, and the copies after it match it."""
    times = (0, 10, 99, 100, 150, 199, 205)
    documents = [Document(0, time_ms, time_ms) for time_ms in times]
    component = Component(documents, window=Window(100, -1))
    found = [[match[0] for match in matches] for matches in judged(component, 10)]
    assert found == [[], [0], [0], [], [3], [3], []]


def test_the_clock_expires_what_times_would_not() -> None:
    """A late document does not match what the clock has passed, even if their times are near."""
    documents = [Document(0, 0, 0), Document(0, 0, 0, now_ms=149), Document(0, 0, 0, now_ms=150)]
    component = Component(documents, window=Window(100, 150))
    found = [[match[0] for match in matches] for matches in judged(component, 10)]
    assert found == [[], [0], []]


@given(
    one=st.integers(-(2**63), 2**63 - 1),
    two=st.integers(-(2**63), 2**63 - 1),
    window_ms=st.integers(0, 2**62),
)
@examples(200)
def test_differences_of_times_do_not_overflow(one: int, two: int, window_ms: int) -> None:
    """Times may be as far apart as their numbers allow."""
    documents = [Document(0, one), Document(0, two)]
    component = Component(documents, window=Window(window_ms, -1))
    assert judged(component, 1) == by_definition(component, 1)


def test_nothing_to_judge() -> None:
    """A component without documents has no verdicts."""
    assert judged(Component([]), 3) == []
