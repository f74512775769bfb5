"""*Pure.* The distinct shingle sets of a corpus, indexed for the exact join.

A shingle is represented by its 64-bit hash. The probability that two shingles of a corpus of 10^8
collide is one in four thousand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from streamdedup.columns import I64, U64
from streamdedup.kernels import kernel
from streamdedup.sketch.shingle import Shingling
from streamdedup.sketch.texts import shingle_sets

I32 = NDArray[np.int32]

NO_SET = -1
"""The set number of a text without shingles."""


class ShingleSets(NamedTuple):
    """The distinct shingle sets of a corpus, numbered in ascending order of size.

    A *token* is a shingle that occurs in more than one set. Tokens are numbered from the rarest to
    the most frequent.

    Kernels of `join` take this class. Numba caches them per file, so a change of the fields needs a
    change of that file too.

    Attributes:
        set_of: ``(texts,)`` int64, the set of each text, or ``NO_SET``.
        sizes: ``(sets,)`` int64, the number of shingles of each set, ascending.
        offsets: ``(sets + 1,)`` int64; the tokens of set ``i`` are
            ``tokens[offsets[i]:offsets[i + 1]]``.
        tokens: int32, ascending within each set.
        starts: ``(tokens + 1,)`` int64; the sets that hold token ``t`` are
            ``members[starts[t]:starts[t + 1]]``.
        members: int32, set numbers, ascending within each token.
        indices: int32, for each entry of ``members`` the index of the token within that set.
    """

    set_of: I64
    sizes: I64
    offsets: I64
    tokens: I32
    starts: I64
    members: I32
    indices: I32

    def __len__(self) -> int:
        return len(self.sizes)


def collect(texts: Sequence[str], namespaces: U64, shingling: Shingling) -> ShingleSets:
    """Collect the distinct shingle sets of normalised texts.

    Args:
        texts: ``n`` normalised texts.
        namespaces: ``(n,)`` uint64; sets of different namespaces are different sets.
        shingling: how a text is cut into shingles.
    """
    number_of_digest: dict[bytes, int] = {}
    set_of = np.full(len(texts), NO_SET, dtype=np.int64)
    distinct: list[U64] = []
    for text, hashes in enumerate(shingle_sets(texts, shingling)):
        if not len(hashes):
            continue
        digest = xxhash.xxh3_128_digest(hashes.tobytes(), seed=int(namespaces[text]))
        number = number_of_digest.setdefault(digest, len(distinct))
        if number == len(distinct):
            distinct.append(hashes)
        set_of[text] = number
    by_size = np.argsort([len(hashes) for hashes in distinct], kind="stable")
    rank_of = np.argsort(by_size)
    has_set = set_of != NO_SET
    set_of[has_set] = rank_of[set_of[has_set]]
    return _index([distinct[number] for number in by_size.tolist()], set_of)


def _index(distinct: list[U64], set_of: I64) -> ShingleSets:
    """Number the tokens and build the inverted index; empties ``distinct`` to free memory."""
    sizes = np.array([len(hashes) for hashes in distinct], dtype=np.int64)
    hashes = np.concatenate([*distinct, np.empty(0, dtype=np.uint64)])
    distinct.clear()
    values, counts = np.unique(hashes, return_counts=True)
    # The search takes half the time of ``return_inverse``, which sorts indices.
    numbers = np.searchsorted(values, hashes)
    shared = np.flatnonzero(counts > 1)
    token_of = np.full(len(values), -1, dtype=np.int32)
    token_of[shared[np.argsort(counts[shared], kind="stable")]] = np.arange(len(shared))
    tokens, offsets = _tokens_of_sets(numbers, token_of, sizes)
    starts, members, indices = _invert(tokens, offsets, len(shared))
    return ShingleSets(set_of, sizes, offsets, tokens, starts, members, indices)


@kernel
def _tokens_of_sets(numbers: I64, token_of: I32, sizes: I64) -> tuple[I32, I64]:
    """Return the sorted tokens of each set and the offsets of the sets."""
    tokens = np.empty(len(numbers), dtype=np.int32)
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    read = write = 0
    for i in range(len(sizes)):
        for _ in range(sizes[i]):
            token = token_of[numbers[read]]
            read += 1
            if token >= 0:
                tokens[write] = token
                write += 1
        tokens[offsets[i] : write] = np.sort(tokens[offsets[i] : write])
        offsets[i + 1] = write
    return tokens[:write].copy(), offsets


@kernel
def _invert(tokens: I32, offsets: I64, distinct: int) -> tuple[I64, I32, I32]:
    """Return starts, members and indices of :class:`ShingleSets` (a counting sort)."""
    starts = np.zeros(distinct + 1, dtype=np.int64)
    for token in tokens:
        starts[token + 1] += 1
    starts = np.cumsum(starts)
    ends = starts[:-1].copy()
    members = np.empty(len(tokens), dtype=np.int32)
    indices = np.empty(len(tokens), dtype=np.int32)
    for i in range(len(offsets) - 1):
        for row in range(offsets[i], offsets[i + 1]):
            end = ends[tokens[row]]
            members[end] = i
            indices[end] = row - offsets[i]
            ends[tokens[row]] = end + 1
    return starts, members, indices
