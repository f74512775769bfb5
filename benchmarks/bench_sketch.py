"""Texts to signatures: this package against datasketch and rensa, on one core, in one run.

Every row begins with Python strings and ends with signatures: cutting a text into shingles is part
of the work. Beside each speed stands what the signatures are worth: the share of planted
near-duplicates (exact Jaccard .8 to 1) that share a band, where the bands are chosen for recall .99
at .8, and the root mean square error of the estimate. Speeds are per second of processor time; the
repeats of all rows take turns, and medians are printed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

# Before the peers are imported: they ask once.
os.environ.setdefault("RAYON_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray

from streamdedup.model import Position, Record
from streamdedup.prepare import Preparer
from streamdedup.settings import DedupSettings, load_settings
from streamdedup.sketch.bands import choose_bands
from streamdedup.sketch.codec import SignatureCodec
from streamdedup.sketch.sketcher import Sketcher

SIZE = 5
NUM_PERM = 128
THRESHOLD = 0.8
RECALL = 0.99
LENGTHS = {100: 4000, 280: 4000, 3000: 600}
"""Characters per text (about), and how many texts."""
PLANTED = 400
VOCABULARY = 20_000

Floats = NDArray[np.float64]


class Method(NamedTuple):
    """One row of a table.

    Attributes:
        name: of the row.
        make: texts to signatures, of whatever kind.
        values: signatures to an array, one row per text.
        slow: whether it is measured on a tenth of the texts.
        codec: of stored signatures, to estimate from them; else the share of equal values.
    """

    name: str
    make: Callable[[list[str]], Any]
    values: Callable[[Any], NDArray[Any]] = np.asarray
    slow: bool = False
    codec: SignatureCodec | None = None


class Corpus(NamedTuple):
    """Texts to be timed, pairs to be judged, and the exact similarity of the pairs."""

    texts: list[str]
    pairs: list[str]
    exact: Floats


def vocabulary(rng: np.random.Generator) -> list[str]:
    """Make up words of two to twelve letters."""
    lengths = rng.integers(2, 13, VOCABULARY)
    return ["".join(map(chr, rng.integers(97, 123, length))) for length in lengths]


def make_corpus(length: int, count: int) -> Corpus:
    """Write texts whose words are as frequent as words are, and near-duplicates of some."""
    rng = np.random.default_rng(length)
    words = vocabulary(rng)
    frequencies = 1 / np.arange(10, VOCABULARY + 10)
    frequencies /= frequencies.sum()

    def write() -> list[str]:
        return [words[i] for i in rng.choice(VOCABULARY, length // 8 + 1, p=frequencies)]

    texts = [" ".join(write()) for _ in range(count)]
    pairs: list[str] = []
    exact: list[float] = []
    while len(exact) < PLANTED:
        original = write()
        copy = list(original)
        for at in rng.choice(len(copy), max(1, round(len(copy) * rng.uniform(0.0, 0.1)))):
            copy[at] = words[rng.integers(VOCABULARY)]
        one, other = " ".join(original), " ".join(copy)
        similarity = jaccard(one, other)
        if similarity >= THRESHOLD:
            pairs += [one, other]
            exact.append(similarity)
    return Corpus(texts, pairs, np.array(exact))


def shingles(text: str) -> set[str]:
    """Return the set of character shingles, as the peers want them."""
    return {text[at : at + SIZE] for at in range(max(1, len(text) - SIZE + 1))}


def jaccard(one: str, other: str) -> float:
    """Return the exact similarity."""
    first, second = shingles(one), shingles(other)
    return len(first & second) / len(first | second)


def recall(values: NDArray[Any]) -> float:
    """Return the share of the pairs of rows that share a band."""
    bands, rows = choose_bands(THRESHOLD, RECALL, values.shape[1])
    equal = (values[::2] == values[1::2])[:, : bands * rows].reshape(-1, bands, rows)
    return float(np.mean(equal.all(axis=2).any(axis=1)))


def estimates(values: NDArray[Any], codec: SignatureCodec | None) -> Floats:
    """Estimate the similarity of each pair of rows."""
    if codec is None:
        share: Floats = np.mean(values[::2] == values[1::2], axis=1)
        return share
    stored = codec.pack(values)
    pairs = zip(stored[::2], stored[1::2, None], strict=True)
    return np.concatenate([codec.estimate_jaccard(one, other) for one, other in pairs])


def our_methods() -> Iterator[Method]:
    """Yield this package's rows: the kernels at the peers' size, and the default as stored."""
    for variant in ("classic", "fast"):
        settings = DedupSettings(variant=variant, num_perm=NUM_PERM, shingle_size=SIZE)
        sketcher = Sketcher(settings.sketch_parameters())
        yield Method(f"streamdedup {variant} {NUM_PERM}", sketcher.values)
    default = Sketcher(DedupSettings().sketch_parameters())
    codec = default.codec

    def stored(texts: list[str]) -> NDArray[Any]:
        values = default.values(texts)
        codec.pack(values)
        return values

    yield Method(f"streamdedup default, {codec.num_perm} x {codec.bits} bit", stored, codec=codec)


def datasketch_methods() -> Iterator[Method]:
    """Yield the rows of datasketch: many texts at once, and one by one."""
    import datasketch  # noqa: PLC0415 - only where it is installed

    def encoded(text: str) -> list[bytes]:
        return [shingle.encode() for shingle in shingles(text)]

    def bulk(texts: list[str]) -> list[Any]:
        made: list[Any] = datasketch.MinHash.bulk(map(encoded, texts), num_perm=NUM_PERM)
        return made

    def single(texts: list[str]) -> list[Any]:
        made = [datasketch.MinHash(num_perm=NUM_PERM) for _ in texts]
        for minhash, text in zip(made, texts, strict=True):
            minhash.update_batch(encoded(text))
        return made

    def values(made: Sequence[Any]) -> NDArray[Any]:
        return np.stack([minhash.hashvalues for minhash in made])

    yield Method("datasketch 2, bulk", bulk, values, slow=True)
    yield Method("datasketch 2, single", single, values, slow=True)


def rensa_methods() -> Iterator[Method]:
    """Yield the sound rows of rensa: its ``rho`` path samples a long text at fifteen places."""
    import rensa  # noqa: PLC0415 - only where it is installed

    def matrix(texts: list[str]) -> Any:
        sets = [shingles(text) for text in texts]
        return rensa.RMinHash.digest_matrix_from_token_sets(sets, num_perm=NUM_PERM, seed=1)

    def rows(made: Any) -> NDArray[Any]:
        return np.array(made.to_rows())

    def single(texts: list[str]) -> list[Any]:
        made = [rensa.RMinHash(num_perm=NUM_PERM, seed=1) for _ in texts]
        for minhash, text in zip(made, texts, strict=True):
            minhash.update(list(shingles(text)))
        return made

    def digests(made: Sequence[Any]) -> NDArray[Any]:
        return np.array([minhash.digest() for minhash in made])

    yield Method("rensa RMinHash, digest matrix", matrix, rows, slow=True)
    yield Method("rensa RMinHash, single", single, digests, slow=True)


def seconds_of(work: Callable[[], object]) -> float:
    """Time one run."""
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(works: dict[str, tuple[int, Callable[[], object]]], repeats: int) -> dict[str, float]:
    """Return texts per second, the median of repeats that take turns."""
    for _, work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, (_, work) in works.items():
            times[name].append(seconds_of(work))
    return {name: count / statistics.median(times[name]) for name, (count, _) in works.items()}


def decoding(texts: list[str]) -> Callable[[], object]:
    """Prepare the work from JSON bytes to band keys; making the bytes is not part of it."""
    preparer = Preparer(load_settings(dedup={"num_perm": NUM_PERM}))
    values = [json.dumps({"id": str(at), "text": text}).encode() for at, text in enumerate(texts)]
    records = [Record(Position("bench", 0, at), value) for at, value in enumerate(values)]
    return lambda: preparer.prepare_records(records)


FROM_JSON = "streamdedup fast 128, JSON to keys"


def run(length: int, methods: list[Method], repeats: int) -> None:
    """Measure and print one table."""
    corpus = make_corpus(length, LENGTHS[length])
    works: dict[str, tuple[int, Callable[[], object]]] = {}
    for method in methods:
        texts = corpus.texts[: len(corpus.texts) // (10 if method.slow else 1)]
        works[method.name] = (len(texts), partial(method.make, texts))
    works[FROM_JSON] = (len(corpus.texts), decoding(corpus.texts))
    speeds = measure(works, repeats)
    bulk = speeds.get("datasketch 2, bulk")
    matrix = speeds.get("rensa RMinHash, digest matrix")
    print(f"\ntexts of {statistics.mean(map(len, corpus.texts)):.0f} characters")
    print(f"{'':36} {'texts/s':>9} {'x bulk':>8} {'x rensa':>8} {'recall':>7} {'error':>7}")
    for method in methods:
        values = method.values(method.make(corpus.pairs))
        error = np.sqrt(np.mean((estimates(values, method.codec) - corpus.exact) ** 2))
        row = _speed(method.name, speeds, bulk, matrix)
        print(f"{row} {recall(values):7.3f} {error:7.4f}", flush=True)
    print(_speed(FROM_JSON, speeds, bulk, matrix), flush=True)


def _speed(name: str, speeds: dict[str, float], bulk: float | None, matrix: float | None) -> str:
    ratios = [f"{speeds[name] / peer:8.1f}" if peer else f"{'-':>8}" for peer in (bulk, matrix)]
    return f"{name:36} {speeds[name]:9,.0f} {' '.join(ratios)}"


def main() -> None:
    """Read the arguments, keep to one core, and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--lengths", type=int, nargs="*", default=list(LENGTHS), choices=LENGTHS)
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    methods = list(our_methods())
    for module, make in (("datasketch", datasketch_methods), ("rensa", rensa_methods)):
        if importlib.util.find_spec(module):
            methods += make()
        else:
            print(f"{module} is not installed, its rows are left out")
    for length in arguments.lengths:
        run(length, methods, arguments.repeats)


if __name__ == "__main__":
    main()
