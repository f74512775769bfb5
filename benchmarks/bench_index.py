"""The index on disk: what a document costs as it grows, next to its peers, and other durations.

Every part takes ready sketches, in batches of 1,000: 20 bands and the whole text, signatures of 128
bytes, ids of 20. 5 % are planted copies of earlier documents, of any age up to 0.9 windows. The
index has the default settings: it is on disk, and each segment is forced to disk.

- growth: probe and apply, up to all documents, without ``resolve``. Outside of the timing, every
  planted copy must be found, under its original's id.
- opening: of that index, in a process of its own.
- peers: documents per second next to datasketch and rensa in memory. The rows take turns, and the
  medians of the repeats are printed.
- rebuild: changelog entries of 1,000 documents, read from a file, decoded and applied.
- expiry: 2.5 windows of documents pass through one window.

Wall times are those of the calls alone. While a batch is prepared between two calls, the background
continues. So processor times are printed too: "caller" is that of the thread that calls the index;
"background" is that of all other threads, averaged over the last million documents.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.index_comparison import run_peers
from benchmarks.index_expiry import run_expiry
from benchmarks.index_growth import run_growth
from benchmarks.index_rebuild import run_rebuild
from benchmarks.index_use import load_kernels
from benchmarks.planted_stream import BATCH

_DOCUMENTS = 10_000_000
_QUICK = 300_000
_PEER_DOCUMENTS = 100_000
_REBUILT = 1_000_000
_EXPIRY_WINDOW = 1_000_000


def machine() -> dict[str, Any]:
    """Describe the machine."""
    return {
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "load": os.getloadavg()[0],
    }


def main() -> None:
    """Parse the arguments and run the parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--documents", type=int, default=_DOCUMENTS, help="default: %(default)s")
    size.add_argument(
        "--quick", dest="documents", action="store_const", const=_QUICK, help=f"only {_QUICK:,}"
    )
    names = ("growth", "peers", "rebuild", "expiry")
    parser.add_argument("--parts", nargs="+", default=names, choices=names)
    parser.add_argument(
        "--directory", type=Path, help="directory for the indexes; default: temporary"
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    documents, parent = arguments.documents // BATCH * BATCH, arguments.directory
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "growth": lambda: run_growth(documents, parent),
        "peers": lambda: run_peers(min(_PEER_DOCUMENTS, documents), parent),
        "rebuild": lambda: run_rebuild(min(_REBUILT, documents), parent),
        "expiry": lambda: run_expiry(min(_EXPIRY_WINDOW, documents // 3), parent),
    }
    figures: dict[str, Any] = {"machine": machine()}
    load_kernels()
    for name in arguments.parts:
        figures[name] = parts[name]()
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    refuse_wrong(figures)


def refuse_wrong(figures: dict[str, Any]) -> None:
    """Exit with an error if an answer was wrong: then no speed counts."""
    for name in ("growth", "expiry"):
        answers = figures.get(name, {"recall": 1.0, "wrong": 0})
        if answers["recall"] < 1 or answers["wrong"]:
            raise SystemExit(f"{name}: the index missed planted copies, or found wrong documents")
    openings = figures.get("growth", {"opening": {}})["opening"]
    if any(figures["missed"] for figures in openings.values()):
        raise SystemExit("opening: the index missed planted copies")
    if not figures.get("rebuild", {"complete": True})["complete"]:
        raise SystemExit("rebuild: documents are missing")


if __name__ == "__main__":
    main()
