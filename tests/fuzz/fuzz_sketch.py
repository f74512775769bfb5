"""*Pure.* Normalisation, and stored signatures."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import numpy as np

from streamdedup.sketch.batch import BatchNormaliser
from streamdedup.sketch.codec import SignatureCodec
from streamdedup.sketch.normalize import PROFILES, STEPS, Profile, compose
from tests.fuzz.cases import Block, each, expect, odd_text

_CASES = 256
_MOST_MARKS = 30
_MARKS = "\u0300\u0301\u0307\u0316\u0323\u0327\u0334\u0345\u05b0\u064e\u0651\u093c\u3099\uff9e"
_CRUMBS = (
    "RT @", "rt  @a: ", "@", ":", "https://", "HTTP://", "http:/", "ftp://", "www.", "WWW.x",
    "t.co/x",
    "> ", "| ", "\n--\n", "-- ", "\n", "\r\n", "\u2038url\u2038", "\u2038", "1,5", "\u0663\u066b1",
    "@b.c", "user@host", "word", "Word ", "STRASSE", "stra\u00dfe", "\u03a3\u03c2", "\ufb03",
    "\ufdfa",
    "i\u0307", "\u0130", "\u1e9e", "\uff21\uff22", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u2126",
    "\u0344", "\u1fb3", "\u0f71\u0f72", "\ud55c", "  \u3000 ",
)  # fmt: skip


def _profiles() -> list[Profile]:
    """Return the named profiles, and compositions of every number of steps."""
    random = Random(1)
    chosen = list(PROFILES.values())
    while len(chosen) < 12:
        names = [name for name in STEPS if random.random() < 0.5]
        by_line = any(STEPS[name].of_lines for name in names)
        if names and not ("drop_retweet" in names and by_line):
            chosen.append(compose(names))
    return chosen


@contextmanager
def normalise() -> Iterator[Block]:
    """The kernels change any text like the steps one by one, and no text twice."""
    normalisers = [(profile, BatchNormaliser(profile)) for profile in _profiles()]

    def block(random: Random) -> int:
        # Half of all blocks have a named profile, as most users do.
        among = normalisers[:4] if random.random() < 0.5 else normalisers
        profile, normaliser = random.choice(among)
        texts = [_text(random) for _ in range(_CASES)]
        whole = normaliser(texts)
        again = normaliser(whole)

        def check(row: int) -> None:
            expected = profile(texts[row])
            case = (str(profile), texts[row])
            expect(whole[row] == expected, case, f"the kernel gives {whole[row]!a}")
            is_same = again[row] == whole[row] or _has_many_marks(whole[row])
            expect(is_same, case, f"not idempotent: {again[row]!a}")

        return each(range(_CASES), check)

    yield block


def _has_many_marks(text: str) -> bool:
    """Tell whether a text has thirty marks in a row; it may lose one in a second pass."""
    run = 0
    for character in text:
        run = run + 1 if unicodedata.combining(character) else 0
        if run >= _MOST_MARKS:
            return True
    return False


def _text(random: Random) -> str:
    kind = random.random()
    if kind < 0.3:
        return "".join(random.choice(_CRUMBS) for _ in range(int(random.random() * 10)))
    if kind < 0.6:
        return odd_text(random, 20)
    if kind < 0.7:  # a run of marks, around the limit of thirty
        marks = "".join(random.choice(_MARKS) for _ in range(int(random.random() * 70)))
        return odd_text(random, 4) + marks + odd_text(random, 4)
    if kind < 0.8:
        return "".join(chr(33 + int(random.random() * 94)) for _ in range(20))
    parts = (random.choice([random.choice(_CRUMBS), odd_text(random, 5)]) for _ in range(8))
    return "".join(parts)


_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_CODECS = [
    SignatureCodec(num_perm, bits) for bits in (1, 2, 4, 8) for num_perm in (1, 7, 16, 31, 64, 129)
]


@contextmanager
def signatures() -> Iterator[Block]:
    """Packing, unpacking and comparing agree with plain arithmetic."""

    def block(random: Random) -> int:
        codec = random.choice(_CODECS)
        generator = np.random.default_rng(random.getrandbits(64))
        kind = random.choice([np.uint32, np.uint64])
        high = int(random.choice([1, 2, 255, 2 ** (32 if kind is np.uint32 else 64) - 1]))
        values = generator.integers(0, high, (_CASES, codec.num_perm), dtype=kind, endpoint=True)
        values[1:][generator.random(values[1:].shape) < 0.5] = values[0, 0]
        packed = codec.pack(values)
        expect(packed.shape == (_CASES, codec.num_bytes), codec, "shape")
        product = values.astype(np.uint64) * _FACTOR >> np.uint64(64 - codec.bits)
        fields = codec.unpack(packed)
        expect(bool((fields == product.astype(np.uint8)).all()), codec, "other bits are stored")
        equal = (fields == fields[0]).sum(axis=1)
        expected = (equal / codec.num_perm - 2.0**-codec.bits) / (1 - 2.0**-codec.bits)
        estimates = codec.estimate_jaccard(packed[0], packed)
        expect(np.array_equal(estimates, np.clip(expected, 0, 1)), codec, "another estimate")
        expect(np.array_equal(codec.estimates()[codec.num_perm - equal], estimates), codec, "table")
        return _CASES

    yield block
