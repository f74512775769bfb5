"""*Pure.* The parameters that determine the bits of a sketch. Settings use them without numba."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Literal

import xxhash

from streamdedup.sketch.shingle import Shingling

Unit = Literal["character", "word"]
Variant = Literal["fast", "classic"]

WORDS_VERSION = 1
"""Version of the rule that splits texts into words; raised when it splits any text differently."""
FINGERPRINT_FORMAT = 1
"""Version of the bytes that a fingerprint is the hash of."""


UNKNOWN_SEED = 0
"""The seed of parameters that were read from an index with a secret seed."""


@dataclass(frozen=True)
class SketchParameters:
    """The parameters that determine the bits of a sketch; equal parameters give equal sketches."""

    profile: str
    profile_version: int
    shingle_unit: Unit
    shingle_size: int
    shingle_bag: bool
    variant: Variant
    num_perm: int
    value_bits: int
    signature_bits: int
    bands: int
    rows: int
    seed: int = field(repr=False)  # seed of all hashing; never shown, because it may be secret
    seed_hash: str = ""  # of the secret that the seed follows from; empty if it is not secret

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that identify these parameters.

        They are XXH3-64 of ``FINGERPRINT_FORMAT``, a space, and :meth:`described` as JSON with
        sorted names and without white space.
        """
        described = json.dumps(self.described(), sort_keys=True, separators=(",", ":"))
        return xxhash.xxh3_64_hexdigest(f"{FINGERPRINT_FORMAT} {described}".encode())

    def described(self) -> dict[str, str | int]:
        """Return the parameters by name; with words, also the version of the splitting rule.

        A secret seed is left out, and its hash stands for it. Without a secret there is no hash.
        """
        rule = {"words_version": WORDS_VERSION} if self.shingle_unit == "word" else {}
        hidden = "seed" if self.seed_hash else "seed_hash"
        return {name: value for name, value in asdict(self).items() if name != hidden} | rule

    @property
    def signature_bytes(self) -> int:
        """Bytes of a stored signature."""
        return -(-self.num_perm * self.signature_bits // 8)

    def shingling(self) -> Shingling:
        """Return how texts are cut into shingles."""
        words = self.shingle_unit == "word"
        return Shingling(words, self.shingle_size, self.shingle_bag, self.seed)
