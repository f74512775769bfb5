"""*Blocking* (reads the seed from its file). Settings of the comparison: what a duplicate is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator
from pydantic_settings import NoDecode

from streamdedup.settings.secrets import Seed, read_seed
from streamdedup.settings.units import Number, Section
from streamdedup.sketch.bands import DEFAULT_BACKGROUND, DEFAULT_CORPUS, Banding, choose_bands
from streamdedup.sketch.normalize import PROFILES, STEPS, resolve
from streamdedup.sketch.parameters import SketchParameters

_FAST_BITS = 32
_DEFAULT_SEED = 1


def _as_profile(value: Any) -> Any:
    """Check the name of a profile, or its list of steps as YAML, a variable or a flag holds it."""
    if isinstance(value, str) and ("," in value or value.startswith("[")):
        value = [part.strip().strip('"') for part in value.strip("[] ").split(",")]
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"invalid profile {value!r}; expected e.g. plain or [nfkc, casefold, collapse_space]"
        )
    resolve(value)
    return value


_PROFILE_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"enum": sorted(PROFILES)},
        {"type": "array", "items": {"enum": list(STEPS)}, "minItems": 1, "uniqueItems": True},
    ]
}
ProfileName = Annotated[str | tuple[str, ...], NoDecode, BeforeValidator(_as_profile)]


class DedupSettings(Section):
    """What makes a document a duplicate.

    An index and its changelog keep the settings of their creation, except ``empty_text``,
    ``verify`` from ``exact`` to ``estimate``, and ``threshold`` if ``bands`` and ``rows`` are
    set.
    """

    threshold: float = Field(default=0.8, gt=0.0, le=1.0)
    """Least estimated Jaccard similarity of a duplicate with a kept document."""
    recall: float = Field(default=0.99, gt=0.0, lt=1.0)
    """Share of pairs exactly at the threshold that must share a bucket. Determines the bands."""
    corpus_documents: int = Field(default=DEFAULT_CORPUS, ge=1, le=10**12)
    """Number of documents in the index, to choose the rows."""
    background: float = Field(default=DEFAULT_BACKGROUND, ge=0.0, lt=1.0)
    """Similarity of unrelated documents, to choose the rows. `streamdedup evaluate` measures
    it."""
    bands: int | None = Field(default=None, ge=1, le=1000)
    """Number of bands. Default: computed from threshold, recall and num_perm."""
    rows: int | None = Field(default=None, ge=1, le=1000)
    """Rows per band. Set bands and rows together."""
    variant: Literal["fast", "classic"] = "fast"
    """fast: Fast Similarity Sketching. classic: MinHash with one hash function per value."""
    num_perm: int = Field(default=256, ge=1, le=9000)
    """MinHash values per signature. More values reduce the error, and cost time and disk."""
    value_bits: Annotated[Literal[32, 64], Number] = 32
    """Bits of a MinHash value before it is stored. 64 needs variant classic."""
    signature_bits: Annotated[Literal[1, 2, 4, 8], Number] = 4
    """Stored bits of each value: num_perm x signature_bits / 8 bytes per document. Fewer bits
    increase the estimate's standard error."""
    shingle_unit: Literal["character", "word"] = "character"
    """Unit of a shingle: code points, which suit every script, or words."""
    shingle_size: int = Field(default=5, ge=1, le=64)
    """Units per shingle. A shorter text is one shingle."""
    shingle_bag: bool = False
    """Whether a repeated shingle counts each time."""
    profile: ProfileName = Field(default="plain", json_schema_extra=_PROFILE_SCHEMA)
    """How texts are normalised: a profile or a list of steps. docs/profiles.md describes both."""
    seed: int = Field(default=_DEFAULT_SEED, ge=0, lt=2**63)
    """Seed of all hashing. It is stored in the index; see seed_file."""
    seed_file: Path | None = None
    """File with a secret of at least 32 characters, instead of seed. It prevents crafted
    collisions. Keep a copy: index and changelog need it."""
    verify: Literal["estimate", "exact"] = "estimate"
    """estimate: the signatures decide. exact: near the threshold the texts decide; index and
    changelog store them from their creation on."""
    empty_text: Literal["keep", "reject"] = "keep"
    """A document without text after normalisation: kept and not indexed, or a dead letter."""

    _secret: Seed | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _read_seed(self) -> DedupSettings:
        if self.seed_file is None:
            return self
        if self.seed != _DEFAULT_SEED:
            raise ValueError("seed and seed_file are both set; remove one")
        # Read once: the processes that sketch must not find another seed later.
        self._secret = read_seed(self.seed_file)
        return self

    @model_validator(mode="after")
    def _check(self) -> DedupSettings:
        if (self.bands is None) != (self.rows is None):
            raise ValueError("only one of bands and rows is set; set both or neither")
        if self.variant == "fast" and self.value_bits != _FAST_BITS:
            raise ValueError(
                f"value_bits {self.value_bits} needs variant: classic; fast has {_FAST_BITS}"
            )
        self.banding()
        return self

    def banding(self) -> Banding:
        """Return bands and rows, set or by the recall; a ValueError if num_perm is too small."""
        if self.bands is None or self.rows is None:
            corpus, background = self.corpus_documents, self.background
            return choose_bands(self.threshold, self.recall, self.num_perm, corpus, background)
        banding = Banding(self.bands, self.rows)
        if banding.values > self.num_perm:
            raise ValueError(
                f"{banding} need {banding.values} MinHash values, num_perm is {self.num_perm}; "
                "raise num_perm or lower bands or rows"
            )
        return banding

    @property
    def keeps_texts(self) -> bool:
        """Whether the index and the changelog store the texts."""
        return self.verify == "exact"

    def sketch_parameters(self) -> SketchParameters:
        """Return the parameters that determine the bits of a sketch."""
        banding = self.banding()
        profile = resolve(self.profile)
        return SketchParameters(
            profile=str(profile),
            profile_version=profile.version,
            shingle_unit=self.shingle_unit,
            shingle_size=self.shingle_size,
            shingle_bag=self.shingle_bag,
            variant=self.variant,
            num_perm=self.num_perm,
            value_bits=self.value_bits,
            signature_bits=self.signature_bits,
            bands=banding.bands,
            rows=banding.rows,
            seed=self._secret.value if self._secret else self.seed,
            seed_hash=self._secret.hash if self._secret else "",
        )
