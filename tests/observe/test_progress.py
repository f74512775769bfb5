"""The lines about the work in a terminal: when they are written, and what they say."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest
import structlog

from streamdedup.model import Outcome
from streamdedup.observe import progress
from streamdedup.observe.progress import page_address, reporting_progress
from streamdedup.observe.state import WorkerState
from tests.support.patience import PATIENCE_S, wait_until


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL_S", 0.01)


async def until_lines(lines: list[Any], count: int) -> None:
    """Wait for lines, and some intervals more."""
    await asyncio.to_thread(wait_until, lambda: len(lines) >= count, "a line")
    await asyncio.sleep(0.05)


async def test_a_line_has_totals_rate_and_lag() -> None:
    """It is written if documents were judged or the lag has changed, else not."""
    state = WorkerState("running")
    with structlog.testing.capture_logs() as lines:
        async with reporting_progress(state):
            await asyncio.sleep(0.05)
            assert lines == []
            state.lag = {0: 5, 1: 7}
            await until_lines(lines, 1)
            state.judged = Counter({Outcome.KEPT: 90, Outcome.DUPLICATE: 9, Outcome.REJECTED: 1})
            state.lag = {0: 1, 1: 0}
            await until_lines(lines, 2)
    first, second = lines
    assert (first["documents"], first["duplicates"], first["lag"]) == (0, "0%", 12)
    assert first["per_second"] == 0
    assert (second["documents"], second["duplicates"], second["lag"]) == (100, "9.0%", 1)
    # 100 documents in one interval, which a busy machine may stretch.
    assert 0 < second["per_second"] <= 100 / 0.01


async def test_a_paused_terminal_does_not_block_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a line cannot be written the event loop runs, and the lines can be ended."""
    entered, resumed = threading.Event(), threading.Event()

    class Paused:
        def info(self, *_: Any, **__: Any) -> None:
            entered.set()
            resumed.wait(PATIENCE_S)

    monkeypatch.setattr(progress, "log", Paused())
    async with reporting_progress(WorkerState("running", lag={0: 1})):
        assert await asyncio.to_thread(entered.wait, PATIENCE_S)
    assert not resumed.is_set()
    resumed.set()
    await asyncio.sleep(0)
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "progress"] == []


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:9464/page"),
        ("0.0.0.0", "http://127.0.0.1:9464/page"),  # noqa: S104 - not bound here
        ("::", "http://127.0.0.1:9464/page"),
        ("::1", "http://[::1]:9464/page"),
        ("dedup.example", "http://dedup.example:9464/page"),
    ],
)
def test_the_address_of_the_page_works_in_a_browser(host: str, address: str) -> None:
    """An address that stands for every interface is replaced by one that can be opened."""
    assert page_address(host, 9464) == address
