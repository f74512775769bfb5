"""The rule inside a component, in plain Python."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from streamdedup.model import NO_TIMESTAMP
from streamdedup.spark.verdicts import NOT_COMPARED, Window

NO_WINDOW = Window(-1, -1)
Match = tuple[int, float, float]
"""Place, estimate and similarity of the texts."""


@dataclass
class Document:
    """A document of a component."""

    group: int
    compared_ms: int = 0
    effective_ms: int = 0
    now_ms: int = NO_TIMESTAMP
    of_copies: float = NOT_COMPARED


@dataclass
class Component:
    """Documents in order, and the estimate and the similarity of groups that match."""

    documents: list[Document]
    edges: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    window: Window = NO_WINDOW

    def similarity(self, one: int, other: int) -> tuple[float, float] | None:
        """Return estimate and similarity of two documents; None if they do not match."""
        two = (self.documents[one].group, self.documents[other].group)
        if two[0] == two[1]:
            return 1.0, self.documents[one].of_copies
        return self.edges.get((min(two), max(two)))

    def holds(self, one: int, other: int) -> bool:
        """Return whether a kept document is in the window of a later one."""
        if self.window.window_ms < 0:
            return True
        mine, theirs = self.documents[one], self.documents[other]
        out_ms = theirs.effective_ms + self.window.reach_ms
        is_out = self.window.reach_ms >= 0 and mine.now_ms != NO_TIMESTAMP and out_ms <= mine.now_ms
        return abs(mine.compared_ms - theirs.compared_ms) < self.window.window_ms and not is_out


def by_definition(component: Component, most: int) -> list[list[Match]]:
    """Return the matches of each document, best first; a kept one has none."""
    kept: list[int] = []
    result: list[list[Match]] = []
    for number in range(len(component.documents)):
        found = [
            (earlier, *similarity)
            for earlier in kept
            if (similarity := component.similarity(number, earlier))
            and component.holds(number, earlier)
        ]
        found.sort(key=lambda match: (-(match[1] if match[2] < 0 else match[2]), match[0]))
        if not found:
            kept.append(number)
        result.append(found[:most])
    return result


def made_up(seed: int, count: int) -> Component:
    """Return a random component; few values of similarity and time, so that there are ties."""
    chance = random.Random(seed)
    groups = chance.randint(1, count)
    density = chance.choice((0.05, 0.3, 0.9))
    edges = {
        (one, two): (
            chance.choice((0.7, 0.8, 0.9, 1.0)),
            chance.choice((NOT_COMPARED, NOT_COMPARED, 0.75, 0.8, 0.95)),
        )
        for one in range(groups)
        for two in range(one + 1, groups)
        if chance.random() < density
    }
    of_copies = chance.choice((NOT_COMPARED, 1.0))
    now_ms = NO_TIMESTAMP
    documents = []
    for number in range(count):
        if number > chance.randint(0, 16):
            now_ms = max(now_ms, 10 * number + chance.randint(-40, 0))
        documents.append(
            Document(
                chance.randrange(groups),
                10 * number + chance.randint(-60, 60),
                10 * number + chance.randint(-60, 60),
                now_ms,
                of_copies,
            )
        )
    window_ms = chance.choice((-1, 0, 1, 40, 200, 10**6))
    reach_ms = -1 if window_ms < 0 else chance.choice((-1, window_ms, window_ms + 50))
    return Component(documents, edges, Window(window_ms, reach_ms))
