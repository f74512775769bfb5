"""The error of estimates at similarity .8, by the kind of signature and the size of the sets.

The pairs are sets of random characters. Each character is a shingle, so that the sets have exactly
the wanted size and similarity. Run with ``python -m benchmarks.bench_deviation``.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench_sketch import estimates
from streamdedup.columns import I64
from streamdedup.settings.dedup import DedupSettings
from streamdedup.sketch.codec import SignatureCodec
from streamdedup.sketch.parameters import Variant
from streamdedup.sketch.sketcher import Sketcher

JACCARD = 0.8
SIZES = (20, 75, 250, 2500)
PAIRS = 2000
POINTS = 2**20
FIRST_POINT = 0x10000


class Kind(NamedTuple):
    """A row of the table; without bits, untruncated values are compared."""

    variant: Variant
    num_perm: int
    bits: int | None = None

    def __str__(self) -> str:
        stored = f"x {self.bits} bits" if self.bits else "whole values"
        return f"{self.variant}, {self.num_perm} {stored}"


KINDS = (
    Kind("classic", 128),
    Kind("classic", 256, 4),
    Kind("fast", 128),
    Kind("fast", 256),
    Kind("fast", 256, 4),
)


def draw(size: int, pairs: int) -> tuple[list[str], list[str], float]:
    """Draw pairs of sets as texts; return the first texts, the second texts, and the similarity."""
    common = round(2 * size * JACCARD / (1 + JACCARD))
    both = 2 * size - common
    rng = np.random.default_rng(size)
    drawn = np.stack([rng.choice(POINTS, both, replace=False) for _ in range(pairs)])
    return written(drawn[:, :size]), written(drawn[:, size - common :]), common / both


def written(sets: I64) -> list[str]:
    """Convert each row of numbers to a text with a character per number."""
    rows = (sets + FIRST_POINT).astype("<u4")
    return [row.tobytes().decode("utf-32-le") for row in rows]


def sketch(kind: Kind, texts: list[str]) -> NDArray[np.unsignedinteger]:
    """Return the untruncated signatures, ``(n, num_perm)``."""
    settings = DedupSettings(variant=kind.variant, num_perm=kind.num_perm, shingle_size=1)
    return Sketcher(settings.sketch_parameters()).values(texts)


def main() -> None:
    """Print the root mean square error for each kind and size, and its sampling error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs of sets per cell")
    pairs = parser.parse_args().pairs
    print(f"{pairs:,} pairs per cell; sampling error {1 / np.sqrt(2 * pairs):.1%} of each figure")
    print(f"{'shingles per text':28}" + "".join(f"{size:8,}" for size in SIZES))
    drawn = [draw(size, pairs) for size in SIZES]
    for kind in KINDS:
        codec = SignatureCodec(kind.num_perm, kind.bits) if kind.bits else None
        errors = []
        for first, second, exact in drawn:
            estimated = estimates(sketch(kind, first), sketch(kind, second), codec)
            errors.append(float(np.sqrt(np.mean((estimated - exact) ** 2))))
        print(f"{kind!s:28}" + "".join(f"{error:8.4f}" for error in errors), flush=True)


if __name__ == "__main__":
    main()
