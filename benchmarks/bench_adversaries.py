"""What crafted input costs, next to ordinary text of the same size. No broker is needed.

Each kind of input is prepared, judged and indexed in a process of its own, in batches like those of
a worker, with its default settings. The table has processor time and peak memory per MB of input,
and the ratio to ordinary records of the same size. Run with ``make bench-adversaries``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

MB = 10**6
_MOST_BATCH_BYTES = 4 * MB
_MOST_BATCH_RECORDS = 1000
_LARGE, _SMALL = 900_000, 300
_SECRET = "0123456789abcdef0123456789abcdef"  # noqa: S105 - of this benchmark


class Cost(NamedTuple):
    """What some input cost, per MB."""

    seconds: float
    peak_mb: float
    outcomes: str


Input = Callable[[random.Random, int], list[bytes]]


def _texts(random_: random.Random, size: int, total: int, make: Callable[[], str]) -> list[bytes]:
    """Return JSON records with texts of about ``size`` bytes; each has another first word."""
    records: list[bytes] = []
    for _ in range(max(1, total // size)):
        encoded = f"{random_.getrandbits(64):x} {make()}".encode()[:size]
        text = encoded.decode("utf-8", "ignore")
        records.append(json.dumps({"text": text}, ensure_ascii=False).encode())
    return records


_LETTERS = "etaoinshrdlucmfwypvbgkjqxz"


def _words(random_: random.Random, characters: int) -> str:
    words = [
        "".join(random_.choices(_LETTERS, range(26, 0, -1), k=random_.randint(2, 9)))
        for _ in range(characters // 6)
    ]
    return " ".join(words)


def _ordinary(size: int) -> Input:
    return lambda random_, total: _texts(random_, size, total, lambda: _words(random_, size))


def _repeated(unit: str, size: int = _LARGE) -> Input:
    count = size // len(unit.encode())
    return lambda random_, total: _texts(random_, size, total, lambda: unit * count)


def _zalgo(random_: random.Random, total: int) -> list[bytes]:
    marks = [chr(point) for point in (*range(0x300, 0x345), *range(0x5B0, 0x5BD), 0x3099)]

    def make() -> str:
        parts = ("e" + "".join(random_.choices(marks, k=30)) for _ in range(_LARGE // 61))
        return "".join(parts)

    return _texts(random_, _LARGE, total, make)


def _boilerplate(random_: random.Random, total: int) -> list[bytes]:
    """Return records that share two thirds of their text: the same buckets, but no duplicates."""
    common = _words(random.Random(1), 2 * _SMALL // 3)
    return _texts(random_, _SMALL, total, lambda: f"{_words(random_, _SMALL // 3)} {common}")


def _same(random_: random.Random, total: int) -> list[bytes]:
    text = _words(random_, _SMALL)
    return [json.dumps({"text": text, "id": str(row)}).encode() for row in range(total // _SMALL)]


def _json(make: Callable[[int], bytes], size: int = _LARGE) -> Input:
    def records(_: random.Random, total: int) -> list[bytes]:
        # One more byte in each record, so that none equals another.
        return [make(size) + b" " * row for row in range(max(1, total // size))]

    return records


def _nested(size: int) -> bytes:
    return b'{"text":"a","x":' + b"[" * (size // 2) + b"]" * (size // 2) + b"}"


def _keys(size: int) -> bytes:
    return b'{"text":"a",' + b",".join(b'"%d":1' % key for key in range(size // 10)) + b"}"


def _same_key(size: int) -> bytes:
    return b'{"text":"a",' + b",".join([b'"text":"b"'] * (size // 11)) + b"}"


def _digits(size: int) -> bytes:
    return b'{"text":"a","x":' + b"9" * size + b"}"


def _numbers(size: int) -> bytes:
    """Return numbers just below the limit of digits, in a record that needs the patient parser."""
    return b'{"text":"\\ud800","x":[' + b",".join([b"9" * 4300] * (size // 4301)) + b"]}"


def _fractions(size: int) -> bytes:
    return b'{"text":"a","x":[' + b",".join([b"0." + b"1" * 700] * (size // 703)) + b"]}"


def _escapes(size: int) -> bytes:
    return b'{"text":"' + b"\\u0061\\u00e9" * (size // 12) + b'"}'


def _surrogates(size: int) -> bytes:
    return b'{"text":"' + b"\\ud800" * (size // 6) + b'"}'


def _late_error(size: int) -> bytes:
    return b'{"text":"' + b"a" * size + b'"} x'


def _namespaces(random_: random.Random, total: int) -> list[bytes]:
    return [
        json.dumps({"text": _words(random_, _SMALL), "space": f"{random_.getrandbits(256):x}"})
        .encode()
        for _ in range(total // _SMALL)
    ]  # fmt: skip


def _colliding(_: random.Random, total: int) -> list[bytes]:
    """Return texts whose shingles collide in a hash table under the default seed."""
    from benchmarks.adversary_collisions import colliding_text  # noqa: PLC0415 - compiles kernels

    text = colliding_text(_LARGE)
    return [
        json.dumps({"text": f"{text}{row}"}, ensure_ascii=False).encode()
        for row in range(max(1, total // _LARGE))
    ]


class Attack(NamedTuple):
    """A row of the table: its input, and the ordinary input that it is compared with."""

    name: str
    make: Input
    like: str
    settings: Mapping[str, Any] = MappingProxyType({})


_ORDINARY = {"large": _ordinary(_LARGE), "small": _ordinary(_SMALL)}
ATTACKS = (
    Attack("the same text", _same, "small"),
    Attack("two thirds of the text in common", _boilerplate, "small"),
    Attack("a namespace per record", _namespaces, "small"),
    Attack("one letter", _repeated("a"), "large"),
    Attack("'a a a ...'", _repeated("a "), "large"),
    Attack(
        "a sentence repeated", _repeated("All work and no play makes Jack a dull boy. "), "large"
    ),
    Attack("one mark", _repeated("\u0301"), "large"),
    Attack("two marks in the wrong order", _repeated("\u0301\u0316"), "large"),
    Attack("thirty marks on each letter", _zalgo, "large"),
    Attack("U+FDFA: 18 characters each", _repeated("\ufdfa"), "large"),
    Attack("U+1F82: four characters each", _repeated("\u1f82"), "large"),
    Attack("white space", _repeated(" \u3000\t"), "large"),
    Attack("heads of links", _repeated("www.a://"), "large", {"profile": "post"}),
    Attack("handles", _repeated("@a"), "large", {"profile": "post"}),
    Attack("one word", _repeated("a"), "large", {"shingle_unit": "word", "shingle_size": 3}),
    Attack("JSON: 450,000 levels", _json(_nested), "large"),
    Attack("JSON: 90,000 names", _json(_keys), "large"),
    Attack("JSON: one name 80,000 times", _json(_same_key), "large"),
    Attack("JSON: a number of 900,000 digits", _json(_digits), "large"),
    Attack("JSON: numbers of 4,300 digits", _json(_numbers), "large"),
    Attack("JSON: fractions of 700 digits", _json(_fractions), "large"),
    Attack("JSON: escapes", _json(_escapes), "large"),
    Attack("JSON: lone surrogates", _json(_surrogates), "large"),
    Attack("JSON: an error at the end", _json(_late_error), "large"),
    Attack("shingles that collide, known seed", _colliding, "large"),
    Attack("the same, secret seed", _colliding, "large", {"seed_file": _SECRET}),
)


def _measure(make: Input, dedup: dict[str, Any], total: int) -> Cost:
    """Prepare, judge and index some input, in this process."""
    from streamdedup.columns import RecordColumns  # noqa: PLC0415 - loads numba
    from streamdedup.dedup.resolve import Rule, resolve  # noqa: PLC0415
    from streamdedup.engine.prepare import Preparer  # noqa: PLC0415
    from streamdedup.index.store import Index  # noqa: PLC0415
    from streamdedup.model import Position, Record  # noqa: PLC0415
    from streamdedup.settings.load import load_settings  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        if "seed_file" in dedup:
            (Path(folder) / "seed").write_text(dedup["seed_file"])
            dedup = {**dedup, "seed_file": Path(folder) / "seed"}
        settings = load_settings(
            dedup=dedup,
            records={"namespace_field": "space"},
            index={"directory": Path(folder) / "index", "sync": False},
        )
        preparer, rule = Preparer(settings), Rule.from_settings(settings)
        parameters = settings.dedup.sketch_parameters()
        outcomes: dict[str, int] = {}
        offset = 0

        def judge(values: list[bytes]) -> None:
            nonlocal offset
            records = [
                Record(Position("documents", 0, offset + row), value)
                for row, value in enumerate(values)
            ]
            offset += len(values)
            batch = preparer.prepare_records(RecordColumns.of(records))
            candidates = index.probe(batch.documents)
            judged = resolve(batch, candidates, rule, index.next_number, index.clock)
            index.apply(judged.update, index.applied + 1)
            for verdict in judged.verdicts:
                rejection = verdict.rejection
                name = rejection.reason if rejection else verdict.outcome.value
                outcomes[name] = outcomes.get(name, 0) + 1

        with Index(settings.index, parameters, "benchmark", texts=False) as index:
            judge(_ordinary(_SMALL)(random.Random(2), 100_000))
            judge([b'{"text": "w\xc3\xa4rm \xcc\x81\xcc\x96"}', make(random.Random(3), _SMALL)[0]])
            outcomes.clear()
            batches = _batches(make(random.Random(4), total))
            before_mb = _reset_peak_mb()
            started = time.process_time()
            for batch in batches:
                judge(batch)
            seconds = time.process_time() - started
            size = sum(len(value) for batch in batches for value in batch) / MB
        main = max(outcomes, key=lambda name: outcomes[name])
        return Cost(seconds / size, (_memory_mb("VmHWM") - before_mb) / size, main)


def _batches(values: list[bytes]) -> list[list[bytes]]:
    batches: list[list[bytes]] = [[]]
    for value in values:
        size = sum(map(len, batches[-1]))
        if len(batches[-1]) >= _MOST_BATCH_RECORDS or size + len(value) > _MOST_BATCH_BYTES:
            batches.append([])
        batches[-1].append(value)
    return batches


def _reset_peak_mb() -> float:
    """Set the peak of this process's memory to its present memory, and return it."""
    Path("/proc/self/clear_refs").write_text("5")
    return _memory_mb("VmRSS")


def _memory_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(name)]
    return int(line.split()[1]) * 1024 / MB


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=float, default=8, help="input of each kind")
    parser.add_argument("--only", default="", help="part of the names to measure")
    options = parser.parse_args()
    names = ("input", "ms/MB", "ratio", "peak MB/MB", "ratio", "outcome")
    sys.stdout.write(f"| {' | '.join(names)} |\n{'|---' * len(names)}|\n")
    total = round(options.mb * MB)
    usual: dict[str, Cost] = {}
    for row, attack in enumerate(ATTACKS):
        if options.only not in attack.name:
            continue
        basis = f"{attack.like} {dict(attack.settings)}"
        if basis not in usual:
            kind = list(_ORDINARY).index(attack.like)
            usual[basis] = _apart(-1 - kind, dict(attack.settings), total)
            _print(f"ordinary {attack.like} records", usual[basis], usual[basis])
        _print(attack.name, _apart(row, dict(attack.settings), total), usual[basis])


def _apart(row: int, dedup: dict[str, Any], total: int) -> Cost:
    """Measure a row of the table in a new process; negative rows are ordinary records."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure_row, (row, dedup, total))


def _measure_row(row: int, dedup: dict[str, Any], total: int) -> Cost:
    make = ATTACKS[row].make if row >= 0 else list(_ORDINARY.values())[-1 - row]
    return _measure(make, dedup, total)


def _print(name: str, cost: Cost, usual: Cost) -> None:
    memory = cost.peak_mb / usual.peak_mb if usual.peak_mb > 0 else 0.0
    sys.stdout.write(
        f"| {name} | {1000 * cost.seconds:.1f} | {cost.seconds / usual.seconds:.1f} "
        f"| {cost.peak_mb:.1f} | {memory:.1f} | {cost.outcomes} |\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
