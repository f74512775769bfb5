"""*Pure.* Texts to sketches: normalise, pack, and run the kernels over the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from streamdedup.model import U64, Sketches
from streamdedup.sketch import minhash
from streamdedup.sketch.normalize import PROFILES


@dataclass(frozen=True)
class SketchParameters:
    """Everything that the bits of a sketch depend on; two equal ones make equal sketches."""

    profile: str
    profile_version: int
    shingle_size: int
    num_perm: int
    bands: int
    rows: int
    seed: int

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that name these parameters."""
        return xxhash.xxh3_64_hexdigest(repr(self).encode())


def namespace_hash(namespace: str) -> int:
    """Return the 64-bit number that stands for a namespace; 0 for the unnamed one."""
    if not namespace:
        return 0
    return xxhash.xxh3_64_intdigest(namespace.encode("utf-8", "surrogatepass")) or 1


class Sketcher:
    """Sketches batches of texts under fixed parameters."""

    def __init__(self, parameters: SketchParameters) -> None:
        self.parameters = parameters
        self._normalise = PROFILES[parameters.profile]
        random = minhash.random_words(parameters.seed, parameters.num_perm)
        self._multipliers = (random >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
        self._increments = random.astype(np.uint32)

    def normalise(self, texts: Sequence[str]) -> list[str]:
        """Return the texts in the form that is compared."""
        return [self._normalise(text) for text in texts]

    def sketch(self, normalised: Sequence[str], namespaces: U64) -> Sketches:
        """Sketch normalised texts.

        Args:
            normalised: ``n`` texts.
            namespaces: ``(n,)`` uint64, from :func:`namespace_hash`.
        """
        p = self.parameters
        packed = [text.encode("utf-32-le", "surrogatepass") for text in normalised]
        codes = np.frombuffer(b"".join(packed), dtype="<u4").astype(np.uint32, copy=False)
        offsets = np.zeros(len(packed) + 1, dtype=np.int64)
        np.cumsum([len(text) // 4 for text in packed], out=offsets[1:])
        values = minhash.minhash(
            codes, offsets, p.shingle_size, p.seed, self._multipliers, self._increments
        )
        keys = np.empty((len(packed), p.bands + 1), dtype=np.uint64)
        keys[:, :-1] = minhash.band_keys(values, namespaces, p.bands, p.rows, p.seed)
        exact = [xxhash.xxh3_64_intdigest(text, seed=p.seed) for text in packed]
        keys[:, -1] = np.array(exact, dtype=np.uint64) ^ namespaces
        return Sketches(signatures=minhash.truncate(values), band_keys=keys)
