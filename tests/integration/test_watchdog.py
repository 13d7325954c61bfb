"""A handler that blocks the event loop is reported, and probes still get responses."""

import asyncio
import logging
import socket
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from urllib.error import HTTPError

import pytest

from natsctl import Controller, Object, kv, primary
from natsctl.daemon.http import DEAD_S, Vitals, serving
from natsctl.daemon.metrics import families
from natsctl.daemon.settings.settings import Address
from natsctl.daemon.watchdog import Stall, Watchdog
from natsctl.testing import running
from tests.support.controllers.app_controller import Apps, app_client
from tests.support.eventually import eventually

LIMIT_S = 30.0


class Lamp(Object, frozen=True):
    pass


class Frozen(Controller):
    """Blocks the event loop until a thread sets the event `go`."""

    lamps = primary(kv(Lamp, bucket="lamps"))

    def __init__(self) -> None:
        self.go = threading.Event()

    async def sync_handler(self, key: str) -> float | None:
        self.go.wait(LIMIT_S)  # the line that blocks
        return None


def fetch(url: str, timeout_s: float = LIMIT_S) -> tuple[int, str]:
    """Send the request of a probe, and return status and body."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:
            return response.status, response.read().decode()
    except HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


async def block(controller: Frozen, action: Callable[[], None]) -> None:
    """Let the handler block the loop until *action* has run in a thread."""

    def work() -> None:
        try:
            action()
        finally:
            controller.go.set()

    async with running(controller) as harness:
        thread = threading.Thread(target=work)
        await controller.lamps.put("hall", Lamp())
        thread.start()
        await harness.run_until_idle()
        thread.join()


async def block_until_seen(watchdog: Watchdog, after_report: Callable[[], None]) -> None:
    """Let the handler block the loop until the watchdog reports it and *after_report* has run."""

    def wait() -> None:
        deadline = time.monotonic() + LIMIT_S
        while watchdog.stall is None and time.monotonic() < deadline:
            time.sleep(0.01)
        after_report()

    await block(Frozen(), wait)
    await eventually(lambda: watchdog.stall is None)


@pytest.fixture
async def vitals() -> AsyncIterator[Vitals]:
    vitals = Vitals()
    with vitals.watchdog.watching():
        yield vitals


async def test_a_process_whose_loop_is_blocked_is_live_and_reports_the_key(
    vitals: Vitals, caplog: pytest.LogCaptureFixture
) -> None:
    responses: dict[str, tuple[int, str]] = {}
    with serving(Address("127.0.0.1", 0), vitals) as address:

        def probe() -> None:
            with socket.create_connection((address.host, address.port)):  # blocks nobody
                for path in ("livez", "readyz", "metrics"):
                    responses[path] = fetch(f"http://{address}/{path}")

        await block_until_seen(vitals.watchdog, probe)

        async def is_ok() -> bool:
            return await asyncio.to_thread(fetch, f"http://{address}/livez", 5) == (200, "ok")

        await eventually(is_ok)
    status, live = responses["livez"]
    assert (status, "\n[+]event-loop ok: blocked for " in live) == (200, True)
    status, ready = responses["readyz"]
    assert status == 503
    assert ready.startswith("[-]event-loop failed: blocked for ")
    for body in (live, ready):
        assert "by key hall of frozen" in body
    status, metrics = responses["metrics"]
    assert status == 200
    assert 'natsctl_event_loop_blocked_total{controller="frozen"} 1.0' in metrics
    assert "\nnatsctl_connection_up " not in metrics  # not known
    begun, ended = [line for line in caplog.messages if "key=hall" in line]
    assert begun.startswith("event loop blocked controller=frozen key=hall line=")
    assert "test_watchdog.py" in begun
    assert "self.go.wait(LIMIT_S)  # the line that blocks" in begun
    assert "await self.blocking(…)" in begun
    assert ended.startswith("event loop unblocked controller=frozen key=hall line=")
    assert float(ended.rpartition("duration_s=")[2]) >= 1


async def test_a_line_that_blocks_repeatedly_is_logged_once_and_counted_each_time(
    vitals: Vitals, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        await block_until_seen(vitals.watchdog, lambda: None)
    stalls = vitals.watchdog.stalls["frozen"]
    assert stalls.count == 2
    assert stalls.seconds >= 2
    begun = "event loop blocked controller=frozen key=hall"
    assert caplog.text.count(begun) == 1
    counted = {
        sample.name: sample.value
        for family in families(stalls=vitals.watchdog.stalls)
        for sample in family.samples
        if sample.labels == {"controller": "frozen"}
    }
    assert counted["natsctl_event_loop_blocked_total"] == 2
    assert counted["natsctl_event_loop_blocked_seconds_total"] == stalls.seconds


async def test_a_request_that_waits_for_the_loop_is_answered_when_a_handler_blocks_it(
    vitals: Vitals,
) -> None:
    answers: list[tuple[int, str]] = []
    with serving(Address("127.0.0.1", 0), vitals) as address:
        await block(Frozen(), lambda: answers.append(fetch(f"http://{address}/readyz")))
    assert answers[0][0] == 503
    assert "by key hall of frozen" in answers[0][1]


def test_a_process_that_is_blocked_for_a_minute_is_not_live() -> None:
    vitals = Vitals()
    for blocked_s, passes in ((DEAD_S - 30, True), (DEAD_S + 1, False)):
        started = time.monotonic() - blocked_s
        vitals.watchdog.stall = Stall("frozen", "hall", "frozen.py:9", started)
        assert vitals.live().passed is passes
    assert "[-]event-loop failed: blocked for 61." in vitals.live().text()


async def test_a_running_loop_is_never_reported_as_blocked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watchdog = Watchdog()
    with caplog.at_level(logging.WARNING), watchdog.watching():
        async with running(Frozen()) as harness:
            await harness.run_until_idle()
    assert (watchdog.stalls, caplog.text) == ({}, "")


# ---- workers whose handlers never wait leave time to other tasks

KEYS = 2000
TURN_S = 0.004  # the longest work in one turn of the event loop


class Busy(Apps):
    async def sync_handler(self, key: str) -> float | None:
        self.syncs.append(key)
        return None


async def test_handlers_that_never_wait_do_not_block_the_event_loop() -> None:
    async with running(controller := Busy()) as harness:
        for number in range(KEYS):
            await app_client(harness).app(f"k{number}")
        await harness.run_until_idle()
        controller.syncs.clear()
        harness.runtime.resync()
        begun, iterations = time.thread_time(), 0  # thread time excludes other processes
        while len(controller.syncs) < KEYS:
            await asyncio.sleep(0)
            iterations += 1
        taken_s = time.thread_time() - begun
    assert iterations >= taken_s / TURN_S / 10
