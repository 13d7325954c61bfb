"""A daemon converges although it is killed at random moments."""

import asyncio
import random
import signal
from contextlib import suppress
from pathlib import Path

from tests.support.cli.forked_process import ForkedProcess, forked
from tests.support.clients.nats_admin import FAILURES, Admin
from tests.support.controllers.copy_controller import COPIES
from tests.support.eventually import eventually
from tests.support.faults.invariants import Checker
from tests.support.faults.nats_test_bed import no_consumers
from tests.support.faults.random_writer import User
from tests.support.servers.nats_server import NatsServer


async def test_a_repeatedly_killed_daemon_converges(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    moments = random.Random(1)

    async def started() -> ForkedProcess:
        command = ("run", "-c", "tests.support.controllers.copy_controller:Copies")
        with (tmp_path / "log").open("ab") as log:
            return await forked(*command, "--server", nats_server.url, log=log)

    daemon = await started()
    async with Admin(nats_server.url) as admin:
        user, checker = User(admin), Checker(admin)
        await eventually(lambda: buckets_exist(admin))
        await checker.begin()
        async with user.writing():
            for _ in range(4):
                await asyncio.sleep(moments.uniform(0.2, 1.5))
                daemon.kill()
                await daemon.wait()
                await asyncio.sleep(moments.uniform(0.0, 0.3))
                daemon = await started()
        await checker.settled()
        await checker.only_deleted(user.mortal, user.meddled)
        daemon.send_signal(signal.SIGTERM)
        assert await daemon.wait() == 0
        await eventually(lambda: no_consumers(admin))


async def buckets_exist(admin: Admin) -> bool:
    """Return whether the daemon has created its buckets."""
    with suppress(*FAILURES):
        await admin.info(COPIES)
        return True
    return False
