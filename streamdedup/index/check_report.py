"""*Pure.* The findings of the checker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from streamdedup.errors import StreamdedupError


class Broken(Exception):  # noqa: N818 - says what was found
    """A problem after which the checker cannot look further into the same part."""


@dataclass(slots=True)
class CheckReport:
    """What the checker has found.

    Attributes:
        problems: one line for each problem; an index without problems is sound.
        left_over: remains of a crash, which the next opening removes or ignores.
        documents: number of documents that the index holds.
        segments: number of segments.
        bytes_checked: bytes of the segments' sound files.
    """

    problems: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)
    documents: int = 0
    segments: int = 0
    bytes_checked: int = 0

    def add(self, part: str, problem: str) -> str:
        """Add a problem of a part of the index, and return the problem."""
        self.problems.append(f"{part}: {problem}")
        return problem

    def mentions(self, part: str) -> bool:
        """Return whether there is a problem of a part or of something inside it."""
        return any(problem.startswith(f"{part}:") for problem in self.problems)

    @contextmanager
    def noting(self, part: str) -> Iterator[list[str]]:
        """Note a problem that ends the block, and continue after the block.

        Args:
            part: the part of the index that the block checks.

        Yields:
            A list that holds the problem afterwards, if there is one.
        """
        noted: list[str] = []
        try:
            yield noted
        except (Broken, StreamdedupError) as error:
            noted.append(self.add(part, str(error)))
        except OSError as error:
            noted.append(self.add(part, f"cannot be read: {error.strerror}"))
