"""A daemon converges although it is killed at random moments."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.cli.forked_process import ForkedProcess, forked
from tests.support.clients.nats_admin import FAILURES, Admin
from tests.support.controllers.copy_controller import COPIES
from tests.support.eventually import eventually
from tests.support.faults.invariants import Checker
from tests.support.faults.nats_test_bed import no_consumers
from tests.support.faults.random_writer import User
from tests.support.servers.nats_server import NatsServer


class Daemon:
    """`natsctl run` as a process that is killed at the end of the test."""

    def __init__(self, url: str, log: Path) -> None:
        self._log = log
        self._command = (
            "run",
            "--controller",
            "tests.support.controllers.copy_controller:Copies",
            "--server",
            url,
        )
        self._process: ForkedProcess | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await forked(*self._command, log=log)

    async def end(self, signal_number: signal.Signals) -> int:
        """Send the signal if the process runs, and return its exit code."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(signal_number)
        return await self._process.wait()


@pytest.fixture
async def daemon(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Daemon]:
    daemon = Daemon(nats_server.url, tmp_path / "log")
    await daemon.start()
    yield daemon
    await daemon.end(signal.SIGKILL)


async def test_a_repeatedly_killed_daemon_converges(
    nats_server: NatsServer, daemon: Daemon
) -> None:
    moments = random.Random(1)
    async with Admin(nats_server.url) as admin:
        user, checker = User(admin), Checker(admin)
        await eventually(lambda: buckets_exist(admin))
        await checker.begin()
        async with user.writing():
            for _ in range(6):
                await asyncio.sleep(moments.uniform(0.2, 2.0))
                await daemon.end(signal.SIGKILL)
                await asyncio.sleep(moments.uniform(0.0, 0.3))
                await daemon.start()
        await checker.settled()
        await checker.only_deleted(user.mortal, user.meddled)
        assert await daemon.end(signal.SIGTERM) == 0
        await eventually(lambda: no_consumers(admin))


async def buckets_exist(admin: Admin) -> bool:
    """Return whether the daemon has created its buckets."""
    with suppress(*FAILURES):
        await admin.info(COPIES)
        return True
    return False
