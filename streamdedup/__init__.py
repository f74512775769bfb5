"""streamdedup: an exactly-once near-duplicate filter for document streams.

The public names are loaded on first use, so that ``streamdedup --help`` does not load numba.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamdedup.engine.deduplicator import Deduplicator
    from streamdedup.engine.documents import VerdictArrays
    from streamdedup.errors import StreamdedupError
    from streamdedup.files.dedup_files import dedup_files
    from streamdedup.files.run import RunTally
    from streamdedup.model import Document, Match, Outcome, Position, Verdict
    from streamdedup.settings.load import load_settings
    from streamdedup.settings.sections import Settings

    __version__: str

__all__ = [
    "Deduplicator",
    "Document",
    "Match",
    "Outcome",
    "Position",
    "RunTally",
    "Settings",
    "StreamdedupError",
    "Verdict",
    "VerdictArrays",
    "dedup_files",
    "load_settings",
]

_HOMES = {
    "Deduplicator": "streamdedup.engine.deduplicator",
    "RunTally": "streamdedup.files.run",
    "Settings": "streamdedup.settings.sections",
    "StreamdedupError": "streamdedup.errors",
    "VerdictArrays": "streamdedup.engine.documents",
    "dedup_files": "streamdedup.files.dedup_files",
    "load_settings": "streamdedup.settings.load",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "__version__":
        # importlib.metadata takes as long to import as all commands together.
        from streamdedup.extras import DISTRIBUTION

        return import_module("importlib.metadata").version(DISTRIBUTION)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "streamdedup.model")), name)
