"""Partitions of messages, against those that aiokafka's producer chooses."""

from __future__ import annotations

import numpy as np
from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from hypothesis import strategies as st

from streamdedup.kafka.partition import partitions_of
from tests.support.builders import examples

KEYS = st.lists(st.none() | st.binary(max_size=12), max_size=8)


@given(keys=KEYS, count=st.integers(1, 7))
@examples(200)
def test_against_the_default_partitioner(keys: list[bytes | None], count: int) -> None:
    """A key decides as in Kafka's producers; without one the source partition decides."""
    sources = np.arange(len(keys)) + 5
    choose, every = DefaultPartitioner(), list(range(count))
    assert partitions_of(keys, sources, count).tolist() == [
        int(source) % count if key is None else choose(key, every, every)
        for key, source in zip(keys, sources, strict=True)
    ]
