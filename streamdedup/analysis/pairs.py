"""*Pure.* Kernels and counts over pairs of documents."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numba
import numpy as np
from numpy.typing import NDArray

from streamdedup.analysis.exact import F64, Pairs
from streamdedup.model import I64, U64, Sketches
from streamdedup.sketch.codec import SignatureCodec


class Estimator:
    """Estimates the similarity of pairs of sets from their stored signatures."""

    def __init__(self, codec: SignatureCodec, sketches: Sketches) -> None:
        self._codec = codec
        self._signatures = sketches.signatures

    def __call__(self, pairs: Pairs) -> F64:
        """Return the estimate of each pair."""
        estimates = np.empty(len(pairs))
        order = np.argsort(pairs.first, kind="stable")
        first = pairs.first[order]
        starts = np.flatnonzero(np.diff(first, prepend=-1)).tolist()
        for start, stop in itertools.pairwise([*starts, len(first)]):
            rows = order[start:stop]
            estimates[rows] = self._codec.estimate_jaccard(
                self._signatures[first[start]], self._signatures[pairs.second[rows]]
            )
        return estimates

    def standard_error(self, jaccard: float) -> float:
        """Return the deviation that theory lets expect."""
        return self._codec.standard_error(jaccard)


def by_level(jaccard: F64, weights: I64, edges: Sequence[float]) -> list[int]:
    """Sum the weights of the pairs of each level; identical sets belong to none of them."""
    place = np.searchsorted(np.array(edges), jaccard, side="right") - 1
    sums = np.bincount(place, weights=weights, minlength=len(edges))
    return [int(one) for one in sums[: len(edges) - 1].tolist()]


def pairs_in_runs(ordered: U64) -> int:
    """Return how many pairs of equal keys there are among keys in order."""
    bounds = np.flatnonzero(np.diff(ordered)) + 1
    lengths = np.diff(np.concatenate(([0], bounds, [len(ordered)])))
    return int((lengths * (lengths - 1) // 2).sum())


def pairs_of_equals(names: I64) -> int:
    """Return how many pairs of documents have the same name."""
    _, counts = np.unique(names, return_counts=True)
    return int((counts * (counts - 1) // 2).sum())


def share_a_band(keys: U64, pairs: Pairs) -> NDArray[np.bool_]:
    """Return which pairs agree in at least one column of ``keys``: ``(pairs,)`` bool."""
    shared = np.zeros(len(pairs), dtype=np.bool_)
    for band in range(keys.shape[1]):
        shared |= keys[pairs.first, band] == keys[pairs.second, band]
    return shared


@numba.njit(cache=True, nogil=True)
def emit(keys, order, band, start, width):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
    """Pair up what shares this band and none before it, from a place in the order on."""
    first = np.empty(width, dtype=np.int64)
    second = np.empty(width, dtype=np.int64)
    count = 0
    at = start
    end = start
    while at < len(order):
        # Where the run of equal keys ends, once for all of the run.
        if end <= at:
            end = at + 1
            while end < len(order) and keys[order[end], band] == keys[order[at], band]:
                end += 1
        if count + end - at > width:
            break
        for other in range(at + 1, end):
            a, b = min(order[at], order[other]), max(order[at], order[other])
            known = False
            for before in range(band):
                if keys[a, before] == keys[b, before]:
                    known = True
                    break
            if not known:
                first[count] = a
                second[count] = b
                count += 1
        at += 1
    return first[:count].copy(), second[:count].copy(), at


@numba.njit(cache=True, nogil=True)
def root(joined, at):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
    """Return the smallest member of a cluster, and shorten the path to it."""
    while joined[at] != at:
        joined[at] = joined[joined[at]]
        at = joined[at]
    return at


@numba.njit(cache=True, nogil=True)
def unite(joined, first, second):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
    """Join the clusters of each pair; each set leads to the smallest of its cluster."""
    for at in range(len(first)):
        one, two = root(joined, first[at]), root(joined, second[at])
        joined[max(one, two)] = min(one, two)
