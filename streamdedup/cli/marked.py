"""*Pure.* Differing parts of texts in a terminal, or without one."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from streamdedup.dedup.differences import Part

_DIFFERENT = "bold yellow"


def marked(parts: Iterable[Part], *, marks: bool) -> Text:
    """Return a text whose differing parts are coloured or, with ``marks``, in brackets."""
    shown = Text()
    for part in parts:
        if part.differs:
            shown.append(f"[{part.text}]" if marks else part.text, _DIFFERENT)
        else:
            shown.append(part.text)
    return shown
