"""streamdedup: an exactly-once near-duplicate filter for document streams.

The public names are loaded when first used, so that ``streamdedup --help`` need not wait for numba.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamdedup.engine.deduplicator import Deduplicator
    from streamdedup.errors import StreamdedupError
    from streamdedup.model import Document, Match, Outcome, Position, Verdict
    from streamdedup.settings.load import load_settings
    from streamdedup.settings.sections import Settings

__all__ = [
    "Deduplicator",
    "Document",
    "Match",
    "Outcome",
    "Position",
    "Settings",
    "StreamdedupError",
    "Verdict",
    "load_settings",
]
__version__ = version("streamdedup")

_HOMES = {
    "Deduplicator": "streamdedup.engine.deduplicator",
    "Settings": "streamdedup.settings.sections",
    "StreamdedupError": "streamdedup.errors",
    "load_settings": "streamdedup.settings.load",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - keeps the names above the only ones

    return getattr(import_module(_HOMES.get(name, "streamdedup.model")), name)
