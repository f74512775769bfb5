"""Texts to signatures: this package, datasketch and rensa on one core, in one run.

Every method takes Python strings and returns signatures, so that shingling is included. Next to
each speed is the quality of the signatures on planted near-duplicates. Half of these have an exact
Jaccard similarity from .8 to .9 (near), half from .7 to .8 (far):

- bands: share of near pairs with a common band; the bands are chosen for recall .99 at .8;
- found: share of near pairs whose estimate is .8 or more;
- false: share of far pairs whose estimate is .8 or more;
- error: root mean square error of the estimate over all pairs.

Speeds are medians of texts per second of processor time. The repeats of all rows take turns.
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

# The peers read this when they are imported.
os.environ.setdefault("RAYON_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray

from benchmarks.planted import NEAR, Floats, Planted, Planter
from streamdedup.engine.prepare import Preparer
from streamdedup.model import Position, Record
from streamdedup.settings.dedup import DedupSettings
from streamdedup.settings.load import load_settings
from streamdedup.sketch.bands import choose_bands
from streamdedup.sketch.codec import SignatureCodec
from streamdedup.sketch.sketcher import Sketcher
from tests.testkit.texts import SIZE, in_order, shingles

NUM_PERM = 128
THRESHOLD = NEAR[0]
RECALL = 0.99
LENGTHS = {100: 4000, 280: 4000, 3000: 600}
"""Approximate characters per text, and number of timed texts."""
PLANTED = {100: 4000, 280: 4000, 3000: 2000}
"""Approximate characters per text, and number of near and of far pairs."""
SAMPLE = 30


class Method(NamedTuple):
    """One row of a table.

    Attributes:
        name: name of the row.
        make: converts texts to signatures of any type.
        values: converts signatures to an array, one row per text.
        slow: whether it is measured on a tenth of the texts.
        codec: codec of stored signatures to estimate from; else the estimate is the share of equal
            values.
        like: name of a row with the same signatures, whose quality this row shares.
    """

    name: str
    make: Callable[[list[str]], Any]
    values: Callable[[Any], NDArray[Any]] = np.asarray
    slow: bool = False
    codec: SignatureCodec | None = None
    like: str | None = None


class Quality(NamedTuple):
    """The quality of signatures; see the top of this file."""

    bands: float
    found: float
    false: float
    error: float


def band_share(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return the share of the pairs of rows that share a band."""
    bands, rows = choose_bands(THRESHOLD, RECALL, one.shape[1])
    equal = (one == other)[:, : bands * rows].reshape(-1, bands, rows)
    return float(np.mean(equal.all(axis=2).any(axis=1)))


def estimates(one: NDArray[Any], other: NDArray[Any], codec: SignatureCodec | None) -> Floats:
    """Estimate the similarity of each pair of rows."""
    if codec is None:
        share: Floats = np.mean(one == other, axis=1)
        return share
    pairs = zip(codec.pack(one), codec.pack(other)[:, None], strict=True)
    return np.concatenate([codec.estimate_jaccard(first, second) for first, second in pairs])


def judge(method: Method, planted: Planted) -> Quality:
    """Sketch the planted texts, and compare the estimates with the exact similarities."""
    values = method.values(method.make(planted.texts))
    originals, near, far = values[0::3], values[1::3], values[2::3]
    of_near = estimates(originals, near, method.codec)
    of_far = estimates(originals, far, method.codec)
    errors = np.concatenate([of_near - planted.near, of_far - planted.far])
    return Quality(
        bands=band_share(originals, near),
        found=float(np.mean(of_near >= THRESHOLD)),
        false=float(np.mean(of_far >= THRESHOLD)),
        error=float(np.sqrt(np.mean(errors**2))),
    )


def judge_all(methods: list[Method], planted: Planted) -> dict[str, Quality]:
    """Judge each row; rows with the same signatures share one judgement."""
    quality: dict[str, Quality] = {}
    samples: dict[str, NDArray[Any]] = {}
    for method in methods:
        samples[method.name] = method.values(method.make(planted.texts[:SAMPLE]))
        if method.like is None:
            quality[method.name] = judge(method, planted)
        elif np.array_equal(samples[method.name], samples[method.like]):
            quality[method.name] = quality[method.like]
        else:
            raise SystemExit(f"{method.name} and {method.like} have different signatures")
    return quality


def our_methods() -> Iterator[Method]:
    """Yield the rows of this package: the kernels at the size of the peers, and the default."""
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
    """Yield the rows of datasketch: bulk, and text by text."""
    import datasketch  # noqa: PLC0415 - an optional peer

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
    yield Method("datasketch 2, single", single, values, slow=True, like="datasketch 2, bulk")


def rensa_methods() -> Iterator[Method]:
    """Yield the rows of rensa; ``rho`` uses only a few shingles of a long text."""
    import rensa  # noqa: PLC0415 - an optional peer

    options = {"num_perm": NUM_PERM, "seed": 1}

    def matrix(texts: list[str]) -> Any:
        return rensa.RMinHash.digest_matrix_from_token_sets(map(shingles, texts), **options)

    def rho(texts: list[str]) -> Any:
        # A set has no order. In the order of the text, the used shingles are more comparable.
        lists = [list(dict.fromkeys(in_order(text))) for text in texts]
        return rensa.RMinHash.digest_matrix_from_token_sets_rho(lists, **options)

    def circulant(texts: list[str]) -> Any:
        return rensa.CMinHash.digests_from_token_sets(map(shingles, texts), **options)

    def single(texts: list[str]) -> list[Any]:
        made = [rensa.RMinHash(**options) for _ in texts]
        for minhash, text in zip(made, texts, strict=True):
            minhash.update(list(shingles(text)))
        return made

    def rows(made: Any) -> NDArray[Any]:
        return np.array(made.to_rows())

    def digests(made: Sequence[Any]) -> NDArray[Any]:
        return np.array([minhash.digest() for minhash in made])

    yield Method("rensa RMinHash, digest matrix", matrix, rows, slow=True)
    like = "rensa RMinHash, digest matrix"
    yield Method("rensa RMinHash, single", single, digests, slow=True, like=like)
    yield Method("rensa CMinHash, bulk", circulant, slow=True)
    yield Method("rensa RMinHash rho, digest matrix", rho, rows, slow=True)


def seconds_of(work: Callable[[], object]) -> float:
    """Return the processor time of one run."""
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(works: dict[str, tuple[int, Callable[[], object]]], repeats: int) -> dict[str, float]:
    """Return the median of texts per second; the repeats of all rows take turns."""
    for _, work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, (_, work) in works.items():
            times[name].append(seconds_of(work))
    return {name: count / statistics.median(times[name]) for name, (count, _) in works.items()}


def decoding(texts: list[str], **dedup: int) -> Callable[[], object]:
    """Return the work from JSON bytes to band keys."""
    preparer = Preparer(load_settings(dedup=dedup))
    values = [json.dumps({"id": str(i), "text": text}).encode() for i, text in enumerate(texts)]
    records = [Record(Position("bench", 0, i), value) for i, value in enumerate(values)]
    return lambda: preparer.prepare_records(records)


def run(length: int, methods: list[Method], repeats: int) -> None:
    """Measure and print one table."""
    planter = Planter(length)
    texts = planter.texts(LENGTHS[length])
    works: dict[str, tuple[int, Callable[[], object]]] = {}
    for method in methods:
        some = texts[: len(texts) // (10 if method.slow else 1)]
        works[method.name] = (len(some), partial(method.make, some))
    works["streamdedup fast 128, JSON to keys"] = (len(texts), decoding(texts, num_perm=NUM_PERM))
    works["streamdedup default, JSON to keys"] = (len(texts), decoding(texts))
    speeds = measure(works, repeats)
    planted = planter.planted(PLANTED[length])
    quality = judge_all(methods, planted)
    peers = [speeds.get("datasketch 2, bulk"), speeds.get("rensa RMinHash, digest matrix")]
    print(f"\ntexts of {statistics.mean(map(len, texts)):.0f} characters; {_described(planted)}")
    print(
        f"{'':36} {'texts/s':>9} {'x bulk':>8} {'x rensa':>8} "
        f"{'bands':>7} {'found':>7} {'false':>7} {'error':>7}"
    )
    for name, speed in speeds.items():
        ratios = " ".join(f"{speed / peer:8.1f}" if peer else f"{'-':>8}" for peer in peers)
        shares = " ".join(f"{share:7.4f}" for share in quality.get(name, ()))
        print(f"{name:36} {speed:9,.0f} {ratios} {shares}".rstrip(), flush=True)


def _described(planted: Planted) -> str:
    """Describe the number and the similarity of the pairs."""
    return (
        f"{len(planted.near):,} pairs of similarity {np.mean(planted.near):.3f} on average, "
        f"{len(planted.far):,} of {np.mean(planted.far):.3f}"
    )


def main() -> None:
    """Parse the arguments, and measure on one core."""
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
            print(f"{module} is not installed; skipping its rows")
    for length in arguments.lengths:
        run(length, methods, arguments.repeats)


if __name__ == "__main__":
    main()
