"""*Blocking.* The job of ``streamdedup dedup`` with a peer in memory: JSON Lines in, verdicts out.

A pool of processes decodes, shingles and sketches, since that takes most of the time; this process
looks up, inserts and writes. A signature has only the values of its bands, and a document is a
duplicate if any candidate exists, without verification: that is the fastest a peer can do it.

    python -m benchmarks.files_peer rensa INPUT --kept KEPT --duplicates DUPLICATES --documents 1000

At the end it prints one line of JSON: the documents, and the seconds after the start-up.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# rensa reads this when it is imported; each process of the pool sketches on one thread.
os.environ.setdefault("RAYON_NUM_THREADS", "1")

from streamdedup.sketch.bands import choose_bands
from tests.testkit.texts import shingles

BANDS, ROWS = choose_bands(0.8, 0.99, 128)
NUM_PERM = BANDS * ROWS
_CHUNK = 500
"""Lines that are sketched together."""

Lines = list[bytes]


class Sketched(NamedTuple):
    """Lines with their ids and their signatures of any type."""

    lines: Lines
    ids: list[str]
    signatures: Sequence[Any]


class Peer(ABC):
    """A peer, in the pool and in the main process."""

    @staticmethod
    @abstractmethod
    def sketch(lines: Lines) -> Sketched:
        """Decode, shingle and sketch lines, in a process of the pool."""

    @abstractmethod
    def originals(self, sketched: Sketched) -> list[str | None]:
        """Return the id of a similar document for each line; insert lines that have none."""


class Datasketch(Peer):
    """``MinHash.bulk`` and ``MinHashLSH``."""

    def __init__(self) -> None:
        import datasketch  # noqa: PLC0415 - an optional peer

        like = datasketch.MinHash(num_perm=NUM_PERM)
        self._options = {"permutations": like.permutations, "scheme": like.scheme}
        self._minhash = datasketch.MinHash
        self._index = datasketch.MinHashLSH(num_perm=NUM_PERM, params=(BANDS, ROWS))

    @staticmethod
    def sketch(lines: Lines) -> Sketched:
        """Return the values of each signature, which are smaller to send than its object."""
        import datasketch  # noqa: PLC0415 - an optional peer

        ids, texts = _decoded(lines)
        encoded = [[shingle.encode() for shingle in shingles(text)] for text in texts]
        made = datasketch.MinHash.bulk(encoded, num_perm=NUM_PERM)
        return Sketched(lines, ids, [minhash.hashvalues for minhash in made])

    def originals(self, sketched: Sketched) -> list[str | None]:
        """Query, and insert what was not found."""
        found: list[str | None] = []
        for key, values in zip(sketched.ids, sketched.signatures, strict=True):
            minhash = self._minhash(hashvalues=values, **self._options)
            similar = self._index.query(minhash)
            if not similar:
                self._index.insert(key, minhash, check_duplication=False)
            found.append(similar[0] if similar else None)
        return found


class Rensa(Peer):
    """``RMinHash`` and ``RMinHashLSH``."""

    def __init__(self) -> None:
        import rensa  # noqa: PLC0415 - an optional peer

        self._index = rensa.RMinHashLSH(0.8, NUM_PERM, BANDS)
        self._ids: list[str] = []

    @staticmethod
    def sketch(lines: Lines) -> Sketched:
        """Return an object for each signature."""
        import rensa  # noqa: PLC0415 - an optional peer

        ids, texts = _decoded(lines)
        made = rensa.RMinHash.from_token_sets(map(shingles, texts), num_perm=NUM_PERM, seed=1)
        return Sketched(lines, ids, list(made))

    def originals(self, sketched: Sketched) -> list[str | None]:
        """Query, and insert what was not found, under a number: keys are numbers."""
        found: list[str | None] = []
        for key, minhash in zip(sketched.ids, sketched.signatures, strict=True):
            similar = self._index.query(minhash)
            if not similar:
                self._index.insert(len(self._ids), minhash)
                self._ids.append(key)
            found.append(self._ids[similar[0]] if similar else None)
        return found


PEERS: dict[str, type[Peer]] = {"datasketch": Datasketch, "rensa": Rensa}


def _decoded(lines: Lines) -> tuple[list[str], list[str]]:
    documents = [json.loads(line) for line in lines]
    return [one["id"] for one in documents], [one["text"] for one in documents]


def _chunks(path: Path, documents: int | None) -> Iterator[Lines]:
    with path.open("rb") as file:
        lines = itertools.islice(file, documents)
        while chunk := list(itertools.islice(lines, _CHUNK)):
            yield chunk


def run(arguments: argparse.Namespace) -> dict[str, float]:
    """Judge the lines; return the number of documents, and the seconds without the start-up."""
    kind = PEERS[arguments.peer]
    peer = kind()
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        # The processes import what they need.
        first = [[b'{"id": "", "text": ""}']] * arguments.processes
        pool.map(kind.sketch, first, chunksize=1)
        started_at = time.perf_counter()
        documents = 0
        with arguments.kept.open("wb") as kept, arguments.duplicates.open("w") as duplicates:
            for sketched in pool.imap(kind.sketch, _chunks(arguments.input, arguments.documents)):
                documents += len(sketched.lines)
                originals = peer.originals(sketched)
                for line, name, original in zip(*sketched[:2], originals, strict=True):
                    if original is None:
                        kept.write(line)
                    else:
                        duplicates.write(json.dumps({"id": name, "original": original}) + "\n")
        return {"documents": documents, "seconds": time.perf_counter() - started_at}


def main() -> None:
    """Parse the arguments, run, and print the figures."""
    parser = argparse.ArgumentParser(description="Deduplicates JSON Lines with a peer.")
    parser.add_argument("peer", choices=PEERS)
    for name in ("input", "--kept", "--duplicates"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--processes", type=int, default=2, help="processes that sketch")
    parser.add_argument("--documents", type=int, help="only this number of lines")
    print(json.dumps(run(parser.parse_args())), flush=True)


if __name__ == "__main__":
    main()
