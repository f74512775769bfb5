"""Decoding batches of records, as aiokafka's consumers do in this program."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import cramjam
import pytest
import zstandard
from aiokafka.record.default_records import DefaultRecordBase, _DefaultRecordBatchBuilderPy

from streamdedup.kafka.decoding import Batches, install, is_withheld
from tests.support.paths import ROOT

MIB = 1024**2
CODECS = {
    "gzip": DefaultRecordBase.CODEC_GZIP,
    "snappy": DefaultRecordBase.CODEC_SNAPPY,
    "lz4": DefaultRecordBase.CODEC_LZ4,
    "zstd": DefaultRecordBase.CODEC_ZSTD,
}
DECODE = """
import re, sys
from streamdedup.kafka.decoding import Batches, install
install()
peak_kib = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
data = open(sys.argv[1], "rb").read()
before = peak_kib()
print(len(next(iter(Batches(data).next_batch())).value), peak_kib() - before)
"""


def batch(codec: str, values: Iterable[bytes], base_offset: int = 0) -> bytes:
    """Return a compressed batch, as a broker stores it."""
    builder = _DefaultRecordBatchBuilderPy(2, CODECS[codec], 0, -1, -1, -1, 2**31)
    for offset, value in enumerate(values):
        builder.append(offset, 7, None, value, [])
    built = bytearray(builder.build())
    built[:8] = struct.pack(">q", base_offset)
    return bytes(built)


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_batches_are_read(codec: str) -> None:
    """Of any size up to the limit, whatever it expands from."""
    install()
    values = [
        b"",
        b"a",
        b"a" * 100_000,
        *(random.Random(1).randbytes(size) for size in (9, 70_000)),
    ]
    read = list(Batches(batch(codec, values)).next_batch())
    assert [record.value for record in read] == values


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_a_batch_that_expands_too_far_are_withheld(codec: str) -> None:
    """Each has its offset; the batch after it is read."""
    install()
    batches = Batches(batch(codec, [b"a" * 45 * MIB] * 3, 5) + batch(codec, [b"b"], 8))
    read = list(batches.next_batch())
    assert [(record.offset, record.value, record.timestamp) for record in read] == [
        (offset, None, 7) for offset in (5, 6, 7)
    ]
    assert all(is_withheld(record.headers) for record in read)
    [after] = batches.next_batch()
    assert (after.offset, after.value, is_withheld(after.headers)) == (8, b"b", False)


@pytest.mark.parametrize("codec", CODECS)
def test_a_damaged_batch_is_an_error(codec: str) -> None:
    """Not a batch that is too large."""
    install()
    whole = batch(codec, [b"some text"] * 9)
    damaged = whole[:61] + b"\xff" * (len(whole) - 61)
    with pytest.raises((OSError, cramjam.DecompressionError, zstandard.ZstdError)):
        list(Batches(damaged).next_batch())


def test_a_batch_that_expands_takes_its_size_once(tmp_path: Path) -> None:
    """A batch of some kilobytes can expand to the limit, so a second copy matters."""
    (tmp_path / "batch").write_bytes(batch("zstd", [b"a" * MIB] * 100))
    command = [sys.executable, "-c", DECODE, str(tmp_path / "batch")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    size, peak_kib = map(int, done.stdout.split())
    assert size == MIB
    assert 100 < peak_kib / 1024 < 140
