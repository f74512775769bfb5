"""The kernels: against whole-number arithmetic in Python, and against the theory of MinHash."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.model import U8, Sketches
from streamdedup.sketch import minhash
from streamdedup.sketch.bands import Banding
from streamdedup.sketch.sketcher import Sketcher
from tests.builders import examples, parameters

WORD = 2**64
PAIRS = 1000
FIRST_CJK = 0x4E00


def mixed(value: int) -> int:
    """Return Stafford's mixer 13, in whole numbers."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % WORD
    value = (value ^ value >> 27) * 0x94D049BB133111EB % WORD
    return value ^ value >> 31


def slow_values(text: str, size: int, seed: int, num_perm: int) -> list[int]:
    """Compute a signature from the definition: every shingle hashed alone, by Horner's rule."""
    words = [mixed((seed + step * 0x9E3779B97F4A7C15) % WORD) for step in range(1, num_perm + 1)]
    seed_mixed = words[0]
    base = seed_mixed | 1
    count = max(len(text) - size + 1, 1)
    hashes = []
    for shingle in {text[at : at + size] for at in range(count if text else 0)}:
        rolling = 0
        for character in shingle:
            rolling = (rolling * base + ord(character) + 1) % WORD
        hashes.append(mixed(rolling ^ seed_mixed) >> 32)
    return [
        min(
            (((word >> 32 | 1) * hashed + word % 2**32) % 2**32 for hashed in hashes),
            default=2**32 - 1,
        )
        for word in words
    ]


def kernel_values(texts: list[str], size: int, seed: int, num_perm: int) -> list[list[int]]:
    """Compute the same with the kernels."""
    words = minhash.random_words(seed, num_perm)
    codes = np.array([ord(character) for text in texts for character in text], dtype=np.uint32)
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    multipliers = (words >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
    values = minhash.minhash(codes, offsets, size, seed, multipliers, words.astype(np.uint32))
    return values.tolist()  # type: ignore[no-any-return]


def sketch(texts: list[str], **changes: int | str) -> Sketches:
    """Sketch texts as they stand, in the unnamed namespace."""
    return Sketcher(parameters(**changes)).sketch(texts, np.zeros(len(texts), dtype=np.uint64))


LONG = "".join(chr(random.Random(5).randrange(0x20, 0xD800)) for _ in range(50)) * 1200
TEXTS = [
    pytest.param("", id="empty"),
    pytest.param("a", id="one-character"),
    pytest.param("abcd", id="shorter-than-a-shingle"),
    pytest.param("abcde", id="one-shingle"),
    pytest.param("abcdef", id="two-shingles"),
    pytest.param("\x00\x00\x00\x00\x00\x00\x00", id="nul-characters"),
    pytest.param("今日は晴れです。明日も", id="cjk"),
    pytest.param("\U0010ffff\U0001f600" * 8, id="astral"),
    pytest.param("\ud800lone\udfff surrogates", id="surrogates"),
    pytest.param(LONG, id="sixty-thousand-characters"),
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1], ids=["0", "1", "largest"])
def test_values_by_definition(text: str, seed: int) -> None:
    """The rolling kernel gives what the definition gives, for every kind of character."""
    assert kernel_values([text], 5, seed, 16) == [slow_values(text, 5, seed, 16)]


@given(texts=st.lists(st.text(max_size=30), max_size=6), size=st.integers(1, 64))
@examples(100)
def test_batches_by_definition(texts: list[str], size: int) -> None:
    """A batch gives each text what it would get alone, by the definition."""
    assert kernel_values(texts, size, 1, 4) == [slow_values(text, size, 1, 4) for text in texts]


def test_random_words() -> None:
    """The words are SplitMix64's published sequence, so that no library can change an index."""
    expected = [0x910A2DEC89025CC1, 0xBEEB8DA1658EEC67, 0xF893A2EEFB32555E]
    assert minhash.random_words(1, 3).tolist() == expected


GOLDEN = [
    pytest.param(
        "",
        [97, 97, 97, 97, 97, 97, 97, 97],
        [0xA5B8AFACE025D952, 0x3C01CD68FFE7EA5, 0x4DC5B0CC826F6703],
        id="empty",
    ),
    pytest.param(
        "ab",
        [177, 14, 60, 174, 99, 205, 106, 69],
        [0xEBAFA8CF43AD4874, 0xECDC47408169ADCF, 0xECCC6E6DE97B32B8],
        id="short",
    ),
    pytest.param(
        "hello world",
        [252, 145, 59, 176, 31, 234, 20, 100],
        [0x643A57B51BBEF355, 0xD6FE6AF57EE3848D, 0xC76A64B275BF568B],
        id="ascii",
    ),
    pytest.param(
        "今日は晴れです",
        [55, 145, 22, 225, 93, 77, 118, 62],
        [0x7B673588229A3D55, 0x828D108A8EA70300, 0xFE95C79A9D2A8953],
        id="cjk",
    ),
    pytest.param(
        "\U0001f600\U0001f601\U0001f602\ud800xyz",
        [63, 82, 7, 210, 44, 107, 187, 32],
        [0x586553C9EA2E5582, 0xF72EFA6E8D0593BD, 0x7778F8F4243311EB],
        id="astral-and-surrogate",
    ),
]


@pytest.mark.parametrize(("text", "signature", "keys"), GOLDEN)
def test_golden(text: str, signature: list[int], keys: list[int]) -> None:
    """A sketch is the same on every platform and in every release that reads the same indexes."""
    made = sketch([text], shingle_size=5, num_perm=8, bands=2, rows=3)
    assert made.signatures.tolist() == [signature]
    assert made.band_keys.tolist() == [keys]


def test_batch_size_does_not_matter() -> None:
    """The same texts in batches of any size have the same sketches."""
    rng = random.Random(2)
    texts = ["".join(rng.choices("abcdefgh", k=rng.randrange(40))) for _ in range(60)]
    whole = sketch(texts)
    for size in (1, 7, 59):
        parts = [sketch(texts[at : at + size]) for at in range(0, len(texts), size)]
        for name in ("signatures", "band_keys"):
            joined = np.concatenate([getattr(part, name) for part in parts])
            np.testing.assert_array_equal(joined, getattr(whole, name))


def planted_pairs(jaccard: float, size: int, seed: int) -> tuple[float, list[str], list[str]]:
    """Make pairs of sets of single characters, and return their exact similarity with them."""
    common = round(2 * size * jaccard / (1 + jaccard))
    rng = random.Random(seed)
    firsts, seconds = [], []
    for _ in range(PAIRS):
        characters = rng.sample(range(FIRST_CJK, FIRST_CJK + 20_000), 2 * size - common)
        text = "".join(map(chr, characters))
        firsts.append(text[:size])
        seconds.append(text[size - common :])
    return common / (2 * size - common), firsts, seconds


def estimates(one: U8, other: U8) -> list[float]:
    """Estimate pair by pair."""
    pairs = zip(one, other, strict=True)
    return [float(minhash.estimate_jaccard(a, b[None])[0]) for a, b in pairs]


@pytest.mark.parametrize("size", [20, 250])
@pytest.mark.parametrize("jaccard", [0.3, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("seed", [1, 99])
def test_estimate(jaccard: float, size: int, seed: int) -> None:
    """The estimate is unbiased, and its deviation is the binomial one of theory."""
    exact, firsts, seconds = planted_pairs(jaccard, size, seed)
    changes = {"shingle_size": 1, "num_perm": 256, "seed": seed}
    found = estimates(sketch(firsts, **changes).signatures, sketch(seconds, **changes).signatures)
    agreement = exact + (1 - exact) / 256
    deviation = math.sqrt(agreement * (1 - agreement) / 256) / (1 - 1 / 256)
    assert np.mean(found) == pytest.approx(exact, abs=4 * deviation / math.sqrt(PAIRS))
    assert np.std(found) == pytest.approx(deviation, rel=4 / math.sqrt(2 * PAIRS))


@pytest.mark.parametrize(
    ("bands", "rows", "jaccard"), [(20, 5, 0.5), (20, 5, 0.7), (16, 16, 0.84), (42, 3, 0.3)]
)
def test_band_recall(bands: int, rows: int, jaccard: float) -> None:
    """As many planted pairs share a band as the S-curve says, within the error of sampling."""
    exact, firsts, seconds = planted_pairs(jaccard, 250, 7)
    changes = {"shingle_size": 1, "num_perm": 256, "bands": bands, "rows": rows}
    one, other = sketch(firsts, **changes).band_keys, sketch(seconds, **changes).band_keys
    share = np.mean((one == other)[:, :-1].any(axis=1))
    expected = Banding(bands, rows).candidate_probability(exact)
    assert share == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / PAIRS))


def test_lorem_ipsum() -> None:
    """The worked example: a sentence and its continuation have 22 of 47 shingles in common."""
    short = "Lorem Ipsum dolor sit amet"
    long = short + " is how dummy text starts"
    assert len(short) - 4 == 22
    assert len(long) - 4 == 47
    changes = {"shingle_size": 5, "num_perm": 9000}
    one, other = sketch([short, long], **changes).signatures
    [estimate] = minhash.estimate_jaccard(one, other[None])
    assert estimate == pytest.approx(22 / 47, abs=4 * math.sqrt(22 / 47 * 25 / 47 / 9000))


def test_estimate_ends() -> None:
    """Equal signatures give exactly one, and signatures with nothing in common exactly zero."""
    signature = np.arange(256, dtype=np.uint8)
    others = np.stack([signature, signature + np.uint8(1)])
    assert minhash.estimate_jaccard(signature, others).tolist() == [1.0, 0.0]
