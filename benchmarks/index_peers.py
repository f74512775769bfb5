"""Filters of a stream that are compared: this package's index, and its peers.

All have 20 bands of 7 rows, and see the same documents in batches of 1,000. The peers are in
memory only.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.index_use import LOG, PARAMETERS, keep, open_index
from benchmarks.planted_stream import Batch, values
from streamdedup.index.store import LOCAL_LOG

TOKENS = 100
"""Tokens of a document, for peers that sketch tokens."""
_BANDED = PARAMETERS.bands * PARAMETERS.rows
"""Values of a signature that belong to a band; rensa allows no others."""


class Filter(ABC):
    """Tells for each document of a stream whether a similar one came before, and keeps it if not.

    Attributes:
        background: whether its own threads continue between the calls.
    """

    background: ClassVar[bool] = False

    def processor_time(self) -> float:
        """Return the processor time of the calls so far, in seconds, without the background's."""
        return time.thread_time() if self.background else time.process_time()

    @abstractmethod
    def prepare(self, batch: Batch) -> Any:
        """Convert a batch to the form that :meth:`judge` takes; not timed."""

    @abstractmethod
    def judge(self, prepared: Any) -> Sequence[bool]:
        """Judge a batch and keep what is new; return which documents were found."""

    @abstractmethod
    def finish(self) -> None:
        """Finish pending work for the documents so far; timed."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; not timed."""


class Ours(Filter):
    """The index on disk, without resolve: an equal signature decides."""

    background = True

    def __init__(self, parent: Path, documents: int, log: str) -> None:
        self._directory = tempfile.TemporaryDirectory(dir=parent)
        self._index = open_index(Path(self._directory.name), documents, log)

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch as it is."""
        return batch

    def judge(self, prepared: Batch) -> Sequence[bool]:
        """Probe and apply."""
        found: list[bool] = keep(self._index, prepared).tolist()
        return found

    def finish(self) -> None:
        """Write everything to disk."""
        self._index.flush()

    def close(self) -> None:
        """Remove the index."""
        self._index.close()
        self._directory.cleanup()


class InMemory(Filter):
    """A peer in memory: it has no pending work."""

    def finish(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Datasketch(InMemory):
    """``MinHashLSH`` in memory, query and insert of ready signatures."""

    def __init__(self) -> None:
        import datasketch  # noqa: PLC0415 - only where it is installed

        like = datasketch.MinHash(num_perm=PARAMETERS.num_perm)
        self._minhash = partial(
            datasketch.MinHash, permutations=like.permutations, scheme=like.scheme
        )
        self._index = datasketch.MinHashLSH(
            num_perm=PARAMETERS.num_perm, params=(PARAMETERS.bands, PARAMETERS.rows)
        )

    def prepare(self, batch: Batch) -> list[tuple[str, Any]]:
        """Make its signatures, with random values."""
        rows = values(batch.originals, PARAMETERS.num_perm)
        made = [self._minhash(hashvalues=row) for row in rows]
        return list(zip(batch.documents.ids, made, strict=True))

    def judge(self, prepared: list[tuple[str, Any]]) -> Sequence[bool]:
        """Query, and insert what was not found."""
        found = []
        for key, minhash in prepared:
            known = bool(self._index.query(minhash))
            if not known:
                self._index.insert(key, minhash)
            found.append(known)
        return found


class RensaIndex(InMemory):
    """``RMinHashLSH``, query and insert of ready signatures."""

    def __init__(self) -> None:
        import rensa  # noqa: PLC0415 - only where it is installed

        self._sketch = partial(rensa.RMinHash.from_token_sets, num_perm=_BANDED, seed=1)
        self._index = rensa.RMinHashLSH(0.8, _BANDED, PARAMETERS.bands)

    def prepare(self, batch: Batch) -> list[tuple[int, Any]]:
        """Make its signatures."""
        made = self._sketch(_tokens(batch))
        return list(zip(batch.places.tolist(), made, strict=True))

    def judge(self, prepared: list[tuple[int, Any]]) -> Sequence[bool]:
        """Query, and insert what was not found."""
        found = []
        for key, minhash in prepared:
            known = bool(self._index.query(minhash))
            if not known:
                self._index.insert(key, minhash)
            found.append(known)
        return found


class RensaDeduplicator(InMemory):
    """``RMinHashDeduplicator``, which also verifies. Fastest from tokens, which it sketches."""

    def __init__(self) -> None:
        import rensa  # noqa: PLC0415 - only where it is installed

        self._index = rensa.RMinHashDeduplicator(0.8, _BANDED, True, PARAMETERS.bands, 1)

    def prepare(self, batch: Batch) -> list[tuple[str, list[str]]]:
        """Make tokens."""
        return list(zip(batch.documents.ids, _tokens(batch), strict=True))

    def judge(self, prepared: list[tuple[str, list[str]]]) -> Sequence[bool]:
        """Add the whole batch."""
        return [not added for added in self._index.add_pairs(prepared)]


def filters(parent: Path, documents: int) -> dict[str, Callable[[], Filter]]:
    """Return the constructor of each filter, by the name of its row.

    Args:
        parent: where the directories of indexes are created.
        documents: number of documents of the stream.
    """
    made: dict[str, Callable[[], Filter]] = {
        "streamdedup, a worker's index": partial(Ours, parent, documents, LOG),
        "streamdedup, embedded (each batch synced)": partial(Ours, parent, documents, LOCAL_LOG),
    }
    if importlib.util.find_spec("datasketch"):
        made["datasketch MinHashLSH, in memory"] = Datasketch
    else:
        print("datasketch is not installed, its row is skipped")
    if importlib.util.find_spec("rensa"):
        made["rensa RMinHashLSH, in memory"] = RensaIndex
        made[f"rensa RMinHashDeduplicator, in memory, from {TOKENS} tokens"] = RensaDeduplicator
    else:
        print("rensa is not installed, its rows are skipped")
    return made


def _tokens(batch: Batch) -> list[list[str]]:
    return [
        [f"{original}-{token}" for token in range(TOKENS)] for original in batch.originals.tolist()
    ]
