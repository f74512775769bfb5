"""The kernels: against integer arithmetic in Python, and against golden values."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.batches import Sketches
from streamdedup.sketch import minhash
from streamdedup.sketch.shingle import Shingling, pack
from streamdedup.sketch.sketcher import Sketcher
from tests.support.builders import examples, parameters

WORD = 2**64
HALF = 2**32
GOLDEN_RATIO = 0x9E3779B97F4A7C15
CHARACTERS = Shingling(words=False, size=5, bag=False, seed=1)


def mixed(value: int) -> int:
    """Compute Stafford's mixer 13 on integers."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % WORD
    value = (value ^ value >> 27) * 0x94D049BB133111EB % WORD
    return value ^ value >> 31


def words_of(seed: int, count: int) -> list[int]:
    """Compute SplitMix64's sequence on integers."""
    return [mixed((seed + step * GOLDEN_RATIO) % WORD) for step in range(1, count + 1)]


def hashed(elements: Iterable[int], seed: int) -> int:
    """Hash a run of numbers by Horner's rule."""
    [seed_mixed] = words_of(seed, 1)
    rolling = 0
    for element in elements:
        rolling = (rolling * (seed_mixed | 1) + element) % WORD
    return mixed(rolling ^ seed_mixed)


def slow_hashes(text: str, shingling: Shingling) -> list[int]:
    """Hash every shingle on its own."""
    elements = [ord(character) + 1 for character in text]
    if shingling.words:
        words = text.split(" ")
        words = [word for word in words if word] or ([""] if text else [])
        elements = [hashed([ord(each) + 1 for each in word], shingling.seed) for word in words]
    if not elements:
        return []
    count = max(len(elements) - shingling.size + 1, 1)
    runs = [elements[at : at + shingling.size] for at in range(count)]
    hashes = [hashed(run, shingling.seed) for run in runs]
    return numbered(hashes) if shingling.bag else hashes


def numbered(hashes: list[int]) -> list[int]:
    """Replace repetitions of a hash by hashes of their own."""
    seen: Counter[int] = Counter()
    found = []
    for each in hashes:
        times = seen[each]
        found.append(mixed((each + times * GOLDEN_RATIO) % WORD) if times else each)
        seen[each] += 1
    return found


def slow_classic(hashes: list[int], words: list[int], bits: int) -> list[int]:
    """Compute the classic signature from the definition."""
    size = 2**bits
    return [
        min(
            (((multiplier | 1) * (each >> 64 - bits) + increment) % size for each in hashes),
            default=size - 1,
        )
        for multiplier, increment in itertools.pairwise([word % size for word in words])
    ]


def slow_fast(hashes: list[int], words: list[int]) -> list[int]:
    """Compute the signature of Fast Similarity Sketching from the definition."""
    num_perm = len(words) // 2
    bins = [HALF * HALF - 1] * num_perm
    for step in range(2 * num_perm) if hashes else ():
        values = [rehashed(each, words[step], step) for each in hashes]
        if step < num_perm:
            for value in values:
                place = (value >> 32) * num_perm >> 32
                bins[place] = min(bins[place], step * HALF + value % HALF)
        elif bins[step - num_perm] == HALF * HALF - 1:
            bins[step - num_perm] = min(value % HALF for value in values)
    return [each % HALF for each in bins]


def rehashed(value: int, word: int, step: int) -> int:
    """Hash a hash for one round; the first round uses the hash itself."""
    if step == 0:
        return value
    value = value * (word | 1) % WORD
    return (value ^ value >> 32) * 0xBF58476D1CE4E5B9 % WORD


def kernel_fast(texts: list[str], shingling: Shingling, num_perm: int) -> Any:
    """Run the kernel of the ``fast`` variant."""
    words = minhash.random_words(shingling.seed, 2 * num_perm)
    return minhash.fast(*pack(texts), shingling, words | np.uint64(1)).tolist()


def kernel_classic(texts: list[str], shingling: Shingling, num_perm: int, bits: int) -> Any:
    """Run the kernel of the ``classic`` variant, each word but the ends for two values."""
    words = minhash.random_words(shingling.seed, num_perm + 1)
    multipliers, increments = (
        each.astype(f"u{bits // 8}") for each in (words[:-1] | np.uint64(1), words[1:])
    )
    made = minhash.classic(*pack(texts), shingling, multipliers, increments)
    assert made.itemsize * 8 == bits
    return made.tolist()


def sketch(texts: list[str], **changes: int | str) -> Sketches:
    """Sketch texts without normalisation, in the unnamed namespace."""
    return Sketcher(parameters(**changes)).sketch(texts, np.zeros(len(texts), dtype=np.uint64))


LONG = "".join(chr(random.Random(5).randrange(0x20, 0xD800)) for _ in range(50)) * 600
TEXTS = [
    pytest.param("", id="empty"),
    pytest.param("a", id="one-character"),
    pytest.param("abcd", id="shorter-than-a-shingle"),
    pytest.param("abcde", id="one-shingle"),
    pytest.param("abcdef", id="two-shingles"),
    pytest.param("\x00\x00\x00\x00\x00\x00\x00", id="nul-characters"),
    pytest.param("caf\xe9 \xff\xfe\x80", id="latin-1"),
    pytest.param("今日は晴れです。明日も", id="cjk"),
    pytest.param("\U0010ffff\U0001f600" * 8, id="astral"),
    pytest.param("\ud800lone\udfff surrogates", id="surrogates"),
    pytest.param("one two three four one two three four one two three four", id="repetitions"),
    pytest.param("ab " * 200, id="few-shingles-repeated"),
    pytest.param(" ", id="no-word"),
    pytest.param(LONG, id="thirty-thousand-characters", marks=pytest.mark.compiled),
]
KINDS = [
    pytest.param(words, bag, id=f"{'words' if words else 'characters'}-{'bag' if bag else 'set'}")
    for words in (False, True)
    for bag in (False, True)
]


@pytest.mark.parametrize(("words", "bag"), KINDS)
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("seed", [0, 2**63 - 1], ids=["zero", "largest"])
def test_values_by_definition(text: str, words: bool, bag: bool, seed: int) -> None:
    """The rolling kernels agree with the definitions, for every kind of character."""
    shingling = Shingling(words, 3, bag, seed)
    hashes = slow_hashes(text, shingling)
    assert kernel_fast([text], shingling, 12) == [slow_fast(hashes, words_of(seed, 24))]
    for bits in (32, 64):
        expected = [slow_classic(hashes, words_of(seed, 9), bits)]
        assert kernel_classic([text], shingling, 8, bits) == expected


@given(
    texts=st.lists(st.text("ab ä今\U0001f600", max_size=30), max_size=6),
    words=st.booleans(),
    bag=st.booleans(),
    size=st.integers(1, 64),
    num_perm=st.integers(1, 40),
)
@examples(200)
def test_batches_by_definition(
    texts: list[str], words: bool, bag: bool, size: int, num_perm: int
) -> None:
    """Each text of a batch has the signature of the definition."""
    shingling = Shingling(words, size, bag, 1)
    hashes = [slow_hashes(text, shingling) for text in texts]
    random_words = words_of(1, 2 * num_perm)
    expected = [slow_fast(each, random_words) for each in hashes]
    assert kernel_fast(texts, shingling, num_perm) == expected
    expected = [slow_classic(each, words_of(1, num_perm + 1), 32) for each in hashes]
    assert kernel_classic(texts, shingling, num_perm, 32) == expected


def test_random_words() -> None:
    """The words are SplitMix64's published sequence, independent of any library."""
    expected = [0x910A2DEC89025CC1, 0xBEEB8DA1658EEC67, 0xF893A2EEFB32555E]
    assert minhash.random_words(1, 3).tolist() == expected


def test_every_bin_is_filled() -> None:
    """One shingle fills all bins: most in the rounds, the rest after them."""
    [row] = kernel_fast(["a"], CHARACTERS, 1000)
    assert len(set(row)) > 990


@pytest.mark.parametrize("num_perm", [16, 64])
@pytest.mark.parametrize("distinct", [1, 2, 3, 40, 500, 2_000])
def test_work_on_repeated_shingles(distinct: int, num_perm: int) -> None:
    """The work of the rounds is linear in a text's length, also if it repeats few shingles."""
    shingles, words = minhash.random_words(7, distinct), minhash.random_words(1, 2 * num_perm)
    once, repeated = (np.full(num_perm, 2**64 - 1, dtype=np.uint64) for _ in range(2))
    minhash.fill_bins(shingles.copy(), words, once)
    text = np.tile(shingles, 4_000 // distinct)
    work = minhash.fill_bins(text, words, repeated)
    assert repeated.tolist() == once.tolist()
    assert work <= 2 * len(text) + 32 * num_perm


def test_many_distinct_shingles_in_one_bin() -> None:
    """The values are right even if more distinct shingles than the table holds leave bins empty."""
    bins = np.full(16, 2**64 - 1, dtype=np.uint64)
    words = minhash.random_words(1, 32)
    shingles = list(range(1_000)) * 2
    minhash.fill_bins(np.array(shingles, dtype=np.uint64), words | np.uint64(1), bins)
    assert [value % HALF for value in bins.tolist()] == slow_fast(shingles, words_of(1, 32))


GOLDEN = [
    pytest.param(
        "fast",
        "",
        "eeeeeeee",
        [0x2AB6B0603F8776DD, 0x258A791E74233166, 0x4DC5B0CC826F6703],
        id="fast-empty",
    ),
    pytest.param(
        "fast",
        "ab",
        "c097c6f0",
        [0xC2A14FF288E9354A, 0x34B27C0B2979161C, 0xAD9EB8F4EFD9807B],
        id="fast-short",
    ),
    pytest.param(
        "fast",
        "hello world",
        "28b0bf72",
        [0x3D97C78D8C587BA7, 0xCDB537679ECC4873, 0xB7AEB52A10FDAF2D],
        id="fast-ascii",
    ),
    pytest.param(
        "fast",
        "naïve café",
        "4339afe0",
        [0x1EFD3CF27066B23A, 0x5BE5F9935791CD16, 0x1F24E13C6C58E715],
        id="fast-latin-1",
    ),
    pytest.param(
        "fast",
        "今日は晴れです",
        "486dd92a",
        [0x6DD7B264B9C76C5D, 0x3C4F7689BFAB7F4, 0x1D4512AE32858541],
        id="fast-cjk",
    ),
    pytest.param(
        "fast",
        "\U0001f600\U0001f601\U0001f602\ud800xyz",
        "1d65d0dd",
        [0xE42AE5ACE9DF8FE2, 0x8045D46151ECC7CB, 0x10F77CEB6EFF55E3],
        id="fast-astral-and-surrogate",
    ),
    pytest.param(
        "classic",
        "",
        "eeeeeeee",
        [0x2AB6B0603F8776DD, 0x258A791E74233166, 0x4DC5B0CC826F6703],
        id="classic-empty",
    ),
    pytest.param(
        "classic",
        "ab",
        "3acd547b",
        [0x3D4D2456AF40AF64, 0x35A168A5371CB3C7, 0xAD9EB8F4EFD9807B],
        id="classic-short",
    ),
    pytest.param(
        "classic",
        "hello world",
        "a760b41d",
        [0x308CBA820F9835B1, 0xD05E6ACDE1A050F3, 0xB7AEB52A10FDAF2D],
        id="classic-ascii",
    ),
    pytest.param(
        "classic",
        "naïve café",
        "29db91e2",
        [0x2CD9A7682934BA02, 0x5DE282EABB914D39, 0x1F24E13C6C58E715],
        id="classic-latin-1",
    ),
    pytest.param(
        "classic",
        "今日は晴れです",
        "85407dd4",
        [0xF0416CE4A6A6EF25, 0xC17B5CF267FD9AA3, 0x1D4512AE32858541],
        id="classic-cjk",
    ),
    pytest.param(
        "classic",
        "\U0001f600\U0001f601\U0001f602\ud800xyz",
        "cc3da080",
        [0x4B942AB0E77F7C78, 0x22F992D1CE6CB2E7, 0x10F77CEB6EFF55E3],
        id="classic-astral-and-surrogate",
    ),
]


@pytest.mark.parametrize(("variant", "text", "signature", "keys"), GOLDEN)
def test_golden(variant: str, text: str, signature: str, keys: list[int]) -> None:
    """A sketch is the same on every platform, and in every release that reads the same indexes."""
    made = sketch([text], variant=variant, shingle_size=5, num_perm=8, bands=2, rows=3)
    assert made.signatures.tobytes().hex() == signature
    assert made.band_keys.tolist() == [keys]


@pytest.mark.compiled
@pytest.mark.parametrize("variant", ["fast", "classic"])
def test_batch_size_does_not_matter(variant: str) -> None:
    """A text has the same sketch in batches of any size."""
    rng = random.Random(2)
    alphabets = ["abcdefgh ", "abcé ", "abc日本 \U0001f600"]
    texts = ["".join(rng.choices(rng.choice(alphabets), k=rng.randrange(40))) for _ in range(600)]
    sketcher = Sketcher(parameters(variant=variant))
    namespaces = np.zeros(600, dtype=np.uint64)
    whole = sketcher.sketch(texts, namespaces)
    for size in (1, 7, 256, 599):
        slices = [slice(at, at + size) for at in range(0, len(texts), size)]
        parts = [sketcher.sketch(texts[part], namespaces[part]) for part in slices]
        for name in ("signatures", "band_keys"):
            joined = np.concatenate([getattr(part, name) for part in parts])
            np.testing.assert_array_equal(joined, getattr(whole, name))
