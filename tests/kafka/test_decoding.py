"""Decoding batches of records, as aiokafka's consumers do in this program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from aiokafka.record.default_records import DefaultRecordBase, _DefaultRecordBatchBuilderPy

from tests.support.paths import ROOT

MIB = 1024**2
DECODE = """
import re, sys
from streamdedup.kafka.decoding import Batches, install
install()
peak_kib = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
data = open(sys.argv[1], "rb").read()
before = peak_kib()
print(len(next(iter(Batches(data).next_batch())).value), peak_kib() - before)
"""


def test_a_batch_that_expands_takes_its_size_once(tmp_path: Path) -> None:
    """A batch of some kilobytes can expand to a gigabyte, so a second copy matters."""
    builder = _DefaultRecordBatchBuilderPy(2, DefaultRecordBase.CODEC_ZSTD, 0, -1, -1, -1, 2**31)
    for offset in range(100):
        builder.append(offset, 0, None, b"a" * MIB, [])
    (tmp_path / "batch").write_bytes(builder.build())
    command = [sys.executable, "-c", DECODE, str(tmp_path / "batch")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    size, peak_kib = map(int, done.stdout.split())
    assert size == MIB
    assert 100 < peak_kib / 1024 < 140
