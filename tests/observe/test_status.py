"""The HTTP port: what each page says in each phase, and the heartbeat."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import get_args

import aiohttp
import pytest

import streamdedup
from streamdedup.errors import SettingsError
from streamdedup.observe import status
from streamdedup.observe.metrics import Metrics
from streamdedup.observe.state import Phase, WorkerState
from streamdedup.observe.status import StatusServer
from streamdedup.settings.sections import StatusSettings

ANY_PORT = StatusSettings(port=0)


@dataclass
class Site:
    """A running server, and a client for it."""

    state: WorkerState
    metrics: Metrics
    server: StatusServer
    client: aiohttp.ClientSession

    async def get(self, path: str) -> tuple[int, str, str]:
        """Return status, content type and body of a page."""
        async with self.client.get(f"http://127.0.0.1:{self.server.port}{path}") as response:
            return response.status, response.headers["Content-Type"], await response.text()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """Serve the state of a worker on some port."""
    state, metrics = WorkerState(), Metrics()
    async with (
        StatusServer(ANY_PORT, metrics, state) as server,
        aiohttp.ClientSession() as client,
    ):
        yield Site(state, metrics, server, client)


async def test_the_port_is_the_one_that_was_bound() -> None:
    """Port 0 lets the system choose; start() and the attribute tell which."""
    server = StatusServer(ANY_PORT, Metrics(), WorkerState())
    port = await server.start()
    assert port == server.port > 0
    await server.close()


@pytest.mark.parametrize("phase", get_args(Phase))
async def test_ready_only_while_running(site: Site, phase: Phase) -> None:
    """/readyz is 200 in one phase alone, and the gauge says the same."""
    site.state.enter(phase, "because")
    code, _, text = await site.get("/readyz")
    assert code == (200 if phase == "running" else 503)
    assert text.count("\n") == 1
    _, _, page = await site.get("/metrics")
    assert f"streamdedup_ready {float(phase == 'running')}\n" in page


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (WorkerState("running"), "ready"),
        (WorkerState("running", shortage="full soon"), "running: full soon"),
        (WorkerState("starting"), "starting"),
        (
            WorkerState("replaying", replay_done=3, replay_total=10),
            "replaying the changelog: offset 3 of 10",
        ),
        (
            WorkerState("waiting_for_broker", "no broker answers"),
            "waiting for broker: no broker answers",
        ),
        (WorkerState("draining"), "draining"),
        (WorkerState("stopped", "fenced"), "stopped: fenced"),
    ],
    ids=lambda value: value.phase if isinstance(value, WorkerState) else "",
)
def test_the_explanation_is_for_people(state: WorkerState, text: str) -> None:
    """One line says what the worker does, and why."""
    assert state.explanation() == text


async def test_a_reason_does_not_outlive_its_phase(site: Site) -> None:
    """Entering a phase without a reason forgets the last one."""
    site.state.enter("waiting_for_broker", "no broker answers")
    site.state.enter("running")
    assert await site.get("/readyz") == (200, "text/plain; charset=utf-8", "ready\n")
    assert site.state.reason == ""


async def test_not_ready_while_short(site: Site) -> None:
    """What will soon stop the worker makes it unready while it still judges."""
    site.state.enter("running")
    site.state.shortage = "the disk is full soon"
    assert (await site.get("/readyz"))[::2] == (503, "running: the disk is full soon\n")


@pytest.mark.parametrize("phase", get_args(Phase))
async def test_alive_in_every_phase(site: Site, phase: Phase) -> None:
    """/livez asks for nothing but an event loop that runs: no broker is no reason to restart."""
    site.state.enter(phase)
    assert (await site.get("/livez"))[0] == 200


async def test_metrics_are_served(site: Site) -> None:
    """/metrics is the page that Metrics renders, under its content type."""
    site.metrics.count_pool_restart()
    code, content_type, page = await site.get("/metrics")
    assert (code, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "streamdedup_pool_restarts_total 1.0" in page


async def test_the_status_page_is_the_state(site: Site) -> None:
    """/status shows the phase, the partitions, the offsets and the version."""
    site.state.enter("replaying")
    site.state.replay_done, site.state.replay_total = 2, 5
    site.state.partitions = 2
    site.state.positions = {0: 10, 1: 20}
    site.state.lag = {0: 0, 1: 4}
    site.state.applied_offset = 7
    code, content_type, text = await site.get("/status")
    assert (code, content_type) == (200, "application/json; charset=utf-8")
    assert json.loads(text) == {
        "version": streamdedup.__version__,
        "phase": "replaying",
        "ready": False,
        "explanation": "replaying the changelog: offset 2 of 5",
        "replay": {"done": 2, "total": 5},
        "partitions": 2,
        "positions": {"0": 10, "1": 20},
        "lag": {"0": 0, "1": 4},
        "applied_offset": 7,
    }


@pytest.mark.parametrize("path", ["/nothing", "/metrics/x"])
async def test_there_is_nothing_else(site: Site, path: str) -> None:
    """Other paths are not found."""
    assert (await site.get(path))[0] == 404


async def test_pages_are_read_only(site: Site) -> None:
    """No page takes anything but GET and HEAD."""
    url = f"http://127.0.0.1:{site.server.port}/metrics"
    async with site.client.post(url) as response:
        assert response.status == 405
    async with site.client.head(url) as response:
        assert response.status == 200


async def test_requests_are_not_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Probes every few seconds leave no line."""
    with caplog.at_level(logging.DEBUG, "aiohttp"):
        await site.get("/livez")
    assert not caplog.records


async def test_a_taken_port_is_the_operators_to_change(site: Site) -> None:
    """A port in use is one line that names the setting."""
    taken = StatusSettings(port=site.server.port)
    with pytest.raises(SettingsError) as caught:
        await StatusServer(taken, Metrics(), WorkerState()).start()
    assert str(caught.value) == (
        f"cannot listen on 127.0.0.1:{site.server.port} (Address already in use); "
        "change status.host or status.port"
    )


async def test_a_host_without_address_is_the_operators_to_change() -> None:
    """A name that resolves to nothing is one line that names the setting."""
    nowhere = StatusSettings(host="nowhere.invalid", port=0)
    with pytest.raises(SettingsError, match=r"nowhere\.invalid:0 .*status\.host") as caught:
        await StatusServer(nowhere, Metrics(), WorkerState()).start()
    assert "\n" not in str(caught.value)


async def test_closing_frees_the_port_and_ends_the_heartbeat() -> None:
    """After the context nothing listens and no task is left; closing twice does no harm."""
    tasks = asyncio.all_tasks()
    async with StatusServer(ANY_PORT, Metrics(), WorkerState()) as server:
        assert {task.get_name() for task in asyncio.all_tasks() - tasks} >= {"heartbeat"}
    assert not [task for task in asyncio.all_tasks() - tasks if task.get_name() == "heartbeat"]
    with socket.create_server(("127.0.0.1", server.port)):
        pass
    await server.close()


async def test_the_heartbeat_measures_a_blocked_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that blocks the event loop shows in the histogram of its lag."""
    monkeypatch.setattr(status, "HEARTBEAT_S", 0.01)
    seen: list[float] = []
    beaten = asyncio.Event()
    metrics = Metrics()

    def observe(seconds: float) -> None:
        seen.append(seconds)
        beaten.set()

    monkeypatch.setattr(metrics, "observe_loop_lag", observe)
    async with StatusServer(ANY_PORT, metrics, WorkerState()):
        await asyncio.sleep(0)
        time.sleep(0.15)  # noqa: ASYNC251 - to block the loop is the point
        await asyncio.wait_for(beaten.wait(), timeout=30)
    assert max(seen) > 0.1
    assert min(seen) >= 0.0
