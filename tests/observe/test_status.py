"""The HTTP server: each path in each phase, and the heartbeat."""

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
from streamdedup.model import Outcome
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
    """Serve the state of a worker on a free port."""
    state, metrics = WorkerState(), Metrics()
    async with (
        StatusServer(ANY_PORT, metrics, state) as server,
        aiohttp.ClientSession() as client,
    ):
        yield Site(state, metrics, server, client)


async def test_start_returns_the_bound_port() -> None:
    """With port 0 the system chooses; start() and the attribute have the result."""
    server = StatusServer(ANY_PORT, Metrics(), WorkerState())
    port = await server.start()
    assert port == server.port > 0
    await server.close()


async def test_only_a_stuck_worker_is_not_live(site: Site) -> None:
    """The orchestrator restarts it; not while it waits for brokers."""
    site.state.enter("waiting_for_broker", "because")
    assert (await site.get("/livez"))[0] == 200
    site.state.stuck = "no step"
    code, _, text = await site.get("/livez")
    assert (code, text) == (503, "no step\n")
    _, _, page = await site.get("/metrics")
    assert 'streamdedup_degraded{reason="stuck"} 1.0\n' in page
    assert 'streamdedup_degraded{reason="broker"} 1.0\n' in page
    assert 'streamdedup_degraded{reason="disk"} 0.0\n' in page


@pytest.mark.parametrize("phase", get_args(Phase))
async def test_ready_only_while_running_or_standing_by(site: Site, phase: Phase) -> None:
    """/readyz is 200 in two phases only, and the gauges agree."""
    site.state.enter(phase, "because")
    code, _, text = await site.get("/readyz")
    ready = phase in {"running", "standby"}
    assert code == (200 if ready else 503)
    assert text.count("\n") == 1
    _, _, page = await site.get("/metrics")
    assert f"streamdedup_ready {float(ready)}\n" in page
    assert f"streamdedup_active {float(phase == 'running')}\n" in page


async def test_a_standby_shows_how_far_it_is_behind(site: Site) -> None:
    """In the explanation, the status and a gauge; a worker that judges is not behind."""
    site.state.enter("standby")
    site.state.replay_done, site.state.replay_total = 5, 12
    assert (await site.get("/readyz"))[2] == "standby: 7 offsets behind\n"
    assert json.loads((await site.get("/status"))[2])["behind"] == 7
    assert "streamdedup_standby_behind 7.0\n" in (await site.get("/metrics"))[2]
    site.state.enter("running")
    assert "streamdedup_standby_behind 0.0\n" in (await site.get("/metrics"))[2]


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
def test_the_explanation_is_one_plain_line(state: WorkerState, text: str) -> None:
    """It says what the worker does, and why."""
    assert state.explanation() == text


async def test_a_reason_does_not_outlive_its_phase(site: Site) -> None:
    """Entering a phase without a reason clears the previous reason."""
    site.state.enter("waiting_for_broker", "no broker answers")
    site.state.enter("running")
    assert await site.get("/readyz") == (200, "text/plain; charset=utf-8", "ready\n")
    assert site.state.reason == ""


async def test_not_ready_while_short(site: Site) -> None:
    """A shortage makes the worker unready while it still judges."""
    site.state.enter("running")
    site.state.shortage = "the disk is full soon"
    assert (await site.get("/readyz"))[::2] == (503, "running: the disk is full soon\n")


@pytest.mark.parametrize("phase", get_args(Phase))
async def test_alive_in_every_phase(site: Site, phase: Phase) -> None:
    """/livez only needs a running event loop: a missing broker must not cause a restart."""
    site.state.enter(phase)
    assert (await site.get("/livez"))[0] == 200


async def test_metrics_are_served(site: Site) -> None:
    """/metrics is the page that Metrics renders, with its content type."""
    site.metrics.count("pool_restarts_total")
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
    site.state.judged[Outcome.KEPT], site.state.documents = 5, 3
    code, content_type, text = await site.get("/status")
    assert (code, content_type) == (200, "application/json; charset=utf-8")
    assert json.loads(text) == {
        "version": streamdedup.__version__,
        "phase": "replaying",
        "active": False,
        "behind": 0,
        "ready": False,
        "explanation": "replaying the changelog: offset 2 of 5",
        "replay": {"done": 2, "total": 5},
        "partitions": 2,
        "positions": {"0": 10, "1": 20},
        "judged": {"kept": 5, "duplicate": 0, "rejected": 0},
        "documents": 3,
        "lag": {"0": 0, "1": 4},
        "applied_offset": 7,
        "quality": None,
    }


@pytest.mark.parametrize("path", ["/nothing", "/metrics/x"])
async def test_other_paths_are_not_found(site: Site, path: str) -> None:
    """Unknown paths return 404."""
    assert (await site.get(path))[0] == 404


async def test_pages_are_read_only(site: Site) -> None:
    """Only GET and HEAD are allowed."""
    url = f"http://127.0.0.1:{site.server.port}/metrics"
    async with site.client.post(url) as response:
        assert response.status == 405
    async with site.client.head(url) as response:
        assert response.status == 200


async def test_requests_are_not_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Frequent probes do not fill the log."""
    with caplog.at_level(logging.DEBUG, "aiohttp"):
        await site.get("/livez")
    assert not caplog.records


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (b"GET /livez HTTP/1.1\r\nHost x\r\n\r\n", b"HTTP/1."),
        (b"GET /livez HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n 18\r\n\r\n", b"HTTP/1."),
        (b"GET /livez HTTP/9\r\n\r\n", b"HTTP/1."),
        (b"CONNECT \r\n\r\n", b"HTTP/0.9"),
    ],
)
async def test_invalid_requests_are_not_logged(
    site: Site, caplog: pytest.LogCaptureFixture, request_: bytes, version: bytes
) -> None:
    """Whoever reaches the port cannot fill the log with tracebacks."""
    reader, writer = await asyncio.open_connection("127.0.0.1", site.server.port)
    writer.write(request_)
    assert (await reader.read(100)).startswith(version)
    writer.close()
    await writer.wait_closed()
    assert not caplog.records
    assert (await site.get("/livez"))[0] == 200


async def test_a_used_port_is_a_settings_error(site: Site) -> None:
    """The message is one line that names the setting."""
    taken = StatusSettings(port=site.server.port)
    with pytest.raises(SettingsError) as caught:
        await StatusServer(taken, Metrics(), WorkerState()).start()
    assert str(caught.value) == (
        f"cannot listen on 127.0.0.1:{site.server.port} (Address already in use); "
        "change status.host or status.port"
    )


async def test_an_unknown_host_is_a_settings_error() -> None:
    """The message for an unresolvable name is one line that names the setting."""
    nowhere = StatusSettings(host="nowhere.invalid", port=0)
    with pytest.raises(SettingsError, match=r"nowhere\.invalid:0 .*status\.host") as caught:
        await StatusServer(nowhere, Metrics(), WorkerState()).start()
    assert "\n" not in str(caught.value)


async def test_closing_frees_the_port_and_ends_the_heartbeat() -> None:
    """After the context the port is free and no task is left; closing twice is allowed."""
    tasks = asyncio.all_tasks()
    async with StatusServer(ANY_PORT, Metrics(), WorkerState()) as server:
        assert {task.get_name() for task in asyncio.all_tasks() - tasks} >= {"heartbeat"}
    assert not [task for task in asyncio.all_tasks() - tasks if task.get_name() == "heartbeat"]
    with socket.create_server(("127.0.0.1", server.port)):
        pass
    await server.close()


async def test_the_heartbeat_measures_a_blocked_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that blocks the event loop is visible in the histogram of its lag."""
    monkeypatch.setattr(status, "HEARTBEAT_S", 0.01)
    seen: list[float] = []
    observed = asyncio.Event()
    metrics = Metrics()

    def observe(seconds: float) -> None:
        seen.append(seconds)
        observed.set()

    monkeypatch.setattr(metrics, "observe_loop_lag", observe)
    async with StatusServer(ANY_PORT, metrics, WorkerState()):
        await asyncio.sleep(0)
        time.sleep(0.15)  # noqa: ASYNC251 - the test blocks the loop on purpose
        await asyncio.wait_for(observed.wait(), timeout=30)
    assert max(seen) > 0.1
    assert min(seen) >= 0.0
