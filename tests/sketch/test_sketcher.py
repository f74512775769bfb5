"""The sketcher: namespaces, exact copies, and the fingerprint."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xxhash

from streamdedup.errors import IndexMismatch
from streamdedup.sketch.parameters import UNKNOWN_SEED
from streamdedup.sketch.sketcher import Sketcher, namespace_hash
from tests.support.builders import parameters


def test_exact_copies_share_the_last_key() -> None:
    """The last key is that of the whole text: equal for copies, different for near-copies."""
    texts = ["the same text", "the same text", "the same texts"]
    keys = Sketcher(parameters()).sketch(texts, np.zeros(3, dtype=np.uint64)).band_keys[:, -1]
    assert keys[0] == keys[1]
    assert keys[0] != keys[2]


def test_namespaces_share_no_key() -> None:
    """The same text has different keys in each namespace, and the same signature."""
    namespaces = np.array([0, namespace_hash("en"), namespace_hash("de")], dtype=np.uint64)
    made = Sketcher(parameters()).sketch(["one and the same"] * 3, namespaces)
    for column in made.band_keys.T:
        assert len(set(column.tolist())) == 3
    assert len({row.tobytes() for row in made.signatures}) == 1


def test_namespace_hash() -> None:
    """Only the unnamed namespace has hash zero; lone surrogates are valid in names."""
    names = ["", "a", "b", "\ud800", "\udfff"]
    assert namespace_hash("") == 0
    assert len({namespace_hash(name) for name in names}) == len(names)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_shapes(count: int) -> None:
    """Sketches have one row per text, also without texts."""
    p = parameters()
    made = Sketcher(p).sketch(["text"] * count, np.zeros(count, dtype=np.uint64))
    assert made.signatures.shape == (count, p.num_perm // 2)
    assert made.band_keys.shape == (count, p.bands + 1)
    assert made.signatures.dtype.name == "uint8"
    assert made.band_keys.dtype.name == "uint64"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("profile", "news"),
        ("profile_version", 2),
        ("shingle_unit", "word"),
        ("shingle_size", 4),
        ("shingle_bag", True),
        ("variant", "classic"),
        ("num_perm", 33),
        ("value_bits", 64),
        ("signature_bits", 8),
        ("bands", 7),
        ("rows", 3),
        ("seed", 2),
    ],
    ids=str,
)
def test_fingerprint(name: str, value: int | str) -> None:
    """The fingerprint has 16 hexadecimal digits and depends on each parameter."""
    fingerprint = parameters().fingerprint()
    assert len(bytes.fromhex(fingerprint)) == 8
    assert parameters(**{name: value}).fingerprint() != fingerprint
    assert parameters().fingerprint() == fingerprint


def test_fingerprint_is_stable() -> None:
    """The fingerprint of given parameters never changes, because every changelog entry has it."""
    changes = {"num_perm": 8, "bands": 2, "rows": 3, "shingle_size": 5}
    assert parameters(**changes).fingerprint() == "d2276ed0733fe62e"
    words = parameters(**changes, shingle_unit="word")
    assert words.fingerprint() == "8969089a1018f917"


def test_fingerprint_of_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version of the word rule changes it only if shingles are of words."""
    units = [parameters(), parameters(shingle_unit="word")]
    before = [unit.fingerprint() for unit in units]
    monkeypatch.setattr("streamdedup.sketch.parameters.WORDS_VERSION", 2)
    assert units[0].fingerprint() == before[0]
    assert units[1].fingerprint() != before[1]


@pytest.mark.parametrize("variant", ["fast", "classic"])
@pytest.mark.parametrize("unit", ["character", "word"])
def test_values(variant: str, unit: str) -> None:
    """The stored signature is the packed one, and texts of several chunks come back in order."""
    sketcher = Sketcher(parameters(variant=variant, shingle_unit=unit))
    texts = sketcher.normalise([f"Text  {number}" for number in range(300)])
    values = sketcher.values(texts)
    assert texts[299] == "text 299"
    assert values.shape == (300, sketcher.parameters.num_perm)
    stored = sketcher.sketch(texts, np.zeros(300, dtype=np.uint64)).signatures
    np.testing.assert_array_equal(sketcher.codec.pack(values), stored)


def test_fingerprint_by_definition() -> None:
    """The fingerprint is the hash that the docstring defines."""
    described = json.dumps(parameters().described(), sort_keys=True, separators=(",", ":"))
    assert parameters().fingerprint() == xxhash.xxh3_64_hexdigest(f"1 {described}".encode())


def test_an_unknown_seed_is_refused() -> None:
    """The parameters of an index with a secret seed sketch nothing; the message says what helps."""
    with pytest.raises(IndexMismatch, match="secret seed; pass the --config"):
        Sketcher(parameters(seed=UNKNOWN_SEED, seed_hash="0" * 32))
