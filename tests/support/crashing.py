"""*Blocking.* ``streamdedup`` with a bug: an error that no code expects, after a commit."""

from __future__ import annotations

from streamdedup import failpoints
from streamdedup.__main__ import main


def crash(point: str) -> None:
    """Raise at the point ``confirm``."""
    if point == "confirm":
        raise ArithmeticError("a bug")


if __name__ == "__main__":
    failpoints.handle(crash)
    main()
