"""*Async.* Lines about the work, for a person who has started a worker in a terminal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from ipaddress import IPv6Address, ip_address

import structlog

from streamdedup.model import Outcome
from streamdedup.observe.state import WorkerState

log = structlog.get_logger(__name__)

INTERVAL_S = 10.0
"""Interval between two lines."""


@contextlib.asynccontextmanager
async def reporting_progress(state: WorkerState) -> AsyncIterator[None]:
    """Log a line at intervals, if documents were judged or the lag has changed since the last one.

    Totals count from the start of the process, and the rate is that of the last interval. A thread
    writes the line, because a paused terminal blocks the writer.
    """

    async def report() -> None:
        loop = asyncio.get_running_loop()
        judged, lag, looked_at = 0, 0, loop.time()
        while True:
            await asyncio.sleep(INTERVAL_S)
            before, lag_before, looked_before = judged, lag, looked_at
            judged, lag, looked_at = state.judged.total(), sum(state.lag.values()), loop.time()
            if (judged, lag) == (before, lag_before):
                continue
            duplicates = state.judged[Outcome.DUPLICATE]
            await asyncio.to_thread(
                log.info,
                "judged",
                documents=judged,
                duplicates=f"{duplicates / judged:.1%}" if judged else "0%",
                per_second=round((judged - before) / (looked_at - looked_before)),
                lag=lag,
            )

    reports = asyncio.create_task(report(), name="progress")
    try:
        yield
    finally:
        reports.cancel()


def page_address(host: str, port: int) -> str:
    """Return the page's address for a browser on this machine."""
    with contextlib.suppress(ValueError):  # the name of a host
        address = ip_address(host)
        if address.is_unspecified:  # the server listens on every interface
            host = "127.0.0.1"
        elif isinstance(address, IPv6Address):
            host = f"[{host}]"
    return f"http://{host}:{port}/page"
