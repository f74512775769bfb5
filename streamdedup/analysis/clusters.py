"""*Pure.* Clusters of shingle sets, and their agreement with labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamdedup.analysis.pairs import count_equal_pairs
from streamdedup.analysis.report import ClusterScore
from streamdedup.analysis.sets import NO_SET
from streamdedup.columns import I64
from streamdedup.kernels import kernel


@kernel
def find_root(parents: I64, member: int) -> int:
    """Return the smallest member of a cluster, and shorten the path to it.

    Args:
        parents: ``(sets,)`` int64, a union-find forest: each set leads to a smaller member of its
            cluster, the smallest one to itself.
        member: a set.
    """
    while parents[member] != member:
        parents[member] = parents[parents[member]]
        member = parents[member]
    return member


@kernel
def join_clusters(parents: I64, first: I64, second: I64) -> None:
    """Join the clusters of each pair of sets; ``parents`` is changed in place."""
    for i in range(len(first)):
        one, two = find_root(parents, first[i]), find_root(parents, second[i])
        parents[max(one, two)] = min(one, two)


def score_clusters(parents: I64, set_of: I64, labels: Sequence[str]) -> ClusterScore:
    """Compare the clusters with the labels of the documents.

    Args:
        parents: ``(sets,)`` int64, see :func:`find_root`.
        set_of: ``(documents,)`` int64, the set of each document.
        labels: the label of each document.
    """
    roots = np.array([find_root(parents, i) for i in range(len(parents))], dtype=np.int64)
    # Each document without text is a cluster of its own.
    clusters = len(roots) + np.arange(len(set_of))
    has_set = set_of != NO_SET
    clusters[has_set] = roots[set_of[has_set]]
    _, groups = np.unique(np.array(labels), return_inverse=True)
    labelled, joined = count_equal_pairs(groups), count_equal_pairs(clusters)
    both = count_equal_pairs(groups * (len(roots) + len(set_of)) + clusters)
    by_chance = labelled * joined / max(1, len(groups) * (len(groups) - 1) // 2)
    most = (labelled + joined) / 2
    index = (both - by_chance) / (most - by_chance) if most > by_chance else 1.0
    return ClusterScore(labelled, joined, both, index)
