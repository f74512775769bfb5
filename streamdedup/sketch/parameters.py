"""*Pure.* The parameters that determine the bits of a sketch. Settings use them without numba."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

import xxhash

from streamdedup.sketch.shingle import Shingling

Unit = Literal["character", "word"]
Variant = Literal["fast", "classic"]

WORDS_VERSION = 1
"""Version of the rule that splits texts into words; raised when it splits any text differently."""
FINGERPRINT_FORMAT = 1
"""Version of the bytes that a fingerprint is the hash of."""


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
    seed: int

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that identify these parameters.

        They are XXH3-64 of ``FINGERPRINT_FORMAT``, a space, and :meth:`described` as JSON with
        sorted names and without white space.
        """
        described = json.dumps(self.described(), sort_keys=True, separators=(",", ":"))
        return xxhash.xxh3_64_hexdigest(f"{FINGERPRINT_FORMAT} {described}".encode())

    def described(self) -> dict[str, str | int]:
        """Return the parameters by name; with words, also the version of the splitting rule."""
        rule = {"words_version": WORDS_VERSION} if self.shingle_unit == "word" else {}
        return asdict(self) | rule

    @property
    def signature_bytes(self) -> int:
        """Bytes of a stored signature."""
        return -(-self.num_perm * self.signature_bits // 8)

    def shingling(self) -> Shingling:
        """Return how texts are cut into shingles."""
        words = self.shingle_unit == "word"
        return Shingling(words, self.shingle_size, self.shingle_bag, self.seed)
