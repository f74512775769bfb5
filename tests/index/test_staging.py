"""Updates that are staged before their transaction is committed."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from streamdedup.model import SourceRange
from tests.index.updates import WIDTH, key
from tests.support.builders import columns, open_index, small_settings, update_of

LOG = "a changelog"
FIRST, SECOND = (columns([[key(number)] * WIDTH], number) for number in (0, 1))


def test_a_staged_update_is_found(tmp_path: Path) -> None:
    """Its documents match, and its positions count as judged; its entry is not applied yet."""
    with open_index(small_settings(tmp_path), LOG) as index:
        index.stage(update_of(FIRST, 0))
        assert index.probe(FIRST).numbers.tolist() == [0]
        assert index.probe(FIRST).already_kept == {0}
        assert (index.next_number, index.applied) == (1, 0)
        index.confirm(5, {"note": b"x"})
        assert (index.next_number, index.applied, index.note("note")) == (1, 5, b"x")


def test_an_update_that_fails_leaves_no_trace(tmp_path: Path) -> None:
    """After closing and opening, the index is as it was before the update was staged."""
    settings = small_settings(tmp_path)
    with open_index(settings, LOG) as index:
        index.apply(update_of(FIRST, 0), 1)
        index.flush()
        index.stage(update_of(SECOND, 1))
    with open_index(settings, LOG) as index:
        assert (index.next_number, index.applied) == (1, 1)
        assert index.probe(SECOND).numbers.tolist() == []
        assert not index.probe(SECOND).already_judged.any()


def test_what_may_not_happen_in_between(tmp_path: Path) -> None:
    """A second update cannot be staged, and nothing can be flushed."""
    with open_index(small_settings(tmp_path), LOG) as index:
        index.stage(update_of(FIRST, 0))
        with pytest.raises(RuntimeError, match="staged"):
            index.flush()
    with open_index(small_settings(tmp_path), LOG) as index:
        index.stage(update_of(FIRST, 0))
        with pytest.raises(RuntimeError, match="staged"):
            index.stage(update_of(SECOND, 1))


def test_a_staged_update_expires_nothing(tmp_path: Path) -> None:
    """What its documents push out of the window stays until it is confirmed."""
    settings = small_settings(tmp_path, window=dt.timedelta(hours=1), delta_documents=16)
    old = columns([[key(number)] * WIDTH for number in range(16)])
    old = replace(old, event_times_ms=np.full(16, 10**12))
    late = columns([[key(100 + number)] * WIDTH for number in range(16)], 16)
    late = replace(late, event_times_ms=np.full(16, 2 * 10**12))
    with open_index(settings, LOG) as index:
        index.apply(update_of(old, 0), 1)
        index.flush()
        clock = index.clock.copy()
        clock.advance(late.event_times_ms)
        update = replace(update_of(late, 16), clock=clock.state())
        index.stage(update)
        for _ in range(3):
            index.probe(old)
        assert index.stats().segments == 1
        index.confirm(2)
        index.settle()
        assert index.stats().segments == 0
        assert index.sources.next_offset(*SourceRange("documents", 0, 0, 32)[:2]) == 32
