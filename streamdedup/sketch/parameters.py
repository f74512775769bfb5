"""*Pure.* Everything that the bits of a sketch depend on. Loads no kernels: settings need it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

import xxhash

from streamdedup.sketch.shingle import Shingling

Unit = Literal["character", "word"]
Variant = Literal["fast", "classic"]

WORDS_VERSION = 1
"""Version of the rule that splits texts into words; raised when it splits any text differently."""


@dataclass(frozen=True)
class SketchParameters:
    """Everything that the bits of a sketch depend on; two equal ones make equal sketches."""

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
        """Return 16 hexadecimal digits that name these parameters, and how words are cut."""
        rule = f" words/{WORDS_VERSION}" if self.shingle_unit == "word" else ""
        return xxhash.xxh3_64_hexdigest((repr(self) + rule).encode())

    def described(self) -> dict[str, str | int]:
        """Return what the fingerprint names, by name."""
        rule = {"words_version": WORDS_VERSION} if self.shingle_unit == "word" else {}
        return asdict(self) | rule

    @property
    def signature_bytes(self) -> int:
        """Bytes of a stored signature."""
        return -(-self.num_perm * self.signature_bits // 8)

    def shingling(self) -> Shingling:
        """Return what a shingle is."""
        words = self.shingle_unit == "word"
        return Shingling(words, self.shingle_size, self.shingle_bag, self.seed)
