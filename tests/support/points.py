"""*Pure.* The fail-points that the product reaches."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

POINTS: Mapping[str, str] = MappingProxyType(
    {
        "poll": "records are polled",
        "pool": "a process of the pool begins a batch",
        "judge": "a batch has its verdicts",
        "stage": "the update is in memory, ahead of the transaction",
        "begin": "the transaction has begun, and nothing is sent",
        "produce": "all records of the transaction are acknowledged",
        "offsets": "the consumed offsets are in the transaction, its end follows",
        "commit": "the transaction is committed, and the index does not know",
        "confirm": "the update is part of the index",
        "append": "sketched ranges are appended",
        "lane": "the producer of a lane has fenced its predecessor",
        "pair": "records and their verdicts are paired, and nothing is sent",
        "write": "the transaction of a lane is committed",
        "start": "the producer has fenced its predecessor",
        "replay": "an entry of the changelog is applied in a replay",
        "claim": "the claim is written",
        "flush": "a flush begins",
        "flush-write": "the files of a flushed segment are written, and the manifest lacks them",
        "flush-announce": "the manifest names a flushed segment, and the index does not know",
        "merge": "a merge begins",
        "merge-part": "a part of a merge is written",
        "merge-write": "the files of a merged segment are written, and the manifest lacks them",
        "merge-announce": "the manifest names a merged segment, and the index does not know",
        "expire": "the manifest is about to drop an expired segment",
        "remove": "the files of dropped segments are about to be removed",
        "checkpoint": "a checkpoint without a segment is about to be written",
        "manifest": "a transaction of the manifest is about to be committed",
    }
)
"""What has happened at each point."""
