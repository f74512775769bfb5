"""*Pure.* Sketches batches of texts: normalise, pack, and run the kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash

from streamdedup.batches import Sketches
from streamdedup.columns import U64
from streamdedup.errors import IndexMismatch
from streamdedup.sketch import minhash
from streamdedup.sketch.batch import BatchNormaliser
from streamdedup.sketch.codec import SignatureCodec
from streamdedup.sketch.minhash import Values
from streamdedup.sketch.normalize import resolve
from streamdedup.sketch.parameters import UNKNOWN_SEED, SketchParameters
from streamdedup.sketch.shingle import chunks, pack
from streamdedup.sketch.words import join_packed


def namespace_hash(namespace: str) -> int:
    """Return the 64-bit hash of a namespace; 0 for the unnamed namespace."""
    if not namespace:
        return 0
    return xxhash.xxh3_64_intdigest(namespace.encode("utf-8", "surrogatepass")) or 1


class Sketcher:
    """Sketches batches of texts with fixed parameters.

    Raises:
        IndexMismatch: the parameters are those of an index with a secret seed.
    """

    def __init__(self, parameters: SketchParameters) -> None:
        p = self.parameters = parameters
        if p.seed_hash and p.seed == UNKNOWN_SEED:
            raise IndexMismatch(
                "the index has a secret seed; pass the --config whose dedup.seed_file it was built "
                "with"
            )
        self.codec = SignatureCodec.of(p)
        self._normalise = BatchNormaliser(resolve(p.profile))
        self._shingling = p.shingling()
        random = minhash.random_words(p.seed, 2 * p.num_perm)
        self._rounds = random | np.uint64(1)
        kind = np.dtype(f"u{p.value_bits // 8}")
        self._multipliers: Values = (random[: p.num_perm] | np.uint64(1)).astype(kind)
        self._increments: Values = random[p.num_perm :].astype(kind)

    def normalise(self, texts: Sequence[str]) -> list[str]:
        """Return the normalised texts."""
        return self._normalise(texts)

    def values(self, normalised: Sequence[str]) -> Values:
        """Return the untruncated signatures of ``n`` texts: ``(n, num_perm)`` uint32 or uint64."""
        p = self.parameters
        values = np.empty((len(normalised), p.num_perm), dtype=self._multipliers.dtype)
        for chunk in chunks(normalised):
            values[chunk] = self._chunk_values(normalised[chunk])
        return values

    def sketch(self, normalised: Sequence[str], namespaces: U64) -> Sketches:
        """Sketch ``n`` normalised texts; ``(n,)`` namespaces are from :func:`namespace_hash`."""
        p = self.parameters
        signatures = np.empty((len(normalised), self.codec.num_bytes), dtype=np.uint8)
        keys = np.empty((len(normalised), p.bands + 1), dtype=np.uint64)
        for chunk in chunks(normalised):
            values = self._chunk_values(normalised[chunk])
            signatures[chunk] = self.codec.pack(values)
            keys[chunk, :-1] = minhash.band_keys(values, namespaces[chunk], p.bands, p.rows, p.seed)
        exact = [
            xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"), seed=p.seed)
            for text in normalised
        ]
        keys[:, -1] = np.array(exact, dtype=np.uint64) ^ namespaces
        return Sketches(signatures=signatures, band_keys=keys)

    def _chunk_values(self, texts: Sequence[str]) -> Values:
        packed = pack(texts)
        codes, offsets = join_packed(packed) if self._shingling.words else packed
        if self.parameters.variant == "fast":
            return minhash.fast(codes, offsets, self._shingling, self._rounds)
        return minhash.classic(codes, offsets, self._shingling, self._multipliers, self._increments)
